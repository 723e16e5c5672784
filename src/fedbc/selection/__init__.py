"""Choosing on validation data: FedBC's balance, and any method's hyper-parameters."""

from typing import TYPE_CHECKING

from fedbc.selection.balance import Calibrated, calibrate
from fedbc.selection.calibration import REFERENCES
from fedbc.selection.search import Tuned, tune
from fedbc.selection.study import PRUNERS, SAMPLERS

if TYPE_CHECKING:
    from fedbc.reports import Table

__all__ = [
    "PRUNERS",
    "REFERENCES",
    "SAMPLERS",
    "Calibrated",
    "Tuned",
    "calibrate",
    "calibration_tables",
    "trials_table",
    "tune",
]


def calibration_tables(calibrated: Calibrated) -> "list[Table]":
    """The settings of a calibration, and the methods beside them, as tables to show."""
    from fedbc.selection import calibration_report as report

    found = [report.settings_table(calibrated.outcome, brief=True)]
    return [*found, report.references_table(calibrated.outcome)] if len(calibrated.outcome.references) else found


def trials_table(tuned: Tuned, best: int = 10) -> "Table":
    """The best trials of a study, as a table to show."""
    from fedbc.selection import tuning_report as report

    return report.trials_table(tuned.plan, tuned.outcome, best)

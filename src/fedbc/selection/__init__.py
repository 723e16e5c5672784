"""Choosing on validation data: FedBC's balance, and any method's hyper-parameters."""

from typing import TYPE_CHECKING

from fedbc.selection.balance import Calibrated, calibrate
from fedbc.selection.calibration import CONTROLS, OTHERS, with_tuning
from fedbc.selection.candidates import Gives
from fedbc.selection.search import Tuned, tune
from fedbc.selection.study import PRUNERS, SAMPLERS

if TYPE_CHECKING:
    from fedbc.reports import Table

__all__ = [
    "CONTROLS",
    "OTHERS",
    "PRUNERS",
    "SAMPLERS",
    "Calibrated",
    "Gives",
    "Tuned",
    "calibrate",
    "calibration_tables",
    "trials_table",
    "tune",
    "with_tuning",
]


def calibration_tables(calibrated: Calibrated) -> "list[Table]":
    """All candidates of a calibration, and what each device gets by the recommended one, as tables to show."""
    from fedbc.selection import calibration_report as report

    return [report.candidates_table(calibrated.outcome, brief=True), report.devices_table(calibrated.outcome)]


def trials_table(tuned: Tuned, best: int = 10) -> "Table":
    """The best trials of a study, as a table to show."""
    from fedbc.selection import tuning_report as report

    return report.trials_table(tuned.plan, tuned.outcome, best)

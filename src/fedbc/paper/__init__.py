"""The FedBC paper: its numbers, experiments, hyper-parameters, verdicts, report."""

from typing import TYPE_CHECKING

from fedbc import lazy

if TYPE_CHECKING:
    from fedbc.paper.catalogue import EXPERIMENTS
    from fedbc.paper.experiment import Experiment, Part
    from fedbc.paper.methods import method
    from fedbc.paper.report import write_report
    from fedbc.paper.runner import Runner
    from fedbc.paper.studies import STUDIES, Study
    from fedbc.paper.work import SHOWN, choose, run, select

LATER = {
    "EXPERIMENTS": "catalogue",
    "SHOWN": "work",
    "STUDIES": "studies",
    "Experiment": "experiment",
    "Part": "experiment",
    "Runner": "runner",
    "Study": "studies",
    "choose": "work",
    "method": "methods",
    "run": "work",
    "select": "work",
    "write_report": "report",
}
"""Public names and their modules, imported when they are asked for: a worker that runs one of the reference's variants
has no use for the rest."""

__all__ = [
    "EXPERIMENTS",
    "SHOWN",
    "STUDIES",
    "Experiment",
    "Part",
    "Runner",
    "Study",
    "choose",
    "method",
    "run",
    "select",
    "write_report",
]

__getattr__ = lazy.attributes("fedbc.paper", LATER)

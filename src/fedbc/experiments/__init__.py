"""Specifications of runs, run folders, pictures."""

from fedbc.experiments.spec import RunSpec

__all__ = ["RunSpec"]

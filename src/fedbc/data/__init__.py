"""Federations: data sets split over devices."""

from fedbc.data.federation import Federation, Split, federation
from fedbc.data.synthetic import synthetic

__all__ = ["Federation", "Split", "federation", "synthetic"]

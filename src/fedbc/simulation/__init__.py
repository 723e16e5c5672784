"""The simulator: the round loop of any algorithm on one machine."""

from fedbc.simulation.curves import draw_curves
from fedbc.simulation.metrics import has_accuracy
from fedbc.simulation.result import Result
from fedbc.simulation.rounds import Simulation
from fedbc.simulation.simulate import simulate

__all__ = ["Result", "Simulation", "draw_curves", "has_accuracy", "simulate"]

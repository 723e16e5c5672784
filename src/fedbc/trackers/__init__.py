"""Experiment trackers: a run's history, specification and summary in TensorBoard, MLflow or Weights & Biases."""

from fedbc.trackers.base import Tracker, TrackerWarning
from fedbc.trackers.mlflow import MLflow
from fedbc.trackers.tensorboard import TensorBoard
from fedbc.trackers.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "TrackerWarning", "WandB"]

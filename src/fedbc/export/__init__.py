"""A result's models for others: safetensors and a model card always, a PyTorch state_dict or ONNX for known models."""

from fedbc.export.card import model_card
from fedbc.export.files import export
from fedbc.export.onnx import to_onnx

__all__ = ["export", "model_card", "to_onnx"]

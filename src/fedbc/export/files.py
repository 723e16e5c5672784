"""The folder of an exported model."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from fedbc import checks, storage
from fedbc.errors import InputError
from fedbc.export.card import model_card
from fedbc.export.onnx import to_onnx
from fedbc.simulation import Result
from fedbc.simulation.answers import Answers


def export(
    result: Result, folder: str | Path, *, device: Any = None, torch: bool = False, onnx: bool = False
) -> list[Path]:
    """Write a model of a result into a new folder, with a model card and what its numbers stand for.

    device: whose own model, by name or number; the global model if not given.
    torch: also as the state_dict of the equal PyTorch module (`fedbc.torch.models`), for the package's own models.
    onnx: also as an ONNX graph, for `logistic`, `linear` and `mlp`; needs the package onnx.
    """
    target = checks.path("folder", folder)
    params = Answers(result).models_of(device)
    others: dict[str, bytes] = {}
    if torch:
        others["state_dict.pt"] = _state_dict(params)
    if onnx:
        others["model.onnx"] = to_onnx(result, device).SerializeToString()
    card = model_card(result, device)
    with storage.new_folder(target) as new:
        storage.write_arrays(new / "model.safetensors", storage.named(params), {"model": result.spec.get("model", {})})
        storage.write_atomically(new / "model-card.md", card)
        storage.write_atomically(new / "meaning.json", storage.to_json(result.meaning.to_plain()))
        for name, content in others.items():
            storage.write_atomically(new / name, content)
    return sorted(target.iterdir())


def _state_dict(params: Any) -> bytes:
    """As `torch.load` reads it."""
    try:
        import torch

        from fedbc.torch import to_torch
    except ModuleNotFoundError:
        raise InputError("a state_dict needs PyTorch: pip install 'fedbc[torch]'") from None
    file = io.BytesIO()
    torch.save(to_torch(params), file)
    return file.getvalue()

"""The dense layers of the package's plain models, which other formats are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedbc.errors import InputError
from fedbc.simulation import Result
from fedbc.simulation.answers import Answers


class Dense(NamedTuple):
    """One dense layer."""

    name: str
    weight: np.ndarray
    """inputs × outputs"""
    bias: np.ndarray


def dense_layers(result: Result, device: Any) -> list[Dense]:
    """The dense layers of logistic or linear regression (one), or of an MLP (two, with a ReLU between them)."""
    asked = Answers(result)
    params = asked.models_of(device)
    shape = sorted(params) if isinstance(params, dict) else []
    if shape == ["b", "w"]:
        return [Dense("out", np.asarray(params["w"]), np.asarray(params["b"]))]
    if shape == ["hidden", "out"]:
        return [Dense(name, np.asarray(params[name]["w"]), np.asarray(params[name]["b"])) for name in shape]
    raise InputError(
        f"model {asked.model.name} cannot be written in this form: it is for logistic, linear and mlp; the safetensors "
        "file holds any model's arrays"
    )

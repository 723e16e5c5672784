"""ONNX: a graph of the same network, for runtimes that know no Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbc.errors import InputError
from fedbc.export.layers import dense_layers
from fedbc.simulation import Result

OPSET = 17
"""A version of the operators that all runtimes of late read."""


def to_onnx(result: Result, device: Any = None) -> Any:
    """The model as an ONNX graph from "x", rows of numbers as the model takes them, to "outputs".

    device: whose own model, by name or number; the global model if not given.
    """
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ImportError:
        raise InputError("ONNX needs the package onnx: pip install 'fedbc[onnx]'") from None
    layers = dense_layers(result, device)
    nodes, constants, value = [], [], "x"
    for number, layer in enumerate(layers):
        weight, bias = f"{layer.name}.weight", f"{layer.name}.bias"
        constants += [
            numpy_helper.from_array(layer.weight.astype(np.float32), weight),
            numpy_helper.from_array(layer.bias.astype(np.float32), bias),
        ]
        is_last = number == len(layers) - 1
        product = "outputs" if is_last else f"{layer.name}.product"
        nodes.append(helper.make_node("Gemm", [value, weight, bias], [product]))
        if not is_last:
            value = f"{layer.name}.relu"
            nodes.append(helper.make_node("Relu", [product], [value]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", layers[0].weight.shape[0]), ("outputs", layers[-1].weight.shape[1]))
    ]
    graph = helper.make_graph(nodes, "fedbc", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="fedbc")
    model.ir_version = min(model.ir_version, 10)  # what runtimes of late read
    for key, names in (("features", _features(result)), ("classes", result.meaning.class_names)):
        if names:
            entry = model.metadata_props.add()
            entry.key, entry.value = key, "\n".join(names)
    checker.check_model(model)
    return model


def _features(result: Result) -> list[str]:
    return result.meaning.encoding.features if result.meaning.encoding is not None else []

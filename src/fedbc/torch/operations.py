"""JAX's operations on numbers, and on vectors of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Unknown(Exception):
    """An operation that has no counterpart here."""


_TYPES = {"float32": torch.float32, "float64": torch.float64, "bool": torch.bool, "int32": torch.int32}
_SCALAR: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "neg": np.negative,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "square": np.square,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "cos": np.cos,
    "sin": np.sin,
    "is_finite": np.isfinite,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "rem": np.fmod,
    "clamp": lambda low, x, high: np.clip(x, low, high),
}
_VECTOR: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "add_any": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "max": torch.maximum,
    "min": torch.minimum,
    "pow": torch.pow,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "square": torch.square,
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "tanh": torch.tanh,
    "abs": torch.abs,
    "sign": torch.sign,
    "is_finite": lambda x, out: torch.isfinite(x),
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "not": torch.logical_not,
}


def scalar_operation(equation: Any) -> Callable[..., Any]:
    """What an equation does with numbers."""
    name, params = equation.primitive.name, equation.params
    if name == "integer_pow":
        return lambda x: np.float64(x) ** params["y"]
    if name == "select_n":
        return lambda which, *cases: cases[int(which)]
    if name == "convert_element_type":
        kind = np.dtype(params["new_dtype"]).kind
        return {"f": float, "i": int, "u": int, "b": bool}[kind]
    if name == "exp2":
        return np.exp2
    if name not in _SCALAR:
        raise Unknown(name)
    whole = name == "div" and equation.outvars[0].aval.dtype.kind in "iu"
    work = np.floor_divide if whole else _SCALAR[name]

    def run(*values: Any) -> Any:
        with np.errstate(all="ignore"):
            return work(*values).item()

    return run


def vector_operation(equation: Any) -> Callable[..., Tensor]:
    """What an equation does with vectors; `out` is where the result may be written."""
    name, params = equation.primitive.name, equation.params
    out_aval = equation.outvars[0].aval
    kinds = [a.aval for a in equation.invars]
    if name == "integer_pow":
        return lambda x, out: torch.pow(x, params["y"], out=out)
    if name == "convert_element_type":
        wanted = _TYPES.get(np.dtype(params["new_dtype"]).name)
        if wanted is None:
            raise Unknown(f"conversion to {params['new_dtype']}")
        return lambda x, out: x.to(wanted)
    if name == "reduce_sum" and out_aval.ndim == 0:
        return lambda x, out: x.sum()
    if name == "reduce_max" and out_aval.ndim == 0:
        return lambda x, out: x.max()
    if name == "reduce_and" and out_aval.ndim == 0:
        return lambda x, out: x.all()
    if name == "dot_general" and out_aval.ndim == 0 and all(a.ndim == 1 for a in kinds):
        return lambda a, b, out: torch.dot(a, b)
    if name == "broadcast_in_dim" and kinds[0].ndim == 0:
        wanted = _TYPES.get(np.dtype(out_aval.dtype).name)
        if wanted is None:
            raise Unknown(f"a vector of {out_aval.dtype}")
        return lambda x, out: torch.full(out_aval.shape, x, dtype=wanted)
    if name in ("reshape", "squeeze"):
        return lambda x, out: x.reshape(out_aval.shape)
    if name == "select_n" and len(kinds) == 3:

        def select(which: Any, no: Any, yes: Any, out: Any) -> Tensor:
            if not isinstance(which, Tensor):
                return (yes if which else no).clone()
            return torch.where(which, yes, no)

        return select
    if name == "clamp":
        return lambda low, x, high, out: torch.clamp(x, low, high, out=out)
    if name not in _VECTOR:
        raise Unknown(name)
    work = _VECTOR[name]
    wanted = torch.float64 if out_aval.dtype == np.float64 else torch.float32
    numbers_too = name in ("add", "add_any", "sub", "mul", "div", "pow", "lt", "le", "gt", "ge", "eq", "ne")

    def run(*values: Any, out: Tensor | None) -> Tensor:
        if out is not None and out.dtype != wanted:
            out = None
        if not isinstance(values[0], Tensor) or (not numbers_too and not all(isinstance(v, Tensor) for v in values)):
            values = tuple(v if isinstance(v, Tensor) else torch.tensor(v, dtype=wanted) for v in values)
        return work(*values, out=out)

    return run

"""Whether a model and a federation fit together: by the shapes and types of what they exchange. All that is computed is
a loss of one's own, of two examples.

Shapes that do not fit are broadcast by JAX rather than refused: outputs (n, 1) less targets (n,) are n × n numbers,
from which a model learns nonsense. So all that a model gives back is held to what it should be, before a run begins.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbc.data.federation import Federation
from fedbc.errors import InputError, first_line
from fedbc.models.base import Model, cross_entropy, half_squared_error

Shaped = jax.ShapeDtypeStruct
MOST_LABELS = 10_000
"""Among so many there will be two different ones."""
PRIMES = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41)


def check_fit(model: Model, federation: Federation) -> None:
    """An InputError unless the model takes the federation's examples, and its loss the labels."""
    params = _parameters(model)
    sizes = {size for leaf in jax.tree.leaves(params) for size in leaf.shape} | set(federation.train.x.shape[1:])
    # So many examples as nothing else counts: an output of this length has one row per example.
    n = next((p for p in PRIMES if p not in sizes), PRIMES[-1])
    stored, y = _batch(federation.train.x, n), _batch(federation.train.y, n)
    try:
        x = jax.eval_shape(federation.decode, federation.shared, stored)
        outputs = jax.eval_shape(model.outputs, params, x)
    except InputError:  # it says what is wrong
        raise
    except Exception as error:
        raise InputError(
            f"model {model.name} does not take examples of shape {stored.shape[1:]} of data {federation.name}: "
            f"{first_line(error)}"
        ) from error
    if not isinstance(outputs, Shaped):
        raise InputError(f"model {model.name} gives a {type(outputs).__name__}: apply must give one array")
    if outputs.shape[:1] != (n,):
        raise InputError(
            f"model {model.name} gives outputs of shape {outputs.shape} for {n} examples: "
            "apply must give a row per example"
        )
    _check_judge(model.loss, "loss", "real numbers", jnp.floating, model, outputs, y)
    _check_is_by_example(model, outputs, federation.train.y)
    if model.correct is not None:
        _check_judge(model.correct, "correct", "true or false", jnp.bool_, model, outputs, y)
        wanted = federation.classes
        if wanted is not None and len(outputs.shape) > 1 and outputs.shape[-1] < wanted:
            raise InputError(
                f"model {model.name} has {outputs.shape[-1]} outputs but data {federation.name} has {wanted} classes: "
                f"give a model with at least {wanted} outputs"
            )


def _batch(stored: Any, n: int) -> Shaped:
    return Shaped((n, *stored.shape[1:]), jax.dtypes.canonicalize_dtype(stored.dtype))


def _parameters(model: Model) -> Any:
    """The shapes of the model's parameters, which must be such as can be trained."""
    try:
        params = jax.eval_shape(model.init, jax.random.key(0))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"model {model.name} cannot be initialised: {first_line(error)}") from error
    leaves = jax.tree_util.tree_leaves_with_path(model.trained(params))
    if not leaves:
        raise InputError(f"model {model.name} has no parameters: init(key) must give some to train")
    width = jnp.result_type(float)
    for path, leaf in leaves:
        if leaf.dtype not in (jnp.float32, width):
            raise InputError(
                f"model {model.name} has parameters of type {leaf.dtype} ({jax.tree_util.keystr(path).strip('.')}): "
                f"parameters are trained, and must be {width}; keep what is not trained outside of init"
            )
    return params


def _check_judge(judge: Any, name: str, what: str, kind: Any, model: Model, outputs: Shaped, y: Shaped) -> None:
    """`loss` and `correct` give one value per example."""
    try:
        values = jax.eval_shape(judge, outputs, y)
    except InputError as error:  # our own losses say what they want
        raise InputError(f"model {model.name}: {error}") from None
    except Exception as error:
        raise InputError(
            f"model {model.name}: {name} does not take outputs of shape {outputs.shape[1:]} and labels of shape "
            f"{y.shape[1:]} and type {y.dtype} an example: {first_line(error)}"
        ) from error
    n = outputs.shape[0]
    if not isinstance(values, Shaped) or values.shape != (n,):
        shown = f"shape {values.shape}" if isinstance(values, Shaped) else f"a {type(values).__name__}"
        raise InputError(
            f"model {model.name}: {name} gives {shown} for {n} examples: give one value per example, ({n},)"
        )
    if not jnp.issubdtype(values.dtype, kind):
        raise InputError(f"model {model.name}: {name} gives values of type {values.dtype}: give {what}")


def _check_is_by_example(model: Model, outputs: Shaped, y: Any) -> None:
    """An example's loss is the same with another one beside it: a mean over what was broadcast has the right shape."""
    if model.loss in (cross_entropy, half_squared_error) or model.rounds is not None:
        return
    some = np.asarray(y[:MOST_LABELS])
    other = np.flatnonzero((some != some[:1]).reshape(len(some), -1).any(1)) if some.size else some
    if not len(other):
        return
    labels = jnp.asarray(y[[0, other[0]]])
    shape = (2, *outputs.shape[1:])
    given = jnp.linspace(0.1, 0.9, math.prod(shape), dtype=outputs.dtype).reshape(shape)  # a probability, too
    together, alone = float(model.loss(given, labels)[0]), float(model.loss(given[:1], labels[:1])[0])
    if not np.isclose(together, alone, rtol=1e-3, equal_nan=True):
        raise InputError(
            f"model {model.name}: loss gives an example {alone:.4g} by itself but {together:.4g} beside another one: "
            f"of outputs {outputs.shape[1:]} and labels {y.shape[1:]} an example it makes something of all with all"
        )

"""Models written in Flax or Equinox, as fedbc takes them. Neither library is needed unless its adapter is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fedbc import checks
from fedbc.errors import InputError
from fedbc.models.base import Array, Model, Params, cross_entropy, is_largest

Loss = Callable[[Array, Array], Array]


def from_flax(
    module: Any,
    example_input: Any,
    *,
    training: str | None = None,
    statistics: str | None = "local",
    loss: Loss = cross_entropy,
    correct: Loss | None = is_largest,
) -> Model:
    """A model from a module of `flax.linen`; its parameters are Flax's `params` dictionary.

    module: the module, taking a batch.
    example_input: a batch of the shape and type of the data (any number of examples), from which Flax infers shapes.
    training: for a module with dropout, the name of the argument of its `__call__` that tells training from evaluation:
        usually "train" (true in training) or "deterministic" (false in training).
    statistics: for a module with other variables than parameters (`batch_stats` of a BatchNorm): "local" if they stay
        with each device, "averaged" if the server averages them with the model.
    loss, correct: as in `Model`.
    """
    if not (hasattr(module, "init") and hasattr(module, "apply")):
        raise InputError(
            f"module={module!r} is not a module of flax.linen: for a module of flax.nnx use fedbc.models.from_nnx"
        )

    def switch(in_training: bool) -> dict[str, bool]:
        if training is None:
            return {}
        return {training: in_training != (training == "deterministic")}

    def init(key: Array) -> Params:
        variables = module.init(key, example_input, **switch(False))
        others = {name: kept for name, kept in variables.items() if name != "params"}
        return {"params": variables["params"], "statistics": others} if others else variables["params"]

    def apply(params: Params, x: Array, key: Array | None = None) -> Any:
        rngs = {} if key is None else {"dropout": key}
        if not keeps:
            return module.apply({"params": params}, x, rngs=rngs, **switch(key is not None))
        variables = {"params": params["params"], **params["statistics"]}
        if key is None:
            return module.apply(variables, x, **switch(False))
        return module.apply(variables, x, rngs=rngs, mutable=list(params["statistics"]), **switch(True))

    keeps = set(jax.eval_shape(lambda key: module.init(key, example_input, **switch(False)), jax.random.key(0))) != {
        "params"
    }
    if keeps:
        _check_statistics(statistics, training, type(module).__name__)
    return Model(
        init,
        apply,
        loss,
        correct,
        stochastic=training is not None,
        name=type(module).__name__,
        statistics=statistics if keeps else None,
    )


def _check_statistics(statistics: str | None, training: str | None, name: str) -> None:
    checks.choice("statistics", str(statistics), ["local", "averaged"])
    if training is None:
        raise InputError(
            f"module={name} keeps statistics, which follow training: give the argument of its __call__ that tells "
            'training from evaluation, such as training="train"'
        )


def from_nnx(
    make: Callable[[Any], Any],
    *,
    loss: Loss = cross_entropy,
    correct: Loss | None = is_largest,
) -> Model:
    """A model from a module of `flax.nnx` without dropout; its parameters are a nested dictionary.

    make: `make(rngs)` gives the module, which takes a batch.
    loss, correct: as in `Model`.
    """
    from flax import nnx

    def split(key: Array) -> tuple[Any, Any]:
        parts: tuple[Any, ...] = nnx.split(make(nnx.Rngs(key)), nnx.Param, ...)
        graph, parameters, others = parts
        if jax.tree.leaves(others):
            raise InputError(
                "make gives a module that keeps state besides its parameters: use layers without running state and "
                "without dropout"
            )
        return graph, parameters

    graph, template = split(jax.random.key(0))

    def init(key: Array) -> Params:
        return nnx.to_pure_dict(split(key)[1])

    def apply(params: Params, x: Array) -> Array:
        state = jax.tree.map(lambda leaf: leaf, template)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)(x)

    return Model(init, apply, loss, correct, name=getattr(make, "__name__", "nnx"))


def from_equinox(
    make: Callable[[Array], Any],
    *,
    dropout: bool = False,
    loss: Loss = cross_entropy,
    correct: Loss | None = is_largest,
) -> Model:
    """A model from an Equinox module; its parameters are the module with everything but floating-point arrays left out.

    `equinox.combine(params, make(key))` gives a whole module back.

    make: `make(key)` gives the module, which takes one example, as is Equinox's custom.
    dropout: whether the module takes `key=`, for dropout. Evaluation is in `equinox.nn.inference_mode`.
    loss, correct: as in `Model`.
    """
    import equinox

    built = make(jax.random.key(0))
    if not callable(built):
        raise InputError(
            f"make gives a {type(built).__name__}, not a module that can be called: use layers without running state"
        )
    # All that is not trained (functions, sizes, integer arrays) is the same for every key.
    static = equinox.partition(built, equinox.is_inexact_array)[1]

    def init(key: Array) -> Params:
        return equinox.filter(make(key), equinox.is_inexact_array)

    def apply(params: Params, x: Array, key: Array | None = None) -> Array:
        module = equinox.combine(params, static)
        if key is None:
            return jax.vmap(equinox.nn.inference_mode(module))(x)
        return jax.vmap(lambda example, k: module(example, key=k))(x, jax.random.split(key, x.shape[0]))

    return Model(init, apply, loss, correct, stochastic=dropout, name=type(built).__name__)

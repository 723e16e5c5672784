"""Models written in Flax or Equinox, as fedbc takes them. Neither library is needed unless its adapter is called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax

from fedbc import checks
from fedbc.errors import InputError
from fedbc.models.base import Array, Model, Params, cross_entropy, is_largest

Loss = Callable[[Array, Array], Array]


_ADAPTERS = {
    ("torch.nn", "Module"): "fedbc.torch.model(MyModule)",
    ("flax.linen", "Module"): "fedbc.models.from_flax(module, example_input)",
    ("flax.nnx", "Module"): "fedbc.models.from_nnx(make)",
    ("equinox", "Module"): "fedbc.models.from_equinox(make)",
}
"""By the library and its class of modules."""


def adapter_of(value: Any) -> str | None:
    """The call that makes a model of a module, or class of modules, of another library; None for anything else."""
    kind = value if isinstance(value, type) else type(value)
    for (library, name), call in _ADAPTERS.items():
        imported = sys.modules.get(library)
        if imported is not None and issubclass(kind, getattr(imported, name)):
            return call
    return None


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
    statistics: str = "local",
    loss: Loss = cross_entropy,
    correct: Loss | None = is_largest,
) -> Model:
    """A model from a module of `flax.nnx`; its parameters are a nested dictionary.

    Training and evaluation are those of the module's `train()` and `eval()`; dropout draws anew for each batch.

    make: `make(rngs)` gives the module, which takes a batch.
    statistics: for a module with other variables than parameters, as a BatchNorm has: "local" if they stay with each
        device, "averaged" if the server averages them with the model.
    loss, correct: as in `Model`.
    """
    from flax import nnx

    checks.choice("statistics", statistics, ["local", "averaged"])

    def split(module: Any) -> tuple[Any, ...]:
        return nnx.split(module, nnx.Param, nnx.RngState, ...)

    graph, template, generators, rest = split(make(nnx.Rngs(jax.random.key(0))))
    streams = {kind.tag for kind in jax.tree.leaves(generators, is_leaf=lambda node: isinstance(node, nnx.RngState))}
    keeps = bool(jax.tree.leaves(rest))

    def filled(state: Any, values: Any) -> Any:
        own = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(own, values)
        return own

    def init(key: Array) -> Params:
        _, params, _, others = map(_pure, split(make(nnx.Rngs(key))))
        return {"params": params, "statistics": others} if keeps else params

    def _pure(state: Any) -> Any:
        return nnx.to_pure_dict(state) if isinstance(state, nnx.State) else state

    def apply(params: Params, x: Array, key: Array | None = None) -> Any:
        parts = params if keeps else {"params": params, "statistics": {}}
        own = jax.tree.map(lambda leaf: leaf, generators)
        others = filled(rest, parts["statistics"])
        module = nnx.merge(graph, filled(template, parts["params"]), own, others)
        if key is None:
            module.eval()
            return module(x)
        module.train()
        keys: dict[str, Any] = dict.fromkeys(streams, key)
        nnx.reseed(module, **keys)
        outputs = module(x)
        return (outputs, _like(_pure(split(module)[3]), parts["statistics"])) if keeps else outputs

    name = getattr(make, "__name__", "nnx")
    kept = statistics if keeps else None
    return Model(init, apply, loss, correct, stochastic=keeps or bool(streams), name=name, statistics=kept)


def from_equinox(
    make: Callable[[Array], Any],
    *,
    dropout: bool = False,
    statistics: str = "local",
    axis_name: str = "batch",
    loss: Loss = cross_entropy,
    correct: Loss | None = is_largest,
) -> Model:
    """A model from an Equinox module; its parameters are the module with everything but floating-point arrays left out.

    `equinox.combine(params, make(key))` gives a whole module back.

    make: `make(key)` gives the module, which takes one example, as is Equinox's custom; or the module and its state, as
        `equinox.nn.make_with_state` does: the module then takes the state, too, and gives it back.
    dropout: whether the module takes `key=`, for dropout. Evaluation is in `equinox.nn.inference_mode`.
    statistics: of a module with state: "local" if it stays with each device, "averaged" if the server averages it with
        the model.
    axis_name: the name of the axis of a batch's examples, which Equinox's BatchNorm asks for.
    loss, correct: as in `Model`.
    """
    import equinox

    checks.choice("statistics", statistics, ["local", "averaged"])

    def made(key: Array) -> tuple[Any, dict[str, Array]]:
        """The module, and the arrays of its state, numbered."""
        found = make(key)
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], equinox.nn.State):
            leaves = jax.tree.leaves(found[1])
            return found[0], {f"{i:03d}": leaf for i, leaf in enumerate(leaves)}
        return found, {}

    built, first = made(jax.random.key(0))
    structure = jax.tree.structure(make(jax.random.key(0))[1]) if first else None
    if not callable(built):
        raise InputError(
            f"make gives a {type(built).__name__}, not a module that can be called: give the module, or the module and "
            "its state, as equinox.nn.make_with_state does"
        )
    # All that is not trained (functions, sizes, integer arrays) is the same for every key.
    static = equinox.partition(built, equinox.is_inexact_array)[1]

    def init(key: Array) -> Params:
        module, state = made(key)
        params = equinox.filter(module, equinox.is_inexact_array)
        return {"params": params, "statistics": state} if state else params

    def apply(params: Params, x: Array, key: Array | None = None) -> Any:
        module = equinox.combine(params["params"] if first else params, static)
        module = equinox.nn.inference_mode(module) if key is None else module
        keys = jax.random.split(key, x.shape[0]) if dropout and key is not None else None

        def one(example: Array, state: Any, key: Array | None) -> Any:
            given = {"key": key} if key is not None else {}
            return module(example, state, **given) if first else (module(example, **given), None)

        kept = params["statistics"] if first else {}
        state = jax.tree.unflatten(structure, list(kept.values())) if first else None
        batched = jax.vmap(one, in_axes=(0, None, 0), out_axes=(0, None), axis_name=axis_name)
        outputs, new = batched(x, state, keys)
        if key is None or not first:
            return outputs
        return outputs, _like(dict(zip(kept, jax.tree.leaves(new), strict=True)), kept)

    name, kept = type(built).__name__, statistics if first else None
    return Model(init, apply, loss, correct, stochastic=dropout or bool(first), name=name, statistics=kept)


def _like(new: Any, old: Any) -> Any:
    """In the types of before: counters lose theirs where they are increased."""
    return jax.tree.map(lambda value, before: jax.numpy.asarray(value, before.dtype), new, old)

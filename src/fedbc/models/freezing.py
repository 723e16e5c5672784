"""Frozen parameters: a model of which only a part is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedbc.errors import InputError
from fedbc.models.base import Array, Model, Params


def freeze(model: Model, trained: Callable[[str], bool] | Any, *, seed: int = 0, weights: Params = None) -> Model:
    """A model of which only some parameters are trained; the others are constants of it.

    What is frozen is not kept for each device, not sent, no part of the summand nor of ‖x_i - z‖². The parameters of
    the new model are a dictionary of the trained ones, by their names in the old one.

    trained: a function from a parameter's name, such as "layers.0.w", to whether it is trained; or a tree of true and
        false in the form of the parameters.
    seed: of the frozen parameters' values, which are the same in every run.
    weights: all parameters, of a network that was trained before; then every run starts from these.
    """
    if model.statistics is not None or model.rounds is not None:
        raise InputError(
            f"model {model.name} cannot be frozen here: for a module of PyTorch set requires_grad=False; "
            "a model with statistics is not supported"
        )
    whole = model.init(jax.random.key(seed)) if weights is None else weights
    leaves, structure = jax.tree_util.tree_flatten_with_path(whole)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    chosen = _chosen(model, trained, names, structure)
    if not any(chosen):
        raise InputError(f"no parameter of model {model.name} is trained; there are {', '.join(names)}")
    frozen = [None if own else jnp.asarray(leaf) for own, (_, leaf) in zip(chosen, leaves, strict=True)]

    def init(key: Array) -> dict[str, Array]:
        start = jax.tree.leaves(model.init(key) if weights is None else weights)
        return {name: leaf for name, leaf, own in zip(names, start, chosen, strict=True) if own}

    def apply(params: dict[str, Array], x: Array, **rest: Any) -> Array:
        every = [params[name] if own else leaf for name, own, leaf in zip(names, chosen, frozen, strict=True)]
        return model.apply(jax.tree.unflatten(structure, every), x, **rest)

    return dataclasses.replace(model, init=init, apply=apply, tiny=False)


def _chosen(model: Model, trained: Any, names: list[str], structure: Any) -> list[bool]:
    if callable(trained):
        return [bool(trained(name)) for name in names]
    mask, form = jax.tree.flatten(trained)
    if form != structure or not all(isinstance(own, bool) for own in mask):
        raise InputError(f"trained is no tree of true and false in the form of the parameters of model {model.name}")
    return mask

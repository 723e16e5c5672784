"""The shapes of everything that a method moves for a model, found without computing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedbc.algorithms.base import INFO, Algorithm, Context
from fedbc.errors import InputError
from fedbc.models.base import Model


@dataclass(frozen=True)
class Shapes:
    """Pytrees of shapes and types."""

    params: Any
    server: Any
    broadcast: Any
    device: Any
    summand: Any
    info: tuple[str, ...]
    """the names of a device's diagnostics"""
    duals: bool
    """whether a device has lambda_i and gamma_i"""

    @classmethod
    def of(cls, algorithm: Algorithm, model: Model) -> Shapes:
        """The shapes for an algorithm and a model; diagnostics that lack a field of `INFO` are an InputError."""
        params = jax.eval_shape(model.init, jax.random.key(0))
        server = jax.eval_shape(algorithm.init_server, params)
        broadcast = jax.eval_shape(algorithm.broadcast, server)
        # A context to find shapes with.
        context = Context(*(jnp.asarray(value, jnp.int32) for value in (0, 1, 1)))
        device = jax.eval_shape(algorithm.init_device, params, context)

        def work(broadcast: Any, device: Any) -> tuple[Any, Any]:
            done = algorithm.finish(algorithm.begin(broadcast, device, context))
            return done.summand, done.info

        summand, info = jax.eval_shape(work, broadcast, device)
        duals = jax.eval_shape(algorithm.duals, device) is not None
        return cls(params, server, broadcast, device, summand, _check_info(algorithm, info), duals)


def _check_info(algorithm: Algorithm, info: Any) -> tuple[str, ...]:
    """The names of the diagnostics, all of which are single numbers."""
    whose = f"algorithm {algorithm.name}: the info that its finish gives"
    if not isinstance(info, dict):
        raise InputError(f"{whose} is a {type(info).__name__}: give a dict with {', '.join(INFO)}")
    for name, meaning in INFO.items():
        if name not in info:
            raise InputError(f"{whose} lacks {name!r}: give {meaning}, one number")
    for name, value in info.items():
        shape = getattr(value, "shape", None)
        if shape != ():
            what = f"of shape {shape}" if shape is not None else f"a {type(value).__name__}"
            raise InputError(f"{whose} has {name!r} {what}: give {INFO.get(name, 'a scalar')}, one number")
    return tuple(info)

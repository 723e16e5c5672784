"""Where a run starts from: another run's end, or a model that is there already."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import storage
from fedbc.algorithms.base import Algorithm
from fedbc.algorithms.domains import Domain
from fedbc.errors import InputError
from fedbc.models.base import Model
from fedbc.simulation.device import run_key
from fedbc.simulation.result import Result, RunFolder, State
from fedbc.simulation.schedule import INIT
from fedbc.simulation.store import DeviceStore


class Start(NamedTuple):
    """What a run begins with."""

    params: Any
    """the global model"""
    state: State | None
    """the server's and the devices' states, of a run that is gone on with"""


def draw_parameters(model: Model, seed: int) -> Any:
    """A model's, by a run's seed; of JAX's own types, so that a number of Python's or NumPy's in them is one, too."""
    drawn = _numpy_numbers()
    params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), model.init(run_key(seed, INIT)))
    if drawn != _numpy_numbers():
        again = model.init(run_key(seed, INIT))
        if not all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(again), strict=True)):
            raise InputError(
                f"model {model.name} gives other parameters for the same key, so that methods would start differently "
                "and no run could be repeated: draw them from init's key, not from NumPy's random numbers"
            )
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(params)):
        raise InputError(f"model {model.name} begins with a parameter that is not finite: see what init(key) gives")
    return params


def read_start(initial: Any, algorithm: Algorithm, model: Model) -> Start:
    """From a result, the folder of a run, or a model's parameters.

    A run of the same algorithm hands on the server's and the devices' states; any other one only its global model.
    """
    like = jax.eval_shape(model.init, jax.random.key(0))
    if isinstance(initial, str | Path):
        return _from_folder(RunFolder(initial), algorithm, like)
    if isinstance(initial, Result):
        state = initial.state if initial.spec["algorithm"].get("name") == algorithm.name else None
        return Start(fitted(initial.global_model, like), state)
    return Start(fitted(initial, like), None)


def fitted(params: Any, like: Any) -> Any:
    """Parameters in the model's structure and types; an InputError if they are another model's, or not finite."""
    given, wanted = storage.named(params), jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), like)
    shapes = {name: a.shape for name, a in storage.named(wanted).items()}
    if {name: a.shape for name, a in given.items()} != shapes:
        raise InputError(
            f"initial has the parameters {_described({n: a.shape for n, a in given.items()})}, but the model takes "
            f"{_described(shapes)}: give a model of the same kind"
        )
    bad = [name for name, a in given.items() if not np.isfinite(a).all()]
    if bad:
        raise InputError(f"initial has a value in {bad[0]} that is not finite: give a model whose training went well")
    restored = storage.restored(like, given)
    return jax.tree.map(lambda a, s: np.asarray(a, s.dtype), restored, like)


def origin(initial: Any, server: Any, store: DeviceStore) -> dict[str, Any]:
    """What tells a run that started elsewhere from one that did not: a checksum of all that it began with."""
    if initial is None:
        return {}
    value = 0
    for array in jax.tree.leaves((server, store.devices, store.stacks)):
        value = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, value)
    return {"initial": f"{value:08x}"}


def check_states(domain: Domain, algorithm: Algorithm, server: Any, store: DeviceStore) -> None:
    """Raise an InputError unless the models of a run that is gone on with lie in the set.

    None is projected: where the server keeps sums of what devices sent, the two would no longer agree.
    """
    local = jax.vmap(algorithm.local_model)(store.stacks)
    models = {f"local model of device {device}": number for number, device in enumerate(store.devices.tolist())}
    outside = [whose for whose, i in models.items() if not domain.holds(jax.tree.map(lambda a, i=i: a[i], local))]
    if not domain.holds(algorithm.global_model(server)):
        outside.insert(0, "global model")
    if outside:
        raise InputError(
            f"initial brings a {outside[0]} outside of domain={domain.described()!r}: give that run the domain, too, "
            "or begin with its global_model alone, which is projected"
        )


def _from_folder(folder: RunFolder, algorithm: Algorithm, like: Any) -> Start:
    result = folder.read()
    params = fitted(result.global_model, like)
    if result.spec["algorithm"].get("name") != algorithm.name or not folder.has_checkpoint:
        return Start(params, None)
    arrays, _ = storage.read_arrays(folder.checkpoint)
    server = storage.restored(jax.eval_shape(algorithm.init_server, like), arrays, "server")
    under = {name: a for name, a in arrays.items() if name.startswith("devices.") or name == "devices"}
    return Start(params, State(server, arrays["participants"], under, from_file=True))


def _numpy_numbers() -> tuple[bytes, int]:
    """How far NumPy's global random numbers are drawn, which no seed of a run determines."""
    state: Any = np.random.get_state(legacy=False)["state"]  # type: ignore[index]  # noqa: NPY002
    return state["key"].tobytes(), state["pos"]


def _described(shapes: dict[str, tuple[int, ...]]) -> str:
    words = [f"{name or 'array'} {list(shape)}" for name, shape in list(shapes.items())[:4]]
    return ", ".join(words) + (", …" if len(shapes) > 4 else "")

"""What machines tell each other: sums, small tables and words, over a world of `jax.distributed`.

Everything goes through all-reduce and all-gather of XLA (Gloo between CPUs, NCCL between GPUs), called by all machines
in the same order. An all-reduce gives the same bits on every machine, so that each can update its own copy of
the server. A machine that dies closes its connections: the others see that at the next meeting, at the latest one round
later; one that falls silent is missed after about `SILENCE` seconds (`fedbc.machines.watching`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from fedbc.errors import InputError, MachineLost

T = TypeVar("T")
Array = np.ndarray

SILENCE = 60
"""Seconds after which a machine that answers no more is taken for lost."""
MACHINE = "machine"
WORDS = 1024
"""Bytes of a text that machines tell each other."""


class Machines:
    """The machines of a run, seen from one of them; by itself, one machine that has nobody to tell anything."""

    def __init__(self, index: int = 0, count: int = 1) -> None:
        self.index, self.count = index, count
        self.sent = 0
        """bytes that this machine gave to meetings so far"""
        self.lost = False
        """whether another machine was lost"""
        self.meeting = False
        """whether this machine waits for the others now"""

    def __repr__(self) -> str:
        return f"machine {self.index} of {self.count}"

    @property
    def alone(self) -> bool:
        """Whether there is but one."""
        return self.count == 1

    @property
    def leads(self) -> bool:
        """Whether this machine writes what one machine must write."""
        return self.index == 0

    def sum(self, tree: T) -> T:
        """The sum of what all machines give, leaf by leaf, the same bits on all of them."""
        return self._met(tree, lambda leaf: jax.lax.psum(leaf, MACHINE), "sum")

    def gather(self, tree: T) -> T:
        """What each machine gives, stacked along a new first axis, in the order of machines."""
        return self._met(tree, lambda leaf: jax.lax.all_gather(leaf, MACHINE), "gather")

    def any(self, *flags: bool) -> list[bool]:
        """Of each flag whether it is set on any machine."""
        return [bool(column.any()) for column in self.gather(np.asarray(flags)).T]

    def words(self, text: str) -> list[str]:
        """A short text of each machine."""
        if self.alone:
            return [text]
        told = np.zeros(WORDS, np.uint8)
        encoded = text.encode()[:WORDS]
        told[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in self.gather(told)]

    def agree(self, what: str, value: object) -> None:
        """InputError on all machines, which names the first that has another value than machine 0."""
        values = self.words(str(value))
        for index, other in enumerate(values):
            if other != values[0]:
                raise InputError(
                    f"machine {index} of {self.count} has another {what} than machine 0: {other} and {values[0]}"
                )

    def together(self, what: str, function: Callable[[], T]) -> T:
        """Do something on all machines; where it fails on one, the others say so instead of waiting for it."""
        if self.alone:
            return function()
        error: Exception | None = None
        done: Any = None
        try:
            done = function()
        except Exception as caught:
            error = caught
        failures = self.words("" if error is None else str(error) or type(error).__name__)
        if error is not None:
            raise error
        for index, failure in enumerate(failures):
            if failure:
                raise InputError(f"machine {index} of {self.count} could not {what}: {failure}")
        return done

    def led(self, what: str, function: Callable[[], T]) -> T | None:
        """Do something on machine 0 while the others wait for it."""
        return self.together(what, lambda: function() if self.leads else None)

    def _met(self, tree: Any, meet: Callable[[Any], Any], name: str) -> Any:
        if self.alone:
            return tree if name == "sum" else jax.tree.map(lambda leaf: np.asarray(leaf)[None], tree)
        self.meeting = True
        try:
            return self._exchange(tree, meet, name)
        except (jax.errors.JaxRuntimeError, ValueError) as error:  # JAX raises either
            self.lost = True
            raise MachineLost(f"{self} lost another one: {str(error).splitlines()[0]}") from None
        finally:
            self.meeting = False

    def _exchange(self, tree: Any, meet: Callable[[Any], Any], name: str) -> Any:
        """One array of each type of number: machines meet once for each array, and every meeting takes its time."""
        leaves, structure = jax.tree.flatten(tree)
        given = [np.asarray(leaf) for leaf in leaves]
        kinds = list(dict.fromkeys(leaf.dtype for leaf in given))
        wide = any(kind.itemsize == 8 for kind in kinds)
        with jax.enable_x64(wide or jax.config.jax_enable_x64):  # type: ignore[attr-defined]
            alike = [[leaf.reshape(-1) for leaf in given if leaf.dtype == kind] for kind in kinds]
            met = self._program(name, meet)([self._placed(np.concatenate(parts)) for parts in alike])
            arrays = {kind: np.asarray(one.addressable_data(0)) for kind, one in zip(kinds, met, strict=True)}
        taken = dict.fromkeys(kinds, 0)
        for place, leaf in enumerate(given):
            begin = taken[leaf.dtype]
            taken[leaf.dtype] = end = begin + leaf.size
            whole = arrays[leaf.dtype]
            leaves[place] = whole[..., begin:end].reshape((*whole.shape[:-1], *leaf.shape))
        return jax.tree.unflatten(structure, leaves)

    def _placed(self, leaf: Array) -> jax.Array:
        """This machine's part of an array whose first axis is the machines."""
        self.sent += leaf.nbytes
        part = jax.device_put(leaf[None], self._own_device)
        shape = (self.count, *leaf.shape)
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(self._mesh, Spec(MACHINE)), [part])

    @functools.cached_property
    def _mesh(self) -> Mesh:
        """One XLA device of each machine."""
        first: dict[int, jax.Device] = {}
        for device in jax.devices():
            first.setdefault(device.process_index, device)
        return Mesh([first[index] for index in range(self.count)], (MACHINE,))

    @functools.cached_property
    def _own_device(self) -> jax.Device:
        return self._mesh.devices.flat[self.index]

    @functools.cached_property
    def _programs(self) -> dict[str, Any]:
        return {}

    def _program(self, name: str, meet: Callable[[Any], Any]) -> Any:
        if name not in self._programs:

            def lane(leaves: list[Any]) -> list[Any]:
                return [meet(leaf[0]) for leaf in leaves]

            mapped = jax.shard_map(lane, mesh=self._mesh, in_specs=Spec(MACHINE), out_specs=Spec(), check_vma=False)
            self._programs[name] = jax.jit(mapped)
        return self._programs[name]

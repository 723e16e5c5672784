"""One device's state as one row of numbers.

Moving many small arrays between host and compiled code costs more than computing on them. A state's leaves of one type
are therefore laid side by side in one row; the same offsets read it back, from NumPy's arrays and from JAX's.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Packed = dict[str, Any]
"""A matrix for each type of number, its last axis being the row."""


class Packing:
    """How states of one structure are laid out."""

    def __init__(self, template: Any) -> None:
        """`template` is one device's state, or its shapes."""
        leaves, self._structure = jax.tree.flatten(template)
        self._shapes = [tuple(leaf.shape) for leaf in leaves]
        self._types = [np.dtype(leaf.dtype).name for leaf in leaves]
        self.widths: dict[str, int] = dict.fromkeys(self._types, 0)
        self._slices = []
        for shape, kind in zip(self._shapes, self._types, strict=True):
            begin = self.widths[kind]
            self.widths[kind] = begin + int(np.prod(shape))
            self._slices.append(slice(begin, self.widths[kind]))

    def empty(self, *leading: int) -> Packed:
        """Zeros for states with these leading axes."""
        return {kind: np.zeros((*leading, width), kind) for kind, width in self.widths.items()}

    def pack(self, state: Any) -> Packed:
        """One state's row, in compiled code."""
        leaves = [jnp.ravel(leaf).astype(kind) for leaf, kind in zip(jax.tree.leaves(state), self._types, strict=True)]
        rows = {kind: [a for a, k in zip(leaves, self._types, strict=True) if k == kind] for kind in self.widths}
        return {kind: jnp.concatenate(parts) for kind, parts in rows.items()}

    def unpack(self, packed: Packed) -> Any:
        """States from rows, whatever the leading axes; views, for NumPy's arrays."""
        leaves = [
            packed[kind][..., part].reshape((*packed[kind].shape[:-1], *shape))
            for kind, part, shape in zip(self._types, self._slices, self._shapes, strict=True)
        ]
        return jax.tree.unflatten(self._structure, leaves)

    def repack(self, states: Any) -> Packed:
        """Rows from stacked states on the host."""
        stacks = [np.asarray(leaf) for leaf in jax.tree.leaves(states)]
        packed = self.empty(len(stacks[0]) if stacks else 0)
        for stack, kind, part in zip(stacks, self._types, self._slices, strict=True):
            packed[kind][:, part] = stack.reshape(len(stack), int(np.prod(stack.shape[1:])))  # also of no devices
        return packed

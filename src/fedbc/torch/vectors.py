"""Parameters as one vector: PyTorch then needs one operation where there would be one for each of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Vectors:
    """Between parameters by name and one vector; `joined` finds them wherever they are in a tree."""

    def __init__(self, params: Any) -> None:
        self.shapes, structure = jax.tree.flatten(params)
        self.structure: Any = structure
        self.size = sum(int(np.prod(s.shape)) for s in self.shapes)

    def joined(self, tree: Any) -> Any:
        """The tree with a `Vector` for each set of parameters in it."""
        return jax.tree.map(self._join, tree, is_leaf=self._is_params)

    def split(self, tree: Any) -> Any:
        """The inverse."""
        return jax.tree.map(
            lambda leaf: self._split(leaf.values) if isinstance(leaf, Vector) else leaf,
            tree,
            is_leaf=lambda node: isinstance(node, Vector),
        )

    def _is_params(self, tree: Any) -> bool:
        return not jax.tree_util.all_leaves([tree]) and jax.tree.structure(tree) == self.structure

    def _join(self, node: Any) -> Any:
        if not self._is_params(node):
            return node
        return Vector(jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(node)]))

    def _split(self, vector: Any) -> Any:
        ends = np.cumsum([int(np.prod(s.shape)) for s in self.shapes])
        parts = jnp.split(vector, ends[:-1])
        leaves = [part.reshape(s.shape) for part, s in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)


@jax.tree_util.register_pytree_node_class
class Vector:
    """Parameters laid out as one vector. Its own kind of node: a method that looks into trees finds one leaf."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        """Its values."""
        return (self.values,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Vector:
        """From its values."""
        return cls(*children)

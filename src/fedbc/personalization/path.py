"""The path of a device's constrained problem, solved to a stated accuracy.

For a convex f_i the problem  min f_i(w)  subject to  ‖w - z‖² <= gamma  and its Lagrangian with the multiplier lambda
have the same solutions: x(lambda) = argmin f_i(w) + lambda ‖w - z‖² solves the problem of the tolerance
gamma(lambda) = ‖x(lambda) - z‖², and lambda is its multiplier (KKT: ∇f_i(x) + 2 lambda (x - z) = 0). So the path is
walked in lambda, from lambda = ∞ (gamma = 0, z itself) over a grid of falling ones to lambda = 0 (gamma = ∞), each
point started from the one before. The grid begins at L_i, the smoothness of the device's loss at z, where the pull
outweighs the loss.

A second path begins at the common initial model w^0 and is pulled to that one, so that training alone is among the
choices: it knows nothing of z, whatever its strength.

All problems of a device are solved at once: both paths, for each fold of cross-validation and for all its data. The
loss is a sum over chunks of examples, which a loop of the device's own length goes through.

The model of a point is the mean of its solutions, those of the folds and that for all data: it lies within the same
tolerance, and measures better than any of them. It counts only if its loss on all data is at most theirs on the mean,
as it is for every convex f_i; else the model is the solution for all data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedbc.data.federation import Federation
from fedbc.models.base import Model
from fedbc.personalization.choice import judged
from fedbc.personalization.descent import minimize
from fedbc.simulation import batches

Array = jax.Array
POINTS = 7
"""of the grid, beside lambda = 0: one per power of ten"""
LOWEST = 1e-6
"""The smallest lambda of the grid before 0, as a share of the largest."""
CHUNK = 128
"""Examples that the loop takes at once."""
POWER_STEPS = 12
"""of the power iteration that measures L_i"""


class Own(NamedTuple):
    """What a lane gets of its devices; one row per device."""

    first: Any
    size: Any
    start: Any
    """(2, numbers): z and w^0, the centres of the two paths"""


class Walked(NamedTuple):
    """A device's two paths; the points of one after the other."""

    multiplier: Array
    """(points,): lambda"""
    drift: Array
    """(2, points): ‖x - centre‖²"""
    models: Array
    """(2, points, numbers): the means of the solutions"""
    residual: Array
    """(2, points): the largest ‖∇f(x) + 2 lambda (x - centre)‖ of them, f being the loss on what each was trained on"""
    total: Array
    """(1 + 2 points,): the sum of the held-out scores of z, and of each point"""
    products: Array
    steps: Array


def grid(points: int = POINTS) -> np.ndarray:
    """The lambdas as shares of L_i, the largest first, and 0 at the end."""
    return np.append(np.geomspace(1, LOWEST, points), 0.0)


class Paths:
    """Walks devices' paths, in compiled code."""

    def __init__(
        self, model: Model, federation: Federation, folds: int, *, accuracy: float, most: int, points: int = POINTS
    ) -> None:
        """`folds` is how many of them a device's examples have; at most `most` calls of the oracle a point."""
        self.model, self.federation, self.folds = model, federation, folds
        self.accuracy, self.most, self.grid = accuracy, most, grid(points)
        like = jax.eval_shape(model.init, jax.random.key(0))
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like)
        self.unravel: Callable[[Array], Any] = ravel_pytree(zeros)[1]
        self.gather = batches.gatherer(federation, augment=False)
        self.judge = judged(model)
        self.trains_on_all = np.tile(np.arange(folds + 1) == folds, 2)
        self.fold = np.tile(np.arange(folds + 1), 2)
        self.centre = np.repeat([0, 1], folds + 1)

    def lane(self, own: Own, fold_of: Array, data: batches.Data) -> Walked:
        """The paths of one lane's devices, one after the other."""
        return jax.lax.map(lambda one: self.walk(one, fold_of, data), own)

    def walk(self, own: Own, fold_of: Array, data: batches.Data) -> Walked:
        """One device's."""
        centres = own.start[self.centre]
        loss = self._loss(own, fold_of, data)

        def oracle(w: Array, multiplier: Array) -> tuple[Array, Array]:
            value, gradient = loss(w)
            pull = w - centres
            return value + multiplier * jnp.sum(pull * pull, -1), gradient + 2 * multiplier * pull

        top = self._smoothness(loss, centres)
        multipliers = jnp.asarray(self.grid, centres.dtype) * top

        def point(w: Array, multiplier: Array) -> tuple[Array, tuple[Array, Array, Array]]:
            found = minimize(lambda v: oracle(v, multiplier), w, self.accuracy, self.most)
            return found.w, (found.w, found.residual, found.steps)

        _, (w, residual, steps) = jax.lax.scan(point, centres, multipliers)
        total, products = self._scores(own, fold_of, data, w)
        models = self._means(own, data, w)
        drift = jnp.sum((models - own.start[:, None]) ** 2, -1)
        reached = residual.reshape(len(w), 2, self.folds + 1).max(-1).T
        return Walked(multipliers, drift, models, reached, total, products, jnp.sum(steps))

    def _loss(self, own: Own, fold_of: Array, data: batches.Data) -> Any:
        """f on each problem's examples, with its gradient."""

        def weights(c: Array) -> tuple[Array, Array]:
            rows, real = self._rows(own, c)
            held_out = (fold_of[rows] == self.fold[:, None]) & ~self.trains_on_all[:, None]
            return rows, jnp.where(real & ~held_out, 1.0, 0.0)

        chunks = -(-own.size // CHUNK)
        empty = jnp.zeros(len(self.fold))
        counts = jax.lax.fori_loop(0, chunks, lambda c, n: n + jnp.sum(weights(c)[1], -1), empty)

        def part(w: Array, x: Array, y: Array, weight: Array) -> Array:
            each = self.model.loss(self.model.outputs(self.unravel(w), x), y)
            return jnp.sum(each * weight)

        both = jax.vmap(jax.value_and_grad(part), (0, None, None, 0))

        def loss(w: Array) -> tuple[Array, Array]:
            def add(c: Array, sofar: tuple[Array, Array]) -> tuple[Array, Array]:
                rows, weight = weights(c)
                batch = self.gather(data, rows, jax.random.key(0))
                value, gradient = both(w, batch.x, batch.y, weight.astype(w.dtype))
                return sofar[0] + value, sofar[1] + gradient

            value, gradient = jax.lax.fori_loop(0, chunks, add, (jnp.zeros(len(w), w.dtype), jnp.zeros_like(w)))
            # A fold without training examples has no loss; its model stays at the centre.
            size = jnp.maximum(counts, 1).astype(w.dtype)
            return value / size, gradient / size[:, None]

        return loss

    def _means(self, own: Own, data: batches.Data, w: Array) -> Array:
        """(2, points, numbers): the mean of each point's solutions, where it is as good as they are on all data."""
        solutions = jnp.swapaxes(w.reshape(len(w), 2, self.folds + 1, -1), 0, 1)
        mean = jnp.mean(solutions, 2)
        every = jnp.concatenate([solutions, mean[:, :, None]], 2).reshape(-1, w.shape[-1])

        def one(params: Array, x: Array, y: Array, weight: Array) -> Array:
            return jnp.sum(self.model.loss(self.model.outputs(self.unravel(params), x), y) * weight)

        def add(c: Array, sofar: Array) -> Array:
            rows, real = self._rows(own, c)
            batch = self.gather(data, rows, jax.random.key(0))
            each = jax.vmap(one, (0, None, None, None))(every, batch.x, batch.y, jnp.where(real, 1.0, 0.0))
            return sofar + each

        sums = jax.lax.fori_loop(0, -(-own.size // CHUNK), add, jnp.zeros(len(every), w.dtype))
        sums = sums.reshape(2, len(w), self.folds + 2)
        theirs = jnp.mean(sums[..., :-1], -1)
        convex = sums[..., -1] <= theirs + 1e-5 * jnp.abs(theirs)
        return jnp.where(convex[..., None], mean, solutions[:, :, self.folds])

    def _smoothness(self, loss: Any, centres: Array) -> Array:
        """L_i at z by power iteration on all of the device's examples, and not 0."""
        whole = self.folds  # the first problem that trains on all of them

        def turn(_: Array, sofar: tuple[Array, Array]) -> tuple[Array, Array]:
            v, _ = sofar
            direction = jnp.zeros_like(centres).at[whole].set(v)
            _, change = jax.jvp(lambda w: loss(w)[1], (centres,), (direction,))
            length = jnp.sqrt(jnp.sum(change[whole] ** 2))
            return change[whole] / jnp.maximum(length, 1e-30), length

        first = jax.random.normal(jax.random.key(0), centres[0].shape, centres.dtype)
        first = first / jnp.sqrt(jnp.sum(first**2))
        _, largest = jax.lax.fori_loop(0, POWER_STEPS, turn, (first, jnp.zeros((), centres.dtype)))
        return jnp.maximum(largest, 1e-6)

    def _scores(self, own: Own, fold_of: Array, data: batches.Data, w: Array) -> tuple[Array, Array]:
        """Sums over the held-out examples of each candidate's score, and of the products of two candidates' scores."""
        points = len(w)
        folded = w.reshape(points, 2, self.folds + 1, -1)[:, :, : self.folds]
        candidates = jnp.swapaxes(folded, 0, 1).reshape(2 * points, self.folds, -1)

        def one(params: Array, x: Array, y: Array) -> Array:
            return self.judge.loss(self.judge.outputs(self.unravel(params), x), y)

        every = jax.vmap(jax.vmap(one, (0, None, None)), (0, None, None))

        def add(c: Array, sofar: tuple[Array, Array]) -> tuple[Array, Array]:
            rows, real = self._rows(own, c)
            batch = self.gather(data, rows, jax.random.key(0))
            fold = fold_of[rows]
            held_out = jnp.where(real & (fold >= 0), 1.0, 0.0)
            all_folds = every(candidates, batch.x, batch.y)  # (candidates, folds, rows)
            theirs = jnp.take_along_axis(all_folds, jnp.maximum(fold, 0)[None, None], axis=1)[:, 0]
            of_z = one(own.start[0], batch.x, batch.y)
            scores = jnp.concatenate([of_z[None], theirs]) * held_out
            return sofar[0] + jnp.sum(scores, -1), sofar[1] + scores @ scores.T

        size = 1 + 2 * points
        empty = jnp.zeros(size, w.dtype), jnp.zeros((size, size), w.dtype)
        return jax.lax.fori_loop(0, -(-own.size // CHUNK), add, empty)

    def _rows(self, own: Own, c: Array) -> tuple[Array, Array]:
        place = c * CHUNK + jnp.arange(CHUNK)
        return own.first + jnp.minimum(place, own.size - 1), place < own.size

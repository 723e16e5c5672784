"""Evaluation, the same for all methods: which model answers which examples, and what was already known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedbc import trees
from fedbc.algorithms.base import Algorithm, Context
from fedbc.algorithms.finetune import FineTune
from fedbc.data.federation import Federation
from fedbc.models.base import Model
from fedbc.simulation import batches, metrics
from fedbc.simulation.schedule import TUNE, generator
from fedbc.simulation.scoring import Scorer, Sums, nth
from fedbc.simulation.store import DeviceStore

Array = np.ndarray
Row = dict[str, Any]

DEFAULT = ("global", "local", "train")
EVALUATIONS = {
    "global": "z on the test sets",
    "local": "each x_i on its own test set",
    "train": "z's loss on the training sets",
    "gradient": "‖∇f(z)‖² with f the mean of the devices' losses, and its running mean (the theorem's metric)",
    "lagrangian": "the Lagrangian's value, drift and constraint violation over all devices",
}


class Evaluator:
    """Measures the state of a run. Scores of a device's own model are kept until the device trains again."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        federation: Federation,
        *,
        what: tuple[str, ...],
        fine_tune: FineTune | None,
        mesh: Mesh,
        lanes: int,
        depth: int,
        train_data: batches.Data,
        test_data: batches.Data,
        seed: int,
    ) -> None:
        self.algorithm, self.model, self.federation = algorithm, model, federation
        self.what, self.lanes = what, lanes
        self.train_data, self.test_data = train_data, test_data
        self.test = Scorer(model, federation, federation.test, mesh, lanes, depth)
        self.train = Scorer(model, federation, federation.train, mesh, lanes, depth)
        self.tuner = Tuner(fine_tune, model, federation, mesh, seed) if fine_tune is not None else None
        self._gradient = jax.jit(self._gradient_on_lanes(mesh))
        devices = federation.devices
        self.known = {name: np.zeros(devices) for name in ("correct", "loss", "train_loss", "tuned")}
        self.unscored: set[int] = set()

    def trained(self, devices: Array) -> None:
        """Note that these devices have new models."""
        self.unscored.update(devices.tolist())

    def row(self, server: Any, store: DeviceStore, history: list[Row]) -> Row:
        """What `what` asks for, as columns of history."""
        z = self.algorithm.global_model(server)
        row: Row = {}
        answers = self.test.one(z, self.test_data)
        z_test = self.test.by_device(*answers)
        if "global" in self.what:
            spread = self.federation.origin or self.federation
            row |= metrics.global_row(self.test.by_device(*answers, spread.test), spread.train.sizes)
        else:
            row["global_test_loss"] = z_test.loss.sum() / z_test.examples.sum()
        z_train = None
        if "train" in self.what or "lagrangian" in self.what:
            z_train = self.train.by_device(*self.train.one(z, self.train_data))
            row |= metrics.train_row(z_train)
        if "gradient" in self.what:
            row |= self._gradient_row(z, history)
        self._score_own_models(store, z)
        took_part = store.slot_of >= 0
        if "local" in self.what:
            correct = np.where(took_part, self.known["correct"], z_test.correct)
            own = Sums(correct, np.where(took_part, self.known["loss"], z_test.loss), z_test.examples)
            row |= metrics.local_row(own)
            if self.tuner is not None:
                row |= self._tuned_row(store, z, z_test.examples)
        if z_train is not None and "lagrangian" in self.what:
            own_loss = np.where(took_part, self.known["train_loss"], z_train.loss) / z_train.examples
            row |= metrics.lagrangian_row(own_loss, *self._drift(store, z))
        return row if self.model.correct else metrics.without_accuracy(row)

    def state(self) -> dict[str, Array]:
        """What a checkpoint must keep."""
        return {**self.known, "unscored": np.asarray(sorted(self.unscored), np.int64)}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Take over what `state` gave."""
        self.known = {name: arrays[name].copy() for name in self.known}
        self.unscored = set(arrays["unscored"].tolist())

    def _models(self, store: DeviceStore, z: Any) -> Callable[[Array], Any]:
        """A function from (lanes, depth) devices to their own models; z for those that never took part."""

        def models(places: Array) -> Any:
            rows, fresh = store.take(places)
            own = jax.vmap(jax.vmap(self.algorithm.local_model))(store.packing.unpack(rows))
            return jax.tree.map(lambda x, zz: jnp.where(fresh.reshape(fresh.shape + (1,) * zz.ndim), zz, x), own, z)

        return models

    def _score_own_models(self, store: DeviceStore, z: Any) -> None:
        devices = np.asarray(sorted(self.unscored), np.int64)
        models = self._models(store, z)
        if "local" in self.what:
            scores = self.test.own(models, devices, self.test_data)
            self.known["correct"][devices], self.known["loss"][devices] = scores.correct, scores.loss
        if "lagrangian" in self.what:
            self.known["train_loss"][devices] = self.train.own(models, devices, self.train_data).loss
        if self.tuner is not None and self.tuner.how.of == "local":
            self.known["tuned"][devices] = self._tuned_correct(models, devices)
        self.unscored.clear()

    def _tuned_correct(self, models: Callable[[Array], Any], devices: Array) -> Array:
        assert self.tuner is not None
        tuner, data = self.tuner, self.train_data if self.tuner.how.on == "train" else self.test_data
        return self.test.own(lambda places: tuner(models(places), places, data), devices, self.test_data).correct

    def _tuned_row(self, store: DeviceStore, z: Any, examples: Array) -> Row:
        """Fine-tuned z changes with z and is scored anew for every device; fine-tuned x_i only where x_i is z."""
        assert self.tuner is not None
        correct = self.known["tuned"].copy()
        stale = np.flatnonzero(store.slot_of < 0) if self.tuner.how.of == "local" else np.arange(len(correct))
        same_z = jax.tree.map(lambda a: jnp.broadcast_to(a, (self.lanes, self.test.depth, *a.shape)), z)
        correct[stale] = self._tuned_correct(lambda places: same_z, stale)
        return metrics.tuned_row(Sums(correct, correct, examples), self.tuner.how.column)

    def _drift(self, store: DeviceStore, z: Any) -> tuple[Array, Array, Array]:
        """‖x_i - z‖², lambda_i and gamma_i of every device, with the current z."""
        drift = np.zeros(self.federation.devices)
        own = jax.vmap(self.algorithm.local_model)(store.stacks)
        for x, zz in zip(jax.tree.leaves(own), jax.tree.leaves(z), strict=True):
            difference = (np.asarray(x, float) - np.asarray(zz, float)).reshape(store.count, -1)
            drift[store.devices] += np.einsum("ij,ij->i", difference, difference)
        return drift, *duals(self.algorithm, store, z)

    def _gradient_row(self, z: Any, history: list[Row]) -> Row:
        weights = 1 / (self.federation.devices * np.repeat(self.train.split.sizes, self.train.split.sizes))
        value = float(self._gradient(z, self.train.all_rows, self.train_data, weights.astype(np.float32)))
        before = [r["gradient_sqnorm"] for r in history if "gradient_sqnorm" in r]
        return {"gradient_sqnorm": value, "gradient_sqnorm_mean": float(np.mean([*before, value]))}

    def _gradient_on_lanes(self, mesh: Mesh) -> Callable[..., Any]:
        """‖Σ_r weight_r ∇loss_r(z)‖², the rows spread over the lanes."""
        size = self.train.size

        def lane(z: Any, chunks: Any, data: batches.Data, weights: Any) -> Any:
            def add_chunk(c: Any, total: Any) -> Any:
                rows = chunks.start[c] + jnp.arange(size)
                real = rows < chunks.stop[c]
                rows = jnp.minimum(rows, data.y.shape[0] - 1)
                x, y = self.federation.decode(data.shared, data.x[rows]), data.y[rows]

                def loss(params: Any) -> Any:
                    return jnp.sum(
                        jnp.where(real, self.model.loss(self.model.outputs(params, x), y), 0) * weights[rows]
                    )

                return trees.add(total, jax.grad(loss)(z))

            return jax.lax.fori_loop(0, chunks.number, add_chunk, trees.zeros_like(z))

        def on_device(z: Any, chunks: Any, data: batches.Data, weights: Any) -> Any:
            totals = jax.vmap(lambda c: lane(z, c, data, weights))(chunks)
            return trees.sqnorm(jax.lax.psum(jax.tree.map(lambda a: a.sum(0), totals), "lane"))

        one, by_lane = PartitionSpec(), PartitionSpec("lane")
        return jax.shard_map(on_device, mesh=mesh, in_specs=(one, by_lane, one, one), out_specs=one, check_vma=False)


class Tuner:
    """Adapts models by a few steps on fixed batches of each device's own data."""

    def __init__(self, how: FineTune, model: Model, federation: Federation, mesh: Mesh, seed: int) -> None:
        self.how, self.mesh, self.seed = how, mesh, seed
        self.offsets = (federation.train if how.on == "train" else federation.test).offsets
        self.gather = batches.gatherer(federation, augment=False)
        self.loss = batches.loss_on(model)
        self._compiled = jax.jit(self._on_lanes)

    def __call__(self, models: Any, places: Array, data: batches.Data) -> Any:
        """The adapted models of (lanes, depth) devices."""
        rows = np.full((*places.shape, self.how.steps, self.how.batch_size), -1, np.int32)
        for lane, place in zip(*np.nonzero(places >= 0), strict=True):
            rows[lane, place] = self._rows(int(places[lane, place]))
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            lanes = [self._lane(nth(i, models), jnp.asarray(rows[i]), data) for i in range(len(rows))]
            return jax.tree.map(lambda *parts: jnp.stack(parts), *lanes)
        return self._compiled(models, rows, data)

    def _rows(self, device: int) -> Array:
        """Batches from one shuffled pass, begun again where the steps need more."""
        first, last = self.offsets[device], self.offsets[device + 1]
        batch = min(self.how.batch_size, last - first)
        table = np.full((self.how.steps, self.how.batch_size), -1, np.int32)
        if batch:
            order = generator(self.seed, TUNE, device).permutation(np.arange(first, last))
            table[:, :batch] = np.resize(order, (self.how.steps, batch))
        return table

    def _on_lanes(self, models: Any, rows: Any, data: batches.Data) -> Any:
        lane = PartitionSpec("lane")
        return jax.shard_map(
            lambda m, r, d: jax.vmap(lambda mm, rr: self._lane(mm, rr, d))(m, r),
            mesh=self.mesh,
            in_specs=(lane, lane, PartitionSpec()),
            out_specs=lane,
            check_vma=False,
        )(models, rows, data)

    def _lane(self, models: Any, rows: Any, data: batches.Data) -> Any:
        def step(k: Any, params: Any, own_rows: Any) -> Any:
            batch = self.gather(data, own_rows[k], jax.random.key(0))
            gradient = jax.grad(self.loss)(params, batch)
            # A device without examples has nothing to adapt to.
            return trees.where(batch.size > 0, trees.axpy(-self.how.lr, gradient, params), params)

        def tuned(both: tuple[Any, Any]) -> Any:
            params, own_rows = both
            return jax.lax.fori_loop(0, self.how.steps, lambda k, p: step(k, p, own_rows), params)

        return jax.lax.map(tuned, (models, rows))


def duals(algorithm: Algorithm, store: DeviceStore, z: Any) -> tuple[Array, Array]:
    """lambda_i and gamma_i of every device, NaN for methods without; initial ones where a device never took part."""

    def initial(index: Any, name: str) -> Any:
        context = Context(index, jnp.ones((), int), jnp.ones((), int))
        return getattr(algorithm.init_device(z, context), name)

    population = len(store.slot_of)
    columns = []
    for name in ("multiplier", "tolerance"):
        if not hasattr(store.template, name):
            columns.append(np.full(population, np.nan))
            continue
        column = np.array(jax.vmap(lambda i, name=name: initial(i, name))(jnp.arange(population)))
        column[store.devices] = getattr(store.stacks, name)
        columns.append(column)
    return columns[0], columns[1]

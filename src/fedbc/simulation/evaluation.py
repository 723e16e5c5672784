"""Evaluation, the same for all methods: which model answers which examples, and what was already known."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import trees
from fedbc.algorithms.base import Algorithm, Context
from fedbc.algorithms.finetune import FineTune
from fedbc.data.federation import Federation
from fedbc.models.base import Model
from fedbc.simulation import batches, metrics
from fedbc.simulation.lanes import Copies, Lanes
from fedbc.simulation.schedule import TUNE, generator
from fedbc.simulation.scoring import Scorer, Sums
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
        lanes: Lanes,
        depth: int,
        store: DeviceStore,
        train_data: Copies,
        test_data: Copies,
        seed: int,
    ) -> None:
        self.algorithm, self.model, self.federation = algorithm, model, federation
        self.what, self.lanes, self.store = what, lanes, store
        self.train_data, self.test_data = train_data, test_data
        self.test = Scorer(model, federation, federation.test, lanes, depth)
        self.train = Scorer(model, federation, federation.train, lanes, depth)
        self.tuner = fine_tune
        own = OwnModels(algorithm, store)
        self._own_on_test, self._own_on_train = self.test.own(own), self.train.own(own)
        if fine_tune is not None:
            self._tuned = self.test.own(TunedModels(fine_tune, model, federation, own, seed))
            self._tuned_z = self.test.own(TunedModels(fine_tune, model, federation, None, seed))
        self._gradient = lanes.compiled(self._lane_gradient)
        sizes = federation.train.sizes
        weights = 1 / (federation.devices * np.repeat(sizes, sizes))
        self._gradient_weights = lanes.put(weights.astype(np.float32)) if "gradient" in what else None
        devices = federation.devices
        self.known = {name: np.zeros(devices) for name in ("correct", "loss", "train_loss", "tuned")}
        self.unscored: set[int] = set()

    def trained(self, devices: Array) -> None:
        """Note that these devices have new models."""
        self.unscored.update(devices.tolist())

    def row(self, server: Any, history: list[Row]) -> Row:
        """What `what` asks for, as columns of history."""
        z = self.lanes.share(self.algorithm.global_model(server))
        row: Row = {}
        answers = self.test.one(z, self.test_data)
        z_test = self.test.by_device(*answers)
        if "global" in self.what:
            origin = self.federation.origin
            by_device = z_test if origin is None else self.test.by_device(*answers, origin.test)
            row |= metrics.global_row(by_device, (origin or self.federation).train.sizes)
        else:
            row["global_test_loss"] = z_test.loss.sum() / z_test.examples.sum()
        z_train = None
        if "train" in self.what or "lagrangian" in self.what:
            z_train = self.train.by_device(*self.train.one(z, self.train_data))
            row |= metrics.train_row(z_train)
        if "gradient" in self.what:
            row |= self._gradient_row(z, history)
        self._score_own_models(z)
        took_part = self.store.slot_of >= 0
        if "local" in self.what:
            correct = np.where(took_part, self.known["correct"], z_test.correct)
            own = Sums(correct, np.where(took_part, self.known["loss"], z_test.loss), z_test.examples)
            row |= metrics.local_row(own)
            if self.tuner is not None:
                row |= self._tuned_row(z, z_test.examples)
        if z_train is not None and "lagrangian" in self.what:
            own_loss = np.where(took_part, self.known["train_loss"], z_train.loss) / z_train.examples
            row |= metrics.lagrangian_row(own_loss, *self._drift(z[0]))
        return row if self.model.correct else metrics.without_accuracy(row)

    def global_scores(self, server: Any) -> Sums:
        """z on every device's test set."""
        z = self.lanes.share(self.algorithm.global_model(server))
        return self.test.by_device(*self.test.one(z, self.test_data))

    def state(self) -> dict[str, Array]:
        """What a checkpoint must keep."""
        return {**self.known, "unscored": np.asarray(sorted(self.unscored), np.int64)}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Take over what `state` gave."""
        self.known = {name: arrays[name].copy() for name in self.known}
        self.unscored = set(arrays["unscored"].tolist())

    def _score_own_models(self, z: Copies) -> None:
        devices = np.asarray(sorted(self.unscored), np.int64)
        if "local" in self.what:
            scores = self._own_on_test(devices, z, self.test_data, self.test_data)
            self.known["correct"][devices], self.known["loss"][devices] = scores.correct, scores.loss
        if "lagrangian" in self.what:
            self.known["train_loss"][devices] = self._own_on_train(devices, z, self.train_data, self.train_data).loss
        if self.tuner is not None and self.tuner.of == "local":
            self.known["tuned"][devices] = self._tuned(devices, z, self.test_data, self._adapt_to).correct
        self.unscored.clear()

    @property
    def _adapt_to(self) -> Copies:
        return self.train_data if self.tuner is not None and self.tuner.on == "train" else self.test_data

    def _tuned_row(self, z: Copies, examples: Array) -> Row:
        """Fine-tuned z changes with z and is scored anew for every device; fine-tuned x_i only where x_i is z."""
        assert self.tuner is not None
        correct = self.known["tuned"].copy()
        stale = np.flatnonzero(self.store.slot_of < 0) if self.tuner.of == "local" else np.arange(len(correct))
        correct[stale] = self._tuned_z(stale, z, self.test_data, self._adapt_to).correct
        return metrics.tuned_row(Sums(correct, correct, examples), self.tuner.column)

    def _drift(self, z: Any) -> tuple[Array, Array, Array]:
        """‖x_i - z‖², lambda_i and gamma_i of every device, with the current z."""
        store = self.store
        drift = np.zeros(self.federation.devices)
        own = jax.vmap(self.algorithm.local_model)(store.stacks)
        for x, zz in zip(jax.tree.leaves(own), jax.tree.leaves(z), strict=True):
            difference = (np.asarray(x, float) - np.asarray(zz, float)).reshape(store.count, -1)
            drift[store.devices] += np.einsum("ij,ij->i", difference, difference)
        return drift, *duals(self.algorithm, store, z)

    def _gradient_row(self, z: Copies, history: list[Row]) -> Row:
        assert self._gradient_weights is not None
        parts = self._gradient(self.train.all_rows, z, self.train_data, self._gradient_weights)
        total = jax.tree.map(lambda *lanes: sum(np.asarray(lane, float).sum(0) for lane in lanes), *parts)
        value = float(sum(np.sum(leaf * leaf) for leaf in jax.tree.leaves(total)))
        before = [r["gradient_sqnorm"] for r in history if "gradient_sqnorm" in r]
        return {"gradient_sqnorm": value, "gradient_sqnorm_mean": float(np.mean([*before, value]))}

    def _lane_gradient(self, chunks: Any, z: Any, data: batches.Data, weights: Any) -> Any:
        """Σ_r weight_r ∇loss_r(z) over one lane's share of the rows."""

        def add_chunk(c: Any, total: Any) -> Any:
            rows = chunks.start[c] + jnp.arange(self.train.size)
            real = rows < chunks.stop[c]
            rows = jnp.minimum(rows, data.y.shape[0] - 1)
            x, y = self.federation.decode(data.shared, data.x[rows]), data.y[rows]

            def loss(params: Any) -> Any:
                return jnp.sum(jnp.where(real, self.model.loss(self.model.outputs(params, x), y), 0) * weights[rows])

            return trees.add(total, jax.grad(loss)(z))

        return jax.lax.fori_loop(0, chunks.number, add_chunk, trees.zeros_like(z))


class OwnModels:
    """Each device's own x_i; z for a device that never took part."""

    def __init__(self, algorithm: Algorithm, store: DeviceStore) -> None:
        self.algorithm, self.store = algorithm, store

    def inputs(self, places: Array) -> Any:
        """States, packed, and whether a device has none yet."""
        return self.store.take(places)

    def form(self, own: Any, z: Any, data: batches.Data) -> Any:
        """The models of one lane's places."""
        del data
        rows, fresh = own
        models = jax.vmap(self.algorithm.local_model)(self.store.packing.unpack(rows))
        return jax.tree.map(lambda x, zz: jnp.where(fresh.reshape(-1, *(1,) * zz.ndim), zz, x), models, z)


class TunedModels:
    """Models adapted by a few steps on fixed batches of each device's own data: its own x_i, or z."""

    def __init__(self, how: FineTune, model: Model, federation: Federation, own: OwnModels | None, seed: int) -> None:
        """`own` gives the models to adapt; None is z."""
        self.how, self.own, self.seed = how, own, seed
        self.offsets = (federation.train if how.on == "train" else federation.test).offsets
        self.gather = batches.gatherer(federation, augment=False)
        self.loss = batches.loss_on(model)

    def inputs(self, places: Array) -> Any:
        """The batches' row numbers, and what the models to adapt need."""
        rows = np.full((*places.shape, self.how.steps, self.how.batch_size), -1, np.int32)
        for lane, place in zip(*np.nonzero(places >= 0), strict=True):
            rows[lane, place] = self._rows(int(places[lane, place]))
        return rows, self.own.inputs(places) if self.own is not None else None

    def form(self, own: Any, z: Any, data: batches.Data) -> Any:
        """The adapted models of one lane's places."""
        rows, inputs = own
        if self.own is not None:
            models = self.own.form(inputs, z, data)
        else:
            models = jax.tree.map(lambda a: jnp.broadcast_to(a, (len(rows), *a.shape)), z)

        def step(k: Any, params: Any, own_rows: Any) -> Any:
            batch = self.gather(data, own_rows[k], jax.random.key(0))
            gradient = jax.grad(self.loss)(params, batch)
            # A device without examples has nothing to adapt to.
            return trees.where(batch.size > 0, trees.axpy(-self.how.lr, gradient, params), params)

        def tuned(both: tuple[Any, Any]) -> Any:
            params, own_rows = both
            return jax.lax.fori_loop(0, self.how.steps, lambda k, p: step(k, p, own_rows), params)

        return jax.lax.map(tuned, (models, rows))

    def _rows(self, device: int) -> Array:
        """Batches from one shuffled pass, begun again where the steps need more."""
        first, last = self.offsets[device], self.offsets[device + 1]
        batch = min(self.how.batch_size, last - first)
        table = np.full((self.how.steps, self.how.batch_size), -1, np.int32)
        if batch:
            order = generator(self.seed, TUNE, device).permutation(np.arange(first, last))
            table[:, :batch] = np.resize(order, (self.how.steps, batch))
        return table


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

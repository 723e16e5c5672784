"""Evaluation, the same for all methods: which model answers which examples, and what was already known."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import trees
from fedbc.algorithms.base import Algorithm, Context, Duals
from fedbc.algorithms.finetune import FineTune
from fedbc.data.federation import Federation
from fedbc.machines.world import Machines
from fedbc.models.base import Model
from fedbc.simulation import batches, metrics
from fedbc.simulation.lanes import Copies, Lanes
from fedbc.simulation.schedule import TUNE, generator
from fedbc.simulation.scoring import Models, Scorer, Sums
from fedbc.simulation.store import DeviceStore

Array = np.ndarray
Row = dict[str, Any]
T = TypeVar("T")

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
        machines: Machines | None = None,
    ) -> None:
        self.algorithm, self.model, self.federation = algorithm, model, federation
        self.machines = machines or Machines()
        owned = federation.owned if federation.owned is not None else np.arange(federation.devices)
        self._own = np.isin(np.arange(federation.devices), owned)
        self.what, self.lanes, self.store = what, lanes, store
        self.train_data, self.test_data = train_data, test_data
        self.test = Scorer(model, federation, federation.test, lanes, depth)
        self.train = Scorer(model, federation, federation.train, lanes, depth)
        self.tuner = fine_tune
        own = OwnModels(algorithm, store)
        self._own_on_test, self._own_on_train = self.test.own(own), self.train.own(own)
        self._z_at_home = at_home = None
        if model.statistics == "local" and federation.origin is None:  # a device knows its own statistics alone
            at_home = GlobalModelAtHome(own)
            self._z_at_home = self.test.own(at_home), self.train.own(at_home)
        if fine_tune is not None:
            self._tuned = self.test.own(TunedModels(fine_tune, model, federation, own, seed))
            self._tuned_z = self.test.own(TunedModels(fine_tune, model, federation, at_home, seed))
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
        z_test, z_test_of_origin = self._z_on_test(z)
        origin = self.federation.origin if "global" in self.what else None
        measured: dict[str, Any] = {
            "test": z_test if origin is None else z_test_of_origin,
            "train_sizes": (origin or self.federation).train.sizes,
        }
        if "train" in self.what or "lagrangian" in self.what:
            measured["train"] = self._z_on_train(z)
        if "gradient" in self.what:
            measured["gradient"] = self._gradient_row(z, history)
        self._score_own_models(z)
        took_part = self.store.slot_of >= 0
        if "local" in self.what:
            correct = np.where(took_part, self.known["correct"], z_test.correct)
            loss = np.where(took_part, self.known["loss"], z_test.loss)
            measured["local"] = Sums(correct, loss, z_test.examples)
            if self.tuner is not None:
                measured["tuned"] = self._tuned_scores(z, z_test.examples)
        if "lagrangian" in self.what:
            z_train = measured["train"]
            own_loss = z_train._replace(loss=np.where(took_part, self.known["train_loss"], z_train.loss)).mean_loss
            duals = all_duals(self.algorithm, self.store, z[0])
            measured |= {"local_train_loss": own_loss, "drift": self._drift(z[0]), "duals": duals}
        gradient = measured.pop("gradient", {})
        return metrics.make_row(
            metrics.Measured(**self.of_all(measured), gradient=gradient),
            devices="global" in self.what,
            tuned=self.tuner.column if self.tuner is not None else "",
            accuracy=self.model.correct is not None,
        )

    def global_scores(self, server: Any) -> Sums:
        """z on every device's test set."""
        return self.of_all(self._z_on_test(self.lanes.share(self.algorithm.global_model(server)))[0])

    def _z_on_test(self, z: Copies) -> tuple[Sums, Sums]:
        """z on the devices' test sets, and on those of the devices that were pooled, if any were."""
        if self._z_at_home is not None:
            scores = self._z_at_home[0](np.arange(self.federation.devices), z, self.test_data, self.test_data)
            return scores, scores
        answers, origin = self.test.one(z, self.test_data), self.federation.origin
        by_device = self.test.by_device(*answers)
        return by_device, by_device if origin is None else self.test.by_device(*answers, origin.test)

    def _z_on_train(self, z: Copies) -> Sums:
        """z on the devices' training sets."""
        if self._z_at_home is not None:
            return self._z_at_home[1](np.arange(self.federation.devices), z, self.train_data, self.train_data)
        return self.train.by_device(*self.train.one(z, self.train_data))

    def of_all(self, by_device: T) -> T:
        """Arrays with one number per device, put together from all machines, each of which knows its own."""
        if self.machines.alone:
            return by_device
        return self.machines.sum(jax.tree.map(lambda a: np.where(self._own, a, 0), by_device))

    def state(self) -> dict[str, Array]:
        """What a checkpoint must keep."""
        return {**self.known, "unscored": np.asarray(sorted(self.unscored), np.int64)}

    def restore(self, parts: list[dict[str, Array]]) -> None:
        """Take over what `state` gave, on one machine or on several."""
        self.known = {name: np.where(self._own, sum(part[name] for part in parts), 0) for name in self.known}
        self.unscored = {device for part in parts for device in part["unscored"].tolist() if self._own[device]}

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

    def _tuned_scores(self, z: Copies, examples: Array) -> Sums:
        """Fine-tuned z changes with z and is scored anew for every device; fine-tuned x_i only where x_i is z."""
        assert self.tuner is not None
        correct = self.known["tuned"].copy()
        stale = np.flatnonzero(self.store.slot_of < 0) if self.tuner.of == "local" else np.arange(len(correct))
        correct[stale] = self._tuned_z(stale, z, self.test_data, self._adapt_to).correct
        return Sums(correct, correct, examples)

    def _drift(self, z: Any) -> Array:
        """‖x_i - z‖² of every device, with the current z."""
        store = self.store
        drift = np.zeros(self.federation.devices)
        own = self.model.trained(jax.vmap(self.algorithm.local_model)(store.stacks))
        for x, zz in zip(jax.tree.leaves(own), jax.tree.leaves(self.model.trained(z)), strict=True):
            difference = (np.asarray(x, float) - np.asarray(zz, float)).reshape(store.count, -1)
            drift[store.devices] += np.einsum("ij,ij->i", difference, difference)
        return drift

    def _gradient_row(self, z: Copies, history: list[Row]) -> Row:
        assert self._gradient_weights is not None
        parts = self._gradient(self.train.all_rows, z, self.train_data, self._gradient_weights)
        total = jax.tree.map(lambda *lanes: sum(np.asarray(lane, float).sum(0) for lane in lanes), *parts)
        total = self.machines.sum(total)
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

            def loss(trained: Any) -> Any:
                params = self.model.with_trained(z, trained)
                return jnp.sum(jnp.where(real, self.model.loss(self.model.outputs(params, x), y), 0) * weights[rows])

            return trees.add(total, jax.grad(loss)(self.model.trained(z)))

        return jax.lax.fori_loop(0, chunks.number, add_chunk, trees.zeros_like(self.model.trained(z)))


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


class GlobalModelAtHome:
    """z with each device's own running statistics; with the initial ones, where a device never took part."""

    def __init__(self, own: Any) -> None:
        """`own` gives the devices' own models."""
        self.own, self.inputs = own, own.inputs

    def form(self, own: Any, z: Any, data: batches.Data) -> Any:
        """The models of one lane's places."""
        models = self.own.form(own, z, data)
        params = jax.tree.map(lambda zz, x: jnp.broadcast_to(zz, x.shape), z["params"], models["params"])
        return {"params": params, "statistics": models["statistics"]}


class TunedModels:
    """Models adapted by a few steps on fixed batches of each device's own data: its own x_i, or z."""

    def __init__(
        self, how: FineTune, model: Model, federation: Federation, own: Models | None, seed: int, number: int = 0
    ) -> None:
        """`own` gives the models to adapt, as `OwnModels` does; None is z.

        `number` is that of the federation's first device in the run.
        """
        self.how, self.own, self.seed, self.number = how, own, seed, number
        self.offsets = (federation.train if how.on == "train" else federation.test).offsets
        self.gather = batches.gatherer(federation, augment=False)
        self.model, self.gradient = model, batches.gradient_on(model)

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
            moved = trees.axpy(-self.how.lr, self.gradient(params, batch), self.model.trained(params))
            # A device without examples has nothing to adapt to.
            return trees.where(batch.size > 0, self.model.with_trained(params, moved), params)

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
            order = generator(self.seed, TUNE, self.number + device).permutation(np.arange(first, last))
            table[:, :batch] = np.resize(order, (self.how.steps, batch))
        return table


def all_duals(algorithm: Algorithm, store: DeviceStore, z: Any) -> Duals | None:
    """lambda_i and gamma_i of every device, if the method has them; initial ones where a device never took part."""

    def start(index: Any) -> Duals | None:
        context = Context(index, jnp.ones((), int), jnp.ones((), int))
        return algorithm.duals(algorithm.init_device(z, context))

    columns = jax.vmap(start)(jnp.arange(len(store.slot_of)))
    if columns is None:
        return None
    columns = Duals(*(np.array(column) for column in columns))
    latest: Any = jax.vmap(algorithm.duals)(store.stacks)
    for column, known in zip(columns, latest, strict=True):
        column[store.devices] = known
    return columns

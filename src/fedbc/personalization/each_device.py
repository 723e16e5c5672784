"""Each device its best model, from a global one: the constrained problem around z, solved and chosen on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from fedbc import checks, progress, runtime, storage
from fedbc.data import of_run, unseen_devices
from fedbc.data.federation import Federation
from fedbc.errors import InputError
from fedbc.models.base import Model
from fedbc.personalization.personalized import Personalized
from fedbc.personalization.solved import Chosen, solve
from fedbc.personalization.walk import Steps
from fedbc.personalization.walked import Walks
from fedbc.simulation import batches
from fedbc.simulation.description import checksum
from fedbc.simulation.device import run_key
from fedbc.simulation.fit import check_fit
from fedbc.simulation.initial import fitted
from fedbc.simulation.lanes import Lanes
from fedbc.simulation.result import Result, RunFolder
from fedbc.simulation.schedule import INIT
from fedbc.simulation.scoring import Scorer, StoredModels

Array = np.ndarray
HOW = ("auto", "solve", "walk")
MOST_STEPS = 100
"""Calls of the oracle for a point of the path."""
DEPTH = 8
"""Devices that a lane scores at once."""


def personalize(
    what: Any,
    model: Model,
    federation: Federation,
    *,
    how: str = "auto",
    initial: Any = None,
    seed: int | None = None,
    accuracy: float = 1e-4,
    lr: float | None = None,
    momentum: float | None = None,
    batch_size: int | None = None,
    epochs: int = 10,
    patience: int = 4,
    lanes: int | None = None,
    checkpoint: str | Path | None = None,
    quiet: bool = True,
) -> Personalized:
    """Find for each device the model that serves it best, from a global model and the device's own examples.

    Each device walks the path of models from z to a purely local one, and one that knows nothing of z, and chooses on
    examples of its own that it held out; what it chose is trained on all of its examples. Nothing leaves the device,
    and the global model stays as it is. Test examples are used to report, never to choose.

    what: a result, the folder of a run, or the parameters of a global model. If the run held examples out for
        validation, they are not trained on, and are what is reported on.
    model, federation: what it was made with; a federation with other devices will do.
    how: "solve" the constrained problem for a path of tolerances (small models), or "walk" it by mini-batch descent
        (networks); "auto" takes the first for models that are `tiny` and keep no statistics besides parameters.
    initial: the common model that training alone starts from; the one of the run's seed if not given.
    seed: draws the folds and the batches; that of the run if not given.
    accuracy: to which the problems are solved: the largest ‖∇f_i(x) + 2 lambda_i (x - z)‖ (epsilon_i).
    lr, momentum, batch_size: of walks; those of the run, or 0.01, 0 and 20, if not given.
    epochs, patience: the most epochs of a walk, and how many without gain end a device's.
    lanes: parallel lanes of devices; one per core if not given.
    checkpoint: a folder in which the work is kept; the same call goes on from there.
    quiet: show no progress.
    """
    checks.choice("how", how, HOW)
    checks.number("accuracy", accuracy, above=0)
    checks.integer("epochs", epochs, at_least=1)
    checks.integer("patience", patience, at_least=1)
    if lanes is not None:
        checks.integer("lanes", lanes, at_least=1)
    check_fit(model, federation)
    if model.statistics is not None and how == "solve":
        raise InputError(
            f"how='solve' is not for model {model.name}, which keeps statistics besides its parameters: give 'walk'"
        )
    result = _read(what)
    run = result.spec.get("run", {}) if result is not None else {}
    trained = result if result is not None and _has_trained_on(result, federation) else None
    federation = of_run(federation, run)
    seed = checks.integer("seed", run.get("seed", 0) if seed is None else seed, at_least=0)
    like = jax.eval_shape(model.init, jax.random.key(0))
    z = fitted(result.global_model if result is not None else what, like)
    origin = fitted(model.init(run_key(seed, INIT)) if initial is None else initial, like)
    solved = (model.tiny and model.statistics is None) if how == "auto" else how == "solve"
    method = result.spec.get("algorithm", {}) if result is not None else {}
    steps = Steps(
        lr=checks.number("lr", method.get("lr", 0.01) if lr is None else lr, above=0),
        momentum=method.get("momentum", 0.0) if momentum is None else momentum,
        batch_size=run.get("batch_size", 20) if batch_size is None else batch_size,
        epochs=epochs,
        patience=patience,
        seed=seed,
    )
    facts: dict[str, Any] = {"how": "solve" if solved else "walk", "seed": seed, "classes": model.correct is not None}
    facts |= {"accuracy": accuracy} if solved else {k: v for k, v in vars(steps).items() if k != "seed"}
    statistics = _statistics(model, federation, z, origin, trained)
    begin = (z, origin) if statistics is None else (z, origin, statistics)
    work = _Work(model, federation, z, origin, lanes, _kept(checkpoint, facts, federation, *begin), facts, statistics)
    with progress.shown(quiet=quiet) as display:
        if solved:
            return work.solved(seed, accuracy, display, trained)
        return work.walked(steps, display, trained)


def _read(what: Any) -> Result | None:
    if isinstance(what, str | Path):
        return RunFolder(what).read()
    return what if isinstance(what, Result) else None


def _has_trained_on(result: Result, federation: Federation) -> bool:
    """Whether the result's devices are the federation's; where its specification tells no checksum of the examples (a
    run by name), the federation is taken to be the one that it names."""
    told = result.spec.get("data", {})
    return "file" in told or told.get("checksum") in (None, checksum(federation))


def _statistics(
    model: Model, federation: Federation, z: Any, origin: Any, result: Result | None
) -> dict[str, Any] | None:
    """What each device's walks begin with, stacked, of a model that keeps statistics: from z, the device's own if they
    stayed with it in training, else z's; alone, the initial ones."""
    if model.statistics is None:
        return None

    def of_all(params: Any) -> Any:
        return jax.tree.map(lambda a: np.repeat(np.asarray(a)[None], federation.devices, axis=0), params["statistics"])

    own, numbered = of_all(z), _trained_on(result, federation)
    if result is not None and numbered is not None and model.statistics == "local":
        kept = storage.restored(z, storage.named(result.participants_models))["statistics"]
        for whole, part in zip(jax.tree.leaves(own), jax.tree.leaves(kept), strict=True):
            whole[numbered] = part
    return {"z": own, "alone": of_all(origin)}


def _kept(checkpoint: str | Path | None, facts: dict[str, Any], federation: Federation, *models: Any) -> Path | None:
    """The folder of what is done already, if it is of the same work; an InputError if it is of another one."""
    if checkpoint is None:
        return None
    folder = Path(checkpoint)
    mark = {**facts, "data": checksum(federation), "models": _sum_of(models)}
    with storage.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    file = folder / "personalization.json"
    wanted = storage.to_json(mark)
    if file.exists() and file.read_text() != wanted:
        raise InputError(f"{folder} holds another personalisation: give another folder, or remove it first")
    storage.write_atomically(file, wanted)
    return folder


def _sum_of(models: Any) -> str:
    import zlib

    value = 0
    for leaf in jax.tree.leaves(models):
        value = zlib.crc32(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data, value)
    return f"{value:08x}"


class _Work:
    """One personalisation."""

    def __init__(
        self,
        model: Model,
        federation: Federation,
        z: Any,
        origin: Any,
        lanes: int | None,
        folder: Path | None,
        facts: dict[str, Any],
        statistics: dict[str, Any] | None,
    ) -> None:
        self.model, self.federation, self.z, self.origin = model, federation, z, origin
        self.lanes = Lanes(min(lanes or runtime.default_lanes(), federation.devices))
        self.folder, self.facts, self.statistics = folder, facts, statistics
        self.wanted_lanes = lanes

    def solved(self, seed: int, accuracy: float, display: progress.Display, result: Result | None) -> Personalized:
        """By solving each device's constrained problems."""
        file = self.folder / "solved.safetensors" if self.folder is not None else None
        done = _read_chosen(file)
        count = self.federation.devices
        found = solve(
            self.model,
            self.federation,
            self.z,
            self.origin,
            seed=seed,
            accuracy=accuracy,
            most=MOST_STEPS,
            lanes=self.lanes,
            known=set(done),
        )
        display.count("personalising devices", len(done), count)
        for device, chosen in found:
            done[device] = chosen
            display.count("personalising devices", len(done), count)
            if file is not None and (len(done) % (8 * self.lanes.count) == 0 or len(done) == count):
                _write_chosen(file, done)
        unravel = ravel_pytree(self.z)[1]
        rows = [done[device] for device in range(count)]

        def stacked(name: str) -> Any:
            each = [jax.tree.map(np.asarray, unravel(getattr(row, name))) for row in rows]
            return jax.tree.map(lambda *a: np.stack(a), *each)

        numbers = {
            f"{name}s": np.asarray([getattr(row, name) for row in rows], float)
            for name in ("tolerance", "multiplier", "residual")
        }
        return self._described(stacked("personal"), stacked("own"), np.full(count, np.nan), result, **numbers)

    def walked(self, how: Steps, display: progress.Display, result: Result | None) -> Personalized:
        """By descent that each device stops where its held-out examples say."""

        def on_epoch(name: str, epoch: int) -> None:
            display.count(f"walk from {name}", epoch, how.epochs)

        starts = {"z": self.z, "alone": self.origin}
        lanes, trained = self.wanted_lanes, self.model.trained
        out = Walks(self.model, self.federation, starts, how, lanes, self.folder, on_epoch, self.statistics).run()
        leaves = zip(jax.tree.leaves(trained(out.personal)), jax.tree.leaves(trained(self.z)), strict=True)
        drift = sum(((np.asarray(x, float) - z) ** 2).reshape(len(x), -1).sum(1) for x, z in leaves)
        gamma = np.where(out.from_z, drift, np.inf)
        unknown = np.full(len(gamma), np.nan)
        return self._described(
            out.personal,
            out.own,
            out.epochs.astype(float),
            result,
            tolerances=gamma,
            multipliers=np.where(gamma == 0, np.inf, unknown),
            residuals=unknown,
        )

    def _described(
        self, personal: Any, own: Any, epochs: Array, result: Result | None, **numbers: Array
    ) -> Personalized:
        """With what each model gets right on the test sets."""
        federation, model = self.federation, self.model
        data = self.lanes.put(batches.host_data(federation.test, federation.shared))
        scorer = Scorer(model, federation, federation.test, self.lanes, DEPTH)
        stored = StoredModels(federation.devices)
        score = scorer.own_rows(stored)
        z, devices = self.lanes.put(self.z), np.arange(federation.devices)

        def worth(right: Array, loss: Array) -> Array:
            return np.asarray(right, float) if model.correct is not None else -np.asarray(loss, float)

        def of(models: Any, who: Array) -> Array:
            stored.put(models, who)
            return worth(*score(devices, z, data, data))

        if self.statistics is None:
            right = {"global": worth(*scorer.one(z, data))}
        else:  # z is judged as training judges it: with the statistics that the device has
            shared = jax.tree.map(lambda a: np.repeat(np.asarray(a)[None], len(devices), axis=0), self.z["params"])
            right = {"global": of({"params": shared, "statistics": self.statistics["z"]}, devices)}
        numbered = _trained_on(result, federation)
        if result is not None and numbered is not None:
            like = jax.tree.map(np.asarray, self.z)
            trained = storage.restored(like, storage.named(result.participants_models))
            right["trained"] = of(trained, numbered)
        right |= {"alone": of(own, devices), "personal": of(personal, devices)}
        return Personalized(
            local_models=personal,
            alone_models=own,
            epochs=epochs,
            right=right,
            train_examples=federation.train.sizes,
            test_examples=federation.test.sizes,
            names=device_names(federation),
            unseen=np.isin(devices, _unseen(result, federation)),
            how=self.facts,
            **numbers,
        )


def _trained_on(result: Result | None, federation: Federation) -> Array | None:
    """The numbers of the devices that the result has local models of; None if it has none, or of other devices."""
    if result is None or result.participants_models is None or result.spec.get("run", {}).get("pooled"):
        return None
    seen = np.setdiff1d(np.arange(federation.devices), _unseen(result, federation))
    return seen[result.participants] if len(result.multipliers) == len(seen) else None


def _unseen(result: Result | None, federation: Federation) -> Array:
    """The numbers of the devices that were kept out of training."""
    run = result.spec.get("run", {}) if result is not None else {}
    if run.get("unseen") is None:
        return np.zeros(0, int)
    return unseen_devices(federation, run["unseen"], run["seed"])


def device_names(federation: Federation) -> tuple[str, ...]:
    """The devices' names, where the federation has them; else their numbers."""
    return tuple(str(label) for label in federation.device_labels)


def _read_chosen(file: Path | None) -> dict[int, Chosen]:
    if file is None or not file.exists():
        return {}
    arrays, _ = storage.read_arrays(file)
    rows = zip(*(arrays[name] for name in Chosen._fields), strict=True)
    return {int(device): Chosen(*row) for device, row in zip(arrays["devices"], rows, strict=True)}


def _write_chosen(file: Path, done: dict[int, Chosen]) -> None:
    columns = {name: np.stack([getattr(row, name) for row in done.values()]) for name in Chosen._fields}
    storage.write_arrays(file, {"devices": np.asarray(list(done), np.int64), **columns}, {})

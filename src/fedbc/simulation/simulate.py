"""The round loop: sample, train, keep, evaluate, record; checkpoints, Ctrl-C, divergence."""

from __future__ import annotations

import contextlib
import platform
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedbc import checks, runtime, storage, trees
from fedbc.algorithms.base import Algorithm, Context
from fedbc.data.federation import Federation
from fedbc.errors import Diverged, InputError, Interrupted
from fedbc.models.base import Model
from fedbc.simulation import batches, metrics
from fedbc.simulation.debug import train_by_hand
from fedbc.simulation.engine import Engine, Trained
from fedbc.simulation.result import Result
from fedbc.simulation.schedule import INIT, NOISE, Batching, Plan, Planner, generator
from fedbc.simulation.scoring import Scorer, Sums
from fedbc.simulation.store import DeviceStore

CHECKPOINT = "checkpoint.safetensors"
FORMAT = "fedbc-checkpoint-1"
EVALUATIONS = ("global", "local", "train")

Row = dict[str, Any]


def simulate(
    algorithm: Algorithm,
    model: Model,
    federation: Federation,
    *,
    rounds: int = 100,
    epochs: int = 1,
    batch_size: int | None = 20,
    sample: int | None = None,
    seed: int = 0,
    evaluate: Sequence[str] = EVALUATIONS,
    evaluate_every: int = 1,
    lanes: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 20,
    resume: bool = False,
    debug: bool = False,
    on_round: Callable[[Row], None] | None = None,
) -> Result:
    """Run a federated method on one machine.

    rounds: rounds of communication.
    epochs: passes of each sampled device over its data in a round (E); for full-batch descent the local steps K.
    batch_size: examples a local step; None is full-batch gradient descent.
    sample: devices that take part in a round, drawn uniformly without replacement; None is all of them.
    seed: determines the initial model, the samples and the batches; a run is a function of it.
    evaluate: what to measure: "global" (z on the test sets), "local" (x_i on its own), "train" (z's training loss).
    evaluate_every: measure every so many rounds, and after the last.
    lanes: parallel lanes of devices; by default one a core. Sums over devices are formed lane by lane, so another
        number of lanes agrees up to the rounding of floating-point sums, the same number to the bit.
    checkpoint, checkpoint_every: a folder to write the run's whole state to, every so many rounds.
    resume: go on from the folder's checkpoint, to the same bits as an uninterrupted run.
    debug: no compilation, one device after the other; errors name round, device and stage.
    on_round: called with each row of history.
    """
    run = Simulation(
        algorithm,
        model,
        federation,
        epochs=epochs,
        batch_size=batch_size,
        sample=sample,
        seed=seed,
        evaluate=evaluate,
        evaluate_every=evaluate_every,
        lanes=lanes,
        debug=debug,
    )
    checks.integer("rounds", rounds, at_least=1)
    checks.integer("checkpoint_every", checkpoint_every, at_least=1)
    file = Path(checkpoint) / CHECKPOINT if checkpoint is not None else None
    if resume:
        if file is None:
            raise InputError("resume=True needs checkpoint=FOLDER, the folder to resume from")
        run.restore(file)
    elif file is not None:
        with storage.explained(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
    with _patient_interrupt() as stop, jax.disable_jit(debug):
        while run.round < rounds:
            try:
                row = run.advance(last=run.round + 1 == rounds)
            except Diverged as error:
                error.result = run.result()
                if file is not None:
                    run.save(file)
                raise
            if on_round is not None:
                on_round(row)
            due = run.round % checkpoint_every == 0 or run.round == rounds or stop()
            if file is not None and due:
                run.save(file)
            if stop() and run.round < rounds:
                kept = f"; its state is in {file.parent}" if file is not None else ""
                raise Interrupted(f"stopped after round {run.round} of {rounds}{kept}", round=run.round, result=run.result())
    return run.result()


class Simulation:
    """A run that can be advanced round by round."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        federation: Federation,
        *,
        epochs: int = 1,
        batch_size: int | None = 20,
        sample: int | None = None,
        seed: int = 0,
        evaluate: Sequence[str] = EVALUATIONS,
        evaluate_every: int = 1,
        lanes: int | None = None,
        debug: bool = False,
    ) -> None:
        _check_objects(algorithm, model, federation)
        checks.integer("epochs", epochs, at_least=1)
        checks.integer("seed", seed, at_least=0)
        checks.integer("evaluate_every", evaluate_every, at_least=1)
        if batch_size is not None:
            checks.integer("batch_size", batch_size, at_least=1)
        if sample is not None:
            checks.integer("sample", sample, at_least=1)
            if sample > federation.devices:
                raise InputError(
                    f"sample={sample} is not accepted: the federation has {federation.devices} devices, "
                    f"give a whole number from 1 to {federation.devices}"
                )
        for what in evaluate:
            checks.choice("evaluate", what, EVALUATIONS)
        algorithm.check_population(federation.devices)
        lanes = runtime.default_lanes() if lanes is None else checks.integer("lanes", lanes, at_least=1)
        lanes = min(lanes, sample or federation.devices)

        self.algorithm, self.model, self.federation = algorithm, model, federation
        self.evaluate, self.evaluate_every, self.debug = tuple(evaluate), evaluate_every, debug
        batching = Batching(batch_size, epochs, algorithm.batches)
        self.planner = Planner(federation.train.offsets, batching, sample=sample, lanes=lanes, seed=seed)
        self.engine = Engine(algorithm, model, federation, batching, lanes)
        params = model.init(jax.random.key(int(generator(seed, INIT).integers(2**31))))
        _check_fit(model, federation, params)
        self.server = self.engine.put(algorithm.init_server(params))
        self.key = self.engine.put(jax.random.key(int(generator(seed, NOISE).integers(2**31))))
        self.store = DeviceStore(jax.eval_shape(lambda: algorithm.init_device(params, _no_context())), federation.devices)
        self.train_data = batches.place(federation.train, federation.shared, self.engine.everywhere)
        self.test_data = batches.place(federation.test, federation.shared, self.engine.everywhere)
        where = self.engine.mesh, lanes, self.planner.depth
        self.test_scorer = Scorer(model, federation, federation.test, *where)
        self.train_scorer = Scorer(model, federation, federation.train, *where)
        # Scores of each x_i on its own test set, kept until the device trains again.
        self.own_correct, self.own_loss = (np.zeros(federation.devices) for _ in range(2))
        self.unscored: set[int] = set()
        self.round = 0
        self.history: list[Row] = []
        self.device_rows: list[dict[str, np.ndarray]] = []
        self._next_plan: Plan | None = None
        self.spec = {
            "algorithm": {"name": algorithm.name, **algorithm.hyperparameters()},
            "model": {"name": model.name, "parameters": trees.size(params)},
            "data": {"name": federation.name, "devices": federation.devices, "checksum": _checksum(federation)},
            "run": {
                "epochs": epochs,
                "batch_size": batch_size,
                "sample": sample,
                "seed": seed,
                "evaluate": list(evaluate),
                "evaluate_every": evaluate_every,
                "lanes": lanes,
            },
            "versions": versions(),
        }

    def advance(self, *, last: bool = False) -> Row:
        """Run one round and return its row of history; a round that diverges leaves everything as it was."""
        began = time.perf_counter()
        number = self.round + 1
        plan = self._next_plan or self.planner.plan(number)
        states, fresh = self.store.take(plan.devices)
        if self.debug:
            trained = train_by_hand(self.engine, self.server, states, fresh, plan, self.train_data, self.key)
        else:
            trained = self.engine.train(self.server, states, fresh, plan, self.train_data, self.key)
            self._next_plan = self.planner.plan(number + 1)  # while the lanes compute
        rows = self._device_rows(plan, trained)
        self.store.put(plan, trained.states)
        self.unscored.update(rows["device"].tolist())
        trained_at = time.perf_counter()
        row: Row = {"round": number}
        if number % self.evaluate_every == 0 or last:
            row |= self._evaluate(trained.server, number)
        row |= {
            "drift": float(rows["drift"].mean()),
            "local_loss": float(rows["loss"].mean()),
            "train_seconds": trained_at - began,
            "seconds": time.perf_counter() - began,
        }
        self.server, self.round = trained.server, number
        self.device_rows.append(rows)
        self.history.append(row)
        return row

    def _device_rows(self, plan: Plan, trained: Trained) -> dict[str, np.ndarray]:
        lane, place = plan.places
        info = {name: np.asarray(values)[lane, place] for name, values in trained.info.items()}
        devices, examples = plan.devices[lane, place], plan.examples[lane, place]
        finite = np.isfinite(info["drift"]) & np.isfinite(info["loss"]) & np.isfinite(info["weight"])
        if not finite.all():
            raise self._diverged(plan.round, int(devices[np.argmin(finite)]))
        weight = np.asarray(info.pop("weight"), float)
        total = weight.sum()
        return {
            "round": np.full(len(devices), plan.round),
            "device": devices,
            "examples": examples,
            **info,
            "coefficient": weight / total if total > 0 else np.full(len(weight), 1 / len(weight)),
            "coefficient_by_examples": examples / examples.sum(),
        }

    def _diverged(self, number: int, device: int | None) -> Diverged:
        whose = f"on device {device}" if device is not None else "in the global model"
        lr = getattr(self.algorithm, "lr", None)
        advice = f"try a smaller rate than lr={lr:g}" if lr is not None else "try a smaller rate"
        kept = f"the state after round {number - 1} is kept" if number > 1 else "no round was completed"
        message = f"training diverged in round {number} {whose}: a value is not finite; {kept}; {advice}"
        return Diverged(message, round=number, device=device)

    def _evaluate(self, server: Any, number: int) -> Row:
        z = self.algorithm.global_model(server)
        row: Row = {}
        test: Sums | None = None
        if "global" in self.evaluate or "local" in self.evaluate:
            test = self.test_scorer.by_device(*self.test_scorer.one(z, self.test_data))
            if not np.isfinite(test.loss).all():
                raise self._diverged(number, None)
            row |= metrics.global_row(test, self.federation.train.sizes)
        if "train" in self.evaluate:
            row |= metrics.train_row(self.train_scorer.by_device(*self.train_scorer.one(z, self.train_data)))
        if "local" in self.evaluate and test is not None:
            row |= metrics.local_row(self._own_scores(test))
        return row if self.model.correct else metrics.without_accuracy(row)

    def _own_scores(self, z_scores: Sums) -> Sums:
        """Each x_i on its own test set; only devices that trained since the last time are scored anew."""
        devices = np.asarray(sorted(self.unscored), dtype=np.int64)

        def models(places: np.ndarray) -> Any:
            states, _ = self.store.take(places)
            return jax.vmap(jax.vmap(self.algorithm.local_model))(states)

        fresh = self.test_scorer.own(models, devices, self.test_data)
        self.own_correct[devices], self.own_loss[devices] = fresh.correct, fresh.loss
        self.unscored.clear()
        took_part = self.store.slot_of >= 0
        return Sums(
            np.where(took_part, self.own_correct, z_scores.correct),
            np.where(took_part, self.own_loss, z_scores.loss),
            z_scores.examples,
        )

    def result(self) -> Result:
        """The run so far."""
        multipliers, tolerances = self._duals()
        models = jax.vmap(self.algorithm.local_model)(self.store.stacks)
        return Result(
            history=pd.DataFrame(self.history, columns=None if self.history else ["round", "seconds"]),
            devices=pd.DataFrame(_concatenated(self.device_rows)),
            global_model=jax.tree.map(np.asarray, self.algorithm.global_model(self.server)),
            multipliers=multipliers,
            tolerances=tolerances,
            spec=self.spec | {"run": {"rounds": self.round, **self.spec["run"]}},
            participants=self.store.devices,
            participants_models=jax.tree.map(np.asarray, models),
        )

    def _duals(self) -> tuple[np.ndarray, np.ndarray]:
        """lambda_i and gamma_i of every device; those of a device that never took part are the initial ones."""
        shape = self.store.template
        z = self.algorithm.global_model(self.server)

        def initial(index: Any, name: str) -> Any:
            context = Context(index, jnp.ones((), int), jnp.ones((), int))
            return getattr(self.algorithm.init_device(z, context), name)

        columns = []
        for name in ("multiplier", "tolerance"):
            if not hasattr(shape, name):
                columns.append(np.full(self.federation.devices, np.nan))
                continue
            every = jnp.arange(self.federation.devices)
            column = np.array(jax.vmap(lambda i, name=name: initial(i, name))(every))
            column[self.store.devices] = getattr(self.store.stacks, name)
            columns.append(column)
        return columns[0], columns[1]

    def save(self, file: Path) -> None:
        """Write the whole state to one file, atomically."""
        arrays = {
            **storage.named(self.server, "server"),
            **storage.named(self.store.stacks, "devices"),
            "participants": self.store.devices,
            "own_correct": self.own_correct,
            "own_loss": self.own_loss,
            "unscored": np.asarray(sorted(self.unscored), np.int64),
            **{f"device_rows.{k}": v for k, v in _concatenated(self.device_rows).items()},
        }
        facts = {"format": FORMAT, "round": self.round, "spec": self.spec, "history": self.history}
        storage.write_arrays(file, arrays, facts)

    def restore(self, file: Path) -> None:
        """Take over the state that `save` wrote; one of another run, or a damaged one, is an InputError."""
        arrays, facts = storage.read_arrays(file)
        if facts.get("format") != FORMAT:
            raise InputError(f"{file} has format {facts.get('format')!r}; this version reads {FORMAT}")
        _check_same_run(file, facts["spec"], self.spec)
        self.server = self.engine.put(storage.restored(self.server, arrays, "server"))
        self.store.restore(arrays["participants"], storage.restored(self.store.template, arrays, "devices"))
        self.own_correct, self.own_loss = arrays["own_correct"].copy(), arrays["own_loss"].copy()
        self.unscored = set(arrays["unscored"].tolist())
        self.round, self.history = facts["round"], facts["history"]
        columns = {k.split(".", 1)[1]: v for k, v in arrays.items() if k.startswith("device_rows.")}
        self.device_rows = [columns] if columns else []
        self._next_plan = None


def versions() -> dict[str, str]:
    """The software that a run depends on."""
    names = ["fedbc", "jax", "jaxlib", "numpy", "pandas"]
    found = {name: metadata.version(name) for name in names}
    return {**found, "python": platform.python_version(), "platform": jax.devices()[0].platform}


def _concatenated(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    if not parts:
        return {}
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def _no_context() -> Context:
    return Context(jnp.zeros((), int), jnp.ones((), int), jnp.ones((), int))


def _check_objects(algorithm: object, model: object, federation: object) -> None:
    for name, value, kind, example in (
        ("algorithm", algorithm, Algorithm, "fedbc.FedBC(lr=0.01)"),
        ("model", model, Model, "fedbc.models.logistic(60, 10)"),
        ("federation", federation, Federation, "fedbc.data.synthetic()"),
    ):
        if not isinstance(value, kind):
            raise InputError(f"{name}={value!r} is not accepted: give a {kind.__name__}, for example {example}")


def _check_fit(model: Model, federation: Federation, params: Any) -> None:
    """The model takes the federation's examples, and has a logit for every label."""
    x = jax.ShapeDtypeStruct((2, *federation.train.x.shape[1:]), federation.train.x.dtype)
    decoded = jax.eval_shape(federation.decode, federation.shared, x)
    try:
        outputs = jax.eval_shape(model.outputs, params, decoded)
    except Exception as error:
        raise InputError(
            f"model {model.name} does not take examples of shape {decoded.shape[1:]} of data {federation.name}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if federation.classes is not None and model.correct is not None and outputs.shape[-1] < federation.classes:
        raise InputError(
            f"model {model.name} has {outputs.shape[-1]} outputs but data {federation.name} has "
            f"{federation.classes} classes: give a model with at least {federation.classes} outputs"
        )


def _checksum(federation: Federation) -> str:
    value = 0
    for split in (federation.train, federation.test):
        for array in (split.x, split.y, split.offsets):
            value = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8), value)
    return f"{value:08x}"


def _check_same_run(file: Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """A checkpoint continues the same run only: algorithm, model, data and run must agree, versions need not."""
    for part in ("algorithm", "model", "data", "run"):
        old, new = stored.get(part, {}), _as_json(wanted[part])
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                raise InputError(
                    f"{file} belongs to another run: its {part} {key} is {old.get(key)!r}, here it is {new.get(key)!r}"
                )


def _as_json(value: Any) -> Any:
    """As it comes back from a JSON file: tuples are lists there."""
    if isinstance(value, dict):
        return {k: _as_json(v) for k, v in value.items()}
    return [_as_json(v) for v in value] if isinstance(value, list | tuple) else value


@contextlib.contextmanager
def _patient_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets the running round end; the second one interrupts at once, as usual."""
    asked = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    usual = signal.getsignal(signal.SIGINT)

    def remember(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, usual)

    if usual is not signal.default_int_handler:  # somebody else handles Ctrl-C: leave it to them
        yield lambda: False
        return
    signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, usual)

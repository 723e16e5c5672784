"""The round loop: sample, train, keep, evaluate, record; checkpoints, Ctrl-C, divergence."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedbc import checks, data, runtime, storage, trees
from fedbc.algorithms.base import Algorithm
from fedbc.algorithms.finetune import FineTune
from fedbc.data.federation import Federation
from fedbc.errors import Diverged, InputError, Interrupted
from fedbc.models.base import Model
from fedbc.simulation import batches
from fedbc.simulation.debug import ByHand
from fedbc.simulation.diagnostics import Diagnostics, RoundReport
from fedbc.simulation.engine import Engine
from fedbc.simulation.evaluation import DEFAULT, Evaluator, Row, duals
from fedbc.simulation.lanes import Lanes
from fedbc.simulation.result import Result
from fedbc.simulation.schedule import INIT, NOISE, Batching, Plan, Planner, Plans, generator
from fedbc.simulation.settings import Settings
from fedbc.simulation.store import DeviceStore
from fedbc.simulation.training import Trained, Training, training

CHECKPOINT = "checkpoint.safetensors"
FORMAT = "fedbc-checkpoint-1"


def simulate(
    algorithm: Algorithm,
    model: Model,
    federation: Federation,
    *,
    rounds: int = 100,
    epochs: int = 1,
    batch_size: int | None = 20,
    sample: int | None = None,
    pooled: bool = False,
    seed: int = 0,
    evaluate: Sequence[str] = DEFAULT,
    evaluate_every: int = 1,
    fine_tune: FineTune | None = None,
    lanes: int | None = None,
    validation: float | None = None,
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
    pooled: train on all devices' data as if one device had them: a centralised run, for comparison.
    seed: determines the initial model, the samples and the batches; a run is a function of it.
    evaluate: what to measure: "global" (z on the test sets), "local" (x_i on its own), "train" (z's training loss),
        "gradient" (‖∇f(z)‖²), "lagrangian" (its value, drift and violation over all devices); columns of `metrics`.
    evaluate_every: measure every so many rounds, and after the last.
    fine_tune: adapt each device's model by a few steps before it is evaluated, in columns of its own; by default as
        the algorithm asks for it (MAML-type methods do).
    lanes: parallel lanes of devices; by default one a core. Sums over devices are formed lane by lane, so another
        number of lanes agrees up to the rounding of floating-point sums, the same number to the bit.
    validation: hold this share of each device's training examples out, drawn by `seed`, and measure on them instead of
        the test sets, which are not used: for choosing hyper-parameters.
    checkpoint, checkpoint_every: a folder to write the run's whole state to, every so many rounds.
    resume: go on from the folder's checkpoint, to the same bits as an uninterrupted run.
    debug: no compilation, one device after the other; errors name round, device and stage.
    on_round: called with each row of history.
    """
    evaluate = tuple(evaluate)
    settings = Settings(
        epochs, batch_size, sample, pooled, seed, evaluate, evaluate_every, fine_tune, lanes, validation
    )
    run = Simulation(algorithm, model, federation, settings, debug=debug)
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
                row = run.advance(last=run.round + 1 == rounds, ahead=rounds - run.round - 1)
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
                raise Interrupted(
                    f"stopped after round {run.round} of {rounds}{kept}", round=run.round, result=run.result()
                )
    return run.result()


class Ready(NamedTuple):
    """A round that was trained, and is not yet part of the run."""

    plan: Plan
    trained: Trained
    seconds: float


class Simulation:
    """A run that can be advanced round by round."""

    def __init__(
        self, algorithm: Algorithm, model: Model, federation: Federation, settings: Settings, *, debug: bool = False
    ) -> None:
        settings.check(algorithm, model, federation)
        if settings.validation is not None:
            federation = data.held_out(federation, settings.validation, settings.seed)
        if settings.pooled:
            federation = data.pooled(federation)
        seed, sample = settings.seed, settings.sample
        lanes = Lanes(min(settings.lanes or runtime.default_lanes(), sample or federation.devices), threads=not debug)

        self.algorithm, self.model, self.federation = algorithm, model, federation
        self.settings, self.debug = settings, debug
        batching = Batching(settings.batch_size, settings.epochs, algorithm.batches)
        self.planner = Planner(federation.train.offsets, batching, sample=sample, lanes=lanes.count, seed=seed)
        self.engine = Engine(algorithm, model, federation, batching, lanes)
        params = model.init(jax.random.key(int(generator(seed, INIT).integers(2**31))))
        self.server = lanes.put(algorithm.init_server(params))[0]
        # Keys travel as plain numbers: JAX takes its fast path into compiled code for those only.
        self.key = lanes.put(jax.random.key_data(jax.random.key(int(generator(seed, NOISE).integers(2**31)))))
        self.store = DeviceStore(self.engine.state_shapes, federation.devices)
        self.train_data = lanes.put(batches.host_data(federation.train, federation.shared))
        self.training: Training
        if debug:
            self.training = ByHand(self.engine, self.store, self.train_data, self.key)
        else:
            self.training = training(self.engine, self.planner, self.store, self.train_data, self.key)
        self.evaluator = Evaluator(
            algorithm,
            model,
            federation,
            what=settings.evaluate,
            fine_tune=settings.fine_tune or algorithm.fine_tune(),
            lanes=lanes,
            depth=self.planner.depth,
            store=self.store,
            train_data=self.train_data,
            test_data=lanes.put(batches.host_data(federation.test, federation.shared)),
            seed=seed,
        )
        self.round = 0
        self.history: list[Row] = []
        self.diagnostics = Diagnostics()
        self._next_plans: Plans | None = None
        self._ready: list[Ready] = []
        self.spec = {
            "algorithm": {"name": algorithm.name, **algorithm.hyperparameters()},
            "model": {"name": model.name, "parameters": trees.size(params)},
            "data": {"name": federation.name, "devices": federation.devices, "checksum": checksum(federation)},
            "run": dataclasses.asdict(settings) | {"lanes": lanes.count},
            "versions": versions(),
        }

    def advance(self, *, last: bool = False, ahead: int = 0) -> Row:
        """Run one round and return its row of history; a round that diverges leaves everything as it was.

        last: evaluate, whether or not the round is one of those that are.
        ahead: how many rounds are going to follow; some of them may be trained along with this one.
        """
        number = self.round + 1
        if not self._ready:
            self._ready = self._train(number, ahead)
        plan, trained, seconds = self._ready[0]
        began = time.perf_counter() - seconds
        report = self._report(plan, trained)
        self.store.put(plan, trained.states)
        self.evaluator.trained(report.devices)
        trained_at = time.perf_counter()
        row: Row = {"round": number}
        if number % self.settings.evaluate_every == 0 or last:
            row |= self.evaluator.row(trained.server, self.history)
        names, means = self.engine.info_names, report.values.mean(0).tolist()
        row |= {
            "drift": means[names.index("drift")],
            "local_loss": means[names.index("loss")],
            "train_seconds": trained_at - began,
            "seconds": time.perf_counter() - began,
        }
        self.server, self.round = trained.server, number
        self._ready.pop(0)
        self.diagnostics.add(names, report)
        self.history.append(row)
        return row

    def _train(self, number: int, ahead: int) -> list[Ready]:
        """Train this round, and some of those that follow."""
        began = time.perf_counter()
        count = min(self.training.at_once, 1 + ahead)
        following = min(self.training.at_once, max(1, 1 + ahead - count))
        plans = self._plans(number, count)
        trained = self.training.train(self.server, plans, meanwhile=lambda: self._plans(number + count, following))
        share = (time.perf_counter() - began) / count
        return [Ready(plan, one, share) for plan, one in zip(plans.rounds, trained, strict=True)]

    def _plans(self, first: int, count: int) -> Plans:
        """The plans of some rounds; those of the next ones are made while the lanes compute."""
        kept = self._next_plans
        if kept is None or kept.rounds[0].round != first or len(kept.rounds) != count:
            self._next_plans = kept = self.planner.plans(first, count, room=self.training.at_once)
        return kept

    def _report(self, plan: Plan, trained: Trained) -> RoundReport:
        """What the devices reported, if all of it is finite."""
        lane, place = plan.places
        values = np.concatenate([np.asarray(part, float) for part in trained.info])[lane, place]
        devices = plan.devices[lane, place]
        must_be_finite = values[:, [self.engine.info_names.index(name) for name in ("drift", "loss", "weight")]]
        if not np.isfinite(must_be_finite).all():
            first = np.argmin(np.isfinite(must_be_finite).all(1))
            raise self._diverged(plan.round, int(devices[first]))
        if not trained.finite:
            raise self._diverged(plan.round, None)
        return RoundReport(plan.round, devices, plan.examples[lane, place], values)

    def _diverged(self, number: int, device: int | None) -> Diverged:
        whose = f"on device {device}" if device is not None else "in the global model"
        lr = getattr(self.algorithm, "lr", None)
        advice = f"try a smaller rate than lr={lr:g}" if lr is not None else "try a smaller rate"
        kept = f"the state after round {number - 1} is kept" if number > 1 else "no round was completed"
        message = f"training diverged in round {number} {whose}: a value is not finite; {kept}; {advice}"
        return Diverged(message, round=number, device=device)

    def result(self) -> Result:
        """The run so far."""
        import pandas as pd  # not at the top: a deployed device, which starts anew for each message, has no use for it

        z = self.algorithm.global_model(self.server)
        multipliers, tolerances = duals(self.algorithm, self.store, z)
        models = jax.vmap(self.algorithm.local_model)(self.store.stacks)
        return Result(
            history=pd.DataFrame(self.history, columns=_columns(self.history)),
            devices=pd.DataFrame(self.diagnostics.columns()),
            global_model=jax.tree.map(np.asarray, z),
            multipliers=multipliers,
            tolerances=tolerances,
            spec=self.spec | {"run": {"rounds": self.round, **self.spec["run"]}},
            participants=self.store.devices,
            participants_models=jax.tree.map(np.asarray, models),
        )

    def save(self, file: Path) -> None:
        """Write the whole state to one file, atomically."""
        columns = self.diagnostics.columns()
        arrays = {
            **storage.named(self.server, "server"),
            **storage.named(self.store.stacks, "devices"),
            "participants": self.store.devices,
            **{f"scores.{k}": v for k, v in self.evaluator.state().items()},
            **{f"device_rows.{k}": v for k, v in columns.items()},
        }
        facts = {
            "format": FORMAT,
            "round": self.round,
            "spec": self.spec,
            "history": self.history,
            "device_columns": list(columns),
        }
        storage.write_arrays(file, arrays, facts)

    def restore(self, file: Path) -> None:
        """Take over the state that `save` wrote; one of another run, or a damaged one, is an InputError."""
        arrays, facts = storage.read_arrays(file)
        if facts.get("format") != FORMAT:
            raise InputError(f"{file} has format {facts.get('format')!r}; this version reads {FORMAT}")
        check_same_run(file, facts["spec"], self.spec)
        self.server = self.engine.lanes.put(storage.restored(self.server, arrays, "server"))[0]
        self.store.restore(arrays["participants"], storage.restored(self.store.template, arrays, "devices"))
        self.evaluator.restore(_under("scores.", arrays))
        self.round, self.history = facts["round"], facts["history"]
        self._ready.clear()
        columns = _under("device_rows.", arrays)
        self.diagnostics = Diagnostics({name: columns[name] for name in facts["device_columns"]})


def versions() -> dict[str, str]:
    """The software that a run depends on."""
    names = ["fedbc", "jax", "jaxlib", "numpy", "pandas"]
    found = {name: metadata.version(name) for name in names}
    return {**found, "python": platform.python_version(), "platform": jax.devices()[0].platform}


def _columns(history: list[Row]) -> list[str]:
    """The columns in the order of a full row, whether or not the first round was evaluated."""
    fullest: Row = max(history, key=lambda row: len(row), default={"round": 0, "seconds": 0.0})
    return list(fullest)


def _under(prefix: str, arrays: storage.Arrays) -> storage.Arrays:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def checksum(federation: Federation) -> str:
    """Tells federations apart by their data."""
    value = 0
    for split in (federation.train, federation.test):
        for array in (split.x, split.y, split.offsets):
            value = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, value)
    return f"{value:08x}"


def check_same_run(file: Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
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

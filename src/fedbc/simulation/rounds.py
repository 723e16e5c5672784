"""The round loop: sample, train, keep, evaluate, record; checkpoints, Ctrl-C, divergence."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import data, runtime, storage
from fedbc.algorithms.base import INFO, Algorithm
from fedbc.algorithms.domains import check_domain
from fedbc.algorithms.solver import Rate
from fedbc.data.federation import Federation
from fedbc.errors import Diverged, InputError, Interrupted, MachineLost
from fedbc.machines.joining import here
from fedbc.machines.share import keep_own
from fedbc.models.base import Model
from fedbc.simulation import batches, callback
from fedbc.simulation.callback import OnRound
from fedbc.simulation.checkpoints import Checkpoint
from fedbc.simulation.debug import ByHand
from fedbc.simulation.description import checksum, describe_run
from fedbc.simulation.device import run_key
from fedbc.simulation.diagnostics import Diagnostics, RoundReport
from fedbc.simulation.ending import COLUMN, Reason
from fedbc.simulation.engine import Engine
from fedbc.simulation.evaluation import Evaluator, Row, all_duals
from fedbc.simulation.initial import Start, check_states, draw_parameters, origin, read_start
from fedbc.simulation.interrupt import patient_interrupt
from fedbc.simulation.lanes import Lanes
from fedbc.simulation.result import Result, State
from fedbc.simulation.schedule import NOISE, Batching, Plan, Planner, Plans
from fedbc.simulation.settings import Settings
from fedbc.simulation.stopping import RESIDUAL
from fedbc.simulation.store import DeviceStore
from fedbc.simulation.training import Trained, Training, training
from fedbc.simulation.unseen import Unseen


class Ready(NamedTuple):
    """A round that was trained, and is not yet part of the run."""

    plan: Plan
    trained: Trained
    seconds: float


class Simulation:
    """A run that can be advanced round by round."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        federation: Federation,
        settings: Settings,
        *,
        initial: Any = None,
        debug: bool = False,
    ) -> None:
        self.machines = here()
        self.machines.together("check the run", lambda: settings.check(algorithm, model, federation))
        self._check_machines(settings, debug)
        given = federation
        federation = data.of_run(federation, vars(settings))
        later = None
        if settings.unseen is not None:
            federation, later = data.apart(federation, settings.unseen, settings.seed)
        if settings.pooled:
            federation = data.pooled(federation)
        told = checksum(given, self.machines)
        self.machines.agree("federation", f"{given.name}, {given.devices} devices, checksum {told}")
        whole = federation
        federation = keep_own(federation, self.machines)
        seed, sample = settings.seed, settings.sample
        lanes = Lanes(min(settings.lanes or runtime.default_lanes(), sample or federation.devices), threads=not debug)

        domain = settings.solver.domain
        described, algorithm = algorithm, settings.securely(settings.give(algorithm, model), model, whole)
        self.algorithm, self.model, self.federation = algorithm, model, federation
        self.settings, self.debug = settings, debug
        batching = Batching(settings.batch_size, settings.epochs, algorithm.batches, settings.steps)
        self.planner = Planner(
            federation.train.offsets, batching, sample=sample, lanes=lanes.count, seed=seed, owned=federation.owned
        )
        self.engine = Engine(algorithm, model, federation, batching, lanes, self.machines, settings.stopping, domain)
        start = Start(draw_parameters(model, seed), None)
        if initial is not None:
            start = read_start(initial, algorithm, model)
        params = start.params
        if domain is not None:
            check_domain(domain, params)
            params = domain.project(params)
        self.server = lanes.put(algorithm.init_server(params))[0]
        # Keys travel as plain numbers: JAX takes its fast path into compiled code for those only.
        self.key = lanes.put(jax.random.key_data(run_key(seed, NOISE)))
        self.store = DeviceStore(self.engine.shapes.device, federation.devices)
        if start.state is not None:
            self._take_over(start.state)
            if domain is not None:
                check_states(domain, algorithm, self.server, self.store)
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
            machines=self.machines,
        )
        self.unseen = Unseen(model, later, lanes) if later is not None else None
        self.evaluator.trained(self.store.devices)  # none, unless they come from another run
        self.round = 0
        self.diverged: str | None = None
        self.history: list[Row] = []
        self.diagnostics = Diagnostics()
        self._next_plans: Plans | None = None
        self._ready: list[Ready] = []
        self.spec = describe_run(
            described,
            model,
            model.trained(params),
            data={"name": given.name, "devices": given.devices, "checksum": told},
            run=settings.described() | {"lanes": lanes.count} | origin(initial, self.server, self.store),
        )

    def _take_over(self, state: State) -> None:
        """Go on from another run's states; its devices keep their numbers."""
        devices = np.asarray(state.participants)
        if len(devices) and devices.max() >= self.federation.devices:
            raise InputError(
                f"initial has states of device {devices.max()}, but the federation has {self.federation.devices} "
                "devices: new devices come after those that were there"
            )
        arrays = state.devices
        stacks = storage.restored(self.store.template, arrays, "devices") if state.from_file else arrays
        self.server = self.engine.lanes.put(state.server)[0]
        self.store.restore(devices, stacks)

    def stand_after(self, number: int, history: list[Row], diagnostics: Diagnostics) -> None:
        """Be as far as a run that was kept; what was trained ahead is dropped."""
        self.round, self.history, self.diagnostics = number, history, diagnostics
        self._ready.clear()

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
        self.evaluator.trained(plan.devices[plan.places])
        trained_at = time.perf_counter()
        row: Row = {"round": number}
        if number % self.settings.evaluate_every == 0 or last:
            row |= self.evaluator.row(trained.server, self.history)
            if self.unseen is not None:
                row |= self.unseen.row(self.algorithm.global_model(trained.server))
        row |= report.means()
        row |= {"train_seconds": trained_at - began, "seconds": time.perf_counter() - began}
        self.server, self.round = trained.server, number
        self._ready.pop(0)
        self.diagnostics.add(report)
        self.history.append(row)
        return row

    def go(self, rounds: int, *, on_round: OnRound | None = None, checkpoint: Checkpoint | None = None) -> None:
        """Run until so many rounds are done. Ctrl-C lets the round end, keeps it, and raises Interrupted."""
        if checkpoint is not None:
            with storage.explained(checkpoint.file.parent):
                checkpoint.file.parent.mkdir(parents=True, exist_ok=True)
        with (
            patient_interrupt() as asked,
            jax.disable_jit(self.debug),
            contextlib.closing(self.training),
            self._explained_loss(checkpoint),
        ):
            self._reopen(rounds)
            while self.round < rounds and not self._ended():
                late = self._is_late()
                try:
                    row = self.advance(last=late or self.round + 1 == rounds, ahead=rounds - self.round - 1)
                except Diverged as error:
                    self.diverged = str(error)
                    error.result = self.result()
                    if checkpoint is not None and checkpoint.at_the_end:
                        checkpoint.keep(self)
                    raise
                if on_round is not None and callback.call(on_round, row, self.result):
                    self._end_by_callback()
                elif self.settings.ending.is_given:
                    self._end(rounds)
                last = self.round == rounds or self._ended()
                due = checkpoint is not None and checkpoint.is_due(self.round)
                stop, due = self.machines.any(asked(), due)
                ends = (last and checkpoint is not None and checkpoint.at_the_end) or stop
                if checkpoint is not None and (ends or due):
                    checkpoint.keep(self)
                if stop and not last:
                    kept = f"; its state is in {checkpoint.file.parent}" if checkpoint is not None else ""
                    raise Interrupted(
                        f"stopped after round {self.round} of {rounds}{kept}", round=self.round, result=self.result()
                    )

    def _end(self, rounds: int) -> None:
        """Say in the last row of history why the run ends with it, if it does."""
        reason = self.settings.ending.reason(self.history, late=self._is_late())
        if reason is None and self.round == rounds:
            reason = Reason.ROUNDS
        if reason is not None:
            self.history[-1][COLUMN] = str(reason)

    def _end_by_callback(self) -> None:
        if not self.machines.alone:
            raise InputError("on_round returned True, but machines that share a run end it together: use patience")
        self.history[-1][COLUMN] = str(Reason.CALLBACK)

    def _is_late(self) -> bool:
        """Whether the time is over, for any of the machines."""
        if self.settings.time_budget is None:
            return False
        return bool(self.machines.any(self.settings.ending.is_over_time(self.history))[0])

    def _reopen(self, rounds: int) -> None:
        """Say anew whether a run that goes on has ended: it may get more rounds, or more time than before."""
        if self.history and self.history[-1].get(COLUMN) not in (None, Reason.CALLBACK):
            del self.history[-1][COLUMN]
            self._end(rounds)

    def _ended(self) -> bool:
        return bool(self.history) and COLUMN in self.history[-1]

    def _train(self, number: int, ahead: int) -> list[Ready]:
        """Train this round, and some of those that follow."""
        began = time.perf_counter()
        count = min(self.training.at_once, 1 + ahead)
        following = min(self.training.at_once, max(1, 1 + ahead - count))
        plans = self._plans(number, count)
        trained = self.training.train(self.server, plans, meanwhile=lambda: self._plans(number + count, following))
        share = (time.perf_counter() - began) / count
        return [Ready(plan, one, share) for plan, one in zip(plans.rounds, trained, strict=True)]

    def train_only(self, devices: Sequence[int] | np.ndarray) -> None:
        """From the next round on only these devices train; the others are done for good."""
        self.planner.only(np.asarray(devices))
        self._next_plans = None

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
        devices, examples = plan.devices[lane, place], plan.examples[lane, place]
        if not self.machines.alone:
            devices, examples, values = self._all_reports(plan.round, devices, examples, values)
        names = self.engine.shapes.info
        must_be_finite = values[:, [i for i, name in enumerate(names) if name in (*INFO, RESIDUAL)]]
        if not np.isfinite(must_be_finite).all():
            first = np.argmin(np.isfinite(must_be_finite).all(1))
            raise self._diverged(plan.round, int(devices[first]))
        if not trained.finite:
            raise self._diverged(plan.round, None)
        return RoundReport(plan.round, devices, examples, names, values)

    def _all_reports(self, number: int, own: Any, examples: Any, values: Any) -> tuple[Any, Any, Any]:
        """The reports of all machines' devices in a round, put together by each of them."""
        devices = self.planner.sampled(number)
        table = np.zeros((len(devices), 1 + values.shape[1]))
        table[np.searchsorted(devices, own)] = np.column_stack([examples, values])
        table = self.machines.sum(table)
        return devices, table[:, 0].astype(np.int32), table[:, 1:]

    def _check_machines(self, settings: Settings, debug: bool) -> None:
        """What cannot be shared by machines is refused."""
        if self.machines.alone:
            return
        for given, name in ((settings.pooled, "pooled"), (debug, "debug")):
            if given:
                raise InputError(f"{name}=True is not accepted with {self.machines.count} machines: use one")

    @contextlib.contextmanager
    def _explained_loss(self, checkpoint: Checkpoint | None) -> Iterator[None]:
        """Where a machine is lost, say what is kept."""
        try:
            yield
        except MachineLost as error:
            kept = "nothing is kept"
            if checkpoint is not None:
                kept = f"the last whole checkpoint is in {checkpoint.file.parent}: start all machines again to go on"
            raise MachineLost(f"{error}; round {self.round} was the last whole one; {kept}") from None

    def _diverged(self, number: int, device: int | None) -> Diverged:
        whose = f"on {self.federation.device_said(device)}" if device is not None else "in the global model"
        lr = getattr(self.algorithm, "lr", None)
        advice = f"try a smaller rate than lr={lr:g}" if lr is not None else "try a smaller rate"
        if self.settings.solver.factors(jnp.asarray(number)).get(Rate.LOCAL) == 0:
            advice = "lr_schedule makes the rate 0 in this round, and a method that divides by it needs more than 0"
        kept = f"the state after round {number - 1} is kept" if number > 1 else "no round was completed"
        message = f"training diverged in round {number} {whose}: a value is not finite; {kept}; {advice}"
        return Diverged(message, round=number, device=device)

    def result(self) -> Result:
        """The run so far."""
        import pandas as pd  # not at the top: a deployed device, which starts anew for each message, has no use for it

        z = self.algorithm.global_model(self.server)
        unknown = np.full(self.federation.devices, np.nan)
        duals = all_duals(self.algorithm, self.store, z)
        multipliers, tolerances = self.evaluator.of_all(duals) if duals is not None else (unknown, unknown)
        models = jax.vmap(self.algorithm.local_model)(self.store.stacks)
        return Result(
            history=pd.DataFrame(self.history, columns=_columns(self.history)),
            devices=self._named(pd.DataFrame(self.diagnostics.columns())),
            global_model=jax.tree.map(np.asarray, z),
            multipliers=multipliers,
            tolerances=tolerances,
            spec=self.spec | {"run": {"rounds": self.round, **self.spec["run"]}},
            participants=self.store.devices,
            participants_models=jax.tree.map(np.asarray, models),
            meaning=self.federation.meaning,
            state=State(
                jax.tree.map(np.array, self.server), self.store.devices, jax.tree.map(np.array, self.store.stacks)
            ),
            diverged=self.diverged,
            source={"model": self.model, "data": self.federation}.__getitem__,
        )

    def _named(self, rows: Any) -> Any:
        """Devices by their names, where they have some."""
        names = self.federation.device_names
        return rows.assign(device=np.asarray(names, object)[rows["device"]]) if names and len(rows) else rows


def _columns(history: list[Row]) -> list[str]:
    """The columns in the order of a full row, whether or not the first round was evaluated."""
    fullest: Row = max(history, key=lambda row: len(row), default={"round": 0, "seconds": 0.0})
    return list(dict.fromkeys([*fullest, *(name for row in history for name in row)]))

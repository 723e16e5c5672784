"""A run from its specification: carried out with observers, in memory or in its folder, to a typed outcome."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedbc import runtime, storage
from fedbc.errors import Diverged, FedBCError
from fedbc.machines import here
from fedbc.runs import live
from fedbc.runs.lines import State
from fedbc.runs.outcome import Observer, Outcome, Row
from fedbc.runs.spec import Problem, RunSpec
from fedbc.simulation.checkpoints import Checkpoint
from fedbc.simulation.result import Result, RunFolder
from fedbc.simulation.rounds import Simulation
from fedbc.trackers import Tracker


def execute(
    spec: RunSpec,
    observers: Sequence[Observer] = (),
    checkpoint: Checkpoint | None = None,
    *,
    problem: Problem | None = None,
    debug: bool = False,
) -> Outcome:
    """Run a specification, from its checkpoint if there is one.

    Every error of fedbc's becomes part of the outcome; Ctrl-C and what nobody foresaw are raised when the observers
    have been told.

    problem: algorithm, model and federation, if they have been built already.
    """
    began = time.perf_counter()
    begun: list[Observer] = []
    run: Simulation | None = None
    state = State.FINISHED
    error: BaseException | None = None
    try:
        rounds, settings = spec.settings()
        problem = problem or here().together("build the run", spec.build)
        run = Simulation(*problem, settings, debug=debug)
        if checkpoint is not None:
            checkpoint.restore(run)
            storage.drop_leftovers(checkpoint.file)
        for observer in observers:
            observer.begin(run, rounds)
            begun.append(observer)

        def tell(row: Row) -> None:
            for observer in begun:
                observer.on_round(row)

        run.go(rounds, on_round=tell, checkpoint=checkpoint)
    except Diverged as caught:
        state, error = State.DIVERGED, caught
    except KeyboardInterrupt as caught:  # Interrupted is one
        state, error = State.STOPPED, caught
    except BaseException as caught:
        state, error = State.FAILED, caught
    result = _describe(run.result(), spec) if run is not None and state in (State.FINISHED, State.DIVERGED) else None
    if isinstance(error, Diverged):
        error.result = result
    outcome = Outcome(spec, state, time.perf_counter() - began, result, error)
    for observer in reversed(begun):
        try:
            observer.end(outcome)
        except FedBCError as caught:  # such as a full disk: those that end after this one are to know
            outcome = dataclasses.replace(outcome, state=State.FAILED, error=caught)
    if outcome.error is not None and not isinstance(outcome.error, FedBCError):
        raise outcome.error
    return outcome


def _describe(result: Result, spec: RunSpec) -> Result:
    """The specification by names and options replaces the simulator's own description: it can be run again."""
    tables = spec.to_dict() | {"versions": result.spec["versions"]}
    tables["run"] |= {"lanes": result.spec["run"]["lanes"], "rounds": result.rounds}
    return dataclasses.replace(result, spec=tables)


def begin(folder: RunFolder, spec: RunSpec) -> None:
    """Make the folder of a run."""
    folder.begin(spec.to_dict() | {"versions": runtime.versions()})


def execute_in(
    folder: RunFolder,
    spec: RunSpec,
    observers: Sequence[Observer] = (),
    *,
    problem: Problem | None = None,
    checkpoint_every: int = 20,
    debug: bool = False,
    trackers: Sequence[Tracker] = (),
) -> Outcome:
    """Run a specification in its folder, from its checkpoint if it has one, and write the result there.

    A run that diverges writes what it has. While it runs, its history is in the folder's live history, and in the
    trackers, which also get what they lack of earlier rounds. A finished run is read. Where machines share the run, all
    of them do this, and one writes what is not a machine's own.
    """
    machines = here()
    if machines.any(folder.is_finished)[0]:
        result = folder.read()
        if result.rounds >= spec.to_dict()["run"]["rounds"]:
            for tracker in trackers:
                if not tracker.remembered:
                    tracker.replay([{str(k): v for k, v in row.items()} for row in result.history.to_dict("records")])
                    tracker.finish(result.summary())
            return Outcome(spec, State.FINISHED, 0.0, result)
    every = [
        live.Recording(folder, checkpoint_every),
        *(Tracking(tracker, functools.partial(live.read_rows, folder)) for tracker in trackers),
        *observers,
    ]
    every = [*(every if machines.leads else []), Keeping(folder)]
    return execute(spec, every, Checkpoint(folder.checkpoint, checkpoint_every), problem=problem, debug=debug)


@dataclass(frozen=True)
class Keeping(Observer):
    """Writes the result into the run's folder."""

    folder: RunFolder

    def begin(self, run: Simulation, rounds: int) -> None:
        """Who looks on is to see names, too."""
        self.folder.write_meaning(run.federation.meaning)

    def end(self, outcome: Outcome) -> None:
        """A run that diverged in its first round has nothing to write."""
        result, machines = outcome.result, here()
        if result is None or not result.rounds:
            return
        if not machines.leads:
            machines.together("write its models", lambda: self.folder.write_part(result, machines.index))
            machines.together("write the result", lambda: None)
            return
        machines.together("write its models", lambda: None)
        machines.together("write the result", lambda: self.folder.write(result, machines.count))


class Tracking(Observer):
    """Passes a run on to a tracker, with the rounds before the first one that it sees if it has not got them."""

    def __init__(self, tracker: Tracker, earlier: Callable[[], Sequence[Row]] = tuple) -> None:
        self.tracker, self._earlier, self._begun = tracker, earlier, False

    def on_round(self, row: Row) -> None:
        """Write it."""
        if not self._begun and row["round"] > 1:
            self.tracker.replay([r for r in self._earlier() if r["round"] < row["round"]])
        self._begun = True
        self.tracker(row)

    def end(self, outcome: Outcome) -> None:
        """Close the tracker run, with the summary of a run that finished."""
        if outcome.state is State.FINISHED and outcome.result is not None:
            self.tracker.finish(outcome.result.summary())
        else:
            self.tracker.finish(state=str(State.STOPPED if outcome.state is State.STOPPED else State.FAILED))

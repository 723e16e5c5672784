"""The ServerApp: settings from the run-config, the strategy, and the run folder that the simulator would write."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbc.algorithms.base import Algorithm
from fedbc.data import Meaning
from fedbc.errors import InputError
from fedbc.flower.journal import Journal
from fedbc.flower.letters import be_patient, letters_of
from fedbc.flower.roster import public_keys
from fedbc.flower.settings import AlgorithmSource, Deployment, ModelSource, algorithm_from, for_model, resolve
from fedbc.flower.strategy import AlgorithmStrategy
from fedbc.models.base import Model
from fedbc.runs import live
from fedbc.simulation.description import describe_run
from fedbc.simulation.device import run_key
from fedbc.simulation.result import RunFolder
from fedbc.simulation.schedule import INIT

log = logging.getLogger("flwr.fedbc")
BEAT_SECONDS = 15
NOTHING_SAID = Meaning()
FREE = (
    "rounds",
    "min_devices",
    "join_seconds",
    "wait_seconds",
    "round_seconds",
    "attempts",
    "move_limit",
    "move_factor",
    "most_examples",
    "keys",
    "out",
)
"""Settings that may differ when a run goes on from its checkpoint: they do not change what is computed."""


def server_app(
    model: ModelSource,
    *,
    algorithm: AlgorithmSource = algorithm_from,
    check_bounds: bool = True,
    meaning: Meaning = NOTHING_SAID,
) -> ServerApp:
    """The server's Flower app; a run whose folder holds a checkpoint goes on from it.

    model, algorithm: as in `client_app`.
    check_bounds: whether summands that no honest device could send are rejected (the algorithm's `check_summand`);
        switch it off only where devices add noise to them.
    meaning: the names of devices and classes, and how columns became numbers, for those who read the results.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        settings = Deployment.from_config(config)
        be_patient(grid, settings.wait_seconds)
        strategy = prepare(resolve(algorithm, config), resolve(model, config), settings, check_bounds=check_bounds)
        journal = strategy.journal
        RunFolder(journal.folder).write_meaning(meaning)
        recorded = live.recorded(RunFolder(journal.folder), settings.rounds, every=1)
        with _logged_to(journal.folder / "log.txt"), _beating(grid), recorded as strategy.on_row:
            strategy.start(grid)
            folder = finish(strategy)
            log.info("run folder written: %s", folder.resolve())

    return app


def prepare(
    algorithm: Algorithm, model: Model, settings: Deployment, *, check_bounds: bool = True
) -> AlgorithmStrategy:
    """The strategy of a run that begins, or goes on from the checkpoint in its folder."""
    algorithm.check_population(settings.devices)
    given, algorithm = algorithm, for_model(algorithm, model)
    public_keys(Path(settings.keys).expanduser())
    params = model.init(run_key(settings.seed, INIT))
    folder = Path(settings.out).expanduser()
    journal = Journal(folder, specification(given, model, settings, params), algorithm.init_server(params))
    if journal.resume():
        if RunFolder(folder).is_finished and journal.round >= settings.rounds:
            raise InputError(f"{folder} holds a finished run of {journal.round} rounds: set run.out to another folder")
    else:
        journal.save()
    return AlgorithmStrategy(algorithm, model, settings, journal, check_bounds=check_bounds)


def finish(strategy: AlgorithmStrategy) -> Path:
    """Write the run folder's files, as the simulator does."""
    journal = strategy.journal
    result = journal.result(strategy.algorithm.global_model(journal.server))
    folder = RunFolder(journal.folder)
    meaning = folder.read_meaning()
    devices = result.devices
    if meaning.device_names:
        devices = devices.assign(device=[meaning.device_label(number) for number in devices["device"]])
    folder.write(dataclasses.replace(result, meaning=meaning, devices=devices))
    return journal.folder


def specification(algorithm: Algorithm, model: Model, settings: Deployment, params: Any) -> dict[str, Any]:
    """The run as plain values."""
    run = {name: value for name, value in dataclasses.asdict(settings).items() if name not in FREE}
    data = {"name": "on the devices", "devices": run.pop("devices")}
    return describe_run(algorithm, model, params, data=data, run=run)


@contextlib.contextmanager
def _logged_to(file: Path) -> Iterator[None]:
    """Keep the run's log in its folder, too: Flower's own is in the SuperLink, and gone with it."""
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    try:
        yield
    except BaseException as error:  # Flower ends a run that is stopped by SystemExit, from its signal's handler
        why = "it was stopped" if isinstance(error, KeyboardInterrupt | SystemExit) else str(error)
        log.error("the run ended: %s", why or type(error).__name__)
        raise
    finally:
        log.removeHandler(handler)
        handler.close()


@contextlib.contextmanager
def _beating(grid: Grid) -> Iterator[None]:
    """Tell the SuperLink that this process lives, also when Flower's own sign of life gave up.

    Flower's ends for good at the first error of a SuperLink, such as a full disk, and the run is ended for want of it.
    """
    letters, done = letters_of(grid), threading.Event()

    def beat() -> None:
        while not done.wait(BEAT_SECONDS):
            with contextlib.suppress(Exception):
                letters.beat()

    thread = threading.Thread(target=beat, daemon=True, name="fedbc-beat")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(1)

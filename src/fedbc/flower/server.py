"""The ServerApp: settings from the run-config, the strategy, and the run folder that the simulator would write."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbc import trees
from fedbc.algorithms.base import Algorithm
from fedbc.errors import InputError
from fedbc.experiments import live
from fedbc.experiments.runs import is_finished
from fedbc.flower.journal import Journal
from fedbc.flower.settings import AlgorithmSource, Deployment, ModelSource, algorithm_from, built
from fedbc.flower.strategy import AlgorithmStrategy
from fedbc.models.base import Model
from fedbc.simulation.schedule import INIT, generator
from fedbc.simulation.simulate import versions

log = logging.getLogger("flwr.fedbc")
FREE = ("rounds", "min_devices", "join_seconds", "wait_seconds", "round_seconds", "attempts", "out")
"""Settings that may differ when a run goes on from its checkpoint: they do not change what is computed."""


def server_app(
    model: ModelSource, *, algorithm: AlgorithmSource = algorithm_from, check_bounds: bool = True
) -> ServerApp:
    """The server's Flower app; a run whose folder holds a checkpoint goes on from it.

    model, algorithm: as in `client_app`.
    check_bounds: whether summands that no honest device could send are rejected (the algorithm's `check_summand`);
        switch it off only where devices add noise to them.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        settings = Deployment.from_config(config)
        strategy = prepare(built(algorithm, config), built(model, config), settings, check_bounds=check_bounds)
        limit_retries(grid, settings.wait_seconds)
        journal = strategy.journal
        recorded = live.recorded(journal.folder, settings.rounds, every=1)
        with _logged_to(journal.folder / "log.txt"), recorded as strategy.on_row:
            strategy.start(grid)
            folder = finish(strategy)
            log.info("run folder written: %s", folder.resolve())

    return app


def prepare(
    algorithm: Algorithm, model: Model, settings: Deployment, *, check_bounds: bool = True
) -> AlgorithmStrategy:
    """The strategy of a run that begins, or goes on from the checkpoint in its folder."""
    algorithm.check_population(settings.devices)
    params = model.init(jax.random.key(int(generator(settings.seed, INIT).integers(2**31))))
    folder = Path(settings.out).expanduser()
    journal = Journal(folder, specification(algorithm, model, settings, params), algorithm.init_server(params))
    if journal.resume():
        if is_finished(folder) and journal.round >= settings.rounds:
            raise InputError(f"{folder} holds a finished run of {journal.round} rounds: set run.out to another folder")
    else:
        journal.save()
    return AlgorithmStrategy(algorithm, model, settings, journal, check_bounds=check_bounds)


def finish(strategy: AlgorithmStrategy) -> Path:
    """Write the run folder's files, as the simulator does."""
    journal = strategy.journal
    result = journal.result(strategy.algorithm.global_model(journal.server))
    result.write_into(journal.folder)
    return journal.folder


def specification(algorithm: Algorithm, model: Model, settings: Deployment, params: Any) -> dict[str, Any]:
    """The run as plain values."""
    run = {name: value for name, value in dataclasses.asdict(settings).items() if name not in FREE}
    return {
        "algorithm": {"name": algorithm.name, **algorithm.hyperparameters()},
        "model": {"name": model.name, "parameters": trees.size(params)},
        "data": {"name": "on the devices", "devices": run.pop("devices")},
        "run": run,
        "versions": versions(),
    }


@contextlib.contextmanager
def _logged_to(file: Path) -> Iterator[None]:
    """Keep the run's log in its folder, too: Flower's own is in the SuperLink, and gone with it."""
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    try:
        yield
    except Exception as error:
        log.error("the run ended: %s", error)
        raise
    finally:
        log.removeHandler(handler)
        handler.close()


def limit_retries(grid: Grid, seconds: float) -> None:
    """Flower asks a SuperLink that does not answer again for ever; here it gives up after so many seconds."""
    invoker = getattr(grid, "_retry_invoker", None)  # no public way; without it the limit is Flower's
    if invoker is not None:
        invoker.max_time = seconds

"""`fedbc run`: one or several algorithms on one federation, with live progress and a closing table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedbc import progress, storage
from fedbc.cli import options, tables, tracking
from fedbc.cli.errors import Stopped
from fedbc.errors import InputError, Interrupted
from fedbc.experiments import plots, runs
from fedbc.experiments.catalog import CATALOG
from fedbc.experiments.spec import USUAL_MODEL, RunSpec, read_toml
from fedbc.simulation.result import Result

Jobs = dict[str, tuple[Path, RunSpec]]
"""A folder and a specification for each algorithm's name."""


@click.command(
    "run",
    cls=options.GroupedCommand,
    params=[flag.click_option() for flag in options.FLAGS],
    short_help="Run algorithms on a federation.",
)
@click.argument("algorithms", nargs=-1, metavar="[ALGORITHM]...")
@options.problem
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the results; a new one below runs/ if not given."
)
@click.option(
    "--resume", type=click.Path(path_type=Path), help="Go on with a run from its folder; --rounds may extend it."
)
@click.option("--checkpoint-every", default=20, show_default=True, help="Keep the whole state every so many rounds.")
@tracking.options
@click.option("--debug", is_flag=True, help="Compile nothing; an error names round, device and stage. Slow.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def run_command(
    algorithms: tuple[str, ...],
    data_name: str | None,
    model_name: str | None,
    config: Path | None,
    out: Path | None,
    resume: Path | None,
    checkpoint_every: int,
    debug: bool,
    quiet: bool,
    as_json: bool,
    tensorboard: Path | None,
    mlflow: str | None,
    wandb: bool,
    wandb_project: str | None,
    **values: Any,
) -> None:
    """Run one or several ALGORITHMs (default fedbc) on one federation.

    \b
    fedbc run fedbc fedavg --rounds 200 --epochs 5 --sample 10 --momentum 0.5
    fedbc run fedbc --tolerance 0.05 --start local --batch-size none --epochs 10
    fedbc run --config experiment.toml --seed 3 --out runs/third

    The paper's symbols: --lr is beta, --dual-lr is alpha (lr_lambda), --tolerance is gamma, --epochs is E (K for
    full-batch descent), --sample is the number of devices in S_t.
    """
    if checkpoint_every < 1:
        raise InputError(f"checkpoint_every={checkpoint_every} is not accepted: give a whole number >= 1")
    wanted = tracking.Wanted.of_options(tensorboard, mlflow, wandb, wandb_project)
    if resume is not None:
        others = {"algorithm": algorithms, "--data": data_name, "--model": model_name, "--config": config, "--out": out}
        jobs = _resumed(resume, others, values)
        parent = resume
    else:
        specs = specifications(algorithms, data_name, model_name, config, values)
        parent = _target(out, specs)
        jobs = {name: (parent / name if len(specs) > 1 else parent, spec) for name, spec in specs.items()}
    built = _built(jobs)
    for name, (_, spec) in jobs.items():
        spec.check(*built[name])
    wanted.check()
    if resume is None:
        storage.refuse_existing(parent)
        for folder, spec in jobs.values():
            runs.begin(folder, spec)
    results = _carry_out(jobs, built, parent, checkpoint_every, debug, quiet or as_json, wanted)
    pictures = plots.curves(results, parent / "curves.png", title=str(built[next(iter(jobs))][2].name))
    if as_json:
        print(json.dumps({name: json.loads(storage.to_json(r.summary())) for name, r in results.items()}, indent=2))
    elif not quiet:
        Console().print(tables.comparison(results), tables.explanation(results), sep="\n")
        Console(soft_wrap=True).print(f"Curves: {pictures}\nResults: {parent}", highlight=False)


def specifications(
    algorithms: tuple[str, ...], data_name: str | None, model_name: str | None, config: Path | None, values: Any
) -> dict[str, RunSpec]:
    """One specification an algorithm: the command line's values over the file's over the defaults."""
    tables_ = read_toml(config) if config is not None else {}
    base = RunSpec.from_dict({"algorithm": {"name": "fedbc"}, "data": {"name": "synthetic"}} | tables_)
    names = list(dict.fromkeys(algorithms)) or [str(base.algorithm["name"])]
    data = _overlaid(base.data, "data", data_name, values)
    model = _overlaid(base.model if data["name"] == base.data["name"] else {}, "model", model_name, values, data)
    run = {**base.run, **options.given(values, "run", "")}
    options.refuse_unused(values, "algorithm", names)
    specs = {}
    for name in names:
        kept = base.algorithm if base.algorithm["name"] == name else {"name": name}
        specs[name] = RunSpec({**kept, **options.given(values, "algorithm", name)}, data, model, run)
    return specs


def _overlaid(base: Any, part: str, name: str | None, values: Any, data: Any = None) -> dict[str, Any]:
    chosen = name or base.get("name") or USUAL_MODEL.get(data["name"], "logistic")
    kept = base if base.get("name") == chosen else {"name": chosen}
    if chosen in CATALOG[part]:  # an unknown name is refused, with the nearest match, by the specification
        options.refuse_unused(values, part, [chosen])
    return {**kept, **options.given(values, part, chosen)}


def _target(out: Path | None, specs: dict[str, RunSpec]) -> Path:
    if out is not None:
        return out
    first = next(iter(specs.values()))
    pooled = "-pooled" if first.run.get("pooled") else ""
    return runs.next_free(Path("runs"), f"{'-'.join(specs)}-{first.data['name']}{pooled}")


def _resumed(folder: Path, others: dict[str, Any], values: dict[str, Any]) -> Jobs:
    """The jobs of a folder that was begun: itself, or its subfolders if several algorithms were run."""
    changed = [name for name, value in others.items() if value]
    changed += [f.spelling for f in options.FLAGS if values.get(f.key) is not None and f.key != "run__rounds"]
    if changed:
        raise InputError(f"{changed[0]} cannot be given with --resume: a resumed run keeps its specification")
    if not folder.is_dir():
        raise InputError(f"resume={str(folder)!r} is not a folder")
    folders = [folder] if (folder / "spec.json").exists() else sorted(p.parent for p in folder.glob("*/spec.json"))
    if not folders:
        raise InputError(f"resume={str(folder)!r} is not a run folder: it has no spec.json")
    jobs: Jobs = {}
    for run_folder in folders:
        spec = runs.read_spec(run_folder)
        run = {**spec.run, **options.given(values, "run", "")}
        jobs[str(spec.algorithm["name"])] = (run_folder, RunSpec(spec.algorithm, spec.data, spec.model, run))
    return jobs


def _built(jobs: Jobs) -> dict[str, runs.Built]:
    """Build everything before anything is written; the federation and the model are the same for all."""
    _, first = next(iter(jobs.values()))
    algorithms = {name: spec.build_part("algorithm") for name, (_, spec) in jobs.items()}
    model, federation = first.build_part("model"), first.build_part("data")
    return {name: (algorithm, model, federation) for name, algorithm in algorithms.items()}


def _carry_out(
    jobs: Jobs,
    built: dict[str, runs.Built],
    parent: Path,
    checkpoint_every: int,
    debug: bool,
    quiet: bool,
    wanted: tracking.Wanted,
) -> dict[str, Result]:
    results = {}
    again = f"go on with: fedbc run --resume {parent}"
    try:
        with progress.shown(quiet=quiet) as display, tracking.warnings_told(display):
            for name, (folder, spec) in jobs.items():
                on_round = display.run(name, spec.to_dict()["run"]["rounds"])
                results[name] = runs.carry_out(
                    folder,
                    spec,
                    built[name],
                    checkpoint_every=checkpoint_every,
                    debug=debug,
                    on_round=on_round,
                    trackers=wanted.trackers(folder, spec, parent),
                )
    except Interrupted as error:
        raise Stopped(f"{error}; {again}") from None
    except KeyboardInterrupt:
        raise Stopped(f"stopped; {again}") from None
    return results

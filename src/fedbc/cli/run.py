"""`fedbc run`: one or several algorithms on one federation, with live progress and a closing table."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedbc import runs, storage
from fedbc.cli import options, sharing, tables, tracking
from fedbc.cli.errors import Stopped
from fedbc.cli.explain import GroupedCommand
from fedbc.drawing import need
from fedbc.errors import InputError, Interrupted
from fedbc.machines import here
from fedbc.runs import CATALOG, OWN, USUAL_MODEL, RunSpec, read_toml
from fedbc.simulation import draw_curves


@click.command(
    "run",
    cls=GroupedCommand,
    params=[flag.click_option() for flag in options.FLAGS],
    short_help="Run algorithms on a federation.",
)
@click.argument("algorithms", nargs=-1, metavar="[ALGORITHM]...")
@options.problem
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the results; a new one below runs/ if not given."
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    help="Go on with a run; its rounds and end may change.",
)
@click.option("--checkpoint-every", default=20, show_default=True, help="Keep the whole state every so many rounds.")
@tracking.options
@sharing.options
@click.option("--debug", is_flag=True, help="Compile nothing; an error names round, device and stage. Slow.")
@options.quiet
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
    machines: str | None,
    machine: int | None,
    meet: str | None,
    ray: str | None,
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
    placed = sharing.on_ray(ray, machines, machine, meet)
    world = sharing.join(machines, machine, meet) if ray is None else here()
    wanted = tracking.Wanted.of_options(tensorboard, mlflow, wandb, wandb_project)
    with contextlib.ExitStack() as stack:
        specs = {}
        if resume is not None:
            others = {"algorithm": algorithms, "--data": data_name, "--model": model_name}
            _refuse_changes(others | {"--config": config, "--out": out}, values)
            parent = resume
        else:
            specs = specifications(algorithms, data_name, model_name, config, values)
            parent = out or stack.enter_context(runs.reserved_folder(specs))

        track = functools.partial(wanted.of_run, parent.resolve())
        hush = quiet or as_json
        how: runs.How = {"checkpoint_every": checkpoint_every, "track": track, "debug": debug, "quiet": hush}
        how |= {"ray": ray, "machines": placed}
        stack.enter_context(_stopping(parent))
        if resume is not None:
            changed = options.given(values, "run", "")
            results = runs.resume(parent, rounds=changed.pop("rounds", None), ending=changed, **how)
        else:
            results = runs.run_methods(list(specs.values()), parent, **how)
    if not world.leads:  # the first machine shows and draws what there is
        return
    federation = next(iter(results.values())).spec["data"]
    try:
        need("matplotlib")
    except InputError as absent:
        curves = f"not drawn ({absent})"
    else:
        curves = str(draw_curves(results, parent / runs.CURVES, title=runs.data_name(federation)))
    if as_json:
        print(json.dumps({name: json.loads(storage.to_json(r.summary())) for name, r in results.items()}, indent=2))
    elif not quiet:
        Console(markup=False).print(tables.comparison(results), tables.explanation(results), sep="\n")
        Console(soft_wrap=True, markup=False).print(f"Curves: {curves}\nResults: {parent}", highlight=False)


def specifications(
    algorithms: tuple[str, ...], data_name: str | None, model_name: str | None, config: Path | None, values: Any
) -> dict[str, RunSpec]:
    """One specification per algorithm: the command line's values over the file's over the defaults."""
    tables_ = read_toml(config) if config is not None else {}
    own_data = isinstance(tables_.get("data"), dict) and tables_["data"].get("name") == OWN
    checked = {part: table for part, table in tables_.items() if not (own_data and part in ("data", "model"))}
    base = RunSpec.from_dict({"algorithm": {"name": "fedbc"}, "data": {"name": "synthetic"}} | checked)
    names = list(dict.fromkeys(algorithms)) or [str(base.algorithm["name"])]
    said = tables_["data"] if own_data else base.data
    data = _overlaid(said, "data", options.named_data(data_name), values)
    same = data["name"] == said["name"]
    model = _overlaid(tables_.get("model", {}) if same else {}, "model", options.named_model(model_name), values, data)
    run = {**base.run, **options.given(values, "run", "")}
    options.refuse_unused(values, "algorithm", names)
    specs = {}
    for name in names:
        kept = base.algorithm if base.algorithm["name"] == name else {"name": name}
        specs[name] = RunSpec({**kept, **options.given(values, "algorithm", name)}, data, model, run)
    return specs


def _overlaid(base: Any, part: str, named: dict[str, Any], values: Any, data: Any = None) -> dict[str, Any]:
    chosen = named.get("name") or base.get("name")
    if chosen is None and data["name"] != OWN:
        chosen = USUAL_MODEL[data["name"]]
    if chosen is None:  # one's own data tell by their labels which model is usual, and how large it is
        options.refuse_unused(values, part, ["logistic", "linear"])
        return dict(base)
    kept = base if base.get("name", chosen) == chosen else {}
    if chosen in CATALOG[part]:  # an unknown name is refused, with the nearest match, by the specification
        options.refuse_unused(values, part, [chosen])
    return {"name": chosen, **kept, **named, **options.given(values, part, chosen)}


def _refuse_changes(others: dict[str, Any], values: dict[str, Any]) -> None:
    changed = [name for name, value in others.items() if value]
    may = {f"run__{name}" for name in ("rounds", *runs.ENDING)}
    changed += [f.spelling for f in options.FLAGS if values.get(f.key) is not None and f.key not in may]
    if changed:
        raise InputError(f"{changed[0]} cannot be given with --resume: a resumed run keeps its specification")


@contextlib.contextmanager
def _stopping(parent: Path) -> Iterator[None]:
    again = f"go on with: fedbc run --resume {parent}"
    try:
        yield
    except Interrupted as error:
        raise Stopped(f"{error}; {again}") from None
    except KeyboardInterrupt:
        raise Stopped(f"stopped; {again}") from None

"""`fedbc show`: what a folder is and what it holds, whatever command of fedbc's made it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from fedbc import Result, load, storage
from fedbc.cli import options, tables
from fedbc.errors import InputError
from fedbc.runs import SUMS_ONLY, Lines, RunFolder, has_sums_only, list_runs

if TYPE_CHECKING:
    import pandas as pd

    from fedbc.reports import Table

TUNING, CALIBRATION = "study.json", "results.jsonl"
"""Files by which the folders of `fedbc tune` and `fedbc calibrate` are known."""

WITHOUT_RUNS = (
    ("model-card.md", "An exported model (fedbc export).", "model-card.md"),
    ("personalized.safetensors", "A model for each device of a run (fedbc personalize).", "index.html"),
    ("superlink.sh", "An app for real devices (fedbc deploy init).", "README.md"),
)
"""Other folders, by a file of theirs: what they are, and what to look at."""


@click.command("show", short_help="What a folder holds: runs, a comparison, a tuning, a calibration.")
@click.argument("run", type=click.Path(path_type=Path))
@options.metrics
@click.option("--json", "as_json", is_flag=True, help="Print specifications and summaries as JSON.")
def show_command(run: Path, metrics: str | None, as_json: bool) -> None:
    """Show a run, finished or not, or all runs of a folder; of a comparison, a tuning, a calibration its page, too.

    With --metrics also the table of each finished run's devices, their names and these metrics of the global model and
    of each device's own, on the sets that the run was measured on.
    """
    about = describe(run) if run.is_dir() else []
    found = RunFolder.find(run) if run.is_dir() else []
    if not found and not about:
        found = [RunFolder(run)]  # which says what is wrong
    names = _names(found, run)
    begun = {names[f]: f for f in found if f.is_one and not f.models.exists()}
    results = {names[f]: f.read() for f in found if f not in begun.values()}
    wanted = options.listed(metrics)
    measured = {
        names[f]: load(f.path).evaluate(metrics=wanted, together=True) for f in found if wanted and names[f] in results
    }
    if as_json:
        shown: dict[str, dict[str, Any]] = {
            name: {"spec": r.spec, "summary": r.summary(), "diverged": r.diverged} for name, r in results.items()
        }
        for name, rows in measured.items():
            shown[name]["devices"] = rows.to_dict("records")
        print(storage.to_json(shown | {name: _standing(f) for name, f in begun.items()}), end="")
        return
    console = Console(markup=False)
    wide = Console(soft_wrap=True, markup=False)  # paths are never broken
    for line in about:
        wide.print(line, highlight=False)
    for name, result in results.items():
        _tell_run(console, name, result, brief=bool(about))
    for name, folder in begun.items():
        wide.print(f"{name}: {_in_words(_standing(folder), folder)}", highlight=False)
    if results:
        marked = {name if r.diverged is None else f"{name} (diverged)": r for name, r in results.items()}
        console.print(tables.comparison(marked))
        console.print(tables.explanation(results))
        if any(has_sums_only(result.devices) for result in results.values()):
            wide.print(f"{SUMS_ONLY[0].upper()}{SUMS_ONLY[1:]}.", highlight=False)
    for name, rows in measured.items():
        console.print(
            f"{name}, device by device:", tables.of_report(_device_table(rows, wanted)), sep="\n", highlight=False
        )


def _device_table(rows: pd.DataFrame, metrics: Sequence[str]) -> Table:
    """The metrics of each device, and of all."""
    from fedbc.reports import Column, Table

    names = dict.fromkeys([*(["accuracy"] if "global_accuracy" in rows else []), *metrics])
    columns = [Column("device", "device"), Column("examples", "examples", 0)]
    for name in names:
        for key, whose in ((f"global_{name}", "z"), (f"local_{name}", "own")):
            columns += [Column(key, f"{whose}\n{name.replace('_', ' ')}", 3)] if key in rows else []
    return Table("devices", "Device by device", rows, columns)


def describe(folder: Path) -> list[str]:
    """What a folder with more than runs is, and where its page is; nothing for runs alone."""
    from fedbc.reports import is_comparison  # a single run is shown without

    if is_comparison(folder):
        return ["A comparison of methods (fedbc compare).", _page(folder / "index.html")]
    if (folder / TUNING).exists():
        return ["A tuning of hyper-parameters (fedbc tune).", *_choice(folder, "best.toml")]
    if (folder / CALIBRATION).exists():
        count = len(Lines(folder / CALIBRATION).read())
        done = f"A calibration of the tolerance (fedbc calibrate), {count} runs done."
        return [done, *_choice(folder, "recommended.toml")]
    for mark, words, more in WITHOUT_RUNS:
        if (folder / mark).exists():
            return [words, f"See: {folder / more}"]
    return []


def _page(file: Path) -> str:
    if file.exists():
        return f"Page: {file}"
    return "Its page is not written yet: the command that began it goes on with it."


def _choice(folder: Path, name: str) -> list[str]:
    chosen = folder / name
    return [_page(folder / "report.html"), *([f"Run it: fedbc run --config {chosen}"] if chosen.exists() else [])]


def _names(found: list[RunFolder], root: Path) -> dict[RunFolder, str]:
    """The runs' folders; with those around them where two go by one name."""
    alone = len({f.path.name for f in found}) == len(found)
    return {f: f.path.name if alone else f.path.relative_to(root).as_posix() for f in found}


def _tell_run(console: Console, name: str, result: Result, *, brief: bool) -> None:
    if not brief:
        console.print(name, style="bold", highlight=False)
        for part, values in result.spec.items():
            console.print(f"  {part:<10}" + ", ".join(f"{k} = {v}" for k, v in values.items()), highlight=False)
    if result.diverged is not None:
        console.print(f"  diverged  {result.diverged}", highlight=False)


def _standing(folder: RunFolder) -> dict[str, Any]:
    """How far a run is that has no result."""
    (row,) = list_runs(folder.path).to_dict("records")
    try:
        spec = folder.read_spec()
    except InputError:  # a deployment writes it at its end
        spec = {}
    kept = {str(k): v for k, v in row.items() if k in ("state", "rounds", "global_accuracy", "local_accuracy")}
    return {"spec": spec, **kept}


def _in_words(standing: Mapping[str, Any], folder: RunFolder) -> str:
    wanted = standing["spec"].get("run", {}).get("rounds")
    of = f" of {wanted}" if wanted else ""
    scores = [
        f"{whose} accuracy {100 * value:.1f} %"
        for whose in ("global", "local")
        if not math.isnan(value := float(standing[f"{whose}_accuracy"]))
    ]
    far = f"{standing['state']}, {standing['rounds']}{of} rounds done{''.join(f', {s}' for s in scores)}"
    more = f"fedbc watch {folder.path}" if standing["state"] == "running" else f"fedbc run --resume {folder.path}"
    return f"{far}; {'follow it' if standing['state'] == 'running' else 'go on'} with: {more}"

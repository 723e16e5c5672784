"""Print the table of docs/local-training.md about absent devices' multipliers: `python tools/stale_duals.py`.

It reads what `fedbc sweep docs/results/stale-duals-synthetic.toml` and `...-cifar10.toml` have run.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
Pair = dict[str, dict[str, float]]
"""The summaries of two runs that differ in `absent` alone."""


def pairs(name: str) -> dict[tuple[float, str], list[Pair]]:
    """By dual rate and federation, one for each seed that has both."""
    found: dict[tuple[float, str, int], Pair] = defaultdict(dict)
    for line in (RESULTS / f"stale-duals-{name}.jsonl").read_text().splitlines():
        run = json.loads(line)
        algorithm, data = run["spec"]["algorithm"], run["spec"]["data"]
        said = f"synthetic, draw {data['seed']}" if name == "synthetic" else f"CIFAR-10, C = {data['classes']}"
        found[algorithm["dual_lr"], said, run["spec"]["run"]["seed"]][algorithm["absent"]] = run["summary"]
    rows: dict[tuple[float, str], list[Pair]] = defaultdict(list)
    for (rate, said, _), pair in sorted(found.items()):
        if len(pair) == 2:
            rows[rate, said].append(pair)
    return rows


def row(said: str, rate: float, runs: list[Pair]) -> str:
    """Means over seeds, in per cent, and the difference of each pair."""
    cells = [said, f"{rate:g}", str(len(runs))]
    for column in ("global_accuracy", "local_accuracy"):
        still, follow = (100 * np.array([pair[kind][column] for pair in runs]) for kind in ("still", "follow"))
        apart = follow - still
        spread = f" ({apart.min():+.2f} to {apart.max():+.2f})" if len(runs) > 1 else ""
        cells += [f"{still.mean():.2f}", f"{follow.mean():.2f}", f"{apart.mean():+.2f}{spread}"]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print("| federation | dual_lr | seeds | global, still | follow | difference | local, still | follow | difference |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in ("synthetic", "cifar10"):
        for (rate, said), runs in pairs(name).items():
            print(row(said, rate, runs))

"""What docs/personalisation.md tells of benchmarks/personalisation.py's results: its tables and its picture.

    python benchmarks/personalisation_tables.py

It rewrites the text between the page's two marks, from the lines in results/personalisation/. A method's cell is
the mean over the seeds that all of it was run with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

Line = dict[str, Any]
PAGE, PICTURE = Path("docs/personalisation.md"), Path("docs/personalisation.svg")
BEGIN, END = "<!-- from benchmarks/personalisation_tables.py -->\n", "<!-- end of it -->\n"
NAMES = {
    "fedbc": "FedBC's x_i",
    "pfedme": "pFedMe",
    "perfedbc": "Per-FedBC",
    "fedavg": "FedAvg, fine-tuned",
    "ditto": "Ditto",
    "localonly": "local only",
}
FIRST, FRESH = range(1, 6), range(6, 11)


def read(pattern: str) -> list[Line]:
    """The lines of some files."""
    return [json.loads(line) for file in sorted(Path("results/personalisation").glob(pattern)) for line in file.open()]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


class Figures:
    """The lines by their keys, and means over seeds."""

    def __init__(self) -> None:
        self.known = {line["key"]: line for line in read("measured.jsonl")}

    def of(self, task: str, draw: int, what: str) -> list[Line]:
        """One line per seed of those whose personal models were measured."""
        seeds = [seed for seed in range(5) if f"{task} {draw} {seed} personal" in self.known] or [0]
        return [self.known[key] for seed in seeds if (key := f"{task} {draw} {seed} {what}") in self.known]

    def mean(self, task: str, draw: int, what: str, column: str) -> float:
        """Over seeds; NaN where nothing was run."""
        lines = self.of(task, draw, what)
        return float(np.mean([line[column] for line in lines])) if lines else np.nan

    def best_global(self, task: str, draw: int) -> float:
        """Of any method, its setting chosen by global accuracy."""
        found = []
        for method in NAMES:
            by = "global" if self.of(task, draw, f"{method} global") else "local"
            found.append(self.mean(task, draw, f"{method} {by}", "global"))
        return float(np.nanmax([0.0, *found]))

    def row(self, name: str, values: list[float], *, bold: bool = False) -> list[str]:
        """A row of percentages with their mean."""
        all_there = not np.isnan(values).any()
        cells = ["–" if np.isnan(v) else f"{100 * v:.1f}" for v in values]
        cells.append(f"{100 * np.mean(values):.1f}" if all_there else "–")
        return [f"**{c}**" if bold else c for c in (name, *cells)]

    def draws(self, draws: range) -> str:
        """Local accuracies on the synthetic data, draw by draw."""
        task = "synthetic"
        head = ["mean over devices, %", *(f"draw {d}" for d in draws), "mean"]
        rows = [self.row("z on each device", [self.mean(task, d, "personal", "z") for d in draws])]
        for method, name in NAMES.items():
            values = [self.mean(task, d, f"{method} local", "local") for d in draws]
            if not np.isnan(values).all():
                rows.append(self.row(name, values))
        rows.append(self.row("alone, by personalisation", [self.mean(task, d, "personal", "alone") for d in draws]))
        rows.append(self.row("personalised", [self.mean(task, d, "personal", "local") for d in draws], bold=True))
        return table(head, rows)

    def globals_and_losers(self, draws: range) -> str:
        """The global accuracy, and how many devices gain and lose."""
        task = "synthetic"
        head = ["", *(f"draw {d}" for d in draws), "mean"]
        rows = [
            self.row(
                "global accuracy of the z that was personalised",
                [self.mean(task, d, "personal", "global") for d in draws],
            ),
            self.row("of the best of the methods", [self.best_global(task, d) for d in draws]),
        ]
        counts = []
        for d in draws:
            lines = self.of(task, d, "personal")
            gain, lose = (sum(line[c] for line in lines) for c in ("gain", "lose"))
            counts.append(f"{gain} / {lose} of {30 * len(lines)}" if lines else "–")
        rows.append(["devices better / worse than z beyond noise", *counts, ""])
        return table(head, rows)

    def unseen(self, draws: range) -> str:
        """Devices that come later."""
        head = ["a fifth of the devices, unseen, %", *(f"draw {d}" for d in draws), "mean"]
        rows = []
        for of, name in (("global", "z"), ("alone", "alone"), ("personal", "personalised")):
            values = []
            for d in draws:
                lines = self.of("synthetic", d, "unseen")
                values.append(float(np.mean([line["unseen"][of] for line in lines])) if lines else np.nan)
            rows.append(self.row(name, values, bold=of == "personal"))
        return table(head, rows)

    def feedback(self) -> str:
        """What came of feeding the tolerances back."""
        lines = read("feedback.jsonl")
        draws = sorted({line["draw"] for line in lines})
        found = {(line["what"], line["draw"]): line for line in lines}
        rows = []
        for what in dict.fromkeys(line["what"] for line in lines):
            own = [found.get((what, draw)) for draw in draws]
            cells = ["–" if o is None else f"{100 * o['global']:.1f} / {100 * o['local']:.1f}" for o in own]
            also = [o["personal"] for o in own if o is not None and "personal" in o]
            rows.append([what, *cells, f"{100 * np.mean(also):.1f}" if also else ""])
        return table(["z global / local, %", *(f"draw {d}" for d in draws), "personalised, mean"], rows)

    def draw(self, draws: range) -> None:
        """The picture: each device's accuracy with z and with its personalised model."""
        mpl.use("svg")
        import matplotlib.pyplot as plt

        lines = [line for d in draws for line in self.of("synthetic", d, "personal")]
        figure, axes = plt.subplots(figsize=(5, 4.6), layout="constrained")
        for line in lines:
            x, y = (
                100 * np.asarray([np.nan if a is None else a for a in line["devices"][of]])
                for of in ("global", "personal")
            )
            axes.scatter(x, y, s=4 + np.sqrt(line["tests"]) * 4, color="#0072b2", alpha=0.45, linewidths=0)
        axes.plot([0, 100], [0, 100], color="#888", linewidth=1)
        axes.set(xlabel="z, % on the device's test set", ylabel="personalised model, %", xlim=(-2, 102), ylim=(-2, 102))
        with mpl.rc_context({"svg.hashsalt": "fedbc", "svg.fonttype": "none"}):
            figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    """Rewrite the page's part."""
    figures = Figures()
    parts = ["", figures.draws(FIRST), figures.globals_and_losers(FIRST)]
    if figures.of("synthetic", FRESH[0], "personal"):
        parts += ["On draws that no rule was looked at on, against the three strongest:\n", figures.draws(FRESH)]
    parts += ["Devices that come later:\n", figures.unseen(FIRST), "Feeding it back:\n", figures.feedback()]
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(parts) + "\n" + END + rest.split(END)[1])
    figures.draw(FIRST)


if __name__ == "__main__":
    main()

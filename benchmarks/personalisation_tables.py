"""What docs/personalisation.md tells of benchmarks/personalisation.py's results: its tables and its picture.

    python benchmarks/personalisation_tables.py

It rewrites the text between the page's two marks, from the lines in results/personalisation/. A method's cell is
the mean over the seeds that all of it was run with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np

Line = dict[str, Any]
FOLDER = Path("results/personalisation")
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
METHODS = {**NAMES, "fedbc": "FedBC", "fedavg": "FedAvg"}
LATE = {"global": "z", "alone": "alone", "personal": "**personalised**"}
SEEDS = range(1, 6)


class Federation(NamedTuple):
    """One column of a table."""

    head: str
    task: str
    draw: int


SYNTHETIC = [Federation(f"draw {draw}", "synthetic", draw) for draw in range(1, 6)]
IMAGES = [
    *(Federation(f"CIFAR-10, C = {c}, {e}", f"cifar10-{c}-{e}", 1) for c in (2, 3) for e in (1.2, 1.4)),
    Federation("CIFAR-10, C = 1, 1.2", "cifar10-1-1.2", 1),
    Federation("MNIST, C = 2, 1.3", "mnist-2-1.3", 1),
]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def percent(values: list[float]) -> str:
    """The mean over seeds."""
    return f"{100 * np.mean(values):.1f}" if values else "–"


def points(values: list[float]) -> str:
    """The mean difference over seeds, with its standard error."""
    if not values:
        return "–"
    error = f" ± {100 * np.std(values, ddof=1) / np.sqrt(len(values)):.1f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):+.1f}{error}"


class Figures:
    """The lines by their keys, and tables of them."""

    def __init__(self, file: Path) -> None:
        self.known = {line["key"]: line for line in map(json.loads, file.open())}

    def by_seed(self, of: Federation, what: str) -> dict[int, Line]:
        """The lines of a federation's runs; a method whose settings chosen by z and by x_i agree has one line."""
        return {seed: line for seed in SEEDS if (line := self.known.get(f"{of.task} {of.draw} {seed} {what}"))}

    def local(self, of: Federation, method: str) -> dict[int, float]:
        """Mean over devices of the method's own models, by seed."""
        return {seed: line["local"] for seed, line in self.by_seed(of, f"{method} local").items()}

    def personal(self, of: Federation, column: str, part: str = "personal") -> dict[int, float]:
        """A column of the personalised runs, by seed."""
        return {seed: line[column] for seed, line in self.by_seed(of, part).items()}

    def globals(self, of: Federation) -> dict[str, dict[int, float]]:
        """The global accuracy of each method, its setting chosen by that, by seed."""
        found = {}
        for method in NAMES:
            lines = self.by_seed(of, f"{method} local") | self.by_seed(of, f"{method} global")
            found[method] = {seed: line["global"] for seed, line in lines.items()}
        return found

    def best(self, of: Federation, table: dict[str, dict[int, float]]) -> str | None:
        """The method that is best in the mean over the seeds whose devices were personalised."""
        seeds = self.by_seed(of, "personal").keys()
        means = {
            name: np.mean([values[s] for s in seeds])
            for name, values in table.items()
            if seeds and seeds <= values.keys()
        }
        return max(means, key=means.__getitem__) if means else None

    def accuracies(self, federations: list[Federation]) -> str:
        """Local accuracies, one column per federation, and their mean."""
        found = {"z on each device": [self.personal(f, "z") for f in federations]}
        found |= {name: [self.local(f, method) for f in federations] for method, name in NAMES.items()}
        found["alone, by personalisation"] = [self.personal(f, "alone") for f in federations]
        found["**personalised**"] = [self.personal(f, "local") for f in federations]
        rows = []
        for name, cells in found.items():
            means = [float(np.mean([*cell.values()])) for cell in cells if cell]
            row = [*(percent([*cell.values()]) for cell in cells), percent(means if len(means) == len(cells) else [])]
            rows.append([name, *(f"**{cell}**" if name.startswith("*") else cell for cell in row)])
        rows.append(["personalised less the best other method", *(self._ahead(f) for f in federations), ""])
        z = [percent([*self.personal(f, "global").values()]) for f in federations]
        rows.append(["global accuracy of the z", *z, ""])
        rows.append(["less that of the best method", *(self._ahead_globally(f) for f in federations), ""])
        rows.append(["devices better / worse than z beyond noise", *(self._counts(f) for f in federations), ""])
        rows.append(["seeds", *(str(len(self.by_seed(f, "personal"))) for f in federations), ""])
        return table(["mean over devices, %", *(f.head for f in federations), "mean"], rows)

    def _ahead(self, of: Federation) -> str:
        best = self.best(of, {method: self.local(of, method) for method in NAMES})
        if best is None:
            return "–"
        theirs, ours = self.local(of, best), self.personal(of, "local")
        return f"{points([ours[s] - theirs[s] for s in ours])} ({NAMES[best]})"

    def _ahead_globally(self, of: Federation) -> str:
        every = self.globals(of)
        best = self.best(of, every)
        if best is None:
            return "–"
        ours = self.personal(of, "global")
        return f"{points([ours[s] - every[best][s] for s in ours])} ({METHODS[best]})"

    def _counts(self, of: Federation) -> str:
        lines = self.by_seed(of, "personal").values()
        if not lines:
            return "–"
        gain, lose, devices = (
            sum(n) for n in zip(*((i["gain"], i["lose"], len(i["tests"])) for i in lines), strict=True)
        )
        return f"{gain} / {lose} of {devices}"

    def unseen(self, federations: list[Federation]) -> str:
        """Devices that come later."""
        rows = []
        for of, name in LATE.items():
            values = [[line["unseen"][of] for line in self.by_seed(f, "unseen").values()] for f in federations]
            rows.append([name, *map(percent, values)])
        return table(["a fifth of the devices, unseen, %", *(f.head for f in federations)], rows)

    def feedback(self) -> str:
        """What came of feeding the tolerances back."""
        lines = [json.loads(line) for line in (FOLDER / "feedback.jsonl").open()]
        draws = sorted({line["draw"] for line in lines})
        found = {(line["what"], line["draw"]): line for line in lines}
        rows = []
        for what in dict.fromkeys(line["what"] for line in lines):
            own = [found.get((what, draw)) for draw in draws]
            cells = ["–" if o is None else f"{100 * o['global']:.1f} / {100 * o['local']:.1f}" for o in own]
            also = [o["personal"] for o in own if o is not None and "personal" in o]
            rows.append([what, *cells, f"{100 * np.mean(also):.1f}" if also else ""])
        return table(["z global / local, %", *(f"draw {d}" for d in draws), "personalised, mean"], rows)

    def draw(self, federations: list[Federation]) -> None:
        """The picture: each device's accuracy with z and with its personalised model."""
        mpl.use("svg")
        import matplotlib.pyplot as plt

        lines = [line for f in federations for line in self.by_seed(f, "personal").values()]
        figure, axes = plt.subplots(figsize=(5, 4.6), layout="constrained")
        for line in lines:
            x, y = (
                100 * np.asarray([np.nan if a is None else a for a in line["devices"][of]])
                for of in ("global", "personal")
            )
            axes.scatter(x, y, s=4 + np.sqrt(line["tests"]) * 4, color="#0072b2", alpha=0.3, linewidths=0)
        axes.plot([0, 100], [0, 100], color="#888", linewidth=1)
        axes.set(xlabel="z, % on the device's test set", ylabel="personalised model, %", xlim=(-2, 102), ylim=(-2, 102))
        with mpl.rc_context({"svg.hashsalt": "fedbc", "svg.fonttype": "none"}):
            figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    """Rewrite the page's part."""
    figures = Figures(FOLDER / "measured.jsonl")
    images = [f for f in IMAGES if figures.by_seed(f, "personal")]
    parts = ["", "Synthetic data:\n", figures.accuracies(SYNTHETIC)]
    parts += ["Images:\n", figures.accuracies(images)] if images else []
    parts += ["Devices that come later:\n", figures.unseen(SYNTHETIC)]
    parts += [figures.unseen(images)] if images else []
    parts += ["Feeding it back:\n", figures.feedback()]
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(parts) + "\n" + END + rest.split(END)[1])
    figures.draw(SYNTHETIC)


if __name__ == "__main__":
    main()

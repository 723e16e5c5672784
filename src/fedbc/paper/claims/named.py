"""Numbers that the paper's text names: margins, the crossing of coefficients, a ranking by variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbc.paper import printed
from fedbc.paper.catalogue import images_experiment
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY, REFERENCE, RIVALS, Verdict, is_clear
from fedbc.paper.evidence import Evidence
from fedbc.paper.experiment import Dataset, heading
from fedbc.paper.methods import METHODS, Protocol, under
from fedbc.paper.tables import FINE_TUNED

SHARE = 0.5
"""A margin holds if ours is at least this share of the paper's, and clear of 0."""
CROSSING = 300
"""Examples below which, the paper says, a device's coefficient by lambda is above that by size."""


@dataclass(frozen=True)
class Margin:
    """FedBC's lead over another method that the text of the paper names."""

    words: str
    points: float
    data: Dataset
    epochs: int
    classes: int
    exponent: float
    over: tuple[str, ...] = ("fedavg",)
    """the other methods, of which the best counts; none for FedBC after a step of fine-tuning over FedBC before it"""

    @property
    def setting(self) -> dict[str, Any]:
        """C and the exponent."""
        return {"classes": self.classes, "exponent": self.exponent}


MARGINS = (
    Margin("FedBC over FedAvg", 7.89, Dataset.CIFAR10, 5, 3, 1.5),
    Margin("FedBC over FedAvg", 4.59, Dataset.CIFAR10, 5, 1, 1.2),
    Margin("FedBC over FedAvg", 4.41, Dataset.CIFAR10, 5, 1, 1.4),
    Margin("FedBC over all others", 3.0, Dataset.CIFAR10, 1, 1, 1.3, RIVALS),
    Margin("FedBC over FedAvg", 3.0, Dataset.MNIST, 1, 1, 1.3),
    Margin("FedBC over FedAvg", 3.0, Dataset.MNIST, 5, 1, 1.3),
    Margin(f"{FINE_TUNED} over FedBC", 7.55, Dataset.CIFAR10, 5, 3, 1.5, ()),
    Margin(f"{FINE_TUNED} over FedBC", 16.99, Dataset.CIFAR10, 5, 3, 1.3, ()),
)


def margins_named(found: Evidence) -> Verdict:
    """The margins that the text names, one by one."""
    claim = "The margins that the text names: 7.89, 4.59, 4.41, more than 3 (thrice), 7.55 and 16.99 points."
    see = ("cifar10-global-e5", "cifar10-global-e1", "mnist-global-e1", "mnist-global-e5", "cifar10-local-e5")
    parts, held = [], []
    for margin in MARGINS:
        sound, reference = (_differences(found, margin, protocol) for protocol in Protocol)
        where = f"{margin.data.shown}, E = {margin.epochs}, {heading(margin.setting)}"
        ours = _in_words(sound) if sound else "not run"
        theirs = f"; reference protocol {_in_words(reference)}" if reference else ""
        parts.append(f"{margin.words} {margin.points:g} ({where}): {ours}{theirs}.")
        if len(sound) > 1:  # a single seed has no error
            held.append(float(np.mean(sound)) >= SHARE * margin.points and is_clear(sound))
    if not held:
        return Verdict(claim, NOT_RUN, f"None of these was run with several seeds. {' '.join(parts)}", see)
    text = (
        f"At least half of the margin, and clear by a t-test at 5 %, in {sum(held)} of {len(held)} that were run with "
        f"several seeds. {' '.join(parts)}"
    )
    verdict = CONFIRMED if all(held) else PARTLY if any(held) else NOT
    return Verdict(claim, verdict, text, see, so_far=len(held) < len(MARGINS))


def _differences(found: Evidence, margin: Margin, protocol: Protocol) -> list[float]:
    """FedBC's lead in points under a protocol, seed by seed over the seeds that both have."""
    key = under(protocol, "fedbc")
    experiment = images_experiment(margin.data, margin.epochs, protocol, local=not margin.over)
    if not margin.over:
        tuned = "finetuned_accuracy" if protocol is Protocol.PAPER else "finetuned_on_test_accuracy_weighted"
        columns = (tuned, METHODS[key].local)
        ours, theirs = (dict(found.by_seed(experiment, key, column, **margin.setting)) for column in columns)
    else:
        ours = dict(found.by_seed(experiment, key, "global_accuracy", **margin.setting))
        others = [REFERENCE.get(k, k) if protocol is Protocol.REFERENCE else k for k in margin.over]
        of = {k: dict(found.by_seed(experiment, k, "global_accuracy", **margin.setting)) for k in others}
        known = {k: v for k, v in of.items() if v}
        if len(known) < len(others):
            return []
        theirs = known[max(known, key=lambda k: float(np.mean(list(known[k].values()))))]
    return [100 * (ours[seed] - theirs[seed]) for seed in ours if seed in theirs]


def _in_words(values: list[float]) -> str:
    error = f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):+z.1f}{error} ({len(values)} {'seeds' if len(values) > 1 else 'seed'})"


def crossing(found: Evidence) -> Verdict:
    """Devices below 300 examples weigh more by lambda than by size, those above less."""
    claim = (
        f"At the end of training (E = 5) devices with fewer than {CROSSING} examples have larger coefficients by "
        "lambda "
        "than by size, those with more have smaller ones."
    )
    see = ("multipliers",)
    line = found.first("synthetic", "fedbc", epochs=5)
    if line is None or "multipliers" not in line:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    sizes = np.array(line["sizes"], float)
    right, at = [], []
    for one in found.lines("synthetic", "fedbc", epochs=5):
        weights = np.array(one["multipliers"])
        more = weights / weights.sum() > sizes / sizes.sum()
        # The paper's n_i are whole devices, of which four fifths train.
        right.append(float(np.mean(more == (sizes / 0.8 < CROSSING))))
        at.append((sizes[more].max() / 0.8, sizes[~more].min() / 0.8))
    last, first = (float(np.mean(v)) for v in zip(*at, strict=True))
    share = float(np.mean(right))
    wrong = round((1 - min(right)) * len(sizes))
    text = (
        f"So it is for {share:.0%} of {len(sizes)} devices in the mean of {len(right)} seeds (in the worst seed "
        f"{wrong} "
        f"devices lie on the other side). The largest device that weighs more by lambda has {last:.0f} examples, the "
        f"smallest that weighs less {first:.0f}, of training and test together, in the mean over seeds."
    )
    verdict = CONFIRMED if share >= 0.95 else PARTLY if share > 0.75 else NOT
    return Verdict(claim, verdict, text, see)


def variance_on_text(found: Evidence) -> Verdict:
    """The ranking by variance on Shakespeare."""
    claim = (
        "On Shakespeare SCAFFOLD has the smallest variance over devices; FedBC's is next with E = 1, and with E = 5 "
        "it is "
        "smaller than FedAvg's but larger than the others'."
    )
    see = ("shakespeare-variance",)
    keys = ("fedbc", *RIVALS, "scaffold-reference")
    holds, parts = [], []
    for epochs in (1, 5):
        values = {k: found.mean("shakespeare", k, "accuracy_variance", epochs=epochs) for k in keys}
        known = {k: 1e4 * v for k, v in values.items() if v is not None}
        if not {"fedbc", *RIVALS} <= set(known):
            continue
        ranking = sorted((k for k in known if k != "scaffold-reference"), key=lambda k: known[k])
        others = [known[k] for k in ("fedavg", "qfedavg", "fedprox")]
        holds.append(ranking[0] == "scaffold")
        if epochs == 1:
            holds.append(known["fedbc"] < min(others))
        else:
            holds.append(max(known["qfedavg"], known["fedprox"]) < known["fedbc"] < known["fedavg"])
        parts.append(f"E = {epochs}, in %²: {', '.join(f'{METHODS[k].label} {known[k]:.0f}' for k in ranking)}.")
        if "scaffold-reference" in known:
            parts.append(f"({METHODS['scaffold-reference'].label} {known['scaffold-reference']:.0f}.)")
    if not holds:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    seeds = len(found.lines("shakespeare", "fedbc", epochs=1))
    parts.append(f"From {seeds} {'seed' if seeds == 1 else 'seeds'}: near ranks are not told apart by this.")
    verdict = CONFIRMED if all(holds) and len(holds) == 4 else PARTLY if any(holds) else NOT
    return Verdict(claim, verdict, " ".join(parts), see, so_far=len(holds) < 4)


def in_papers_table(margin: Margin) -> float | None:
    """The margin in the paper's own table, to hold the text to it."""
    source = f"{margin.data}_{'global' if margin.over else 'local'}_e{margin.epochs}"
    names = ["FedBC", *(METHODS[k].printed for k in margin.over)] if margin.over else [FINE_TUNED, "FedBC"]
    cells = [printed.cell(source, name, margin.setting) for name in names]
    if any(cell is None for cell in cells):
        return None
    first, *others = (cell["mean"] for cell in cells if cell is not None)
    return float(first - max(others))

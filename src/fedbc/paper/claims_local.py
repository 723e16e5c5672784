"""Claims about local accuracy, about other methods, and about the theory."""

from __future__ import annotations

import itertools

import numpy as np

from fedbc.paper import theory
from fedbc.paper.catalogue import CLASSES, EPOCHS, EXPONENTS
from fedbc.paper.methods import METHODS
from fedbc.paper.tables import Found, printed_cell
from fedbc.paper.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY, RIVALS, Verdict, means


def _local_pairs(found: Found, one: tuple[str, str], other: tuple[str, str], experiment: str) -> dict[str, float]:
    """Differences of two columns of local accuracy, in points, by setting."""
    out = {}
    for c in CLASSES:
        for e in EXPONENTS:
            a, b = (found.mean(experiment, m, col, classes=c, exponent=e) for m, col in (one, other))
            if a is not None and b is not None:
                out[f"C = {c}, exponent {e}"] = 100 * (a - b)
    return out


def fine_tuning(found: Found) -> Verdict:
    """FineTune lifts local accuracy."""
    claim = "One step of fine-tuning lifts FedBC's local accuracy (FedBC-FineTune)."
    see = ("cifar10-local-e5",)
    sound = _local_pairs(found, ("fedbc", "finetuned_accuracy"), ("fedbc", "local_accuracy"), "cifar10-local-e5")
    leaky = _local_pairs(
        found,
        ("fedbc-reference", "finetuned_on_test_accuracy_weighted"),
        ("fedbc-reference", "local_accuracy_weighted"),
        "cifar10-local-e5-reference",
    )
    if not sound:
        return Verdict(claim, NOT_RUN, "Not run under the paper protocol." + _range(" Reference protocol", leaky), see)
    gain = np.array(list(sound.values()))
    text = f"Adapted on training data: {gain.mean():+z.1f} points ({gain.min():+z.1f} to {gain.max():+z.1f})."
    text += _range(" Adapted on test data, as in the reference", leaky)
    verdict = CONFIRMED if (gain > 0.5).all() else PARTLY if gain.mean() > 0.5 else NOT
    if verdict != CONFIRMED and leaky and np.mean(list(leaky.values())) > gain.mean() + 1:
        text += " What the paper gains it gains by showing the model test data."
    return Verdict(claim, verdict, text, see)


def _range(what: str, values: dict[str, float]) -> str:
    if not values:
        return ""
    v = np.array(list(values.values()))
    return f"{what}: {v.mean():+z.1f} points ({v.min():+z.1f} to {v.max():+z.1f})."


def per_fedbc(found: Found) -> Verdict:
    """Per-FedBC is on a par with Per-FedAvg."""
    claim = "Per-FedBC's local accuracy is on a par with Per-FedAvg's."
    see = ("cifar10-local-e5",)
    sound = _local_pairs(
        found, ("perfedbc", "finetuned_accuracy"), ("perfedavg", "finetuned_accuracy"), "cifar10-local-e5"
    )
    column = "finetuned_on_test_accuracy_weighted"
    leaky = _local_pairs(
        found, ("perfedbc-reference", column), ("perfedavg-reference", column), "cifar10-local-e5-reference"
    )
    if not sound and not leaky:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    text = _range("Per-FedBC less Per-FedAvg, paper protocol", sound) + _range(" Reference protocol", leaky)
    judged = np.array(list((sound or leaky).values()))
    par = judged > -1
    if sound and np.mean(list(sound.values())) > 5:
        text += (
            " The two are not evaluated alike here: Per-FedAvg's model is the global one after one step, as its "
            "authors define it, Per-FedBC's the device's own."
        )
    return Verdict(claim, CONFIRMED if par.all() else PARTLY if par.any() else NOT, text.strip(), see)


def scaffold_collapse(found: Found) -> Verdict:
    """SCAFFOLD collapses on CIFAR-10 with skew."""
    claim = "SCAFFOLD collapses on CIFAR-10 with skewed sizes (10 points and more below FedAvg)."
    see = ("cifar10-global-e5", "cifar10-global-e1")
    gaps: dict[str, list[float]] = {"scaffold": [], "scaffold-reference": []}
    diverged = dict.fromkeys(gaps, 0)
    further: list[float] = []
    for epochs in (1, 5):
        for c in CLASSES:
            for e in EXPONENTS[1:]:
                for key, name in (
                    ("scaffold", f"cifar10-e{epochs}"),
                    ("scaffold-reference", f"cifar10-e{epochs}-reference"),
                ):
                    m = means(found, name, (key, "fedavg"), classes=c, exponent=e)
                    if len(m) == 2:
                        gaps[key].append(m[key] - m["fedavg"])
                    elif any("diverged" in line for line in found.lines(name, key, classes=c, exponent=e)):
                        diverged[key] += 1
                own, plain = (
                    found.mean(f"cifar10-e{epochs}", k, "drift", classes=c, exponent=e) for k in ("scaffold", "fedavg")
                )
                if own and plain:
                    further.append(own / plain)
    if not any(gaps.values()) and not any(diverged.values()):
        return Verdict(claim, NOT_RUN, "Not run.", see)
    parts = []
    for key, gap in gaps.items():
        if gap:
            parts.append(
                f"{METHODS[key].label}: {np.mean(gap):+z.1f} points to FedAvg ({min(gap):+z.1f} to {max(gap):+z.1f}, "
                f"{len(gap)} settings)."
            )
        if diverged[key]:
            where = f"{diverged[key]} setting{'s' if diverged[key] > 1 else ''}"
            parts.append(f"{METHODS[key].label} diverges in {where}.")
    collapsed = {key: (np.mean(gap) < -10 if gap else diverged[key] > 0) for key, gap in gaps.items()}
    sound, reference = collapsed["scaffold"], collapsed["scaffold-reference"]
    if reference and gaps["scaffold"] and not sound:
        parts.append("The collapse belongs to the reference's control variates, not to SCAFFOLD.")
    if sound and further:
        parts.append(
            f"Its devices end {np.median(further):.1f} times as far from z as FedAvg's (‖x_i − z‖², median). A likely "
            "cause: control variates from devices with few steps act on a large device's hundreds of steps."
        )
    return Verdict(claim, CONFIRMED if sound else PARTLY if reference else NOT, " ".join(parts), see)


def q_normalisation(found: Found) -> Verdict:
    """q-FedAvg's normalisation makes a difference."""
    claim = "(Ours) q-FedAvg's numbers in the paper come from a normalisation that q-FedAvg does not have."
    rows = [means(found, "synthetic", ("qfedavg", "qfedavg-reference"), epochs=e) for e in EPOCHS]
    gaps = np.array([r["qfedavg-reference"] - r["qfedavg"] for r in rows if len(r) == 2])
    if not len(gaps):
        return Verdict(claim, NOT_RUN, "Not run.", ("synthetic-global",))
    text = (
        f"On the synthetic data the reference's variant is {gaps.mean():+z.1f} points from the correct method "
        f"({gaps.min():+z.1f} to {gaps.max():+z.1f}), each with its own tuned q and rate."
    )
    if abs(gaps.mean()) < 1:
        text += " Tuning hides the difference: a small q makes both FedAvg-like."
    verdict = CONFIRMED if (gaps > 1).all() else PARTLY if (gaps > 1).any() else NOT
    return Verdict(claim, verdict, text, ("synthetic-global",))


def best_rounds(found: Found) -> Verdict:
    """Whether the paper's numbers are nearer to a run's best round than to its last rounds."""
    claim = "(Ours) The paper's accuracies on images are those of a run's best rounds rather than of its last ones."
    gaps: dict[str, list[tuple[float, float]]] = {}
    for data, shown in (("cifar10", "CIFAR-10"), ("mnist", "MNIST")):
        for epochs, c, e in itertools.product((1, 5), CLASSES, EXPONENTS):
            for key in ("fedbc", *RIVALS):
                line = found.first(f"{data}-e{epochs}", key, classes=c, exponent=e)
                setting = {"classes": c, "exponent": e}
                paper = printed_cell(f"{data}_global_e{epochs}", METHODS[key].printed or "", setting)
                if line is not None and paper is not None:
                    last, best = line["summary"]["global_accuracy"], max(line["curves"]["global_accuracy"])
                    own = gaps.setdefault(f"{shown} E = {epochs}, C = {c}", [])
                    own.append((100 * last - paper["mean"], 100 * best - paper["mean"]))
    see = ("cifar10-global-e1", "cifar10-global-e5", "mnist-global-e1", "mnist-global-e5")
    if not gaps:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    every = np.abs(np.concatenate([np.array(g) for g in gaps.values()]))
    nearer = float(np.mean(every[:, 1] < every[:, 0]))
    means_of = {where: np.mean(g, axis=0) for where, g in gaps.items()}
    text = (
        "Our last 20 rounds, and our best evaluated round, less the paper's number, in points, mean over methods: "
        + "; ".join(f"{where}: {last:+z.1f}, {best:+z.1f}" for where, (last, best) in means_of.items())
        + f". The best round is nearer in {nearer:.0%} of {len(every)} cells"
        + f" ({every[:, 0].mean():.1f} against {every[:, 1].mean():.1f} points off)."
    )
    left = {where: best for where, (_, best) in means_of.items() if best < -3}
    if left:
        text += f" Where even the best round is far below ({', '.join(left)}), something else differs too: rounds, say."
    explains = nearer > 0.8 and every[:, 1].mean() < 2
    return Verdict(claim, CONFIRMED if explains else PARTLY if nearer > 0.5 else NOT, text, see)


def toy_example(found: Found) -> Verdict:
    """A strictly positive gamma gives a better global model."""
    claim = "A strictly positive gamma lets the global model come nearer to the optimum than consensus (first figure)."
    study = found.studies["toy"]
    if study is None:
        return Verdict(claim, NOT_RUN, "Not run.", ("toy",))
    gap = {name: walk["gap"] for name, walk in study["walks"].items()}
    tolerant = {k: v for k, v in gap.items() if "gamma" in k and not k.endswith("gamma = 0")}
    best = min(tolerant, key=lambda k: tolerant[k])
    beats_zero = tolerant[best] < gap["FedBC, gamma = 0"] - 1e-9
    beats_fedavg = tolerant[best] < gap["FedAvg"] - 1e-9
    text = f"f(z) - f(z*) on two quadratics: {', '.join(f'{k} {v:.4f}' for k, v in gap.items())}."
    if beats_fedavg and not beats_zero:
        text += (
            " FedBC with a small gamma > 0 is far better than FedAvg, but gamma = 0 is better still: what helps is the "
            "pull, which FedAvg lacks. FedAvg is not gamma = 0; it is gamma so large that no constraint binds."
        )
    return Verdict(claim, CONFIRMED if beats_zero else PARTLY if beats_fedavg else NOT, text, ("toy",))


def theorem_rate(found: Found) -> Verdict:
    """The theorem's terms in numbers."""
    claim = "The running mean of ‖∇f(z)‖² falls as 1/T to a plateau that grows with delta², epsilon, alpha (theorem)."
    see = ("theorem", "plateaus")
    lines = {line["hash"]: line for line in found.studies["theory"] or []}
    if not lines:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    slopes = [float(x["slope"]) for x in lines.values()]
    slopes = [s for s in slopes if s == s]
    parts = [
        f"Slope of log(mean - plateau) against log T: {np.median(slopes):.2f} in the median of {len(slopes)} runs."
    ]
    exponents = {}
    for problem in theory.PROBLEMS:
        for name in theory.SWEEPS:
            points = [
                (float(getattr(c, name)), lines[c.key]["plateau"])
                for n, c in theory.cases()
                if n == name and c.problem == problem and c.key in lines and getattr(c, name) > 0
            ]
            if len(points) > 2:
                x, y = np.log(np.array(points)).T
                exponents[(problem, name)] = float(np.polyfit(x, y, 1)[0])
    for name, word in (("apart", "delta"), ("alpha", "alpha"), ("steps", "K"), ("gamma", "gamma")):
        shown = ", ".join(f"{p} {exponents[(p, name)]:+.2f}" for p in theory.PROBLEMS if (p, name) in exponents)
        parts.append(f"Plateau ~ {word}^k, k fitted: {shown}.")
    rate = abs(np.median(slopes) + 1) < 0.1
    shows = {name: all(exponents.get((p, name), 0) > 0.3 for p in theory.PROBLEMS) for name in ("apart", "alpha")}
    if not shows["alpha"]:
        parts.append("The terms are an upper bound's and need not show: alpha's does not.")
    verdict = CONFIRMED if rate and all(shows.values()) else PARTLY if rate else NOT
    return Verdict(claim, verdict, " ".join(parts), see)


def corollary(found: Found) -> Verdict:
    """Smaller gamma, worse local stationarity."""
    claim = "The smaller gamma_i, the larger lambda_i and the worse the local stationarity (corollary)."
    lines = {line["hash"]: line for line in found.studies["theory"] or []}
    if not lines:
        return Verdict(claim, NOT_RUN, "Not run.", ("plateaus",))
    texts, holds = [], []
    for problem in theory.PROBLEMS:
        cases = [c for n, c in theory.cases() if n == "gamma" and c.problem == problem and c.key in lines]
        local = [lines[c.key]["local_sqnorm"] for c in cases]
        pull = [lines[c.key]["multiplier"] for c in cases]
        if len(local) > 2:
            holds.append(bool(np.all(np.diff(local) <= 1e-9) and np.all(np.diff(pull) <= 1e-9)))
            texts.append(
                f"{problem}: from gamma = {cases[0].gamma:g} to {cases[-1].gamma:g}, mean lambda {pull[0]:.2f} to "
                f"{pull[-1]:.2f}, mean ‖∇f_i(x_i)‖² {local[0]:.3g} to {local[-1]:.3g}."
            )
    verdict = CONFIRMED if holds and all(holds) else PARTLY if any(holds) else NOT
    text = " ".join(texts) + " The effect is small: the proofs' bounds leave lambda_i little room."
    return Verdict(claim, verdict, text, ("plateaus",))

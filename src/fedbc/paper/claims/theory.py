"""The first figure's claim, the theorem and the corollary."""

from __future__ import annotations

import numpy as np

from fedbc.paper import theory
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY, Verdict
from fedbc.paper.found import Found


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
        shown = ", ".join(f"{p} {exponents[(p, name)]:+z.2f}" for p in theory.PROBLEMS if (p, name) in exponents)
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

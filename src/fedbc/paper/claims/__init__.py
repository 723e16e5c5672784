"""The paper's claims and our suppositions, one by one: every verdict is computed from what was run."""

from __future__ import annotations

from dataclasses import replace

from fedbc.paper.claims import accuracy, constraint, fairness, local, named, origins, theory
from fedbc.paper.claims.verdict import Judge, Verdict
from fedbc.paper.evidence import Evidence

__all__ = ["CLAIMS", "SUPPOSITIONS", "judge_all"]

_REFERENCE = tuple(f"{data}-e{e}-reference" for data in ("cifar10", "mnist") for e in (1, 5))

Judges = dict[Judge, tuple[str, ...]]
"""Judges, and the experiments whose runs each of them needs."""

CLAIMS: Judges = {
    accuracy.synthetic_best: ("synthetic",),
    accuracy.lowest_loss: ("synthetic",),
    accuracy.more_devices: ("synthetic-devices",),
    accuracy.weights_or_duals: ("synthetic", "synthetic-draws", "synthetic-consensus", "synthetic-many-draws"),
    fairness.smaller_variance: ("synthetic", "cifar10-e1", "cifar10-e5", "mnist-e1", "mnist-e5"),
    fairness.users_meet: ("synthetic",),
    fairness.coefficients_converge: ("synthetic",),
    fairness.coefficients_on_images: ("cifar10-coefficients",),
    fairness.multipliers_settle: ("synthetic",),
    named.crossing: ("synthetic",),
    local.tolerance_trade: ("synthetic-gamma",),
    theory.toy_example: (),
    accuracy.image_best("cifar10", "CIFAR-10", 5): ("cifar10-e5",),
    accuracy.image_best("cifar10", "CIFAR-10", 1): ("cifar10-e1",),
    accuracy.image_best("mnist", "MNIST", 1): ("mnist-e1",),
    accuracy.image_best("mnist", "MNIST", 5): ("mnist-e5", "mnist-weights"),
    accuracy.alike_on_text: ("shakespeare",),
    named.variance_on_text: ("shakespeare",),
    named.margins_named: ("cifar10-e5", "cifar10-local-e5"),
    accuracy.personal_methods_lose: ("cifar10-e5",),
    local.between_personal_methods: ("cifar10-local-e5",),
    local.fine_tuning: ("cifar10-local-e5",),
    local.per_fedbc: ("cifar10-local-e5",),
    local.per_fedbc_best: ("cifar10-local-e5",),
    origins.scaffold_collapse: ("cifar10-e5", "cifar10-e1"),
    theory.theorem_holds: (),
    theory.corollary: (),
}
"""What the paper says."""

SUPPOSITIONS: Judges = {
    constraint.hardly_any_room: tuple(constraint.PLACES.values()),
    origins.reference_lead: _REFERENCE,
    origins.reference_levels: _REFERENCE,
    origins.reference_local_levels: ("cifar10-local-e5", "cifar10-local-e5-reference"),
    origins.best_rounds: ("cifar10-e1", "cifar10-e5", "mnist-e1", "mnist-e5"),
    origins.more_rounds: ("cifar10-rounds",),
    local.stated_rate: ("cifar10-local-e5", "cifar10-rates"),
    origins.q_normalisation: ("synthetic",),
}
"""What may lie behind the paper's numbers and ours; the paper does not say it."""


def judge_all(found: Evidence, judges: Judges) -> list[Verdict]:
    """Every judge's verdict."""
    verdicts = []
    for judge, experiments in judges.items():
        verdict = judge(found)
        missing = not all(found.complete(name) for name in experiments)
        verdicts.append(replace(verdict, so_far=verdict.so_far or missing))
    return verdicts

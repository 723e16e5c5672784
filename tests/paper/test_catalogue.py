"""What the experiments consist of: the paper's cells, its grids, seeds kept apart, runs shared."""

import itertools

import pytest

from fedbc.paper import hyperparameters as tuning
from fedbc.paper import printed, tables
from fedbc.paper.catalogue import DAMPED, EXPERIMENTS, SEEDS, SHUFFLED, SUSPICIONS
from fedbc.paper.experiment import Part, chosen
from fedbc.paper.gallery import FIGURES
from fedbc.paper.methods import METHODS
from fedbc.paper.specifications import BELOW, CHANGES
from fedbc.paper.studies import STUDIES
from fedbc.runs.many import flatten
from fedbc.selection import grids

# Any point of every grid: what is chosen does not matter for which runs there are.
CHOICE = {key: m.candidates()[0] for key, m in METHODS.items() if m.grid}
CHOICES = dict.fromkeys(tuning.TUNINGS, CHOICE)


def test_the_tables_hold_all_440_cells_of_the_paper_once_a_protocol():
    cells = 0
    for plan in tables.PLANS.values():
        if plan.name == "shakespeare-variance":
            continue  # the same cells, their other number
        rows = printed.tables()[plan.source]["rows"]
        cells += len(rows)
        wanted = {(r["algorithm"], r.get("classes"), r.get("exponent", r.get("epochs"))) for r in rows}
        sound = [line for line in plan.lines if "reference" not in f"{line.experiment}{line.method}"]
        ours = {
            (line.printed, group.get("classes"), next(iter(column.values())))
            for line, group, column in itertools.product(sound, plan.groups, plan.columns)
            if line.printed is not None
        }
        assert ours == wanted, plan.name
    assert cells == 440


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_becomes_specifications(name):
    experiment = EXPERIMENTS[name]
    runs = experiment.runs(CHOICES, Part(full=True))
    assert all(run.spec is not None for run in runs)
    assert {run.hash for run in experiment.runs(CHOICES)} <= {run.hash for run in runs}
    seeds = [run.seed for run in runs]
    assert seeds == sorted(seeds)  # a first look at everything comes first
    assert set(seeds) <= set(SEEDS)


def test_hyper_parameters_are_chosen_on_other_seeds_than_are_reported():
    assert {s for t in tuning.TUNINGS.values() for s in t.seeds}.isdisjoint(SEEDS)
    hashes = {run.hash for e in EXPERIMENTS.values() for run in e.runs(CHOICES, Part(full=True))}
    for t in tuning.TUNINGS.values():
        specs = [t.spec(c, s, t.rungs[-1]) for k in t.methods for c in METHODS[k].candidates()[:2] for s in t.seeds]
        assert not hashes & {s.identity for s in specs}


def test_the_grids_are_the_appendix():
    assert grids.RATES == (0.001, 0.01, 0.1, 0.5, 1.0)
    assert grids.MU == (0.0001, 0.001, 0.01, 0.1, 1.0)
    assert grids.Q == (0.001, 0.01, 0.1, 1.0, 2.0, 5.0)
    assert grids.DUAL_RATES == (1e-7, 1e-6, 1e-5, 0.0001, 0.001, 0.01)
    assert grids.PENALTIES == (0.01, 0.1, 1.0, 10.0)
    assert len(METHODS["fedbc"].candidates()) == 30
    assert len(METHODS["qfedavg"].candidates()) == 30
    assert len(METHODS["fedprox-uniform"].candidates()) == 25


def test_every_global_table_has_the_uniform_controls():
    # The rows at other rates stand in a table that has the controls from another experiment.
    other_rates = {"cifar10-rates", "mnist-weights", "synthetic-consensus", "synthetic-plain"}
    other_rates |= {f"{data}-plain-e{epochs}" for data in ("mnist", "cifar10") for epochs in (1, 5)}
    shown = {n for p in tables.PLANS.values() if "local" not in p.name for n in p.needs} - other_rates
    assert shown == {n for n in EXPERIMENTS if "local" not in n} - other_rates - {
        "synthetic-gamma", "synthetic-devices", "synthetic-draws", "synthetic-many-draws", "cifar10-coefficients",
        "cifar10-rounds", SUSPICIONS, DAMPED, SHUFFLED,
    }  # fmt: skip
    for name in (*shown, "synthetic-devices", "synthetic-draws"):
        assert {"fedavg-uniform", "fedprox-uniform"} <= set(EXPERIMENTS[name].methods), name


def test_tables_share_runs():
    def hashes(name, method):
        return {r.hash for r in EXPERIMENTS[name].runs(CHOICES) if r.method == method}

    assert hashes("cifar10-local-e5", "fedbc") == hashes("cifar10-e5", "fedbc")
    assert hashes("cifar10-coefficients", "fedbc") & hashes("cifar10-e5", "fedbc")
    assert hashes("synthetic-draws", "fedavg") & hashes("synthetic", "fedavg")
    assert hashes("synthetic-devices", "scaffold") & hashes("synthetic", "scaffold")


def test_protocols_differ_as_they_should():
    sound, reference = (
        next(r.spec for r in EXPERIMENTS[n].runs(CHOICES) if r.method.startswith("fedbc"))
        for n in ("mnist-e1", "mnist-e1-reference")
    )
    assert (sound.data["split"], reference.data["split"]) == ("shuffled", "ordered")
    assert (sound.to_dict()["model"]["dropout"], reference.to_dict()["model"]["dropout"]) == (0.0, 0.5)
    assert reference.algorithm["dual_lr"] == 2 * sound.algorithm["dual_lr"]
    tuned = next(r.spec for r in EXPERIMENTS["cifar10-local-e5-reference"].runs(CHOICES)).run["fine_tune"]
    assert tuned["on"] == "test"


def test_weights_alone_are_the_tuned_method_at_the_least_dual_rate():
    alone, tuned = (
        [r.spec.to_dict() for r in EXPERIMENTS[n].runs(CHOICES, Part(seeds=1, methods=(m,)))]
        for n, m in (("mnist-weights", "fedbc-weights"), ("mnist-e5", "fedbc"))
    )
    assert len(alone) == 15
    for spec in tuned:
        spec["algorithm"]["dual_lr"] = 1e-7
    assert alone == tuned


def test_a_suspicion_changes_what_it_says_and_nothing_else():
    runs = {r.setting["suspicion"]: r for r in EXPERIMENTS[SUSPICIONS].runs(CHOICES)}
    of_table = {r.hash for r in EXPERIMENTS["cifar10-e5"].runs(CHOICES) if r.method == "fedavg" and r.is_in(**BELOW)}
    assert runs["none"].hash in of_table
    plain = flatten(runs.pop("none").spec.to_dict())
    assert set(runs) == set(CHANGES)
    for name, run in runs.items():
        changed = {k for k, v in flatten(run.spec.to_dict()).items() if plain[k] != v}
        assert changed == {f"{part}.{key}" for part, table in CHANGES[name].items() for key in table}, name


def test_local_controls_are_evaluated_on_the_devices():
    for run in EXPERIMENTS["cifar10-local-controls"].runs(CHOICES):
        assert run.spec.run["evaluate"] == ["global", "local"]
        assert run.spec.run["fine_tune"]["on"] == "train"
    labels = [line.label for line in tables.PLANS["cifar10-local-e5"].lines]
    assert {"FedAvg's own x_i", "FedAvg-FineTune", "Ditto", "Local only"} <= set(labels)


def test_a_first_look_is_a_part_of_the_whole():
    experiment = EXPERIMENTS["cifar10-e5"]
    few = experiment.runs(CHOICES, Part(seeds=2, settings=1))
    assert {(r.seed, r.setting["classes"], r.setting["exponent"]) for r in few} == {(1, 1, 1.2), (2, 1, 1.2)}
    assert len(few) == 2 * len(experiment.methods)
    assert {r.hash for r in few} < {r.hash for r in experiment.runs(CHOICES)}
    two = experiment.runs(CHOICES, Part(settings=1, methods=("fedbc", "fedavg")))
    assert [(r.seed, r.method) for r in two] == [(s, m) for s in SEEDS[:3] for m in ("fedavg", "fedbc")]


def test_nothing_is_made_up_before_it_is_chosen():
    assert chosen({}, "fedbc") is None
    assert chosen({}, "fedbc-reference") is None
    assert chosen({}, "perfedavg-stated") == {"name": "perfedavg", "lr": 0.001, "inner_lr": 0.01}
    assert all(r.spec is None for r in EXPERIMENTS["synthetic"].runs({}))


def test_figures_say_which_experiment_draws_them():
    assert {name for f in FIGURES.values() for name in f.needs} <= set(EXPERIMENTS) | set(STUDIES)

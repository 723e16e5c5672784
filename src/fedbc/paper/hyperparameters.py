"""Hyper-parameters chosen on the paper's grids: on validation data and seeds that are never reported, by the mean of
the last rounds.

A fifth of each device's training data is held out; the test sets take no part. The synthetic grids are run in full. On
images and text two short cuts are taken, both stated in the file of choices: other methods search the local rate next
to FedAvg's best one (`near`), and a grid of many points is first run for a part of the rounds, after which the best go
on (`rungs`, successive halving; on text the best of each rate). A grid of few points is always run in full: SCAFFOLD
starts slowly, and would be thinned out before it has begun. The choices are kept as TOML files that `fedbc sweep` can
run.

Choices that are there stay in force until the new ones are complete, of a group or of some of its methods (`fedbc
paper choose`). Some were made before there was validation data, on the reported test sets and other seeds: `Basis`
tells which.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from fedbc import storage
from fedbc.errors import InputError
from fedbc.paper import methods
from fedbc.paper.catalogue import SEEDS
from fedbc.paper.experiment import Choices, Dataset, heading
from fedbc.paper.methods import METHODS, Arguments, Family, Method, Protocol
from fedbc.paper.specifications import ON_SHAKESPEARE, images, shakespeare, synthetic
from fedbc.runs import Line, RunSpec
from fedbc.runs.spec import toml_lines
from fedbc.selection.grids import RATES

Results = Mapping[str, Line]
HELD_OUT = 0.2
"""The share of each device's training data that choices are made on."""
FEW = 5
"""Grids of at most so many points are run in full."""
OWN_RATES = {Family.FEDAVG, Family.PERFEDAVG, Family.PFEDME, Family.PERFEDBC, Family.LOCALONLY}
"""Methods whose rate says nothing of FedAvg's, and FedAvg: they search all of theirs."""
ALWAYS_ON_VALIDATION = {"scaffold-plain", "ditto", "localonly"}
"""Methods that joined when there was validation data: none of their choices was ever made on test sets."""


class Basis(StrEnum):
    """The data that a choice was made on."""

    VALIDATION = "validation data"
    TEST = "test sets, other seeds"


class Rung(NamedTuple):
    """A stage of a group's choices."""

    rounds: int
    share: float = 1.0
    """the share of the candidates that stays"""
    on: Mapping[str, Any] = {}
    """where the stage's setting differs from the group's"""
    words: str = ""
    """that difference, for the file of choices"""
    runs: int | None = None
    """how many of the group's runs judge a candidate; None: all of them"""


@dataclass(frozen=True)
class Tuning:
    """A group of choices: one setting, and the methods whose hyper-parameters are chosen there."""

    name: str
    data: Dataset
    settings: tuple[Mapping[str, Any], ...]
    """a candidate is judged by its mean over them; the first one stands in the file of choices"""
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    """each setting is run with one of them, in turn; a single setting with all"""
    rungs: tuple[Rung, ...]
    """the last one decides"""
    near: bool
    """whether methods other than FedAvg search only next to FedAvg's rate"""
    build: Any
    every: int | None = None
    """rounds from one evaluation to the next; None: at least four in a run, every fifth round at most"""
    per_rate: int | None = None
    """so many of each rate's candidates stay instead of a share of all, where early rounds cannot judge rates"""
    validation: float | None = HELD_OUT
    """the share of the training data that candidates are judged on; None: the test sets, as of old"""

    @property
    def epochs(self) -> int:
        """E, the same in all of its settings."""
        return int(self.settings[0]["epochs"])

    def part(self, wanted: Iterable[str]) -> Tuning:
        """The part of the group that some methods need: their grids, and FedAvg's where others search next to it."""
        needed = {METHODS[key].like or key for key in wanted}
        if any(self._is_near(METHODS[key]) for key in needed):
            needed.add("fedavg")
        return replace(self, methods=tuple(key for key in self.methods if key in needed))

    def _is_near(self, method: Method) -> bool:
        """Whether a method searches only next to FedAvg's rate."""
        own = "lr" not in method.grid or method.family in OWN_RATES or len(method.candidates()) <= FEW
        return self.near and not own

    def spec(self, algorithm: Arguments, seed: int, rung: Rung, setting: Mapping[str, Any] | None = None) -> RunSpec:
        """A tuning run: only the last rounds matter, so little is measured."""
        spec, rounds = self.build({**(setting or self.settings[0]), **rung.on}, seed, algorithm), rung.rounds
        every = min(self.every, rounds) if self.every else min(5, max(1, rounds // 4))
        kept = [w for w in spec.run.get("evaluate", ["global"]) if w in ("global", "local")]
        local = any(METHODS[k].score != "global_accuracy" and METHODS[k].matches(algorithm) for k in self.methods)
        wanted = ["global", "local"] if local else [w for w in kept if w == "global"]
        run: dict[str, Any] = {**spec.run, "rounds": rounds, "evaluate": wanted, "evaluate_every": every}
        run.pop("fine_tune", None)
        if self.validation is not None:
            run["validation"] = self.validation
        return replace(spec, run=run)

    def _pairs(self, rung: Rung) -> list[tuple[int, Mapping[str, Any]]]:
        """Seeds and settings of the runs that judge a candidate in a stage."""
        count = max(len(self.seeds), len(self.settings))
        pairs = zip(itertools.cycle(self.seeds), itertools.cycle(self.settings), strict=False)
        return list(itertools.islice(pairs, rung.runs or count))

    def specs(self, algorithm: Arguments, rung: Rung) -> list[RunSpec]:
        """All runs that judge a candidate in a stage."""
        return [self.spec(algorithm, seed, rung, setting) for seed, setting in self._pairs(rung)]

    def stages(self, candidates: int) -> tuple[Rung, ...]:
        """The stages of a grid of so many points."""
        return self.rungs if candidates > FEW else self.rungs[-1:]

    def pending(self, results: Results) -> list[RunSpec]:
        """The runs that are needed next; none when every method has its choice."""
        needed: dict[str, RunSpec] = {}
        for key in self.methods:
            _, todo = self.progress(METHODS[key], results)
            needed |= {s.identity: s for s in todo}
        return list(needed.values())

    def progress(self, method: Method, results: Results) -> tuple[Arguments | None, list[RunSpec]]:
        """A method's choice, or the runs that are missing for it."""
        candidates = self.candidates(method, results)
        if candidates is None:
            return None, []
        for rung in self.stages(len(candidates)):
            runs = {i: self.specs(c, rung) for i, c in enumerate(candidates)}
            # Seed by seed: a candidate's later seeds find its program compiled.
            todo = [s for specs in zip(*runs.values(), strict=True) for s in specs if s.identity not in results]
            if todo:
                return None, todo
            scores = {
                i: (_mean_score(method.score, specs, results), -_mean_loss(specs, results)) for i, specs in runs.items()
            }
            ranked = [candidates[i] for i in sorted(scores, key=lambda i: scores[i], reverse=True)]
            candidates = self._survivors(method, ranked, rung.share)
        return candidates[0], []

    def _survivors(self, method: Method, ranked: list[Arguments], share: float) -> list[Arguments]:
        """The best candidates, or the best of each rate where a method has more than the rate to choose."""
        if share == 1 or self.per_rate is None or len(method.grid) == 1:
            return ranked[: math.ceil(share * len(ranked))]
        rates = dict.fromkeys(c["lr"] for c in ranked)
        return [c for rate in rates for c in [c for c in ranked if c["lr"] == rate][: self.per_rate]]

    def candidates(self, method: Method, results: Results) -> list[Arguments] | None:
        """The method's grid, near FedAvg's rate where that is asked for; None while that rate is not known."""
        every = method.candidates()
        if not self._is_near(method):
            return every
        fedavg, _ = self.progress(METHODS["fedavg"], results)
        if fedavg is None:
            return None
        at = RATES.index(fedavg["lr"])
        near = RATES[max(0, at - 1) : at + 2]
        return [c for c in every if c["lr"] in near] or every

    def score(self, method: Method, algorithm: Arguments, results: Results) -> float:
        """The mean that a candidate was judged by in the last rung."""
        return _mean_score(method.score, self.specs(algorithm, self.rungs[-1]), results)

    def known_score(self, method: Method, algorithm: Arguments, results: Results) -> float | None:
        """The same, where a candidate reached the last rung."""
        specs = self.specs(algorithm, self.rungs[-1])
        if any(s.identity not in results for s in specs):
            return None
        return _mean_score(method.score, specs, results)

    def estimate(self) -> int:
        """About how many runs the whole group takes, its rungs counted by their rounds."""
        full, total = self.rungs[-1].rounds, 0.0
        for method in (METHODS[k] for k in self.methods):
            grid = len(method.candidates())
            share = 0.6 if self.near and grid > FEW and method.family not in OWN_RATES else 1.0
            for rung in self.stages(grid):
                total += grid * share * rung.rounds / full * len(self._pairs(rung))
                share *= rung.share
        return round(total)

    def basis(self, key: str, algorithm: Arguments, results: Results) -> Basis:
        """What a method's choice rests on: the validation runs, if these lead to it."""
        return Basis.VALIDATION if self.progress(METHODS[key], results)[0] == algorithm else Basis.TEST

    def on_test(self) -> Tuning:
        """The runs that choices were made by before there was validation data."""
        return replace(self, validation=None)


def _mean_score(column: str, specs: list[RunSpec], results: Results) -> float:
    """The mean over seeds; a run that diverged counts as nothing right."""
    scores = [results[s.identity].get("summary", {}).get(column, 0.0) for s in specs]
    return sum(0.0 if math.isnan(float(s)) else float(s) for s in scores) / len(scores)


def _mean_loss(specs: list[RunSpec], results: Results) -> float:
    """z's loss on the test sets; it decides where models are equally often right, as all are early on text."""
    losses = [float(results[s.identity].get("summary", {}).get("global_test_loss", math.inf)) for s in specs]
    return sum(math.inf if math.isnan(loss) else loss for loss in losses) / len(losses)


_GLOBAL = (*methods.SOUND, "scaffold-plain", "qfedavg-reference", "scaffold-reference")
_PERSONAL = ("perfedavg", "pfedme", "pfedme-reference", "perfedbc", "ditto", "localonly")

_ON_IMAGES: dict[int, tuple[Mapping[str, Any], ...]] = {
    epochs: tuple({"epochs": epochs, "classes": c, "exponent": e} for c, e in ((2, 1.3), (1, 1.4), (3, 1.2)))
    for epochs in (1, 5)
}
"""Three of the 15 settings, for the best rate may depend on how many classes devices have, and how large they are."""

TUNINGS = {
    t.name: t
    for t in (
        *(
            Tuning(
                f"synthetic-e{epochs}",
                Dataset.SYNTHETIC,
                ({"epochs": epochs},),
                (*_GLOBAL, "fedbc-letter"),
                (100, 101),
                (Rung(200),),
                False,
                synthetic,
            )
            for epochs in (5, 1, 10, 25, 50)
        ),
        *(
            Tuning(
                f"mnist-e{epochs}",
                Dataset.MNIST,
                _ON_IMAGES[epochs],
                _GLOBAL,
                (100, 101),
                # The reported runs have 100 and 50 rounds.
                (Rung(50, 0.25, runs=1), Rung(100)) if epochs == 1 else (Rung(25, 0.25, runs=1), Rung(50)),
                True,
                images(Dataset.MNIST, Protocol.PAPER),
            )
            for epochs in (1, 5)
        ),
        *(
            Tuning(
                f"cifar10-e{epochs}",
                Dataset.CIFAR10,
                _ON_IMAGES[epochs],
                (*_GLOBAL, *_PERSONAL) if epochs == 5 else _GLOBAL,
                (100, 101),
                (Rung(50, 0.25, runs=1), Rung(100)) if epochs == 1 else (Rung(25, 0.25, runs=1), Rung(50)),
                True,
                images(Dataset.CIFAR10, Protocol.PAPER),
            )
            for epochs in (1, 5)
        ),
        Tuning(
            "shakespeare-e1",
            Dataset.SHAKESPEARE,
            ON_SHAKESPEARE[:1],
            _GLOBAL,
            (100,),
            (Rung(5, 0.25, {"stride": 1, "cap": 100}, " with at most 100 examples a role"), Rung(20)),
            True,
            shakespeare,
            # Evaluating takes longer than a round; and in five rounds no rate leaves the commonest character behind.
            every=10,
            per_rate=1,
        ),
    )
}
assert not {s for t in TUNINGS.values() for s in t.seeds} & set(SEEDS)


def read_choices(folder: Path) -> Choices:
    """The choices that the folder's files hold, by group and method."""
    choices: dict[str, dict[str, Arguments]] = {}
    for name, tuning in TUNINGS.items():
        file = folder / f"{name}.toml"
        if not file.exists():
            continue
        try:
            entries = tomllib.loads(file.read_text())["sweep"]
        except (tomllib.TOMLDecodeError, KeyError) as error:
            raise InputError(f"{file} is damaged: {error}") from None
        found: dict[str, Arguments] = {}
        for table in (e["algorithm"] for e in entries):
            keys = [k for k in tuning.methods if METHODS[k].matches(table)]
            if len(keys) != 1:
                raise InputError(f"{file}: {table} is not a point of the grid of one of {', '.join(tuning.methods)}")
            found[keys[0]] = table
        choices[name] = found
    return choices


def write_choices(
    folder: Path, tuning: Tuning, results: Results, *, keep: Mapping[str, Arguments] | None = None
) -> Path:
    """Write a group's choices, as far as they are made, as a file that people read and `fedbc sweep` runs.

    keep: choices that stay as they are.
    """
    chosen = {key: tuning.progress(METHODS[key], results)[0] for key in tuning.methods} | dict(keep or {})
    entries = {key: algorithm for key in tuning.methods if (algorithm := chosen.get(key)) is not None}
    example = tuning.spec(next(iter(entries.values())), tuning.seeds[0], tuning.rungs[-1])
    bases = {tuning.basis(key, algorithm, results) for key, algorithm in entries.items()}
    lines = [
        *(_how(tuning) if Basis.VALIDATION in bases else _how_of_old(tuning)),
        *(['# Choices by accuracy "on the test sets" are older, and not made anew yet.'] if len(bases) > 1 else []),
        "",
        "[data]",
        *toml_lines(example.data),
    ]
    lines += ["", "[run]", *toml_lines(_reported_run(tuning, example))]
    for key, algorithm in entries.items():
        lines += ["", f"# {_why(tuning, key, algorithm, results)}"]
        lines += ["[[sweep]]", f"algorithm = {{ {', '.join(toml_lines(algorithm))} }}"]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{tuning.name}.toml"
    storage.write_atomically(file, "\n".join(lines) + "\n")
    return file


def _how(tuning: Tuning) -> list[str]:
    """How a group's choices are made, as the first lines of its file."""
    went_on = "the best {:.0%} went on" + (f" (the best {tuning.per_rate} of each rate)" if tuning.per_rate else "")
    rungs = "; then ".join(
        f"{rung.rounds} rounds{rung.words}"
        + (" in the first of them" if rung.runs == 1 < len(tuning.settings) else "")
        + (f", of which {went_on.format(rung.share)}" if rung.share < 1 else "")
        for rung in tuning.rungs
    )
    lines = [
        f"# Hyper-parameters of {tuning.name}, chosen from the paper's grids by the mean over the last 20 rounds",
        f"# on {tuning.validation:.0%} of each device's training data, held out, on run seeds "
        f"{', '.join(map(str, tuning.seeds))}, which are not reported.",
        f"# Settings, of which the mean counts: {'; '.join(heading(s) for s in tuning.settings)}"
        + (", each with one of the seeds in turn." if len(tuning.settings) > 1 else "."),
        f"# Each grid: {rungs}.",
        "# Where accuracies are equal, the loss decides.",
    ]
    if len(tuning.rungs) > 1:
        lines.append(f"# Grids of at most {FEW} points are run in full.")
    if tuning.near:
        lines.append("# Methods whose rate is FedAvg's searched FedAvg's best rate and its neighbours in the grid.")
    return lines


def _how_of_old(tuning: Tuning) -> list[str]:
    """The same of a group that was not chosen on validation data yet."""
    return [
        f"# Hyper-parameters of {tuning.name}, chosen from the paper's grids by the mean over the last 20 rounds on "
        "the",
        "# reported test sets, on other seeds (on images and text one of them, in one setting, CIFAR-10's with E = 1),",
        f"# before there was validation data: `fedbc paper choose {tuning.name}` makes them anew.",
    ]


def _why(tuning: Tuning, key: str, algorithm: Arguments, results: Results) -> str:
    """What a choice was made by."""
    method = METHODS[key]
    score = method.score.replace("_", " ")
    if tuning.basis(key, algorithm, results) is Basis.TEST:
        return f"{method.label}: {score} on the test sets"
    return f"{method.label}: {score} {100 * tuning.score(method, algorithm, results):.2f} % on held-out data"


def _reported_run(tuning: Tuning, spec: RunSpec) -> dict[str, Any]:
    reported = tuning.build(tuning.settings[0], SEEDS[0], dict(spec.algorithm)).run
    return {k: v for k, v in reported.items() if k != "fine_tune"}

"""Hyper-parameters chosen on the paper's grids: on seeds that are never reported, by the mean of the last rounds.

The synthetic grids are run in full. On images and text two short cuts are taken, both stated in the file of choices:
other methods search the local rate next to FedAvg's best one (`near`), and a grid is first run for a part of the
rounds, after which the best go on (`rungs`, successive halving; on text the best of each rate). The choices are kept
as TOML files that `fedbc sweep` can run.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedbc import storage
from fedbc.errors import InputError
from fedbc.experiments.spec import RunSpec, toml_lines
from fedbc.experiments.sweep import fingerprint
from fedbc.experiments.workers import Line
from fedbc.paper import methods
from fedbc.paper.catalogue import ON_SHAKESPEARE, SEEDS, Choices, images, shakespeare, synthetic
from fedbc.paper.methods import METHODS, RATES, Arguments, Method

Results = Mapping[str, Line]


class Rung(NamedTuple):
    """A stage of a group's choices."""

    rounds: int
    share: float = 1.0
    """the share of the candidates that stays"""
    on: Mapping[str, Any] = {}
    """where the stage's setting differs from the group's"""
    words: str = ""
    """that difference, for the file of choices"""


@dataclass(frozen=True)
class Tuning:
    """A group of choices: one setting, and the methods whose hyper-parameters are chosen there."""

    name: str
    setting: Mapping[str, Any]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    rungs: tuple[Rung, ...]
    """the last one decides"""
    near: bool
    """whether methods other than FedAvg search only next to FedAvg's rate"""
    build: Any
    every: int | None = None
    """rounds from one evaluation to the next; None: at least four in a run, every fifth round at most"""
    per_rate: int | None = None
    """so many of each rate's candidates stay instead of a share of all, where early rounds cannot judge rates"""

    def part(self, wanted: Iterable[str]) -> Tuning:
        """The part of the group that some methods need: their grids, and FedAvg's where others search next to it."""
        needed = {METHODS[key].like or key for key in wanted} | ({"fedavg"} if self.near else set())
        return replace(self, methods=tuple(key for key in self.methods if key in needed))

    def spec(self, algorithm: Arguments, seed: int, rung: Rung) -> RunSpec:
        """A tuning run: only the last rounds matter, so little is measured."""
        spec, rounds = self.build({**self.setting, **rung.on}, seed, algorithm), rung.rounds
        every = min(self.every, rounds) if self.every else min(5, max(1, rounds // 4))
        kept = [w for w in spec.run.get("evaluate", ["global"]) if w in ("global", "local")]
        local = any(METHODS[k].score != "global_accuracy" and METHODS[k].matches(algorithm) for k in self.methods)
        wanted = ["global", "local"] if local else [w for w in kept if w == "global"]
        run: dict[str, Any] = {**spec.run, "rounds": rounds, "evaluate": wanted, "evaluate_every": every}
        run.pop("fine_tune", None)
        return replace(spec, run=run)

    def pending(self, results: Results) -> list[RunSpec]:
        """The runs that are needed next; none when every method has its choice."""
        needed: dict[str, RunSpec] = {}
        for key in self.methods:
            _, todo = self.progress(METHODS[key], results)
            needed |= {fingerprint(s): s for s in todo}
        return list(needed.values())

    def progress(self, method: Method, results: Results) -> tuple[Arguments | None, list[RunSpec]]:
        """A method's choice, or the runs that are missing for it."""
        candidates = self.candidates(method, results)
        if candidates is None:
            return None, []
        for rung in self.rungs:
            runs = {i: [self.spec(c, seed, rung) for seed in self.seeds] for i, c in enumerate(candidates)}
            # Seed by seed: a candidate's later seeds find its program compiled.
            todo = [s for specs in zip(*runs.values(), strict=True) for s in specs if fingerprint(s) not in results]
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
        if not self.near or "lr" not in method.grid or method.key.startswith("fedavg") or len(method.grid) == 1:
            return every
        fedavg, _ = self.progress(METHODS["fedavg"], results)
        if fedavg is None:
            return None
        at = RATES.index(fedavg["lr"])
        near = RATES[max(0, at - 1) : at + 2]
        return [c for c in every if c["lr"] in near] or every

    def score(self, method: Method, algorithm: Arguments, results: Results) -> float:
        """The mean that a candidate was judged by in the last rung."""
        specs = [self.spec(algorithm, seed, self.rungs[-1]) for seed in self.seeds]
        return _mean_score(method.score, specs, results)

    def known_score(self, method: Method, algorithm: Arguments, results: Results) -> float | None:
        """The same, where a candidate reached the last rung."""
        specs = [self.spec(algorithm, seed, self.rungs[-1]) for seed in self.seeds]
        if any(fingerprint(s) not in results for s in specs):
            return None
        return _mean_score(method.score, specs, results)

    def estimate(self) -> int:
        """About how many runs the whole group takes, its rungs counted by their rounds."""
        full = self.rungs[-1].rounds
        total, share = 0.0, 1.0
        grid = sum(len(METHODS[k].candidates()) * (0.6 if self.near else 1) for k in self.methods)
        for rung in self.rungs:
            total += grid * share * rung.rounds / full
            share *= rung.share
        return round(total * len(self.seeds))


def _mean_score(column: str, specs: list[RunSpec], results: Results) -> float:
    """The mean over seeds; a run that diverged counts as nothing right."""
    scores = [results[fingerprint(s)].get("summary", {}).get(column, 0.0) for s in specs]
    return sum(0.0 if math.isnan(float(s)) else float(s) for s in scores) / len(scores)


def _mean_loss(specs: list[RunSpec], results: Results) -> float:
    """z's loss on the test sets; it decides where models are equally often right, as all are early on text."""
    losses = [float(results[fingerprint(s)].get("summary", {}).get("global_test_loss", math.inf)) for s in specs]
    return sum(math.inf if math.isnan(loss) else loss for loss in losses) / len(losses)


_GLOBAL = (*methods.SOUND, "qfedavg-reference", "scaffold-reference")
_PERSONAL = ("perfedavg", "pfedme", "pfedme-reference", "perfedbc")

TUNINGS = {
    t.name: t
    for t in (
        *(
            Tuning(
                f"synthetic-e{epochs}",
                {"epochs": epochs},
                (*_GLOBAL, "fedbc-letter"),
                (100, 101, 102) if epochs <= 10 else (100, 101),
                (Rung(200),),
                False,
                synthetic,
            )
            for epochs in (5, 1, 10, 25, 50)
        ),
        *(
            Tuning(
                f"mnist-e{epochs}",
                {"epochs": epochs, "classes": 2, "exponent": 1.3},
                _GLOBAL,
                (100,),
                # The reported runs have 100 and 50 rounds.
                (Rung(25, 0.25), Rung(100)) if epochs == 1 else (Rung(12, 0.25), Rung(50)),
                True,
                images("mnist", "paper"),
            )
            for epochs in (1, 5)
        ),
        Tuning(
            "cifar10-e1",
            {"epochs": 1, "classes": 2, "exponent": 1.3},
            (*_GLOBAL, *_PERSONAL),
            (100,),
            (Rung(20, 0.25), Rung(60)),
            True,
            images("cifar10", "paper"),
        ),
        Tuning(
            "shakespeare-e1",
            ON_SHAKESPEARE[0],
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


def write_choices(folder: Path, tuning: Tuning, results: Results) -> Path:
    """Write a group's choices, as far as they are made, as a file that people read and `fedbc sweep` runs."""
    chosen = {key: tuning.progress(METHODS[key], results)[0] for key in tuning.methods}
    example = tuning.spec(next(c for c in chosen.values() if c is not None), tuning.seeds[0], tuning.rungs[-1])
    went_on = "the best {:.0%} went on" + (f" (the best {tuning.per_rate} of each rate)" if tuning.per_rate else "")
    rungs = "; then ".join(
        f"{rung.rounds} rounds{rung.words}" + (f", of which {went_on.format(rung.share)}" if rung.share < 1 else "")
        for rung in tuning.rungs
    )
    lines = [
        f"# Hyper-parameters of {tuning.name}, chosen from the paper's grids by the mean over the last 20 rounds",
        f"# on run seeds {', '.join(map(str, tuning.seeds))}, which are not reported. Each grid: {rungs}.",
        "# Where accuracies are equal, the loss on the test sets decides.",
    ]
    if tuning.near:
        lines.append("# Methods other than FedAvg searched FedAvg's best rate and its neighbours in the grid.")
    lines += ["", "[data]", *toml_lines(example.data), "", "[run]", *toml_lines(_reported_run(tuning, example))]
    for key, algorithm in chosen.items():
        if algorithm is None:
            continue
        method = METHODS[key]
        score = 100 * tuning.score(method, algorithm, results)
        lines += ["", f"# {method.label}: {method.score.replace('_', ' ')} {score:.2f} % in tuning"]
        lines += ["[[sweep]]", f"algorithm = {{ {', '.join(toml_lines(algorithm))} }}"]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{tuning.name}.toml"
    storage.write_atomically(file, "\n".join(lines) + "\n")
    return file


def _reported_run(tuning: Tuning, spec: RunSpec) -> dict[str, Any]:
    reported = tuning.build(tuning.setting, SEEDS[0], dict(spec.algorithm)).run
    return {k: v for k, v in reported.items() if k != "fine_tune"}

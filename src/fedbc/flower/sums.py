"""What a secure run sums: a method's summand with its diagnostics, and the scores of an evaluation.

Both sides make the same layout of numbers modulo 2^64 from the run's settings: the device encodes, the server decodes
the sum. Only what is a sum over devices arrives, so rows of history hold means and variances over devices: tables per
device, the worst device and deciles cannot be formed by anyone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import storage
from fedbc.algorithms.base import Algorithm
from fedbc.algorithms.finetune import FineTune
from fedbc.algorithms.ranges import Limits, fraction_bits
from fedbc.algorithms.secured import Parts, Sent
from fedbc.algorithms.statistics import trained
from fedbc.flower import scores
from fedbc.flower.settings import Deployment
from fedbc.secure.vectors import Field, Layout
from fedbc.simulation.metrics import Row
from fedbc.simulation.settings import LARGEST_NUMBER
from fedbc.simulation.shapes import Shapes

MOST_EXAMPLES = 1_000_000
"""Of a device, for scores, where run.most-examples does not say it."""


class Told(NamedTuple):
    """What a sum of summands tells."""

    summand: Any
    row: Row
    """means and variances over the round's devices of their diagnostics: `round_loss`, `round_loss_variance`"""


class TrainSum:
    """The sum of the summands of a round."""

    def __init__(self, algorithm: Algorithm, shapes: Shapes, settings: Deployment) -> None:
        """A part without a declared range is an InputError."""
        limits = Limits(settings.secure_clip, settings.most_examples, LARGEST_NUMBER)
        largest = settings.sample or settings.devices
        self.algorithm, self.parts = algorithm, Parts(algorithm, shapes.summand, limits, largest)
        info = {name: jnp.zeros(()) for name in shapes.info} if settings.diagnostics else {}
        self.like: Sent = jax.eval_shape(self.parts.send, shapes.params, shapes.summand, info)
        self.names = tuple(info)
        ones = fraction_bits(1.0, largest, "a count")
        groups = {
            **{f"parts.{n}": (a, self.parts.largest[n], self.parts.bits[n]) for n, a in self.like.parts.items()},
            "told": (self.like.told, limits.number, self.parts.told_bits),
            "squares": (self.like.squares, limits.number**2, self.parts.square_bits),
            "clipped": (self.like.clipped, 1.0, ones),
            "devices": (self.like.devices, 1.0, ones),
        }
        self.layout = Layout(
            {
                name: Field(np.shape(array), largest, bits, self.parts.noise.get(prefix.removeprefix("parts."), 0.0))
                for prefix, (tree, largest, bits) in groups.items()
                for name, array in storage.named(jax.tree.map(lambda a: np.zeros(a.shape), tree), prefix).items()
            },
            f"{algorithm.name} {algorithm.hyperparameters()}",
        )

    def encode(self, z: Any, summand: Any, info: Mapping[str, Any]) -> np.ndarray:
        """A device's vector."""
        sent = self.parts.send(trained(self.algorithm, z), summand, {name: info[name] for name in self.names})
        arrays = storage.named(sent, "")
        grouped = {n: a for prefix, tree in _groups(sent).items() for n, a in storage.named(tree, prefix).items()}
        assert len(grouped) == len(arrays)
        return self.layout.encode(grouped)

    def decode(self, vector: np.ndarray, z: Any) -> Told:
        """The sum of the summands, and what is told of the diagnostics."""
        arrays = self.layout.decode(vector)
        trees = {prefix: storage.restored(tree, arrays, prefix) for prefix, tree in _groups(self.like).items()}
        parts = {name: trees[f"parts.{name}"] for name in self.like.parts}
        # In float64: z is put back before anything is rounded to the model's own type.
        z = jax.tree.map(lambda a: np.asarray(a, np.float64), trained(self.algorithm, z))
        total = Sent(parts, trees["told"], trees["squares"], trees["clipped"], trees["devices"])
        devices = float(total.devices)
        row: Row = {}
        for name in self.names:
            mean = float(total.told[name]) / devices
            row[f"round_{name}"] = mean
            row[f"round_{name}_variance"] = max(0.0, float(total.squares[name]) / devices - mean**2)
        row["clipped"] = float(sum(value for name, value in total.clipped.items() if name != "told"))
        summand = _as_numbers(self.parts.receive(z, total))
        return Told(
            summand, {"drift": row.get("round_drift", np.nan), "local_loss": row.get("round_loss", np.nan)} | row
        )


def _groups(sent: Sent) -> dict[str, Any]:
    named = {f"parts.{name}": part for name, part in sent.parts.items()}
    return named | {n: getattr(sent, n) for n in ("told", "squares", "clipped", "devices")}


def _as_numbers(tree: Any) -> Any:
    return jax.tree.map(lambda a: np.asarray(a, np.float32), tree)


class ScoreSum:
    """The sum of the scores of an evaluation."""

    def __init__(
        self, what: tuple[str, ...], tune: FineTune | None, settings: Deployment, *, duals: bool, accuracy: bool
    ) -> None:
        self.what, self.tune, self.accuracy = what, tune, accuracy
        examples, devices = settings.most_examples or MOST_EXAMPLES, settings.devices
        sent = scores.names(what, tune, duals=duals)
        self.largest: dict[str, float] = {"devices": 1.0}
        for name in sent:
            if name.endswith(("_correct", "_examples")):
                self.largest[name] = examples
            elif name.endswith("_loss"):
                self.largest[name] = examples * LARGEST_NUMBER
        for name in ("global_correct", "local_correct", "tuned_correct"):
            if name in sent:
                self.largest[f"{name}_share"] = 1.0
        self.largest |= {"global_correct_share_squared": 1.0, "tested": 1.0}
        if "drift" in sent:
            self.largest |= dict.fromkeys(("drift", "local_train_mean_loss"), LARGEST_NUMBER)
        if "multiplier" in sent:
            self.largest |= {"lagrangian": LARGEST_NUMBER**2, "violation": LARGEST_NUMBER}
        fields = {n: Field((), most, fraction_bits(most, devices, f"score {n!r}")) for n, most in self.largest.items()}
        self.layout = Layout(fields, f"scores {','.join(what)}")

    def encode(self, measured: Mapping[str, float]) -> np.ndarray:
        """A device's vector, from what `scores.measure` gave."""
        values = {"devices": 1.0} | {n: v for n, v in measured.items() if n in self.largest}
        tested = measured["test_examples"]
        values["tested"] = float(tested > 0)
        for name in ("global_correct", "local_correct", "tuned_correct"):
            if name in measured:
                values[f"{name}_share"] = measured[name] / tested if tested else 0.0
        values["global_correct_share_squared"] = values["global_correct_share"] ** 2
        if "drift" in measured:
            loss = measured["local_train_loss"] / max(measured["train_examples"], 1.0)
            values["local_train_mean_loss"] = loss
            if "multiplier" in measured:
                gamma = measured["tolerance"]
                slack = 0.0 if np.isinf(gamma) else measured["drift"] - gamma
                values |= {"lagrangian": loss + measured["multiplier"] * slack, "violation": max(slack, 0.0)}
        return self.layout.encode({name: np.asarray(values[name]) for name in self.layout.fields})

    def row(self, vector: np.ndarray) -> Row:
        """The columns of history that sums tell."""
        s = {name: float(value) for name, value in self.layout.decode(vector).items()}
        row: Row = {}
        examples, tested, devices = s["test_examples"], s["tested"], s["devices"]
        if examples:
            row["global_test_loss"] = s["global_loss"] / examples
            if "global" in self.what:
                mean = s["global_correct_share"] / tested
                row |= {"global_accuracy": s["global_correct"] / examples, "accuracy_mean": mean}
                row["accuracy_variance"] = max(0.0, s["global_correct_share_squared"] / tested - mean**2)
        if "global_train_loss" in s:
            row["global_loss"] = s["global_train_loss"] / s["train_examples"]
        for name, column in (("local_correct", "local_accuracy"), ("tuned_correct", self.tune and self.tune.column)):
            if examples and column and name in s:
                row[column] = s[f"{name}_share"] / tested
                row[f"{column}_weighted"] = s[name] / examples
        if examples and "local_loss" in s:
            row["local_test_loss"] = s["local_loss"] / examples
        if "drift" in s:
            row |= {"local_train_loss": s["local_train_mean_loss"] / devices, "drift_all": s["drift"] / devices}
        if "violation" in s:
            row |= {"lagrangian": s["lagrangian"] / devices, "violation_mean": s["violation"] / devices}
        return {k: float("nan") if "accuracy" in k and not self.accuracy else v for k, v in row.items()}

"""How well the models do on one device: sums that the server adds up into a row of history.

| metric | sum over which examples, of which model |
| --- | --- |
| test_examples, train_examples | how many there are |
| global_correct, global_loss | z on the test set: right answers, loss |
| global_train_loss | z on the training set |
| local_correct, local_loss | x_i on the test set; z's where the device has no x_i yet |
| tuned_correct | the fine-tuned model on the test set |
| local_train_loss | x_i on the training set |
| drift, multiplier, tolerance | ‖x_i - z‖², lambda_i, gamma_i |

Which of them are sent depends on what the run evaluates (`fedbc.simulate` tells the words).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbc import trees
from fedbc.algorithms.base import Algorithm, Duals
from fedbc.algorithms.finetune import FineTune
from fedbc.algorithms.statistics import at_home, trained
from fedbc.flower.worker import Scores, Worker
from fedbc.simulation.metrics import Measured, Row, make_row
from fedbc.simulation.scoring import Sums


def names(what: tuple[str, ...], tune: FineTune | None, *, duals: bool) -> tuple[str, ...]:
    """The metrics that an answer to "evaluate" holds; `duals`: whether the method has lambda_i and gamma_i."""
    sent = ["test_examples", "train_examples", "global_correct", "global_loss"]
    if "train" in what or "lagrangian" in what:
        sent.append("global_train_loss")
    if "local" in what:
        sent += ["local_correct", "local_loss"]
        if tune is not None:
            sent.append("tuned_correct")
    if "lagrangian" in what:
        sent += ["local_train_loss", "drift", *(Duals._fields if duals else ())]
    return tuple(sent)


def measure(
    worker: Worker, algorithm: Algorithm, what: tuple[str, ...], z: Any, state: Any, *, seed: int, fresh: bool
) -> dict[str, float]:
    """The metrics of one device; one that is `fresh` never trained, and z is its model."""
    tune, method = algorithm.fine_tune(), worker.method_state(state)
    z = at_home(algorithm, z, method)
    x, duals = z if fresh else algorithm.local_model(method), algorithm.duals(method)
    sent = names(what, tune, duals=duals is not None)
    values = {f"{on}_examples": float(worker.examples(on)) for on in ("test", "train")}
    for whose, model in (("global", z), ("local", x)):
        for on, loss in (("test", f"{whose}_loss"), ("train", f"{whose}_train_loss")):
            if loss in sent:
                scores = worker.score(model, state, on) if values[f"{on}_examples"] else Scores(0.0, 0.0)
                values |= {loss: scores.loss} | ({f"{whose}_correct": scores.correct} if on == "test" else {})
    if tune is not None and "tuned_correct" in sent:
        start = z if tune.of == "global" else x
        values["tuned_correct"] = worker.score_tuned(start, tune, seed).correct if values["test_examples"] else 0.0
    if "drift" in sent:
        values["drift"] = float(trees.sqdist(trained(algorithm, x), trained(algorithm, z)))
    if duals is not None:
        values |= {name: float(value) for name, value in duals._asdict().items()}
    return {name: values[name] for name in sent}


def row(
    answers: Mapping[int, Mapping[str, float]], what: tuple[str, ...], tune: FineTune | None, *, accuracy: bool
) -> Row:
    """The columns of history, from the metrics of the devices that answered; the others are left out."""
    if not answers:
        return {}
    first = answers[min(answers)]
    column = {name: np.asarray([answers[device][name] for device in sorted(answers)]) for name in first}
    examples, train_examples = column["test_examples"], column["train_examples"]

    def sums(correct: str, loss: str, number: np.ndarray) -> Sums | None:
        if loss not in column:
            return None
        return Sums(column.get(correct, np.zeros_like(number)), column[loss], number)

    own_loss = column.get("local_train_loss")
    measured = Measured(
        test=Sums(column["global_correct"], column["global_loss"], examples),
        train_sizes=train_examples,
        train=sums("", "global_train_loss", train_examples),
        local=sums("local_correct", "local_loss", examples),
        tuned=sums("tuned_correct", "tuned_correct", examples),
        local_train_loss=own_loss / train_examples if own_loss is not None else None,
        drift=column.get("drift"),
        duals=Duals(column["multiplier"], column["tolerance"]) if "multiplier" in column else None,
    )
    tuned = tune.column if tune is not None else ""
    return make_row(measured, devices="global" in what, tuned=tuned, accuracy=accuracy)

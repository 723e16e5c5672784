"""A federated method run on one machine, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from fedbc import checks
from fedbc.algorithms.base import Algorithm
from fedbc.algorithms.domains import Domain
from fedbc.algorithms.finetune import FineTune
from fedbc.algorithms.optimizers import OWN
from fedbc.algorithms.schedules import Schedule
from fedbc.data.federation import Federation
from fedbc.errors import InputError
from fedbc.models.base import Model
from fedbc.simulation.callback import OnRound
from fedbc.simulation.checkpoints import Checkpoint
from fedbc.simulation.evaluation import DEFAULT
from fedbc.simulation.result import Result, RunFolder
from fedbc.simulation.rounds import Simulation
from fedbc.simulation.settings import Settings


def simulate(
    algorithm: Algorithm,
    model: Model,
    federation: Federation,
    *,
    rounds: int = 100,
    epochs: int | str | Sequence[int] = 1,
    batch_size: int | None = 20,
    sample: int | None = None,
    pooled: bool = False,
    seed: int = 0,
    evaluate: Sequence[str] = DEFAULT,
    evaluate_every: int = 1,
    fine_tune: FineTune | None = None,
    lanes: int | None = None,
    validation: float | None = None,
    steps: int | str | Sequence[int] | None = None,
    target_accuracy: float | None = None,
    patience: int | None = None,
    time_budget: float | None = None,
    epsilon: float | Sequence[float] | None = None,
    check_every: int | None = None,
    domain: str | Mapping[str, Any] | Domain | None = None,
    optimizer: str | Mapping[str, Any] | Any = OWN,
    keep_optimizer: bool = False,
    clip: float | None = None,
    weight_decay: float = 0.0,
    lr_schedule: str | Mapping[str, Any] | Schedule | None = None,
    dual_schedule: str | Mapping[str, Any] | Schedule | None = None,
    unseen: float | Sequence[int] | None = None,
    secure: bool = False,
    secure_clip: float = 10.0,
    resplit: int = 0,
    initial: Any = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 20,
    resume: bool = False,
    debug: bool = False,
    on_round: OnRound | None = None,
) -> Result:
    """Run a federated method on one machine.

    rounds: rounds of communication.
    epochs: passes of each sampled device over its data in a round (E); for full-batch descent the local steps K. A list
        is one number per device; a pair, or text such as "1-5", is drawn between, anew for each device and round.
    batch_size: examples per local step; None is full-batch gradient descent.
    sample: devices that take part in a round, drawn uniformly without replacement; None is all of them.
    pooled: train on all devices' data as if one device had them: a centralised run, for comparison.
    seed: determines the initial model, the samples and the batches; a run is a function of it.
    evaluate: what to measure: "global" (z on the test sets), "local" (x_i on its own), "train" (z's training loss),
        "gradient" (‖∇f(z)‖²), "lagrangian" (its value, drift and violation over all devices); columns of `metrics`.
    evaluate_every: measure every so many rounds, and after the last.
    fine_tune: adapt each device's model by a few steps before it is evaluated, in columns of its own; by default as
        the algorithm asks for it (MAML-type methods do).
    lanes: parallel lanes of devices; by default one per core. Sums over devices are formed lane by lane, so another
        number of lanes agrees up to the rounding of floating-point sums, the same number to the bit.
    validation: hold this share of each device's training examples out, drawn by `seed`, and measure on them instead of
        the test sets, which are not used: for choosing hyper-parameters.
    steps: the local steps of each sampled device in a round (K_i), in the place of epochs; in the same forms.
    target_accuracy: end when z's accuracy reaches it; the last row of history says in `ended` why a run ended.
    patience: end after so many rounds without a better accuracy of z than before.
    time_budget: end after so many seconds of rounds, those before a `resume` included.
    epsilon: local training ends when ‖∇L_i‖² <= epsilon_i on all of the device's examples, after K_i steps at the
        latest; one number, or one per device. `devices` has each device's steps, its residual ‖∇L_i‖² and its checks.
    check_every: form that gradient every so many steps; by default once per epoch, for full batches after each step.
    domain: the compact set X: "ball,radius=5", "box,low=-1,high=1", from Python a Ball with a centre as well. Every
        local step and the server end with the projection on it; `summary` has its diameter R.
    optimizer: of the local steps: "sgd" is the method's own gradient descent with its momentum; any of optax's by name
        with arguments, such as "adam" or "rmsprop,decay=0.99", at the method's lr; from Python also a function from
        the rate to a transformation (`optax.adam`), or a transformation, with a rate of its own.
    keep_optimizer: what the optimizer remembers stays on the device; by default it restarts each round.
    clip: bound on the norm of a batch's gradient of f_i; None is none.
    weight_decay: c, for c w added to the gradient of the local steps.
    lr_schedule: factor of the local rates over the rounds: "cosine", "step,every=50,factor=0.5", "inverse_sqrt" or
        "constant", each with warmup=ROUNDS if wanted; from Python also a function of the number of rounds done before.
    dual_schedule: the same for FedBC's dual_lr.
    unseen: keep devices out of training, a list of them or a share drawn by `seed`, and measure z on their test sets,
        in columns of their own; `fedbc.personalize` then gives them models, too.
    secure: clip and round what devices contribute, as a deployment with secure aggregation does, to see what it costs;
        `clipped` in `devices` counts the parts of a device's contribution that were out of range. Nothing is encrypted.
    secure_clip: the norm to which a device's x_i - z is clipped there.
    resplit: which division of the devices' examples into training and test sets: 0 is the one that the data come with,
        any other number draws one of its own, with as many examples in each.
    initial: start from another run's end, a result or the folder of a run, or from a model's parameters. Of a run with
        the same algorithm the server's and the devices' states are kept; there may be more devices now, which join.
        None is a model drawn by `seed`.
    checkpoint, checkpoint_every: a folder to write the run's whole state to, every so many rounds.
    resume: go on from the folder's checkpoint, to the same bits as an uninterrupted run; there may be more rounds than
        before, and another target_accuracy, patience or time_budget.
    debug: no compilation, one device after the other; errors name round, device and stage.
    on_round: called with each row of history, or with the row and a function that gives the result so far. Numbers that
        it adds to the row become columns of history; if it returns True, the run ends with this round.
    """
    checks.integer("rounds", rounds, at_least=1)
    what: Any = evaluate
    settings = Settings(
        cast(Any, epochs),
        batch_size,
        sample,
        pooled,
        seed,
        what,
        evaluate_every,
        fine_tune,
        lanes,
        validation,
        unseen=unseen,
        secure=secure,
        secure_clip=secure_clip,
        resplit=resplit,
        steps=cast(Any, steps),
        target_accuracy=target_accuracy,
        patience=patience,
        time_budget=time_budget,
        epsilon=epsilon,
        check_every=check_every,
        domain=domain,
        optimizer=optimizer,
        keep_optimizer=keep_optimizer,
        clip=clip,
        weight_decay=weight_decay,
        lr_schedule=lr_schedule,
        dual_schedule=dual_schedule,
    ).completed(rounds)
    checks.integer("checkpoint_every", checkpoint_every, at_least=1)
    kept = None
    if checkpoint is not None:
        kept = Checkpoint(RunFolder(checks.path("checkpoint", checkpoint)).checkpoint, every=checkpoint_every)
    if resume and kept is None:
        raise InputError("resume=True needs checkpoint=FOLDER, the folder to resume from")
    run = Simulation(algorithm, model, federation, settings, initial=initial, debug=debug)
    if resume and kept is not None:
        kept.restore(run, missing="refuse")
    run.go(rounds, on_round=on_round, checkpoint=kept)
    return run.result()

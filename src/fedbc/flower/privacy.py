"""Privacy in a deployment: a mod on the device clips what it sends and adds noise, the server runs the private method.

    server = server_app(model, algorithm=private_from)
    client = client_app(model, data, mods=[privacy_mod])

with, in the run-config, `run.diagnostics = false`, `run.evaluate = ""` and

    privacy.clip              C, the bound on the norm of a device's update
    privacy.noise-multiplier  m, the noise of each device in units of the sensitivity
    privacy.largest-weight    b, for FedAvg-type methods unless weights="uniform"
    privacy.evaluate          true to let devices tell scores of their test sets, without noise (false)

With `run.secure = true` the device adds discrete noise to the whole numbers that it masks, and all devices' noise
protects each from the server; there is no mod then: `client = client_app(model, data, algorithm=private_from)`.

Of an answer to "train" only the private share leaves the device: no diagnostics, and 1 in the place of the number of
examples. Diagnostics and scores would tell, without any noise, what the noise is there to hide, so a run that asks for
them is refused. The noise comes from the operating system's source of randomness, never from the run's seed, which the
server knows. The mathematics: `fedbc.privacy.mechanism`. What it protects and what it does not: docs/privacy.md.

Flower's own mods do not fit: `LocalDpMod` and `fixedclipping_mod` clip the difference between what a device received
and what it sends, which for a summand (lambda x, lambda, ...) is not its update, and refuse arrays of other names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Context, Message

from fedbc import storage
from fedbc.algorithms import multiplied, weighted
from fedbc.algorithms.fedbc import FedBC
from fedbc.errors import InputError, unknown
from fedbc.flower import messages
from fedbc.flower.messages import Answer, Kind, MessageError
from fedbc.flower.packs import load
from fedbc.flower.settings import Deployment, RunConfig, algorithm_from, under
from fedbc.privacy.mechanism import system_normal
from fedbc.privacy.private import Private, model_and_weight

__all__ = ["privacy_mod", "private_from"]

KEYS = ("clip", "noise-multiplier", "largest-weight", "evaluate")


def private_from(config: RunConfig) -> Private:
    """The private method of a run-config's tables `algorithm` and `privacy`."""
    given = under("privacy.", config)
    for name in given:
        if name not in KEYS:
            raise unknown("run-config: privacy argument", name, KEYS)
    for name in KEYS[:2]:
        if name not in given:
            raise InputError(f"run-config: privacy.{name} is missing")
    largest = given.get("largest-weight")
    settings = Deployment.from_config(config)
    if settings.diagnostics:
        raise InputError("a private run needs run.diagnostics = false: devices would tell lambda and drift as they are")
    if settings.what and given.get("evaluate") is not True:
        raise InputError(
            'a private run needs run.evaluate = "": scores of test sets would be sent as they are; '
            "privacy.evaluate = true accepts that"
        )
    return Private(algorithm_from(config), given["clip"], given["noise-multiplier"], largest)


def privacy_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Flower's mod: the device behind it runs the plain method, and nothing but its private share passes."""
    private = private_from(context.run_config)
    if Deployment.from_config(context.run_config).secure:
        raise MessageError(
            "with run.secure = true noise is added within the sum: give client_app algorithm=private_from, and no mod"
        )
    received = messages.parts(message)
    if received.config.get("algorithm") != private.name:
        raise MessageError(f"the server runs {received.config.get('algorithm')!r:.60}, not a private method")
    messages.change(message, algorithm=private.algorithm.name)
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    found = messages.parts(reply)
    answer = dataclasses.replace(messages.from_config(Answer, found.config), examples=1)
    if message.metadata.message_type.split(".")[0] == Kind.TRAIN:
        share = _private_share(private, _under("global", load(received.arrays)), load(found.arrays))
        content = messages.content(answer, arrays=messages.named_pack(summand=share))
    else:  # scores, if the run-config allows them; none otherwise
        content = messages.content(answer, metrics=found.metrics)
    return Message(content, reply_to=message)


def _private_share(private: Private, z: storage.Arrays, sent: storage.Arrays) -> Any:
    parts = {name: _under(f"summand.{name}", sent) for name in ("weighted", "plain")}
    weight: Any = sent["summand.weight"]
    one: Any = np.ones_like(weight)
    summand = (
        multiplied.Total(parts["weighted"], weight, parts["plain"], one)
        if isinstance(private.algorithm, FedBC)
        else weighted.Mean(parts["weighted"], weight)
    )
    share, _ = private.mechanism.clipped(z, *model_and_weight(summand))
    noised = private.mechanism.noised(share, system_normal)
    if set(z) == {""}:  # a model of one array, which has no name of its own
        return noised._replace(move=noised.move[""])
    return noised._replace(move={name.removeprefix("."): array for name, array in noised.move.items()})


def _under(prefix: str, arrays: storage.Arrays) -> storage.Arrays:
    """The arrays of a pytree by the rest of their names, which is empty where the tree is one array."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name == prefix or name.startswith(prefix + ".")
    }

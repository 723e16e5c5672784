"""The rounds of a run with secure aggregation: what the strategy does where it sees sums alone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fedbc import storage
from fedbc.flower.gathering import Asked, Summed, gather
from fedbc.flower.messages import Answer, Kind, MessageError
from fedbc.flower.post import Post
from fedbc.flower.sums import ScoreSum, TrainSum
from fedbc.secure import Stage
from fedbc.secure.vectors import Layout

if TYPE_CHECKING:
    from fedbc.flower.strategy import AlgorithmStrategy

log = logging.getLogger("flwr.fedbc")


class SecureRounds:
    """Training and evaluation of a strategy by secure sums."""

    def __init__(self, strategy: AlgorithmStrategy) -> None:
        """A method whose summand has a part without a declared range is an InputError."""
        self.strategy = strategy
        self.settings, self.journal = strategy.settings, strategy.journal
        self.trained = TrainSum(strategy.algorithm, strategy.shapes, self.settings)

    def train(self, number: int, pack: bytes, post: Post) -> bool:
        """An attempt at a round; whether it succeeded."""
        s = self.strategy
        drawn = s.drawn(number)
        found = self._gather(Asked(Kind.TRAIN, number, drawn, pack), self.trained.layout, post)
        if found is None:
            return False
        told = self.trained.decode(found.vector, s.z)
        if told.row["clipped"]:
            log.warning("round %d: %g parts of devices were clipped to their range", number, told.row["clipped"])
        server = s.updated(number, storage.named(told.summand, "summand"))
        self.journal.close_secure_round(server, found.devices, told.row)
        s.log_sum(number, found.devices, drawn)
        self.journal.save()
        s.status.take(number, self.journal.accepted)
        return True

    def evaluate(self, number: int, pack: bytes, post: Post) -> dict[str, Any] | None:
        """A row of history from sums of scores; None if they could not be had."""
        s = self.strategy
        accuracy = s.model.correct is not None
        sums = ScoreSum(self.settings.what, s.tune, self.settings, duals=s.shapes.duals, accuracy=accuracy)
        for _ in range(self.settings.attempts):
            drawn = sorted(s.holders)
            if len(drawn) >= self.settings.min_devices:
                asked = Asked(Kind.EVALUATE, number, drawn, pack, ",".join(self.settings.what))
                found = self._gather(asked, sums.layout, post)
                if found is not None:
                    return sums.row(found.vector)
            s.holders = s.roster.refresh(post.letters.nodes())
        log.warning("round %d is not measured: too few devices answered for a secure sum", number)
        return None

    def _gather(self, asked: Asked, layout: Layout, post: Post) -> Summed | None:
        s, number = self.strategy, asked.round
        nodes = {device: s.holders[device] for device in asked.devices}

        def enter(stage: Stage, devices: list[int]) -> None:
            s.asked = {nodes[device]: device for device in devices}
            counted = devices if asked.kind == Kind.TRAIN else ()
            s.status.enter(self.journal.folder, f"{asked.kind}s round {number}, stage {stage}", counted, number)

        def check(answer: Answer, device: int) -> None:
            s.check_answer(answer, device, number)
            if answer.examples != 1:
                raise MessageError("it tells how many examples it has")

        def reject(device: int, why: str) -> None:
            s.reject(number, device, nodes.get(device, 0), why)

        def order(device: int, pack: bytes) -> Any:
            return s.order(asked.kind, nodes[device], device, number, pack, asked.evaluate)

        return gather(asked, layout, self.settings, self.journal, post, order, enter, check, reject)

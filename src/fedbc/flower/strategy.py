"""The server's part of a run, for any algorithm: it sees only the sum of the summands.

A round:

1. wait for the minimum of devices; draw the sample from the run's seed, by device number, as the simulator does;
2. send the broadcast; check each answer as it comes, keep it for the sum or reject it with a warning that names it;
3. leave out what would move the model far beyond the others' (`fedbc.flower.summing`), add the rest;
4. update the server's state, write the checkpoint, and only then tell devices, with the next message, that their
   round was taken.

Memory is constant in the number of devices, and the sum does not depend on the order of arrival.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy

from fedbc import storage
from fedbc.algorithms.base import INFO, Algorithm
from fedbc.algorithms.statistics import method_name
from fedbc.errors import Diverged, FedBCError, InputError
from fedbc.flower import messages, scores
from fedbc.flower.journal import Journal, Row
from fedbc.flower.messages import Answer, Kind, MessageError, Order, Shapes, layout
from fedbc.flower.post import GRACE_SECONDS, Post
from fedbc.flower.roster import Roster, draw
from fedbc.flower.secure_rounds import SecureRounds
from fedbc.flower.settings import Deployment
from fedbc.flower.summing import Mover, RoundSum
from fedbc.models.base import Model
from fedbc.runs.deployed import SUMS_ONLY, DeviceStatus, Status

log = logging.getLogger("flwr.fedbc")
LOOK_SECONDS = 1
SAY_SECONDS = 10


class TooFewDevices(FedBCError, RuntimeError):
    """Fewer devices than the minimum, for longer than the run waits; its checkpoint is kept."""


class AlgorithmStrategy(Strategy):
    """Runs any algorithm of the package on Flower's nodes; `start` does all of it."""

    def __init__(
        self, algorithm: Algorithm, model: Model, settings: Deployment, journal: Journal, *, check_bounds: bool = True
    ) -> None:
        """`journal` holds the server's state. Without `check_bounds`, answers may be noisy: only their form counts."""
        self.algorithm, self.model, self.settings, self.journal = algorithm, model, settings, journal
        self.check_bounds = check_bounds
        self.shapes = Shapes.of(algorithm, model)
        self.tune = algorithm.fine_tune()
        self.roster = Roster(settings.devices, Path(settings.keys).expanduser())
        self.holders: dict[int, int] = {}
        """device to node, of the devices that are there"""
        self.asked: dict[int, int] = {}
        """node to device, of the orders that are on their way"""
        self.on_row: Callable[[Row], None] | None = None
        """called with each round's row of history, once it is kept"""
        self.wanted = layout(self.shapes.summand, "summand")
        self.status = Status(journal.run, settings.rounds, [DeviceStatus(n) for n in range(settings.devices)])
        self._update, self._mover = jax.jit(algorithm.update), Mover(algorithm, settings.devices)
        self._joined = False
        self._secure = SecureRounds(self) if settings.secure else None
        self._pack: tuple[ArrayRecord, bytes] | None = None

    def summary(self) -> None:
        """Log what is run."""
        s, j = self.settings, self.journal
        log.info("%s, %d rounds, %d devices, seed %d", self.algorithm, s.rounds, s.devices, s.seed)
        log.info("run folder %s, run %s", j.folder.resolve(), j.run)
        if s.secure:
            log.info("%s; x - z is clipped to the norm %g", SUMS_ONLY, s.secure_clip)
            if s.move_factor:
                log.info("run.move-factor does not apply: the server sees no single upload to judge")
        if j.round:
            log.info("goes on after round %d", j.round)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> FlowerResult:
        """Run the rounds that the journal lacks.

        The arguments besides `grid` are Flower's and may be left out: `num_rounds` and `timeout` are the settings'
        rounds and round_seconds; `initial_arrays` (names `global.*`) replaces the initial model of a run that begins.
        """
        if train_config or evaluate_config:
            raise InputError("train_config and evaluate_config are not accepted: devices are told the run's settings")
        rounds, seconds = num_rounds or self.settings.rounds, timeout or self.settings.round_seconds
        if initial_arrays is not None and self.journal.round == 0:
            self._begin_from(initial_arrays)
        post, result = Post(grid, self._on_fault), FlowerResult()
        self.summary()
        self.status.take(self.journal.round, self.journal.accepted)
        while self.journal.round < rounds or not self.journal.is_measured:
            began = time.monotonic()
            if self.journal.is_measured:
                log.info("[ROUND %d/%d]", self.journal.round + 1, rounds)
                self._train_round(self.journal.round + 1, post, seconds)
            else:  # the server's process ended between a round's sum and its evaluation
                self._assemble(self.journal.round, post)
            number, trained = self.journal.round, time.monotonic() - began
            due = bool(self.settings.what) and (number % self.settings.evaluate_every == 0 or number == rounds)
            found = self._evaluate_round(number, post, seconds) if due or number == rounds else None
            self._finish_row({"train_seconds": trained, "seconds": time.monotonic() - began}, found)
            if found:
                result.evaluate_metrics_clientapp[number] = MetricRecord(dict(found))
            if evaluate_fn is not None and (value := evaluate_fn(number, self._global_record())) is not None:
                result.evaluate_metrics_serverapp[number] = value
        result.arrays = self._global_record()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The orders to train, for the devices drawn from those that are there; `arrays` is the broadcast and z."""
        drawn = self.drawn(server_round)
        self.asked = {self.holders[device]: device for device in drawn}
        pack = self._packed(arrays)
        return [self.order(Kind.TRAIN, node, device, server_round, pack) for node, device in self.asked.items()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum the good answers, and update the server's state if they are enough; None, None if they are not."""
        with RoundSum(self.wanted) as round_sum:
            for reply in replies:
                node = reply.metadata.src_node_id
                device = self.asked.get(node, -1)
                try:
                    if device in round_sum.entries:
                        raise MessageError("it answered twice")
                    answer, summand, info = self._read_summand(reply, device, server_round)
                    move = self._move(summand)
                except MessageError as error:
                    self.reject(server_round, device, node, str(error))
                else:
                    round_sum.add(device, summand, answer.examples, info, move)
            self.status.largest_moves = round_sum.largest()
            if self.check_bounds:
                nodes = {device: node for node, device in self.asked.items()}
                for entry, why in round_sum.beyond(self.settings.move_limit, self.settings.move_factor):
                    self.reject(server_round, entry.device, nodes[entry.device], why)
            taken = {device: (entry.examples, entry.info) for device, entry in round_sum.entries.items()}
            if len(taken) < min(self.settings.min_devices, len(self.asked)) or not taken:
                return None, None
            self._take(server_round, round_sum.total(), taken)
        row = self.journal.history[-1]
        return self._global_record(), MetricRecord({k: float(row[k]) for k in ("drift", "local_loss")})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The orders to evaluate, for all devices that are there; `arrays` is z."""
        self.asked = {node: device for device, node in self.holders.items()}
        what, pack = str(config.get("evaluate", "")), self._packed(arrays)
        return [
            self.order(Kind.EVALUATE, node, device, server_round, pack, what) for node, device in self.asked.items()
        ]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """A row of history from the devices' sums; None if nobody answered."""
        what = self.settings.what
        names = scores.names(what, self.tune, duals=self.shapes.duals)
        found: dict[int, dict[str, float]] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            device = self.asked.get(node, -1)
            try:
                if device in found:
                    raise MessageError("it answered twice")
                received = messages.parts(reply)
                self.check_answer(messages.from_config(Answer, received.config), device, server_round)
                found[device] = messages.from_metrics(received.metrics, names)
            except MessageError as error:
                self.reject(server_round, device, node, str(error), "evaluation after round")
        row = scores.row(found, what, self.tune, accuracy=self.model.correct is not None)
        return MetricRecord(dict(row)) if row else None

    def _train_round(self, number: int, post: Post, seconds: float) -> None:
        server = self.journal.server
        broadcast = {"broadcast": self.algorithm.broadcast(server), "global": self.algorithm.global_model(server)}
        record = _record(**broadcast)
        for attempt in range(1, self.settings.attempts + 1):
            self._assemble(number, post)
            if self._secure is not None:
                if self._secure.train(number, self._packed(record), post):
                    return
                log.warning("round %d: nothing was summed, attempt %d of %d", number, attempt, self.settings.attempts)
                continue
            orders = list(self.configure_train(number, record, ConfigRecord(), post.grid))
            whats = {node: f"round {number}, device {device}" for node, device in self.asked.items()}
            self.status.enter(self.journal.folder, f"trains round {number}", self.asked.values(), number)
            replies = post.ask(orders, whats, seconds, messages.limit(self.wanted))
            updated, _ = self.aggregate_train(number, replies)
            if updated is not None:
                self.journal.save()
                self.status.take(number, self.journal.accepted)
                return
            log.warning("round %d: too few good answers, attempt %d of %d", number, attempt, self.settings.attempts)
        raise TooFewDevices(
            f"round {number} was tried {self.settings.attempts} times, each with fewer than "
            f"{self.settings.min_devices} good answers; the run can go on from {self.journal.folder}"
        )

    def _evaluate_round(self, number: int, post: Post, seconds: float) -> dict[str, Any] | None:
        """Measure after a round; the orders also tell the devices which round of theirs was taken."""
        if self._secure is not None and self.settings.what:
            return self._secure.evaluate(number, self._packed(_record(**{"global": self.z})), post)
        config = ConfigRecord({"evaluate": ",".join(self.settings.what)})
        orders = list(self.configure_evaluate(number, _record(**{"global": self.z}), config, post.grid))
        whats = {node: f"evaluation after round {number}, device {device}" for node, device in self.asked.items()}
        self.status.enter(self.journal.folder, f"evaluates round {number}")
        replies = post.ask(orders, whats, seconds)
        if not config["evaluate"]:
            for _ in replies:
                pass
            return None
        found = self.aggregate_evaluate(number, replies)
        return dict(found) if found is not None else None

    def _finish_row(self, times: Row, found: Mapping[str, Any] | None) -> None:
        """Complete the round's row with what was measured, in the simulator's order of columns."""
        row = dict(self.journal.history[-1])
        self.journal.complete_row({"round": row.pop("round")} | dict(found or {}) | row | times)
        if self.on_row is not None:
            self.on_row(self.journal.history[-1])
        shown = {k: v for k, v in (found or {}).items() if k in ("global_accuracy", "local_accuracy", "global_loss")}
        log.info("round %d done: %s", self.journal.round, ", ".join(f"{k} {v:.4g}" for k, v in shown.items()) or "-")

    def _assemble(self, number: int, post: Post) -> None:
        """Wait until the minimum of devices is there; the first round of a process waits a while for all of them."""
        s, began, said = self.settings, time.monotonic(), -float("inf")
        while True:
            self.holders = self.roster.refresh(post.letters.nodes())
            self.status.look(self.holders)
            here, waited = len(self.holders), time.monotonic() - began
            if here == s.devices or (here >= s.min_devices and (self._joined or waited >= s.join_seconds)):
                self._joined = True
                return
            if time.monotonic() - said >= SAY_SECONDS:
                said = time.monotonic()
                enough = here >= s.min_devices
                wanted, limit = (s.devices, s.join_seconds) if enough else (s.min_devices, s.wait_seconds)
                then = "begins without the others" if enough else "gives up"
                self.status.enter(self.journal.folder, f"waits for devices, to train round {number}")
                log.info(
                    "waiting: %d of %d devices are there; %s in %.0f s", here, wanted, then, max(0.0, limit - waited)
                )
            if here < s.min_devices and waited >= s.wait_seconds:
                raise TooFewDevices(
                    f"round {number} needs {s.min_devices} devices, {here} are there after {s.wait_seconds} s: "
                    f"given up; the run can go on from {self.journal.folder}"
                )
            time.sleep(LOOK_SECONDS)

    def drawn(self, number: int) -> list[int]:
        """The devices of a round, of those that are there."""
        return draw(self.settings, number, self.holders)

    def _read_summand(
        self, reply: Message, device: int, number: int
    ) -> tuple[Answer, storage.Arrays, dict[str, float]]:
        received = messages.parts(reply)
        answer = messages.from_config(Answer, received.config)
        self.check_answer(answer, device, number)
        if answer.examples < 1 or answer.examples > (self.settings.most_examples or answer.examples):
            raise MessageError(f"it has {answer.examples} examples")
        summand = messages.unpack(received.arrays, self.wanted)
        info = messages.from_metrics(received.metrics, self.shapes.info if self.settings.diagnostics else ())
        for name in INFO if info else ():
            if not np.isfinite(info[name]):
                raise MessageError(f"its {name} is {info[name]}")
        if self.check_bounds:
            try:
                self.algorithm.check_summand(self._whole(summand), answer.examples)
            except InputError as error:
                raise MessageError(str(error)) from None
        return answer, summand, info

    def _whole(self, summand: storage.Arrays) -> Any:
        return jax.tree.map(jnp.asarray, storage.restored(self.shapes.summand, summand, "summand"))

    def _move(self, summand: storage.Arrays) -> float:
        """How far it would move the server's state; noise may have carried it anywhere."""
        return self._mover.move(self.journal.server, self._whole(summand)) if self.check_bounds else 0.0

    def _on_fault(self, node: int, what: str) -> None:
        self.status.fault(self.asked.get(node, -1), f"round {self.journal.round + 1}: {what}")

    def reject(self, number: int, device: int, node: int, why: str, when: str = "round") -> None:
        """Note that a device's answer is not used, and why."""
        log.warning("%s %d: device %d (node %d) is rejected: %s", when, number, device, node, why)
        self.status.fault(device, f"{when} {number}: {why}")

    def check_answer(self, answer: Answer, device: int, number: int) -> None:
        """A MessageError if the answer is another device's, or of another round or run."""
        if (answer.run, answer.round, answer.device) != (self.journal.run, number, device):
            raise MessageError(f"it answers for device {answer.device} in round {answer.round} of run {answer.run}")
        if answer.anew:
            log.warning(
                "device %d lost its state of round %d and started anew: what it added to sums that the server keeps "
                "over rounds (control variates, means over all devices) stays in them",
                device,
                self.journal.accepted[device],
            )

    def _take(self, number: int, total: storage.Arrays, taken: Mapping[int, tuple[int, dict[str, float]]]) -> None:
        self.journal.close_round(self.updated(number, total), taken)
        self.log_sum(number, taken, self.asked.values())

    def updated(self, number: int, total: storage.Arrays) -> Any:
        """The server's state after a sum; one that is not finite ends the run."""
        server = self._update(self.journal.server, self._whole(total), jnp.asarray(self.settings.devices, float))
        if not all(bool(jnp.isfinite(a).all()) for a in jax.tree.leaves(self.algorithm.global_model(server))):
            furthest = ", ".join(f"{d} ({m:.3g} medians)" for d, m in self.status.largest_moves.items())
            raise Diverged(
                f"training diverged in round {number} in the global model: a value is not finite; the state after "
                f"round {number - 1} is kept; the devices that moved it furthest: {furthest or 'not known'}",
                round=number,
                device=next(iter(self.status.largest_moves), None),
            )
        return server

    def log_sum(self, number: int, taken: Collection[int], asked: Collection[int]) -> None:
        """Say who is in a round's sum, and who is not."""
        left_out = sorted(set(asked) - set(taken))
        without = f", without {', '.join(map(str, left_out))}" if left_out else ""
        log.info("round %d: sum of %d devices%s", number, len(taken), without)

    def _begin_from(self, initial: ArrayRecord) -> None:
        pack = messages.pack({name: array.numpy() for name, array in initial.items()})
        arrays = messages.unpack(pack, layout(self.shapes.params, "global"))
        z = jax.tree.map(jnp.asarray, storage.restored(self.shapes.params, arrays, "global"))
        self.journal.server = self.algorithm.init_server(z)

    @property
    def z(self) -> Any:
        """The global model."""
        return self.algorithm.global_model(self.journal.server)

    def _global_record(self) -> ArrayRecord:
        return _record(**{"global": self.z})

    def _packed(self, arrays: ArrayRecord) -> bytes:
        """The same bytes for all of a round's orders."""
        if self._pack is None or self._pack[0] is not arrays:
            self._pack = (arrays, messages.pack({name: array.numpy() for name, array in arrays.items()}))
        return self._pack[1]

    def order(self, kind: Kind, node: int, device: int, number: int, pack: bytes, evaluate: str = "") -> Message:
        """The order to a device; `pack` has its arrays."""
        s, j = self.settings, self.journal
        order = Order(
            run=j.run,
            algorithm=method_name(self.algorithm),
            device=device,
            devices=s.devices,
            round=number,
            accepted=int(j.accepted[device]),
            seed=s.seed,
            epochs=s.epochs,
            batch_size=s.batch_size,
            evaluate=evaluate,
            seconds=s.round_seconds,
        )
        content = messages.content(order, arrays=pack)
        return Message(content, node, kind.value, ttl=s.round_seconds + GRACE_SECONDS, group_id=str(number))


def _record(**trees: Any) -> ArrayRecord:
    """Pytrees as Flower's strategies hand them on."""
    return ArrayRecord(
        {name: Array(a) for prefix, tree in trees.items() for name, a in storage.named(tree, prefix).items()}
    )

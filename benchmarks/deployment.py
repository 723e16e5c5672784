"""Seconds per round of a deployment on this machine, and where they go.

    python -m benchmarks.deployment              3, 10 and 100 devices, seven minutes on two quiet cores
    python -m benchmarks.deployment --devices 3  one of them
    python -m benchmarks.deployment --devices 3 --secure    and the same with secure sums

Server and devices are the processes of docs/deploy.md, on loopback, with TLS and keys; all of them share the machine.
Up to 10 devices are whole ones that train the logistic model of the synthetic data. 100 are *light*: they speak as
devices do and answer at once, without training, so that what remains is what messages cost. CPU seconds of the
SuperLink (Flower's server and its database) tell Flower's share: with many devices it is the floor, as the SuperLink is
one process, of which one thread at a time computes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import re
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine

MOST_WHOLE = 10
"""Devices beyond this number are light ones."""
BARS = {3: 5.0, 10: 8.0, 100: 25.0}
"""Seconds per round with evaluation that are to be kept; without it, half of them."""


@dataclass(frozen=True)
class Point:
    """What rounds of one kind take: medians over all but the first."""

    devices: int
    evaluates: bool
    seconds: float
    slowest: float
    superlink_cpu: float
    """CPU seconds of the SuperLink per round"""
    run_cpu: float
    """and of the run's server part"""
    secure: bool

    def row(self) -> str:
        """A line of the table."""
        what = ("training and evaluation" if self.evaluates else "training") + (", secure sums" * self.secure)
        cpu = f"{self.superlink_cpu:.1f} | {self.run_cpu:.1f}"
        return f"| {self.devices} | {what} | {self.seconds:.1f} | {self.slowest:.1f} | {cpu} |"


HEAD = """| devices | round | seconds, median | slowest | CPU s, SuperLink | CPU s, ServerApp |
| ---: | --- | ---: | ---: | ---: | ---: |"""


class LightApp:
    """In place of an app's process: an answer of the right form, without training."""

    fab_hash, is_alive = "", True

    def give(self, about: dict[str, Any], fab: bytes, objects: dict[str, bytes]) -> None:
        """Answer an order of FedBC's."""
        import numpy as np
        from flwr.app import Message
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        from fedbc.flower import messages, packs, scores
        from fedbc.flower.app_process import reply_of

        name = list(objects)[-1]
        order: Any = inflate_object_from_contents(name, dict(objects))
        order.metadata.__dict__["_message_id"] = name
        received = messages.parts(order)
        told = messages.from_config(messages.Order, received.config)
        answer, one = messages.Answer(told.run, told.round, told.device, 1, 0), np.ones((), np.float32)
        if order.metadata.message_type == "train":
            z = {n.partition(".")[2]: a for n, a in packs.load(received.arrays).items() if n.startswith("global.")}
            arrays = {
                f"summand.{part}.{name}": array + one for part in ("weighted", "plain") for name, array in z.items()
            }
            content = messages.content(answer, arrays=packs.pack(arrays | dict.fromkeys(SCALARS, one)))
        else:
            names = scores.names(tuple(told.evaluate.split(",")), None, duals=True) if told.evaluate else ()
            content = messages.content(answer, metrics=dict.fromkeys(names, 1.0))
        self.reply = reply_of(Message(content, reply_to=order))

    def wait(self, seconds: float) -> Any:
        """The answer, at once."""
        return self.reply


SCALARS = ("summand.weight", "summand.devices")


def light_device(folder: Path, address: str, number: int) -> None:
    """The process of a light device."""
    from fedbc.flower import node
    from fedbc.flower.diary import Diary
    from fedbc.flower.link import Link

    node.AppProcess = LightApp  # type: ignore[assignment,misc]
    key = node.read_private_key(folder / "keys" / f"device-{number}")
    diary = Diary(folder / "state" / f"device-{number}.json")
    node.DeviceNode(Link(address, str(folder / "keys" / "ca.crt"), key), {}, diary).serve()


@contextlib.contextmanager
def devices_of(loop: Any, count: int) -> Any:
    """The federation's devices, until the end of the context."""
    address = f"127.0.0.1:{loop.port}"
    if count <= MOST_WHOLE:
        for number in range(count):
            loop.supernode(number)
        yield
        return
    from fedbc.flower import node, packs, scores  # noqa: F401 (read once, for all of the processes that follow)

    (loop.app / "state").mkdir(exist_ok=True)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=light_device, args=(loop.app, address, n), daemon=True) for n in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def cpu_seconds(process: Any) -> float:
    """What a process and all that it started have computed so far."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = status.read_text().rpartition(")")[2].split()
            if int(words[2]) == process.popen.pid:
                total += sum(map(int, words[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def measure(loop: Any, devices: int, rounds: int, *, evaluates: bool, secure: bool) -> Point:
    """Run rounds, and look at the processes each time that one is done."""
    from tests.deploy.loopback import until

    out = f"runs/{'with' if evaluates else 'without'}"
    whole = devices <= MOST_WHOLE
    config = {
        "run__devices": devices,
        "run__rounds": rounds,
        "run__evaluate": "global,local" if evaluates else "",
        "run__diagnostics": whole,
        "run__join_seconds": 300,
        "run__out": out,
    }
    run = loop.run(**config)
    looks = []
    for number in range(1, rounds):  # what follows the last one is not a round's
        loop.hears(out, f"round {number} done", 600)
        looks.append((time.monotonic(), cpu_seconds(loop.link), cpu_seconds(loop.exec)))
    loop.wait(run, 600)
    assert "rejected" not in loop.log(out), loop.log(out)[-2000:]
    assert not re.search(r"left out|without \d", loop.log(out)), loop.log(out)[-2000:]
    until(lambda: (loop.app / out / "summary.json").exists(), 60, "results")
    steps = [[b - a for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(looks)]
    seconds, link, server = (list(column) for column in zip(*steps, strict=True))
    middle = statistics.median
    return Point(devices, evaluates, middle(seconds), max(seconds), middle(link), middle(server), secure)


def points(devices: int, rounds: int, *, secure: bool) -> list[Point]:
    """Rounds with evaluation and without, of one federation."""
    from tests.deploy.loopback import Loopback, until

    with tempfile.TemporaryDirectory() as folder, Loopback(Path(folder)) as loop:
        loop.prepare(devices, secure=secure)
        loop.superlink()
        loop.superexec()
        loop.register()
        with devices_of(loop, devices):
            until(lambda: loop.link.text.count("Activated node_id") >= devices, 300, "devices")
            return [measure(loop, devices, rounds, evaluates=evaluates, secure=secure) for evaluates in (True, False)]


def main() -> None:
    """Measure, print a table, and keep the figures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=list(BARS))
    parser.add_argument("--secure", action="store_true", help="whole devices also with secure aggregation")
    parser.add_argument("--rounds", type=int, default=8, help="at least 3; the first is not counted")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    given = parser.parse_args()
    print(f"load of the machine before it began: {os.getloadavg()[0]:.1f}\n{HEAD}", flush=True)
    found = []
    wanted = [(n, secure) for n in given.devices for secure in ((False, True) if given.secure else (False,))]
    for devices, secure in wanted:
        if secure and devices > MOST_WHOLE:
            continue  # light devices know no secure sums
        for point in points(devices, given.rounds, secure=secure):
            found.append(point)
            print(point.row(), flush=True)
    for point in found:
        if point.devices in BARS and not point.secure:
            bar = BARS[point.devices] / (1 if point.evaluates else 2)
            kept = "kept" if point.seconds <= bar else "MISSED"
            print(
                f"{point.devices} devices, {'with' if point.evaluates else 'without'} evaluation: bar {bar:g} s {kept}"
            )
    if given.out:
        figures = {"machine": machine.describe(), "date": machine.now(), "points": [asdict(point) for point in found]}
        given.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

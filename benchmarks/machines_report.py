"""Put the figures of `benchmarks.machines` into docs/machines.md, and what they would mean for a hundred machines.

python -m benchmarks.machines_report
"""

from __future__ import annotations

import argparse
import bisect
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.report import number, table

PAGE = Path(__file__).parent.parent / "docs" / "machines.md"
MARKS = "<!-- from benchmarks/results.json, by `python -m benchmarks.machines_report` -->", "<!-- up to here -->"
BAR = 1.15
"""Of W2 to W4: two processes of one lane may take so many times as long as one of two lanes."""
NETWORKS = {"W3": "CNN", "W4": "LSTM"}
DRAWN = 1000
"""Devices of a round of the projection."""
COUNTS = (1, 2, 4, 10, 30, 100)
SAMPLES, DEALT = (10, 100, 1000, 10000), (2, 4, 16)


def excess(sample: int, machines: int, draws: int = 2000) -> float:
    """How much more than its share the fullest machine has of so many drawn devices, on average."""
    counts = np.random.default_rng(0).multinomial(sample, [1 / machines] * machines, draws)
    return float(counts.max(1).mean() / (sample / machines) - 1)


@dataclass(frozen=True)
class Link:
    """A connection between machines."""

    name: str
    latency: float
    """seconds of one step of an all-reduce, without what it carries"""
    rate: float
    """bytes per second"""

    def all_reduce(self, size: float, machines: int) -> float:
        """Seconds of a ring: 2 (M - 1) steps, each with an M-th of what is summed."""
        steps = 2 * (machines - 1)
        return steps * (self.latency + size / machines / self.rate)


def measured_link(sums: list[dict[str, float]]) -> Link:
    """Of two processes, whose ring has two steps with half of the sum each."""
    sizes, seconds = (np.asarray([one[key] for one in sums]) for key in ("bytes", "seconds"))
    slope = float(np.polyfit(sizes, seconds, 1, w=1 / np.sqrt(sizes))[0])
    return Link("as measured here", float(min(seconds)) / 2, 1 / slope)


@dataclass(frozen=True)
class Projection:
    """A workload whose rounds have `DRAWN` devices, on machines like this one."""

    network: str
    device_seconds: float
    """of one device's local training, with all cores of a machine on other devices"""
    sent: float
    """bytes of a round's sums"""

    def training(self, machines: int) -> float:
        """Seconds until the fullest machine has trained its devices."""
        return DRAWN / machines * (1 + excess(DRAWN, machines)) * self.device_seconds

    def dominated_from(self, link: Link) -> int | None:
        """The number of machines from which on a round's sums take longer than its training; None if there is none
        as long as there are devices for all."""
        counts = range(2, DRAWN + 1)  # sums grow with machines, training shrinks: the first one is found by halving
        first = bisect.bisect_left(counts, True, key=lambda m: link.all_reduce(self.sent, m) > self.training(m))
        return counts[first] if first < len(counts) else None


def projections(rounds: dict[str, Any]) -> list[Projection]:
    """Of the networks that were measured."""
    found = []
    for name, network in NETWORKS.items():
        if name in rounds:
            one, sample = rounds[name], rounds[name]["sample"]
            # What goes with each drawn device (its diagnostics) grows with them; the summand does not.
            sent = one["summand_bytes"] + (one["sent_per_round"] - one["summand_bytes"]) * DRAWN / sample
            found.append(Projection(network, median(one["one_process"]) / sample, sent))
    return found


def page(found: dict[str, Any], here: dict[str, Any]) -> str:
    """What stands between the marks."""
    parts = [f"On {here['cores']} cores of {here['cpu']}; processes that talk by the loopback interface."]
    if found.get("rounds"):
        parts.append(time_and_traffic(found["rounds"]))
    if "memory" in found:
        parts.append(memory(found["memory"]))
    if "link" in found and projections(found.get("rounds", {})):
        parts.append(growth(found))
    return "\n\n".join(parts)


def time_and_traffic(rounds: dict[str, Any]) -> str:
    """One process of two lanes, two of one lane, and what is sent."""
    rows = []
    for name, one in sorted(rounds.items()):
        bar = "" if name == "W1" else f", {'met' if one['ratio'] <= BAR else '**missed**'}"
        low, high = np.quantile(np.divide(one["two_processes"], one["one_process"]), (0.25, 0.75))
        cells = [f"{number(1e3 * median(one[key]))}" for key in ("one_process", "two_processes")]
        size, sent = one["model_bytes"], one["sent_per_round"]
        cells += [
            f"{one['ratio']:.2f} ({low:.2f} to {high:.2f}){bar}",
            f"{one['steps_ratio']:.2f}",
            f"{sent:,.0f}",
            f"{size:,.0f}",
            f"{sent / size:.2f}",
        ]
        rows.append([one["title"], *cells])
    head = [
        "workload",
        "one process of two lanes, ms per round",
        "two of one lane",
        f"ratio (bar: {BAR})",
        "ratio of steps",
    ]
    head += ["bytes sent per round and machine", "bytes of the model", "of the model"]
    dates = sorted({one["date"][:10] for one in rounds.values()})
    return (
        "### Time and traffic\n\n"
        "FedBC, 10 devices per round, training only; the ratio is the median over turns, with its quartiles. The "
        "ratio of steps is that of the local steps of the fuller machine and of the fuller lane: a machine keeps its "
        "devices, lanes are dealt anew each round. While one core waits the other is faster: not all of it is time. "
        "Traffic is what a machine hands to sums and small tables: FedBC's summand, which is two models and a number "
        "(the second for rounds in which every multiplier is zero), and a row of numbers per device drawn. On W1 a "
        "round takes milliseconds, one process trains up to sixteen of them in one call, and machines must meet after "
        "each."
        f"\n\n{table(head, rows, 'lrrrrrrr')}\n\nMeasured {' and '.join(dates)}."
    )


def memory(found: dict[str, Any]) -> str:
    """What each process owns and holds."""
    rows = []
    for count, processes in found["processes"].items():
        for index, one in enumerate(processes):
            megabytes = [one[key] / 1e6 for key in ("data_bytes", "state_bytes", "after_a_round", "peak")]
            rows.append([f"{index + 1} of {count}", f"{one['owned']:,}", *(f"{value:,.0f}" for value in megabytes)])
    head = ["process", "devices owned", "data, MB", "states, MB", "memory after a round, MB", "peak, MB"]
    said = (
        f"{found['devices']:,} devices with 8 examples of 10 numbers, FedBC, a logistic model, one round with all of "
        "them, so that each has a state. Data and states are what the tables hold: each process half, and a place in "
        "the table of rows per device. Memory is the whole process, Python and JAX included; what it does not halve is "
        "what every machine knows of all devices: scores, and a round's rows of numbers."
    )
    return f"### Memory\n\n{said}\n\n{table(head, rows, 'lrrrrr')}\n\nMeasured {found['date'][:10]}."


def growth(found: dict[str, Any]) -> str:
    """The projection."""
    link = measured_link(found["link"]["sums"])
    links = (link, Link("1 Gbit/s and 0.2 ms per step (assumed)", 2e-4, 125e6))
    parts = [
        "### A projection to a hundred machines",
        "Not measured: a formula with measured numbers in it. A round with S devices takes on M machines",
        "T(M) = (1 + e) · S/M · c + 2 (M − 1) · (a + B / (M · w)),",
        f"with c the seconds per device of one machine (its round on W3 and W4, over 10), S = {DRAWN:,}, e how much "
        "more than its share the fullest machine has (the table above), B the bytes of a round's sums, and a ring for "
        "the sum: 2 (M − 1) steps, each of which waits a and carries an M-th of B at w bytes per second. Two processes "
        f"of this machine gave a = {number(1e3 * link.latency)} ms and w = {number(link.rate / 1e6)} MB/s, JAX's own "
        "work included (`Machines.sum`, from a kilobyte to 16 MB).",
    ]
    for projection in projections(found["rounds"]):
        rows = []
        for machines in COUNTS:
            training = projection.training(machines)
            cells = [str(machines), seconds(training)]
            for one in links:
                summing = one.all_reduce(projection.sent, machines)
                cells += [seconds(summing), f"{projection.training(1) / (training + summing):.1f}"]
            rows.append(cells)
        head = ["M", "training, s"]
        for one in links:
            head += [f"sums, s: {one.name}", "times faster than one machine"]
        limits = "; ".join(
            f"{one.name}: {f'from {limit} machines on' if limit else f'with no number of them up to {DRAWN:,}'}"
            for one in links
            for limit in [projection.dominated_from(one)]
        )
        c, sent = number(projection.device_seconds), number(projection.sent / 1e6)
        parts += [
            f"The {projection.network}, c = {c} s, B = {sent} MB:",
            table(head, rows, "rrrrrr"),
            f"The sums take longer than the training: {limits}.",
        ]
    return "\n\n".join(parts)


def seconds(value: float) -> str:
    """Seconds in a table."""
    return number(value) if value >= 1e-3 else f"{value:.4f}"


def put(text: str, between: str) -> str:
    """A page with new text between its marks."""
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}\n\n{between}\n\n{MARKS[1]}{after}"


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=results.DEFAULT, help="results file")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page with the marks")
    parser.add_argument("--shares", action="store_true", help="print the table of which devices are whose")
    options = parser.parse_args(arguments)
    if options.shares:
        for sample in SAMPLES:
            print(sample, *(f"{excess(sample, machines):.0%}" for machines in DEALT))
        return
    found = results.read(options.results)
    if "machines" not in found:
        parser.error(f"{options.results} has no such figures: run python -m benchmarks.machines first")
    options.page.write_text(put(options.page.read_text(), page(found["machines"], found["machine"])))


if __name__ == "__main__":
    main()

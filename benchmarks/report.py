"""Make docs/benchmarks.md, and the README's table, of the results file.

    python -m benchmarks.report

Ratios are medians over rounds of the ratio in the same round: the devices of a round are the same for all, and noise
that lasts for a while hits both.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from benchmarks import networks_report, results
from benchmarks.figures import NAMES, QUIET, Record, number, ratio, step_seconds, table, verdict

ROOT = Path(__file__).parent.parent
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
OWN_MODEL = ROOT / "docs" / "own-model.md"
MARKS = "<!-- from benchmarks/results.json, by `python -m benchmarks.report` -->", "<!-- up to here -->"
MODES = {"train": "training only", "evaluate": "training and evaluation on all test examples"}
FASTER = {
    "pytorch": {"W1": 40, "W2": 5, "W3": 2.5, "W4": 1.3},
    "fedjax": {"W1": 6, "W2": 2, "W3": 4, "W4": 1.5},
    "pfl": {"W1": 40, "W2": 4, "W3": 2.5, "W4": 1.3},
    "flower": {"W1": 60, "W2": 6, "W3": 3, "W4": 1.5},
}
"""Bars: at least so many times faster than the peer."""
OVER_LIMIT = {"W1": 1.25, "W2": 1.15, "W3": 1.1, "W4": 1.1}
"""Bars: at most so many times the time of the bare compiled loop."""
NOTES = (
    "All contestants start from the same initial model and train the same devices in the same rounds, with FedAvg's "
    "settings: batch 20, SGD with rate 0.01 and momentum 0.5, means weighted by examples. fedbc is measured with FedBC "
    "too, which does more: the pull to z at every step, and state of every device.",
    "fedbc reads the data as its loaders store them (bytes of images, positions in a text) and decodes in the step; "
    "the peers get arrays that are decoded already.",
    "A turn is one round, on W1 48 of them: its rounds take milliseconds, and fedbc trains up to sixteen in one call. "
    "Seconds and steps a round are a turn's means there, for all contestants.",
    "FedJAX fills batches across epochs, so that it takes fewer steps with more than one epoch; the others end each "
    "epoch with a short batch. Microseconds a step are of each one's own steps, ratios are of whole rounds.",
    "FedJAX's models are plain JAX functions with the operations of Haiku's layers, which it usually takes: "
    "channels-last convolutions, an LSTM cell with one product for inputs and state.",
    "pfl-research does not shuffle a device's examples and keeps its batches as views, so that it gathers nothing. Its "
    "devices are dealt to processes as its own balanced sampler deals them; its evaluation runs on all processes.",
    "Flower's server looks for results every tenth of a second, which short rounds feel. Its rounds are held back "
    "until their turn; its client is the PyTorch loop's, one actor a core; evaluation is on the server.",
    "The PyTorch loop holds all data as tensors and gathers a device's shuffled examples once an epoch. It times three "
    "ways to update the parameters, and two layouts of images, when it starts, and takes the fastest.",
    "The bare compiled loop takes as many steps as the round, an equal share a core, with fedbc's own models: full "
    "batches from a fixed table, no devices, no aggregation, no state. It is what fedbc would need if federation were "
    "free. The arithmetic limit is a step's products and updates at the rate of a large matrix product on all cores.",
    "A device's steps follow each other, so that a round takes at least as long as its largest device; the bare loop "
    "has no devices and no such bound. It weighs on W1, where in every second round one device has more than half of "
    "the steps.",
    "Where a contestant has variants (threads, processes, form of the data), the better one counts.",
)

ASKED = (
    "The share of the arithmetic limit that a step would reach if training met a bar just so, and what fedbc reaches. "
    "A bar near or above 100 % is out of reach in float32, unless products are left out, as on W2 those with the "
    "background of images. Beside the products there is always work that the limit does not count: a batch is gathered "
    "and decoded, the update reads and writes every parameter."
)


def best(variants: dict[str, Record], mode: str) -> tuple[str, Record] | None:
    """The fastest variant in a mode; None if there is none."""
    there = {name: r for name, r in variants.items() if r.get(mode) and "absent" not in r}
    if not there:
        return None
    name = min(there, key=lambda n: median(round_["seconds"] for round_ in there[n][mode]))
    return name, there[name]


def ours(workload: Record) -> dict[str, Record]:
    """fedbc's algorithms that were measured."""
    return {name: r for name, r in workload["contestants"].get("fedbc", {}).items() if "absent" not in r}


def reason(variants: dict[str, Record]) -> str:
    """Why a contestant has no figure."""
    reasons = dict.fromkeys(r["absent"] for r in variants.values() if "absent" in r)
    return f"absent: {'; '.join(reasons)}" if reasons else "not measured"


def times_faster(workload: Record, peer: str, mode: str) -> float | None:
    """How many times faster than a peer the slower of FedBC and FedAvg is; None where one was not measured."""
    found = best(workload["contestants"].get(peer, {}), mode)
    own = [r for r in ours(workload).values() if r.get(mode)]
    return min(ratio(found[1], r, mode) for r in own) if found and own else None


def bars(workloads: dict[str, Record], mode: str) -> str:
    """The bars; one is met if both FedBC and FedAvg meet it, and the slower one's ratio is shown."""
    rows = []
    for peer, wanted in FASTER.items():
        cells = [f"times faster than {NAMES[peer]}"]
        for name, workload in workloads.items():
            value = times_faster(workload, peer, mode)
            if value is None:
                cells.append(reason(workload["contestants"].get(peer, {})))
            else:
                cells.append(verdict(value, value >= wanted[name], f"≥ {wanted[name]:g}"))
        rows.append(cells)
    cells = ["round time over the bare compiled loop"]
    for name, workload in workloads.items():
        found = best(workload["contestants"].get("limit", {}), mode)
        own = [r for r in ours(workload).values() if r.get(mode)]
        if not found or not own:
            cells.append(reason(workload["contestants"].get("limit", {})))
            continue
        value = max(ratio(r, found[1], mode) for r in own)
        cells.append(verdict(value, value <= OVER_LIMIT[name], f"≤ {OVER_LIMIT[name]:g}"))
    return table(["", *workloads], [*rows, cells])


def bars_on_the_machine(workloads: dict[str, Record]) -> str:
    """What share of the arithmetic limit each bar asks for: a peer's time a step over the bar, as `rate` has it."""
    rows = []
    for peer, wanted in FASTER.items():
        cells = [f"{', '.join(f'{bar:g}' for bar in wanted.values())} times faster than {NAMES[peer]}"]
        for name, workload in workloads.items():
            found = best(workload["contestants"].get(peer, {}), "train")
            cells.append(rate(workload, step_seconds(found[1], "train") / wanted[name]) if found else "")
        rows.append(cells)
    cells = ["fedbc, the slower of FedBC and FedAvg"]
    for workload in workloads.values():
        steps = [step_seconds(own, "train") for own in ours(workload).values() if own.get("train")]
        cells.append(rate(workload, max(steps)) if steps else "")
    return table(["", *workloads], [*rows, cells], "l" + "r" * len(workloads))


def workload_rows(workload: Record, mode: str) -> list[list[str]]:
    """One row a contestant, the fastest first."""
    reference = ours(workload).get("FedBC")
    measured: list[tuple[str, str, Record]] = [("fedbc", name, r) for name, r in ours(workload).items() if r.get(mode)]
    missing = []
    for name, variants in workload["contestants"].items():
        if name == "fedbc":
            continue
        found = best(variants, mode)
        if found:
            measured.append((name, *found))
        else:
            missing.append([NAMES[name], "", reason(variants), "", "", "", ""])
    rows = []
    for name, variant, record in sorted(measured, key=lambda m: median(r["seconds"] for r in m[2][mode])):
        rounds = record[mode]
        step = step_seconds(record, mode)
        rows.append(
            [
                NAMES[name],
                variant,
                number(median(r["seconds"] for r in rounds)),
                number(1e6 * step),
                number(median(r["steps"] for r in rounds)),
                number(ratio(record, reference, mode)) if reference and reference.get(mode) else "",
                accuracy(rounds[-1]) if mode == "evaluate" else rate(workload, step),
            ]
        )
    return rows + missing


def accuracy(round_: Record) -> str:
    """The accuracy after a round, where it was measured."""
    return f"{round_['accuracy']:.3f}" if round_["accuracy"] is not None else ""


def rate(workload: Record, step: float) -> str:
    """How near a step is to the arithmetic limit, where that was measured."""
    fastest = matmul_rate(workload)
    if fastest is None:
        return ""
    percent = 100 * workload["data"]["flops_a_step"] / fastest / step
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def matmul_rate(workload: Record) -> float | None:
    """FLOP/s of a large matrix product on all cores."""
    limits = workload["contestants"].get("limit", {}).values()
    return max((r["facts"]["matmul_flops"] for r in limits if r.get("facts")), default=None)


def arithmetic(workload: Record) -> str:
    """The arithmetic limit in words."""
    flops, fastest = workload["data"]["flops_a_step"], matmul_rate(workload)
    if fastest is None:
        return ""
    return (
        f"Arithmetic limit: {number(1e6 * flops / fastest)} µs a step ({number(flops / 1e6)} MFLOP "
        f"at {number(fastest / 1e9)} GFLOP/s, what all cores reach on a large matrix product)."
    )


def workload_section(name: str, workload: Record) -> list[str]:
    """A workload's tables."""
    data = workload["data"]
    said = [
        f"## {name}: {workload['title']}",
        f"{data['training_examples']:,} training and {data['test_examples']:,} test examples on {data['devices']} "
        f"devices, {workload['setting']['sample']} a round; {data['parameters']:,} parameters. "
        f"{workload['rounds']} rounds of each kind, {workload['date']}. {arithmetic(workload)}",
    ]
    busy = workload["cores_kept_busy_by_others"]
    if busy is not None and busy > QUIET:
        said.append(f"**The machine was not quiet: other programs kept {busy:g} cores busy. Measure again.**")
    head = ["contestant", "variant", "seconds a round", "µs a step", "steps a round", "time over FedBC's"]
    for mode, title in MODES.items():
        columns = [*head, "accuracy" if mode == "evaluate" else "of the arithmetic limit"]
        said += [f"Medians, {title}:", table(columns, workload_rows(workload, mode), "llrrrrr")]
    return said


def warm_up(workloads: dict[str, Record]) -> str:
    """Loading and the first rounds, apart from all other figures."""
    rows = []
    for name, workload in workloads.items():
        for contestant, variants in workload["contestants"].items():
            for variant, record in variants.items():
                if "absent" in record:
                    continue
                usual = median(r["seconds"] for r in record["train"])
                extra = record["warm_up"][0]["seconds"] - usual
                rows.append(
                    [
                        name,
                        f"{NAMES[contestant]}, {variant}",
                        number(record["load_seconds"]),
                        number(max(0.0, extra)),
                        f"{record['idle_cores']:g}",
                    ]
                )
    head = ["", "contestant", "loading, s", "first round over a usual one, s", "cores in use while idle"]
    return table(head, rows, "llrrr")


def growth_section(growth: Record) -> list[str]:
    """How the cost of a round grows."""
    fields = {"sampled": "sample", "existing": "devices", "epochs": "epochs", "parameters": "parameters"}
    said = ["## Growth", f"FedBC, batch 20, random data with equally many examples on every device; {growth['date']}."]
    for name, points in growth["series"].items():
        field = fields[name]
        times = [median(p["seconds"]) for p in points]
        first, last = points[0][field], points[-1][field]
        spread = max(times) / min(times)
        memory = points[-1]["peak_memory"]["after_rounds"] / 1e9
        each = [t / p[field] for t, p in zip(times, points, strict=True)]
        # Where fixed costs weigh less, the cost a unit falls: what would be wrong is that it rises.
        rise = max(b / a for i, a in enumerate(each) for b in each[i:])
        said.append(
            {
                "sampled": f"### Devices sampled\n\nA device's cost rises by at most {number(rise)} times from "
                f"{first:,} to {last:,} devices a round (bar 1.2): {'met' if rise <= 1.2 else '**missed**'}.",
                "existing": f"### Devices in existence\n\nFrom {first:,} to {last:,} devices the time of a round "
                f"varies by {number(spread)} times (bar 1.5): {'met' if spread <= 1.5 else '**missed**'}. Peak memory "
                f"at {last:,}: {memory:.2f} GB (bar 3): {'met' if memory < 3 else '**missed**'}.",
                "epochs": f"### Local epochs\n\nAn epoch's cost rises by at most {number(rise)} times from {first} to "
                f"{last} epochs.",
                "parameters": "### Size of the model",
            }[name]
        )
        said.append(f"![{name}](benchmarks/{name}.png)")
        rows = [
            [
                f"{p[field]:,}",
                number(1e3 * t),
                number(1e6 * t / p["steps"]),
                f"{p['peak_memory']['after_rounds'] / 1e9:.2f}",
            ]
            for p, t in zip(points, times, strict=True)
        ]
        said.append(table([field, "ms a round", "µs a step", "peak memory, GB"], rows, "rrrr"))
    states = growth["state_bytes"]
    models = list(next(iter(states.values())))
    rows = [[name, *(f"{sizes[m]:,}" for m in models)] for name, sizes in states.items()]
    said += ["### Bytes of a device's state", table(["method", *models], rows, "lrrrr")]
    return said


def startup_section(startup: Record) -> list[str]:
    """The start of a run."""
    value = startup["median_first_round"]
    return [
        "## Start-up",
        f"From `fedbc run` on W1 to its first finished round: {number(value)} s, median of "
        f"{len(startup['later_starts'])} starts (bar 3, {'met' if value < 3 else '**missed**'}); "
        f"{number(startup['first_start']['first_round'])} s the first time, with nothing compiled yet. "
        f"{startup['date']}.",
    ]


def grid_section(grid: Record) -> list[str]:
    """Many runs at once."""
    failed = f", of which {grid['failed']} diverge" if grid["failed"] else ""
    return [
        "## Many runs at once",
        f"The paper's tuning grid, {grid['configurations']} configurations of W1 at {grid['rounds']} rounds{failed}, "
        f"takes {number(grid['seconds'] / 60)} minutes with {grid['workers']} worker processes and nothing compiled "
        f"before (`python -m benchmarks.grid`). {grid['date']}.",
    ]


def versions(workloads: dict[str, Record]) -> str:
    """What ran."""
    rows: dict[str, str] = {}
    for workload in workloads.values():
        for name, variants in workload["contestants"].items():
            for record in variants.values():
                if "versions" in record:
                    rows[NAMES[name]] = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    return table(["contestant", "versions"], rows.items())


def page(found: Record) -> str:
    """The whole page."""
    here, workloads = found["machine"], dict(sorted(found.get("workloads", {}).items()))
    parts = [
        "# Benchmarks",
        "<!-- Made by `python -m benchmarks.report` from benchmarks/results.json: do not edit. -->",
        f"Measured on {here['cores']} cores of {here['cpu']}, {here['memory_gb']:g} GB, {here['system']}, Python "
        f"{here['python']}, with `make bench`. Contestants take turns, and only one computes at any time.",
    ]
    if workloads:
        for mode, title in MODES.items():
            parts += [f"## Bars, {title}", "The slower of FedBC and FedAvg counts.", bars(workloads, mode)]
        parts += ["## What the bars ask of the machine", ASKED, bars_on_the_machine(workloads)]
        for name, workload in workloads.items():
            parts += workload_section(name, workload)
        parts += ["## What is compared", "\n".join(f"- {note}" for note in NOTES)]
        cold = "Not part of the figures above; nothing compiled is taken over from earlier runs."
        parts += ["## Warm-up and idleness", cold, warm_up(workloads)]
        parts += ["## Versions", versions(workloads)]
    if "own_networks" in found:
        parts += networks_report.own_networks(found["own_networks"])
    parts += networks_report.modules(found)
    if "frameworks" in found:
        parts += networks_report.frameworks(found["frameworks"])
    if "growth" in found:
        parts += growth_section(found["growth"])
    if "startup" in found:
        parts += startup_section(found["startup"])
    if "grid" in found:
        parts += grid_section(found["grid"])
    return "\n\n".join(parts) + "\n"


def summary(found: Record) -> str:
    """What the README says of the speed."""
    here, workloads = found["machine"], dict(sorted(found["workloads"].items()))
    rows = []
    for workload in workloads.values():
        seconds = median(r["seconds"] for r in ours(workload)["FedBC"]["train"])
        faster = [times_faster(workload, peer, "train") for peer in FASTER]
        rows.append(
            [workload["title"], f"{number(1e3 * seconds)} ms", *(number(v) if v is not None else "–" for v in faster)]
        )
    head = ["times faster than", "a round of FedBC", *(NAMES[peer] for peer in FASTER)]
    dates = sorted({workload["date"][:10] for workload in workloads.values()})
    said = (
        f"Training only, 10 devices a round, on {here['cores']} cores of {here['cpu']} ({' and '.join(dates)}); "
        "the slower of FedBC and FedAvg against each peer's faster variant."
    )
    return f"{table(head, rows, 'lrrrrr')}\n\n{said}"


def put_summary(file: Path, text: str) -> None:
    """Write a summary between its marks in the README, or another page."""
    before, _, rest = file.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    file.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=results.DEFAULT, help="results file")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
    options = parser.parse_args(arguments)
    found = results.read(options.results)
    if not found:
        parser.error(f"{options.results} does not exist: run python -m benchmarks.run first")
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text(page(found))
    if options.page == PAGE:
        put_summary(README, summary(found))
        put_summary(OWN_MODEL, networks_report.summary(found))


if __name__ == "__main__":
    main()

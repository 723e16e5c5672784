"""The report's part on networks that a user brings, in JAX and in PyTorch."""

from __future__ import annotations

from statistics import median

from benchmarks.figures import NAMES, QUIET, Record, number, ratio, step_seconds, table, verdict
from benchmarks.workloads import ALL

LIBRARIES = ("PyTorch", "Flax", "Equinox")
BAR_OF_MODULES = 1  # times as fast as the best of PyTorch's own ways
PEERS = [("pytorch", "1 thread"), ("pytorch", "2 threads"), ("pytorch", "2 processes")]
PEERS += [("pfl", "1 process"), ("pfl", "2 processes")]


def own_networks(networks: dict[str, Record]) -> list[str]:
    """Networks that a user brings: fedbc against the best of the others."""
    said = [
        "## Own networks",
        "Networks as a user brings them, through `fedbc.models.from_flax`, on made-up data: FedAvg, batch 20, E = 1. "
        "Medians, training only; the ratio is to the best contestant's best variant, round by round.",
        *busy_with_others(networks),
    ]
    rows = []
    for name, network in in_order(networks):
        rows.append([*beside_peers(network, "fedbc", PEERS, ALL[name].bar or 1), compiling(network)])
    return [*said, table([*head_of_peers("fedbc", PEERS), "compiling, s"], rows, "l" + "r" * (len(PEERS) + 1) + "lr")]


def compiling(network: Record) -> str:
    """By how many seconds fedbc's first round is longer than a usual one."""
    own = network["contestants"].get("fedbc", {}).get("FedAvg", {})
    if not own.get("train"):
        return "–"
    return number(max(0.0, own["warm_up"][0]["seconds"] - median(r["seconds"] for r in own["train"])))


def modules(found: Record) -> list[str]:
    """PyTorch modules in fedbc's simulator, against the best of PyTorch's own ways to simulate."""
    networks = {name: n for name, n in found.get("own_networks", {}).items() if "modules" in n["contestants"]}
    networks |= found.get("modules", {})
    if not networks:
        return []
    peers = [*PEERS, ("flower", "ray")]
    rows = [beside_peers(network, "modules", peers, BAR_OF_MODULES) for _, network in in_order(networks)]
    return [
        "## PyTorch modules in the simulator",
        "The PyTorch contestants' own modules through `fedbc.torch.model`: FedAvg, batch 20; otherwise as above, and "
        "as in W2 to W4.",
        *busy_with_others(networks),
        table(head_of_peers("modules", peers), rows, "l" + "r" * (len(peers) + 1) + "l"),
    ]


def frameworks(found: Record) -> list[str]:
    """The same network from three libraries."""
    rows = [[n, number(r["first_round"]), number(1e3 * r["round"])] for n, r in _by_library(found)]
    return [
        "## The same network in PyTorch, Flax and Equinox",
        f"60-32-10 with ReLU, as [Your own model](own-model.md) begins with it; {found['setting']}; {found['date']}. "
        "`python -m benchmarks.frameworks`; the first round compiles.",
        table(["", "first round, s", "a later round, ms"], rows, "lrr"),
    ]


def _by_library(found: Record) -> list[tuple[str, Record]]:
    return sorted(found["networks"].items(), key=lambda network: LIBRARIES.index(network[0]))


def summary(found: Record) -> str:
    """What docs/own-model.md says of the speed."""
    networks, here, parts = found.get("own_networks", {}), found["machine"], []
    if "frameworks" in found:
        times = {name: number(1e3 * r["round"]) for name, r in _by_library(found["frameworks"])}
        told = ", ".join(f"{ms} ms from {name}" for name, ms in times.items())
        parts.append(f"A round of this network took {told} ({found['frameworks']['setting']}).")
    if networks:
        rows = []
        for _, network in in_order(networks):
            ours = [_milliseconds(network, "fedbc"), _milliseconds(network, "modules")]
            peers = [_milliseconds(network, peer) for peer in ("pytorch", "pfl")]
            rows.append([network["title"], *ours, *peers, _faster(network), compiling(network)])
        head = ["ms a step", "from Flax", "as a PyTorch module", "PyTorch loop", "pfl-research", "times faster"]
        dates = sorted({network["date"][:10] for network in networks.values()})
        parts += [
            "Larger ones, with FedAvg and batches of 20, in fedbc and in other ways to simulate, each in its fastest "
            "variant (threads, processes, layout of images): milliseconds per step of training, how many times faster "
            "the model from Flax is than the best of the others, and by how many seconds the first round, which "
            "compiles, is longer than a later one.",
            table([*head, "compiling, s"], rows, "lrrrrrr"),
        ]
        parts += busy_with_others(networks)
        parts.append(
            f"On {here['cores']} cores of {here['cpu']}, {' and '.join(dates)}; more in [Benchmarks](benchmarks.md)."
        )
    return "\n\n".join(parts)


def _milliseconds(network: Record, contestant: str) -> str:
    """A step's time, of the contestant's fastest variant."""
    variants = network["contestants"].get(contestant, {}).values()
    there = [1e3 * step_seconds(r, "train") for r in variants if r.get("train") and "absent" not in r]
    return number(min(there)) if there else "–"


def _faster(network: Record) -> str:
    value = times_faster_than_best(network, "fedbc", {name for name, _ in PEERS})
    return number(value) if value else "–"


def in_order(networks: dict[str, Record]) -> list[tuple[str, Record]]:
    """Those that were measured, in the order of the workloads."""
    return [(name, networks[name]) for name in ALL if name in networks]


def busy_with_others(networks: dict[str, Record]) -> list[str]:
    """A warning, where the machine was not quiet."""
    busy = max(n["cores_kept_busy_by_others"] or 0 for n in networks.values())
    if busy <= QUIET:
        return []
    return [f"**The machine was not quiet: other programs kept up to {busy:g} cores busy. Measure again.**"]


def head_of_peers(own: str, peers: list[tuple[str, str]]) -> list[str]:
    """The heads of `beside_peers`."""
    return ["ms a step", NAMES[own], *(f"{NAMES[name]}, {variant}" for name, variant in peers), "times faster"]


def beside_peers(network: Record, own: str, peers: list[tuple[str, str]], bar: float) -> list[str]:
    """A row: the time a step of one contestant and of its peers, and how many times faster it is than the best."""
    cells = [network["title"]]
    for contestant, variant in [(own, "FedAvg"), *peers]:
        record = network["contestants"].get(contestant, {}).get(variant, {})
        cells.append(number(1e3 * step_seconds(record, "train")) if record.get("train") else "–")
    value = times_faster_than_best(network, own, {name for name, _ in peers})
    return [*cells, verdict(value, value >= bar, f"≥ {bar:g}") if value else "not measured"]


def times_faster_than_best(network: Record, own: str, peers: set[str]) -> float | None:
    """How many times faster a contestant is than the best of the others."""
    ours = network["contestants"].get(own, {}).get("FedAvg", {})
    others = [r for name, them in network["contestants"].items() if name in peers for r in them.values()]
    if not ours.get("train"):
        return None
    return min((ratio(r, ours, "train") for r in others if r.get("train") and "absent" not in r), default=None)

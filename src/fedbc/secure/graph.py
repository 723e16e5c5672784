"""Who exchanges masks and shares with whom: all pairs for few devices, a random graph for many (Bell et al. 2020).

The graph is a ring of the devices in random order, in which each is joined to the nearest on both sides (Bell et al.'s
random Harary graph). The order comes from a digest of all public keys of the attempt, so that every device draws the
same one, and each attempt has another. Nobody chooses it; a server with a device of its own can try out keys, for which
`threshold` leaves room. With a fixed order neighbours that fail together, such as the machines of one site, could take
a neighbourhood below its threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fedbc.secure.session import digest


def degree(devices: int) -> int:
    """How many neighbours each of so many devices has: 8 log2 n, and all others up to 47 devices."""
    if devices < 2:
        return 0
    return min(devices - 1, 2 * math.ceil(4 * math.log2(devices)))


def threshold(devices: int) -> int:
    """How many shares give a secret back: two thirds of its holders, who are the neighbours and the device itself.

    Each holder reveals one of a device's two secrets. Two thirds twice are more than all holders and the less than a
    third of them that may lie: the server cannot learn both.
    """
    return two_thirds(degree(devices) + 1)


def two_thirds(number: int) -> int:
    """How many of so many are two thirds, and more than one: two such parts have more than a third in common."""
    return max(2, math.ceil(2 * number / 3))


def neighbours(devices: Sequence[int], roster: bytes) -> dict[int, tuple[int, ...]]:
    """The neighbours of each device, in order."""
    ring = sorted(devices, key=lambda device: digest(roster, b"order", str(device).encode()))
    number, each = len(ring), degree(len(ring))
    if each >= number - 1:
        return {device: tuple(sorted(set(devices) - {device})) for device in devices}
    near = [step for half in range(1, each // 2 + 1) for step in (half, -half)]
    return {device: tuple(sorted(ring[(place + step) % number] for step in near)) for place, device in enumerate(ring)}


def is_connected(devices: Iterable[int], graph: dict[int, tuple[int, ...]]) -> bool:
    """Whether the masks of these devices hold them together: the sums of two parts apart would each be seen."""
    left = set(devices)
    reached = [left.pop()] if left else []
    while reached:
        found = left.intersection(graph[reached.pop()])
        left -= found
        reached += found
    return not left

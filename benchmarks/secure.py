"""What secure aggregation costs in bytes and seconds, beside the plain sum: `python -m benchmarks.secure`.

The protocol alone, in one process and without a network: a vector of an MLP 784-128-10 (101,770 parameters) as FedBC
with lambda_min > 0 sends it, one device in ten dropping out after its shares were sent. A device's seconds are one
device's; the server's are those of all its stages.
"""

from __future__ import annotations

import time
from collections import defaultdict

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedbc.secure import STAGES, Gathering, Participant, Session, Stage
from fedbc.secure.record import Memory
from fedbc.secure.vectors import Field, Layout

PARAMETERS = 784 * 128 + 128 + 128 * 10 + 10


def measure(devices: int) -> dict[str, float]:
    """One attempt at one sum."""
    layout = Layout({"move": Field((PARAMETERS,), 10.0, 40)})
    session = Session("cost", 1, "train", 1, 2, layout.digest, layout.length)
    signing = {d: ec.generate_private_key(ec.SECP256R1()) for d in range(devices)}
    registered = {d: key.public_key() for d, key in signing.items()}
    people = {d: Participant(d, key, registered, Memory()) for d, key in signing.items()}
    values = np.random.default_rng(0).uniform(-1, 1, (devices, PARAMETERS))
    vectors = [layout.encode({"move": v}) for v in values]
    gone = set(range(0, devices, 10)) if devices >= 10 else {0}
    server, sent, received = Gathering(session, registered), defaultdict(int), defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for stage in STAGES:
        asked = server.asked if server.asked is not None else list(people)
        for device in asked:
            if stage not in (Stage.KEYS, Stage.SHARES) and device in gone:
                continue
            order = server.order(device)
            began = time.process_time()
            answer = people[device].answer(stage, session, order, lambda device=device: vectors[device])  # type: ignore[misc]
            seconds[stage] += (time.process_time() - began) / len(asked)
            received[device] += len(order)
            sent[device] += len(answer)
            began = time.process_time()
            server.take(device, answer)
            seconds["server"] += time.process_time() - began
        began = time.process_time()
        server.close()
        seconds["server"] += time.process_time() - began
    began = time.process_time()
    found = layout.decode(server.sum())["move"]
    seconds["unmasking"] = time.process_time() - began
    stayed = [d for d in range(devices) if d not in gone]
    began = time.process_time()
    plain = values[stayed].astype(np.float32).astype(np.float64).sum(axis=0)
    seconds["plain sum"] = time.process_time() - began
    error = float(np.abs(found - values[stayed].sum(axis=0)).max())
    assert error < 1e-9
    assert plain.shape == found.shape
    return dict(seconds) | {"error": error, "sent": sent[stayed[0]], "received": received[stayed[0]]}


def main() -> None:
    """Print the rows of docs/secure.md."""
    print(f"plain upload: {4 * PARAMETERS:,} bytes as 32-bit floats\n")
    names = ("sent", "received", *STAGES, "server", "unmasking", "plain sum", "error")
    print("| devices | " + " | ".join(str(name) for name in names) + " |")
    for devices in (3, 10, 100):
        row = measure(devices)
        print(f"| {devices} | " + " | ".join(f"{row[name]:.3g}" for name in names) + " |", flush=True)


if __name__ == "__main__":
    main()

"""Real processes that share a run on loopback: each runs this file with its work and its place."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

PATIENCE = 300
"""Seconds for a world of processes: far more than they take, so that a hang is a failure and not a slow machine."""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def network(count):
    """Network namespaces joined by a bridge, each with an address of its own: what a command in each begins with.

    Their machines find nobody at 127.0.0.1. An OSError where this user or system makes none.
    """
    names = [f"fedbc-{os.getpid()}-{index}" for index in range(count)]
    bridge = f"fb{os.getpid()}"

    def ip(*arguments):
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        for index, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", f"{bridge}v{index}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"{bridge}v{index}", "master", bridge, "up")
            ip("-n", name, "addr", "add", f"10.231.7.{1 + index}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for kind, name in (*(("netns", name) for name in names), ("link", bridge)):
            with contextlib.suppress(OSError):
                ip(kind, "del", name)


LAUNCHERS = ("SLURM_", "OMPI_", "MASTER_", "RANK", "WORLD_SIZE", "TORCHELASTIC_", "LOCAL_", "JAX_COORDINATOR_")
"""How variables begin that tell a process its place."""


def environment():
    """What processes are given: one lane, and no launcher's variables but those that a test sets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return kept | {"FEDBC_LANES": "1", "JAX_PLATFORMS": "cpu"}


def start(folder, work, count, *arguments, host="127.0.0.1", inside=None):
    """One process per machine, each behind a command of its own where `inside` has them."""
    port = free_port()
    return [
        subprocess.Popen(
            [
                *(inside[index] if inside else []),
                *(sys.executable, __file__, work, str(index), str(count), f"{host}:{port}", *map(str, arguments)),
            ],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]


def ended(processes):
    """Exit code, standard output and standard error of each."""
    outcomes = []
    try:
        for process in processes:
            out, error = process.communicate(timeout=PATIENCE)
            outcomes.append((process.returncode, out, error))
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    return outcomes


def world(folder, work, count, *arguments):
    """Run a world to its end; all must succeed."""
    outcomes = ended(start(folder, work, count, *arguments))
    for code, _, error in outcomes:
        assert code == 0, error
    return [out for _, out, _ in outcomes]


def federation(seed=2):
    import fedbc

    return fedbc.data.synthetic(devices=11, seed=seed)


ROUNDS = 9
SETTINGS = {"sample": 5, "epochs": 2, "seed": 1, "lanes": 1}


def methods():
    import fedbc

    return [fedbc.FedBC(dual_lr=0.1), fedbc.SCAFFOLD(), fedbc.Ditto(), fedbc.FedYogi()]


def train(name, machine=0, **more):
    """Every method, in a folder of its own."""
    import fedbc

    for algorithm in methods():
        result = fedbc.simulate(
            algorithm,
            fedbc.models.logistic(60, 10),
            federation(),
            rounds=4,
            evaluate=["global", "local", "train", "gradient", "lagrangian"],
            fine_tune=fedbc.FineTune(),
            **SETTINGS,
            **more,
        )
        result.save(Path(name) / f"{algorithm.name}-{machine}")


def scaffold(rounds, folder, on_round=None):
    """A method with state on devices and server, with checkpoints, from where it was."""
    import fedbc

    result = fedbc.simulate(
        fedbc.SCAFFOLD(),
        fedbc.models.logistic(60, 10),
        federation(),
        rounds=rounds,
        checkpoint=folder,
        checkpoint_every=3,
        resume=any(Path(folder).glob("checkpoint*")),
        on_round=on_round,
        **SETTINGS,
    )
    print(result.history[["global_accuracy", "global_loss"]].iloc[-1].to_json())


ON_RAY = {
    "algorithm": {"name": "scaffold"},
    "data": {"name": "synthetic", "devices": 6},
    "run": {"rounds": 80, "sample": 4, "lanes": 1, "evaluate_every": 20},
}


def on_ray(folder):
    """`fedbc run` on two of Ray's processes, of which one is killed after the first checkpoint."""
    import fedbc
    from fedbc.cli import main
    from fedbc.simulation import checkpoints

    killed = []
    file = Path(folder) / "run" / "checkpoint.safetensors"

    def kill_one():
        machines = []
        while len(machines) < 2:
            time.sleep(0.1)
            found = subprocess.run(["pgrep", "-f", "ray::_Machine.run"], capture_output=True, text=True).stdout
            machines = [pid for pid in map(int, found.split()) if _descends(pid)]
        # They stand still while this looks how far they are: they never come to the end meanwhile, on a busy machine.
        while not checkpoints.is_whole(file):
            send(signal.SIGCONT, machines)
            time.sleep(0.02)
            send(signal.SIGSTOP, machines)
        send(signal.SIGKILL, machines[-1:])
        send(signal.SIGCONT, machines[:-1])
        killed.append(machines[-1])

    def send(what, machines):
        for pid in machines:
            os.kill(pid, what)

    threading.Thread(target=kill_one, daemon=True).start()
    os.chdir(folder)
    Path("spec.toml").write_text(fedbc.RunSpec(**ON_RAY).to_toml())
    arguments = "run --config spec.toml --out run --checkpoint-every 5 --tensorboard board --ray local --machines 2"
    main(arguments.split())
    assert len(killed) == 1


def _descends(pid):
    """Whether a process descends from this one."""
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return False


def meet():
    """Join the machines that the environment tells of, and say which one this is."""
    import fedbc

    machines = fedbc.machines.join(seconds=60)
    print(machines, machines.words(f"I am {machines.index}"))


SWEEP = """
[run]
rounds = 2
[[sweep]]
algorithm = { name = "fedbc" }
data = { name = "synthetic", devices = 4 }
"""


def without_ray():
    """What needs no Ray, and then what asks for it, in an empty folder."""
    Path("sweep.toml").write_text(SWEEP)
    small = "--devices 4 --rounds 2"
    assert exit_code(f"run fedbc {small} --out run --quiet") == 0
    assert exit_code("sweep sweep.toml --workers 1 --quiet") == 0
    before = sorted(Path().iterdir())
    for command in ("run fedbc --machines 2", "compare fedbc fedavg", "calibrate", "tune fedbc"):
        assert exit_code(f"{command} {small} --ray local") == 2
    assert exit_code("sweep sweep.toml --out other.jsonl --ray local") == 2
    assert sorted(Path().iterdir()) == before, "something was written"


def exit_code(arguments):
    from fedbc.cli import main

    try:
        main(arguments.split())
    except SystemExit as stop:
        return stop.code or 0


def main(work, *arguments):
    if work == "ray":
        on_ray(*arguments)
    elif work == "meet":
        meet()
    elif work == "without-ray":
        without_ray()
    else:
        share(work, *arguments)


SIGNALS = {"scaffold": signal.SIGKILL, "stopped": signal.SIGSTOP, "interrupted": signal.SIGINT}
"""What a machine does to itself after round 7, by the name of the work."""


def share(work, index, count, address, *arguments):
    import fedbc
    from fedbc import runtime

    index, count = int(index), int(count)
    if work == "stopped":
        fedbc.machines.world.SILENCE = 16
    if work == "other-number" and index == 1:
        count += 1
    if work == "other-version" and index == 1:
        versions = runtime.versions
        runtime.versions = lambda: versions() | {"fedbc": "9.9"}
    machines = fedbc.machines.join(address, index, count, seconds=60)
    if work == "train":
        train(arguments[0], index)
        print(machines.sent)
    elif work in SIGNALS:
        rounds, folder, told = int(arguments[0]), arguments[1], int(arguments[2])

        def on_round(row):
            if index == told and row["round"] == 7:
                os.kill(os.getpid(), SIGNALS[work])

        scaffold(rounds, folder, on_round)
    elif work == "other-data":
        data = federation(seed=2 + (index == 1))
        fedbc.simulate(fedbc.FedAvg(), fedbc.models.logistic(60, 10), data, rounds=1)
    elif work == "own-share":
        own_share(machines, missing=int(arguments[0]))


def own_share(machines, *, missing=-1):
    """Each machine loads the devices that it owns, and no others."""
    import fedbc

    whole = federation()
    asked = []

    def load(share):
        if machines.index == missing:
            raise FileNotFoundError("clinic-3.csv is not here")
        asked.extend(share.devices.tolist())
        return [whole.train.of(d) for d in share.devices], [whole.test.of(d) for d in share.devices]

    data = fedbc.machines.load(load, whole.devices, machines, classes=10, name="clinics")
    result = fedbc.simulate(fedbc.FedBC(), fedbc.models.logistic(60, 10), data, rounds=3, **SETTINGS)
    print(asked, len(data.train.y), result.spec["data"]["checksum"], float(result.history["global_loss"].iloc[-1]))


if __name__ == "__main__":
    main(*sys.argv[1:])

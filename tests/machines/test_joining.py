"""How machines find each other: addresses that are wrong, launchers, and waiting that can be ended."""

import os
import signal
import socket
import subprocess
import sys

import pytest
import worlds

import fedbc
from fedbc.machines.places import Place, place


@pytest.fixture
def variables(monkeypatch):
    """Sets those of a launcher, and no others."""
    for name in [name for name in os.environ if name not in worlds.environment()]:
        monkeypatch.delenv(name)

    def give(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return give


@pytest.fixture
def joining(tmp_path):
    """Starts a process that joins; it says what it prints on standard error."""
    started = []

    def start(port, index, seconds):
        code = f"import fedbc; fedbc.machines.join('127.0.0.1:{port}', {index}, 2, seconds={seconds})"
        process = subprocess.Popen([sys.executable, "-c", code], stderr=-1, text=True, cwd=tmp_path)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("index", "waits", "line"),
    [
        (0, "machine 0 of 2 waits for the others, 5 seconds at most", "waited 5 seconds for the others, and not all"),
        (1, "nobody answers at 127.0.0.1:", "is machine 0 started, and is this its address?"),
    ],
)
def test_nobody_there(joining, index, waits, line):
    """A wrong address, and machines that never come: a line within seconds, and an end."""
    process = joining(worlds.free_port(), index, 5)
    ((status, _, error),) = worlds.ended([process])
    assert status in (1, 2)
    assert waits in error
    assert line in error.strip().splitlines()[-1]


@pytest.mark.parametrize(("index", "status"), [(0, 130), (1, -signal.SIGINT)])
def test_ctrl_c_ends_the_waiting(joining, index, status):
    process = joining(worlds.free_port(), index, 600)
    while "waits" not in (line := process.stderr.readline()):
        assert line, "it ended before it waited"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=worlds.PATIENCE) == status


def test_a_port_that_is_taken(joining):
    """JAX would crash on machine 0."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ((status, _, error),) = worlds.ended([joining(port, 0, 5)])
    assert status == 1
    assert f"port {port} of this machine cannot be had (Address already in use)" in error.strip().splitlines()[-1]


def slurm(index, port):
    return {
        "SLURM_JOB_ID": "1234", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(index), "SLURM_LOCALID": str(index), "JAX_COORDINATOR_PORT": str(port),
    }  # fmt: skip


def open_mpi(index, port):
    return {
        "OMPI_MCA_orte_hnp_uri": "798818304.0;tcp://127.0.0.1:41975", "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": str(index), "OMPI_COMM_WORLD_LOCAL_RANK": str(index),
        "JAX_COORDINATOR_PORT": str(port),
    }  # fmt: skip


@pytest.mark.parametrize("launcher", [slurm, open_mpi], ids=["slurm", "open-mpi"])
def test_machines_meet_by_a_launchers_variables(launcher):
    """As srun of Slurm 22 and mpirun of Open MPI 4.1 set them."""
    port = worlds.free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, worlds.__file__, "meet"],
            env=worlds.environment() | launcher(index, port),
            stdout=-1,
            stderr=-1,
            text=True,
        )
        for index in range(2)
    ]
    for index, (code, out, error) in enumerate(worlds.ended(processes)):
        assert code == 0, error
        assert out == f"machine {index} of 2 ['I am 0', 'I am 1']\n"


def test_machines_meet_under_torchrun():
    """The real one: it listens at MASTER_PORT itself."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command += [worlds.__file__, "meet"]
    process = subprocess.Popen(command, env=worlds.environment(), stdout=-1, stderr=-1, text=True)
    ((code, out, error),) = worlds.ended([process])
    assert code == 0, error
    assert sorted(out.splitlines()) == [f"machine {index} of 2 ['I am 0', 'I am 1']" for index in range(2)]


def test_places(variables):
    """Who is who, from each launcher's variables, without a meeting."""
    variables(**slurm(0, 9000) | {"SLURM_STEP_NODELIST": "localhost,node[002-009]"})
    assert place(None, None, None) == Place("localhost:9000", 0, 2, [0])
    variables(**open_mpi(1, 9000))
    assert place(None, None, None) == Place("127.0.0.1:9000", 1, 2, [1])
    variables(MASTER_ADDR="::1", MASTER_PORT="9000")  # for Open MPI 5, and whatever JAX does not know
    assert place(None, None, None) == Place("[::1]:9000", 1, 2)
    variables(RANK="2", WORLD_SIZE="4", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2")
    assert place(None, None, None) == Place("[::1]:9000", 2, 4, [0])
    variables(TORCHELASTIC_RUN_ID="none", LOCAL_WORLD_SIZE="1")
    assert place(None, None, None) == Place("[::1]:9001", 2, 4)
    assert place("127.0.0.1:7", 0, 3) == Place("127.0.0.1:7", 0, 3)
    variables(RANK="two")
    with pytest.raises(fedbc.InputError, match="RANK='two' is not accepted"):
        place(None, None, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("127.0.0.1:9", 2, 2), "index=2 is not accepted"),
        (("127.0.0.1", 0, 2), "give host:port of machine 0"),
        (("127.0.0.1:99999", 0, 2), "give host:port of machine 0"),
        (("no-such-host.invalid:9", 0, 2), "no-such-host.invalid:9"),
        (("127.0.0.1:9", 0, None), "belong together"),
        ((None, None, None), "nobody says where the machines meet"),
    ],
)
def test_bad_input(variables, monkeypatch, arguments, message):
    monkeypatch.setattr("fedbc.runtime.has_started", lambda: False)
    with pytest.raises(fedbc.InputError, match=message):
        fedbc.machines.join(*arguments)


def test_a_launcher_that_does_not_say_where(variables):
    """Open MPI 5; a batch script of Slurm's without srun."""
    variables(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2")
    with pytest.raises(fedbc.InputError, match="Open MPI does not say where the machines meet"):
        place(None, None, None)


def test_joining_comes_before_computing():
    fedbc.models.logistic(2, 2).init(__import__("jax").random.key(0))
    with pytest.raises(fedbc.InputError, match="join the machines before anything else"):
        fedbc.machines.join("127.0.0.1:9", 0, 2)

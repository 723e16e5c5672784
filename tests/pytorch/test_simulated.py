"""PyTorch modules in the simulator: what JAX's engine gives, for every method; random numbers, resuming, bad input."""

import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import fedbc
from fedbc import algorithms
from fedbc.algorithms.base import Context
from fedbc.errors import DeviceError, InputError
from fedbc.simulation.device import run_key
from fedbc.simulation.rounds import Simulation
from fedbc.simulation.schedule import INIT
from fedbc.simulation.settings import Settings
from fedbc.torch import models as modules
from fedbc.torch import oracle, to_jax, to_torch
from fedbc.torch.program import trace

RUN = {"rounds": 3, "epochs": 2, "batch_size": 5, "sample": 4, "seed": 3, "evaluate": ("global", "local")}
VARIANTS = {
    "fedavg, momentum": fedbc.FedAvg(momentum=0.5),
    "fedbc, momentum": fedbc.FedBC(momentum=0.5, multiplier=0.3, start="local"),
    "fedbc, theory": fedbc.FedBC(bounds="theory"),
    "scaffold, I": fedbc.SCAFFOLD(option="I"),
    "perfedavg, exact": fedbc.PerFedAvg(order="exact"),
    "perfedavg, hessian free": fedbc.PerFedAvg(order="hessian_free"),
    "perfedbc, three inner steps": fedbc.PerFedBC(inner_steps=3),
}
METHODS = {name: kind() for name, kind in algorithms.ALGORITHMS.items()} | VARIANTS


class Curved(nn.Module):
    """One vector of weights, so that its order is JAX's, too."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(7))

    def forward(self, x):
        return x @ torch.tanh(self.w)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_methods_step_is_jaxs(method):
    rng = np.random.default_rng(0)
    x, y, w = (rng.normal(size=s).astype(np.float32) for s in ((5, 7), 5, 7))
    context = Context(*map(jnp.int32, (0, 5, 3)))
    message = method.broadcast(method.init_server(jnp.asarray(w)))
    carry = method.begin(message, method.init_device(jnp.asarray(0.9 * w), context), context)

    def loss(w, batch):
        return jnp.mean((x @ jnp.tanh(w) - y) ** 2)

    theirs = oracle.Batch(jnp.float32(0), jnp.float32(5))
    number = method.batches
    batch = theirs if number == 1 else (theirs,) * number
    program = trace(lambda carry, batch: method.step(oracle.loss, carry, batch), carry, batch)
    step = jax.jit(lambda carry: method.step(loss, carry, batch))
    module = Curved()
    asked = oracle.Oracle(module, [module.w], lambda m, x: m(x), lambda outputs, y: ((outputs - y) ** 2).mean())
    part = [oracle.Part(torch.tensor(x), torch.tensor(y), None)]
    values = [torch.tensor(np.asarray(a)) if a.ndim else a.item() for a in jax.tree.leaves(carry)]
    for _ in range(3):
        carry = step(carry)
        values = program(asked, [*values, *[part, 5.0] * number])
    for ours, mine in zip(jax.tree.leaves(carry), values, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(ours), rtol=2e-5, atol=2e-5)


def equal_runs(algorithm, federation, **changes):
    run = RUN | changes
    jaxs, module = fedbc.models.mlp(4, 6, 3), modules.MLP(4, 6, 3)
    module.load_state_dict(to_torch(jaxs.init(run_key(run["seed"], INIT))))
    ours = fedbc.simulate(algorithm, jaxs, federation, **run)
    mine = fedbc.simulate(algorithm, fedbc.torch.model(module), federation, **run)
    as_jaxs = to_jax({name: torch.tensor(a) for name, a in mine.global_model.items()})
    for a, b in zip(jax.tree.leaves(ours.global_model), jax.tree.leaves(as_jaxs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    columns = [c for c in ours.history if "seconds" not in c]
    np.testing.assert_allclose(mine.history[columns], ours.history[columns], rtol=1e-4, atol=1e-5)
    for name in set(ours.devices):
        np.testing.assert_allclose(mine.devices[name], ours.devices[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        (fedbc.FedBC(lr=0.05, dual_lr=0.5, momentum=0.5), {}),
        (fedbc.PerFedBC(lr=0.05), {"sample": None}),
        (fedbc.SCAFFOLD(lr=0.05), {"batch_size": None}),
    ],
    ids=["fedbc", "perfedbc, all devices", "scaffold, full batches"],
)
def test_a_run_is_that_of_jaxs_engine(algorithm, changes, small):
    equal_runs(algorithm, small, **changes)


class Random(nn.Module):
    """With dropout."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))

    def forward(self, x):
        return self.body(x)


def noisy(x):
    return x + 0.1 * torch.randn_like(x)


def history(result):
    return result.history[[c for c in result.history if "seconds" not in c]]


def test_random_numbers_come_from_the_seed_and_a_run_resumes_to_the_same_bits(small, tmp_path):
    model = fedbc.torch.model(Random, transform=noisy)
    algorithm = fedbc.FedBC(lr=0.05, dual_lr=0.5)
    before = torch.get_rng_state()
    whole = fedbc.simulate(algorithm, model, small, **RUN)
    assert torch.equal(before, torch.get_rng_state())
    fedbc.simulate(algorithm, model, small, checkpoint=tmp_path, **RUN | {"rounds": 2})
    resumed = fedbc.simulate(algorithm, model, small, checkpoint=tmp_path, resume=True, **RUN)
    for a, b in zip(jax.tree.leaves(whole.global_model), jax.tree.leaves(resumed.global_model), strict=True):
        assert np.array_equal(a, b)
    assert history(whole).equals(history(resumed))
    one_lane = fedbc.simulate(algorithm, model, small, lanes=1, **RUN)
    np.testing.assert_allclose(history(one_lane), history(whole), rtol=1e-4)
    other = fedbc.simulate(algorithm, model, small, **RUN | {"seed": 4, "rounds": 1})
    assert not np.allclose(other.global_model["body.0.weight"], whole.global_model["body.0.weight"])


def test_debug_mode_calls_the_same_module_with_the_same_random_numbers(make_federation):
    full = make_federation((10, 15))  # where a batch is not full, debug mode fills it, and numbers are drawn for more
    model = fedbc.torch.model(Random, transform=noisy)
    run = RUN | {"rounds": 1, "sample": None, "epochs": 1, "evaluate": ("global",)}
    fast, slow = (fedbc.simulate(fedbc.FedBC(lr=0.05), model, full, debug=debug, **run) for debug in (False, True))
    np.testing.assert_allclose(fast.global_model["body.0.weight"], slow.global_model["body.0.weight"], atol=1e-6)


def test_a_loss_of_ones_own_and_other_evaluations(small):
    def huber(outputs, y):
        return nn.functional.huber_loss(outputs, nn.functional.one_hot(y, 3).float(), reduction="none").mean(1)

    model = fedbc.torch.model(Random, loss=huber, correct=lambda outputs, y: outputs.argmax(1) == y)
    run = RUN | {"rounds": 2, "evaluate": ("global", "local", "train", "gradient", "lagrangian")}
    last = fedbc.simulate(fedbc.FedBC(lr=0.5), model, small, **run).history.iloc[-1]
    assert last["global_loss"] < 0.2
    assert 0 < last["gradient_sqnorm"] < 1
    assert 0 <= last["global_accuracy"] <= 1


class Adapted(nn.Module):
    """A frozen layer with a few trained numbers beside it."""

    def __init__(self, width=64):
        super().__init__()
        self.frozen = nn.Linear(4, width)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(torch.relu(self.frozen(x)))


def test_frozen_parameters_are_no_part_of_training_summand_and_drift(small):
    run = Simulation(fedbc.FedBC(lr=0.05), fedbc.torch.model(Adapted), small, Settings(sample=3))
    run.go(2)
    result = run.result()
    assert set(result.global_model) == {"head.weight", "head.bias"}
    numbers = 64 * 3 + 3
    assert run.store.bytes_per_device == 4 * (numbers + 2)  # x_i, lambda_i, gamma_i
    summand = jax.tree.leaves(run.engine.shapes.summand)
    assert sum(leaf.size for leaf in summand) == 2 * numbers + 2


class Wrong(nn.Module):
    """Does what it is told to do wrongly."""

    def __init__(self, how=lambda outputs: outputs):
        super().__init__()
        self.layer, self.how = nn.Linear(4, 3), how

    def forward(self, x):
        return self.how(self.layer(x))


def broken():
    module = Wrong()
    module.layer.weight.data[0, 0] = float("nan")
    return module


def frozen():
    return Wrong().requires_grad_(False)


BAD = {
    "rows": (lambda: Wrong(lambda o: o[:1]), r"Wrong returns shape \(1, 3\) for a batch of 2 examples"),
    "kind": (lambda: Wrong(lambda o: (o, o)), "Wrong returns a tuple"),
    "outputs": (lambda: Wrong(lambda o: o[:, :2]), "Wrong has 2 outputs"),
    "NaN": (broken, "module Wrong has weights that are not finite before training: layer.weight"),
    "batch": (
        lambda: nn.Linear(5, 3),
        "module Linear does not take a batch of shape \\(2, 4\\), float32: mat1 and mat2",
    ),
    "frozen": (frozen, "Wrong has no parameters to train"),
    "half": (lambda: Wrong().half(), "Wrong has parameters of torch.float16"),
    "double": (lambda: Wrong().double(), "Wrong is in float64: set jax_enable_x64"),
    "no module": (lambda: 5, "gives a int, not a torch.nn.Module"),
    "arguments": (nn.Linear, r"class 'torch.nn.*Linear'> cannot be made \(.*missing 2 required"),
    "no sizes": (lambda: nn.LazyLinear(3), r"LazyLinear has parameters without a shape \(weight\)"),
}


@pytest.mark.parametrize(("make", "line"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_told_in_one_line(make, line, small):
    with pytest.raises(InputError, match=line) as raised:
        fedbc.simulate(fedbc.FedAvg(), fedbc.torch.model(make), small, rounds=1)
    assert "\n" not in str(raised.value)


def test_a_module_that_cannot_be_copied_is_told():
    module = Wrong()
    module.held = (i for i in range(3))
    with pytest.raises(InputError, match=r"module Wrong cannot be copied .*generator") as raised:
        fedbc.torch.model(module)
    assert "give its class, or a function that makes one" in str(raised.value)


def test_a_module_that_cannot_be_copied_is_made_by_its_function(small):
    def make(held):
        module = Wrong()
        module.held = held()
        return module

    ends = [
        fedbc.simulate(fedbc.FedAvg(), fedbc.torch.model(lambda held=held: make(held)), small, **RUN)
        for held in (lambda: (i for i in range(3)), lambda: None)
    ]
    for ours, theirs in zip(*(jax.tree.leaves(end.global_model) for end in ends), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("module", [Wrong(), Wrong], ids=["module", "class"])
def test_a_module_in_the_place_of_a_model_is_told_how_to_become_one(module, small):
    with pytest.raises(InputError, match=r"^model=.*Wrong.* give a Model, for example fedbc.torch.model\(") as raised:
        fedbc.simulate(fedbc.FedAvg(), module, small)
    assert "\n" not in str(raised.value)


class Picky(nn.Linear):
    def forward(self, x):
        if self.training and len(x) == 3:
            raise ValueError("three is too few")
        return super().forward(x)


class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (Picky, r"module Picky does not take a batch of shape \(3, 4\), float32 in training: three is too few"),
        (Detached, "the loss of module Detached does not depend on its parameters"),
    ],
)
def test_an_error_in_a_worker_names_round_device_and_module(module, line, small):
    with pytest.raises(DeviceError, match=rf"^round 1, device \d: {line}") as raised:
        fedbc.simulate(fedbc.FedAvg(), fedbc.torch.model(lambda: module(4, 3)), small, rounds=1, batch_size=5, lanes=1)
    assert "\n" not in str(raised.value)


def test_a_killed_worker_is_told_and_none_is_left(small):
    run = Simulation(fedbc.FedAvg(), fedbc.torch.model(Wrong), small, Settings())
    run.advance()
    numbers = [worker.number for worker in run.training._workers]
    os.kill(numbers[0], signal.SIGKILL)
    with pytest.raises(DeviceError, match=r"round 2, device .*: a worker process ended"):
        run.advance()
    run.advance()  # with new ones
    numbers += [worker.number for worker in run.training._workers]
    assert len(numbers) == 2 * run.engine.lanes.count
    run.go(3)
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_workers_end_with_the_process_that_made_them(tmp_path):
    code = """
import fedbc, sys, time
fed = fedbc.data.federation([([[1.0, 2.0]], [0])] * 2, [([[1.0, 2.0]], [1])] * 2, classes=2)
from fedbc.simulation.rounds import Simulation, Settings
import torch
run = Simulation(fedbc.FedAvg(), fedbc.torch.model(lambda: torch.nn.Linear(2, 2)), fed, Settings(evaluate=()))
run.advance()
print(*[w.number for w in run.training._workers], flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True) as process:
        numbers = [int(n) for n in process.stdout.readline().split()]
        assert numbers
        process.kill()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(os.path.exists(f"/proc/{n}") and _runs(n) for n in numbers):
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{n}") and _runs(n) for n in numbers)


def _runs(number):
    with open(f"/proc/{number}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"


def test_without_pytorch_one_line_says_so():
    code = "import sys; sys.modules['torch'] = None; import fedbc; fedbc.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith('fedbc.torch needs PyTorch, which is not installed: pip install "fedbc[torch]"')


class Normed(nn.Module):
    """With a BatchNorm."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize("statistics", ["local", "averaged"])
def test_buffers_go_with_the_device_or_are_averaged(statistics, make_federation):
    federation = make_federation((10, 15))
    model = fedbc.torch.model(Normed, statistics=statistics)
    run = RUN | {"rounds": 2, "sample": None, "evaluate": ("global",)}
    fast, slow = (fedbc.simulate(fedbc.FedBC(lr=0.1), model, federation, debug=d, **run) for d in (False, True))
    for ours, theirs in ((fast.global_model, slow.global_model), (fast.local_models, slow.local_models)):
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    counted = fast.local_models["statistics"]["body.1.num_batches_tracked"]
    first, second = 2 * 2, 2 * 3  # batches a round
    if statistics == "local":
        assert counted.tolist() == [2 * first, 2 * second]
    else:
        assert counted.tolist() == [5 + first, 5 + second]  # round 1 ends at 4 and 6, whose mean is 5.2


def test_a_batch_norm_takes_a_batch_of_one_example(make_federation):
    federation, model = make_federation((11, 15)), fedbc.torch.model(Normed)
    run = RUN | {"rounds": 2, "sample": None, "evaluate": ("global",)}
    fast, slow = (fedbc.simulate(fedbc.FedBC(lr=0.1), model, federation, debug=d, **run) for d in (False, True))
    for a, b in zip(jax.tree.leaves(fast.local_models), jax.tree.leaves(slow.local_models), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_schedules_and_optimizers_are_jaxs(small):
    equal_runs(fedbc.FedBC(lr=0.05), small, optimizer="adam", lr_schedule=lambda round: 1 / (1 + round), clip=1.0)


def test_the_example_trains_adapters_on_a_frozen_transformer(capsys):
    script = Path(__file__).parents[2] / "examples" / "own_adapters.py"
    result = runpy.run_path(str(script))["main"](rounds=10)
    assert "1040 of 27344 parameters" in capsys.readouterr().out
    assert result.history["global_accuracy"].iloc[-1] > 0.3

"""Weights travel between a state_dict and arrays in both directions, to the bit, and only if they fit."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import fedbc
from fedbc.torch import buffers, load_arrays, parameters, to_arrays, to_state_dict


def network():
    """Floating and whole-number buffers, a scalar, a shared weight."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 6))
    module[4].weight = module[3].weight
    module.register_buffer("seen", torch.tensor([3, 2**40]))
    module.register_buffer("mask", torch.tensor([True, False]))
    with torch.no_grad():
        module(torch.randn(8, 4))  # moves the running statistics
    return module


def test_there_and_back_to_the_bit():
    module, other = network(), network()
    arrays = to_arrays(module)
    assert arrays["1.num_batches_tracked"].dtype == np.int64
    assert arrays["1.num_batches_tracked"] == 1
    assert arrays["seen"].tolist() == [3, 2**40]
    assert arrays["mask"].dtype == bool
    for tensor in other.state_dict().values():
        tensor.zero_()
    load_arrays(other, arrays)
    for name, tensor in module.state_dict().items():
        assert other.state_dict()[name].dtype == tensor.dtype
        assert torch.equal(other.state_dict()[name], tensor), name
    assert other[4].weight is other[3].weight


def test_arrays_do_not_change_with_training():
    module = network()
    arrays = to_arrays(module)
    with torch.no_grad():
        module[0].weight.add_(1)
    assert not np.array_equal(arrays["0.weight"], module[0].weight.detach().numpy())


def test_state_dict_from_arrays_loads_strictly():
    module = network()
    state = to_state_dict(to_arrays(module.state_dict()), module)
    network().load_state_dict(state, strict=True)


def test_parameters_and_buffers_share_the_state_dict():
    module = network()
    assert "4.weight" not in parameters(module)  # it is 3.weight
    assert set(buffers(module)) == {"1.running_mean", "1.running_var", "1.num_batches_tracked", "seen", "mask"}
    assert set(parameters(module)) | set(buffers(module)) | {"4.weight"} == set(module.state_dict())


def test_parameters_alone_leave_the_buffers():
    module, other = network(), network()
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.add_(1)
        other(torch.randn(8, 4))
    kept = buffers(other)
    load_arrays(other, parameters(module))
    assert all(np.array_equal(kept[name], value) for name, value in buffers(other).items())
    assert all(np.array_equal(parameters(module)[name], value) for name, value in parameters(other).items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_types(dtype):
    module = nn.Linear(3, 2).to(dtype)
    arrays = to_arrays(module)
    assert arrays["weight"].dtype == (np.float32 if dtype == torch.bfloat16 else str(dtype).removeprefix("torch."))
    other = nn.Linear(3, 2).to(dtype)
    load_arrays(other, arrays)
    assert torch.equal(other.weight, module.weight)
    assert other.weight.dtype == dtype


def test_another_floating_type_is_rounded():
    module = nn.Linear(3, 2)
    load_arrays(module, {"weight": np.full((2, 3), 0.1), "bias": np.zeros(2)})
    assert module.weight.dtype == torch.float32
    assert module.weight.detach().numpy()[0, 0] == np.float32(0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0.weight": None}, r"they lack 0\.weight$"),
        ({"extra": np.zeros(1)}, "unknown to the module, extra"),
        ({"0.weight": np.zeros((6, 5), np.float32)}, r"0\.weight has shape \(6, 5\), not \(6, 4\)"),
        ({"0.weight": np.zeros((6, 4), int)}, r"0\.weight is int64, the module has torch\.float32"),
        ({"seen": np.zeros(2)}, r"seen is float64, the module has torch\.int64"),
        ({"0.weight": np.zeros((6, 4), complex)}, r"0\.weight is complex128"),
        ({"0.weight": np.full((6, 4), "a")}, r"0\.weight is <U1"),
        ({"mask": np.array([2, 0])}, r"mask has numbers too large for torch\.bool"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(change, message):
    module = network()
    before = to_arrays(module)
    arrays = {name: value for name, value in ({**before, **change}).items() if value is not None}
    arrays["1.bias"] = arrays["1.bias"] + 1
    with pytest.raises(fedbc.InputError, match=message):
        load_arrays(module, arrays)
    assert all(np.array_equal(value, before[name]) for name, value in to_arrays(module).items())


def test_what_cannot_travel_is_refused():
    with pytest.raises(fedbc.InputError, match="complex64"):
        to_arrays({"w": torch.zeros(2, dtype=torch.complex64)})
    with pytest.raises(fedbc.InputError, match="'_extra_state' of the state_dict is a dict"):
        to_arrays({"_extra_state": {}})


def test_the_core_does_not_import_pytorch():
    code = "import sys, fedbc, fedbc.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

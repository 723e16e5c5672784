"""The devices' states on the host: what is put there comes back, by whichever way it is copied."""

import numpy as np
import pytest

from fedbc.simulation.schedule import Batching, Planner
from fedbc.simulation.store import LONG, DeviceStore


@pytest.mark.parametrize("width", [3, LONG + 1])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_latest_state_of_each_device_is_found_again(width, parts):
    population, draw = 9, np.random.default_rng(0)
    store = DeviceStore({"x": np.zeros(width, np.float32), "n": np.zeros((), np.int32)}, population)
    planner = Planner(np.arange(population + 1) * 4, Batching(2, 1), sample=4, lanes=2, seed=1)
    latest, round_of = {}, {}
    for round in range(1, 8):
        plan = planner.plan(round)
        states, fresh = store.take(plan.devices)
        for place in zip(*plan.places, strict=True):
            device = int(plan.devices[place])
            assert fresh[place] == (device not in latest)
            if device in latest:
                np.testing.assert_array_equal(states["float32"][place], latest[device])
                assert states["int32"][place] == round_of[device]
        new = {
            "float32": draw.normal(size=(*plan.devices.shape, width)).astype(np.float32),
            "int32": np.full((*plan.devices.shape, 1), round, np.int32),
        }
        store.put(plan, [dict(zip(new, arrays, strict=True)) for arrays in _split(new, parts)])
        for place in zip(*plan.places, strict=True):
            latest[int(plan.devices[place])] = new["float32"][place].copy()
            round_of[int(plan.devices[place])] = round
    assert 4 < store.count == len(latest) <= population
    for device, row in zip(store.devices, store.stacks["x"], strict=True):
        np.testing.assert_array_equal(row, latest[int(device)])


def _split(states, parts):
    """Each thread's lanes."""
    return zip(*(np.split(array, parts) for array in states.values()), strict=True)

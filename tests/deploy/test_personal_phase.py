"""The last phase of a deployment: each device personalises the final model, and nothing of that leaves it."""

import numpy as np

import fedbc


def test_devices_personalise_for_themselves(deployed, make_federation, tiny_model, tmp_path):
    two = make_federation(sizes=(20, 30))
    settings = {"run__rounds": 1, "run__seed": 5, "run__evaluate": "global"}
    found = deployed(two, algorithm__name="fedbc", run__personalize=True, **settings)
    result = found.run()
    plain = fedbc.simulate(fedbc.FedBC(), tiny_model, two, rounds=1, seed=5, evaluate=["global"])
    np.testing.assert_allclose(result.global_model["w"], plain.global_model["w"], atol=1e-6)
    assert list(result.history.columns) == list(plain.history.columns)
    places = sorted(tmp_path.rglob("personal/personalized.safetensors"))
    assert len(places) == 2
    for device, place in enumerate(places):
        assert f"device-{device}" in str(place)
        assert place.stat().st_mode & 0o077 == 0
        own = fedbc.load_personalized(place)
        alone = fedbc.data.subset(two, [device])
        wanted = fedbc.personalize(result.global_model, tiny_model, alone, seed=5)
        np.testing.assert_allclose(own.tolerances, wanted.tolerances, rtol=1e-4)
        np.testing.assert_allclose(own.local_accuracy, wanted.local_accuracy)

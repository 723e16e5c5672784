"""Devices kept out of training: z and personal models on them, and nothing of them in training."""

import numpy as np
import pytest

import fedbc


def test_they_have_no_part_in_training_and_columns_of_their_own(small, tiny_model):
    out = fedbc.simulate(fedbc.FedBC(lr=0.05), tiny_model, small, rounds=3, unseen=[1, 4])
    rest = fedbc.data.subset(small, [0, 2, 3])
    alone = fedbc.simulate(fedbc.FedBC(lr=0.05), tiny_model, rest, rounds=3)
    for name in ("global_accuracy", "local_accuracy", "global_loss"):
        assert out.history[name].tolist() == alone.history[name].tolist()
    later = fedbc.data.subset(small, [1, 4])
    right = []
    for device in range(2):
        x, y = later.test.of(device)
        right.append(np.argmax(tiny_model.apply(out.global_model, x), -1) == y)
    assert out.history["unseen_accuracy"].iloc[-1] == pytest.approx(np.concatenate(right).mean())
    assert out.history["unseen_accuracy_mean"].iloc[-1] == pytest.approx(np.mean([r.mean() for r in right]))


def test_personalisation_serves_them_too(small, tiny_model):
    out = fedbc.simulate(fedbc.FedBC(lr=0.05), tiny_model, small, rounds=3, unseen=[1, 4])
    personal = fedbc.personalize(out, tiny_model, small)
    assert personal.unseen.tolist() == [False, True, False, False, True]
    assert personal.advice["unseen"].tolist() == personal.unseen.tolist()
    # x_i of a device that took no part is z; that of device 2, the second that trained, its own
    trained, z = personal.accuracy("trained"), personal.global_accuracy
    assert trained[1] == z[1]
    x, y = small.test.of(2)
    own = {name: leaf[1] for name, leaf in out.local_models.items()}
    assert trained[2] == pytest.approx(np.mean(np.argmax(tiny_model.apply(own, x), -1) == y))


def test_a_share_is_drawn_by_the_seed(small):
    from fedbc.data import apart, unseen_devices

    drawn = unseen_devices(small, 0.4, 3)
    assert len(drawn) == 2
    assert drawn.tolist() == unseen_devices(small, 0.4, 3).tolist()
    assert len({tuple(unseen_devices(small, 0.4, seed)) for seed in range(9)}) > 1
    seen, later = apart(small, 0.4, 3)
    assert sorted(map(int, (*seen.device_names, *later.device_names))) == list(range(5))


@pytest.mark.parametrize("unseen", [0.0, 1.0, 0.1, [7], [0, 0], [0, 1, 2, 3, 4], [], True])
def test_what_cannot_be_is_refused(unseen, small, tiny_model):
    with pytest.raises(fedbc.InputError, match="unseen"):
        fedbc.simulate(fedbc.FedAvg(), tiny_model, small, rounds=1, unseen=unseen)


def test_a_sample_is_one_of_those_that_train(small, tiny_model):
    with pytest.raises(fedbc.InputError, match="4 devices that train"):
        fedbc.simulate(fedbc.FedAvg(), tiny_model, small, rounds=1, unseen=[0], sample=5)

"""The pull is 2 lambda (w - z) on the gradient, for any optimiser and any way to call it."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam

import fedbc
from fedbc.torch import ProximalSGD, Pull

TARGET = torch.tensor([3.0, -1.0])


def scalar_problem(start=(1.0, 2.0)):
    w = nn.Parameter(torch.tensor(start))
    return w, lambda: 0.5 * ((w - TARGET) ** 2).sum()


def descend(optimizer, loss, steps=5, *, closure=False):
    def evaluate():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    for _ in range(steps):
        if closure:
            optimizer.step(evaluate)
        else:
            evaluate()
            optimizer.step()


def by_hand(start, centre, multiplier, lr, momentum, steps):
    w, v, target = np.array(start), 0.0, TARGET.double().numpy()
    for _ in range(steps):
        v = momentum * v + (w - target) + 2 * multiplier * (w - np.array(centre))
        w = w - lr * v
    return w


@pytest.mark.parametrize("closure", [False, True])
def test_sgd_by_hand(closure):
    w, loss = scalar_problem()
    descend(ProximalSGD([w], lr=0.1, momentum=0.5, multiplier=0.7), loss, closure=closure)
    expected = by_hand((1.0, 2.0), (1.0, 2.0), 0.7, 0.1, 0.5, 5)
    np.testing.assert_allclose(w.detach().numpy(), expected, rtol=1e-6)


def test_anchor_begins_a_new_round():
    w, loss = scalar_problem()
    optimizer = ProximalSGD([w], lr=0.1, momentum=0.5, multiplier=0.7)
    descend(optimizer, loss)
    middle = w.detach().double().numpy()
    optimizer.anchor(1.3)
    descend(optimizer, loss)
    np.testing.assert_allclose(w.detach().numpy(), by_hand(middle, middle, 1.3, 0.1, 0.5, 5), rtol=1e-6)


def test_a_centre_of_its_own():
    w, loss = scalar_problem()
    optimizer = SGD([w], lr=0.1)
    with Pull(optimizer, 2.0, [torch.zeros(2)]):
        descend(optimizer, loss)
    np.testing.assert_allclose(w.detach().numpy(), by_hand((1.0, 2.0), (0, 0), 2.0, 0.1, 0, 5), rtol=1e-6)
    middle = w.detach().double().numpy()
    descend(optimizer, loss)  # the pull is gone
    np.testing.assert_allclose(w.detach().numpy(), by_hand(middle, (0, 0), 0.0, 0.1, 0, 5), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "closure", "steps"),
    [
        (lambda w: Adam([w], lr=0.05), False, 600),
        (lambda w: LBFGS([w], max_iter=20), True, 3),
        (lambda w: SGD([w], lr=0.1, momentum=0.9, nesterov=True), False, 300),
    ],
    ids=["adam", "lbfgs", "nesterov"],
)
def test_any_optimiser_reaches_the_proximal_point(make, closure, steps):
    """argmin ½(w - t)² + lambda (w - z)² = (t + 2 lambda z) / (1 + 2 lambda)"""
    w, loss = scalar_problem()
    optimizer = make(w)
    Pull(optimizer, 1.5)
    descend(optimizer, loss, steps, closure=closure)
    expected = (TARGET.numpy() + 3 * np.array([1.0, 2.0])) / 4
    np.testing.assert_allclose(w.detach().numpy(), expected, atol=1e-4)


def test_schedulers_work_with_it():
    w, loss = scalar_problem()
    optimizer = ProximalSGD([w], lr=0.1, multiplier=0.7)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    descend(optimizer, loss, 1)
    scheduler.step()
    first = by_hand((1.0, 2.0), (1.0, 2.0), 0.7, 0.1, 0, 1)
    descend(optimizer, loss, 1)
    np.testing.assert_allclose(w.detach().numpy(), by_hand(first, (1.0, 2.0), 0.7, 0.05, 0, 1), rtol=1e-6)


def test_unused_parameters_are_pulled_and_frozen_ones_are_not():
    w, loss = scalar_problem()
    unused, frozen = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer = SGD([w, unused, frozen], lr=0.1)
    Pull(optimizer, 1.0, [torch.zeros(2), torch.zeros(1), torch.zeros(1)])
    descend(optimizer, loss, 1)
    assert float(unused.detach()) == pytest.approx(0.8)
    assert float(frozen) == 1.0


def test_bad_arguments():
    w, _ = scalar_problem()
    with pytest.raises(fedbc.InputError, match="multiplier=-1"):
        ProximalSGD([w], lr=0.1, multiplier=-1.0)
    with pytest.raises(fedbc.InputError, match="centre does not fit"):
        Pull(SGD([w], lr=0.1), 1.0, [torch.zeros(3)])

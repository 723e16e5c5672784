"""The synthetic federation of Li et al. (2018), as the FedBC paper uses it.

Device i draws u_i ~ N(0, alpha) and B_i ~ N(0, beta); its labelling model W_i (10 × 60) and b_i have entries
~ N(u_i, 1); the mean v_i of its examples has entries ~ N(B_i, 1); an example is x ~ N(v_i, Sigma) with
Sigma diagonal, Sigma_jj = j^-1.2, and its label argmax(W_i x + b_i). alpha and beta are standard deviations here,
as in the generator that produced the paper's tables.
"""

from __future__ import annotations

import numpy as np

from fedbc import checks
from fedbc.data.federation import Federation, federation


def synthetic(
    devices: int = 30,
    alpha: float = 0.5,
    beta: float = 0.5,
    seed: int = 1,
    *,
    iid: bool = False,
    features: int = 60,
    classes: int = 10,
    test_share: float = 0.2,
) -> Federation:
    """Synthetic classification data for any number of devices.

    devices: how many there are.
    alpha: how much the devices' labelling models differ.
    beta: how much the devices' examples differ.
    seed: of the draw of the data.
    iid: one labelling model and one distribution of examples for all devices (alpha and beta then do not matter).
    features: how many numbers an example has.
    classes: how many classes there are.
    test_share: the share of each device's examples that is for testing.
    Sizes are int(lognormal(4, 2)) + 50 examples per device, a heavy-tailed law; `test_share` of each device's
    examples, drawn at random, is its test set.
    """
    checks.integer("devices", devices, at_least=1)
    checks.number("alpha", alpha, at_least=0)
    checks.number("beta", beta, at_least=0)
    checks.integer("seed", seed, at_least=0)
    checks.integer("features", features, at_least=1)
    checks.integer("classes", classes, at_least=2)
    checks.number("test_share", test_share, above=0, below=1)

    rng = np.random.default_rng([seed, 0])
    sizes = rng.lognormal(4, 2, devices).astype(int) + 50
    deviation = np.arange(1, features + 1) ** -0.6  # the square root of the variances j^-1.2
    common_w, common_b = rng.normal(0, 1, (features, classes)), rng.normal(0, 1, classes)

    train, test = [], []
    for size in sizes:
        if iid:
            w, b, centre = common_w, common_b, np.zeros(features)
        else:
            u, shift = rng.normal(0, alpha), rng.normal(0, beta)
            w, b = rng.normal(u, 1, (features, classes)), rng.normal(u, 1, classes)
            centre = rng.normal(shift, 1, features)
        x = rng.normal(centre, deviation, (size, features))
        y = np.argmax(x @ w + b, axis=1)
        kept = size - max(1, int(test_share * size))
        train.append((x[:kept], y[:kept]))
        test.append((x[kept:], y[kept:]))
    kind = "iid" if iid else f"alpha={alpha:g}, beta={beta:g}"
    return federation(train, test, classes=classes, name=f"synthetic({kind}, devices={devices}, seed={seed})")

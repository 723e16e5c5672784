"""What privacy costs in accuracy: FedBC with more and more noise, 1,000 devices with synthetic data, 500 a round.

python examples/private_synthetic.py
"""

from __future__ import annotations

import fedbc
from fedbc.privacy import Private, epsilon

NOISE = (0.0, 0.02, 0.1, 0.3, 1.0)


def main(
    devices: int = 1000, sample: int = 500, rounds: int = 50, noises: tuple[float, ...] = NOISE
) -> list[dict[str, float]]:
    federation = fedbc.data.synthetic(devices=devices, seed=1)
    model = fedbc.models.logistic(60, 10)
    method = fedbc.FedBC(lr=0.01, dual_lr=0.01, lambda_min=0.002, lambda_max=0.01, multiplier=0.002)
    rows = []
    print("   m   against the server   against others   global accuracy   local accuracy")
    for noise in noises:
        private = Private(method, clip=0.2, noise_multiplier=noise)
        result = fedbc.simulate(
            private, model, federation, rounds=rounds, sample=sample, seed=1, evaluate_every=max(1, rounds // 10)
        )
        last = result.history.dropna().iloc[-3:]
        row = {
            "noise": noise,
            "server": epsilon(noise, rounds=rounds, delta=1e-5),
            "others": epsilon(noise, rounds=rounds, delta=1e-5, devices=sample),
            "global": last["global_accuracy"].mean(),
            "local": last["local_accuracy"].mean(),
        }
        rows.append(row)
        print("{noise:4g} {server:20.3g} {others:16.3g} {global:17.3f} {local:16.3f}".format(**row), flush=True)
    return rows


if __name__ == "__main__":
    main()

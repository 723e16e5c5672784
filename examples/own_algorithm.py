"""A method of your own: FedNova (Wang et al., "Tackling the Objective Inconsistency Problem", NeurIPS 2020).

Devices with more data take more local steps, and FedAvg's mean favours them twice. FedNova averages *mean steps*:

    device:  w^0 = z, K_i steps w <- w - lr ∇f_i(w),  d_i = (z - w) / K_i
    server:  z <- z - K Σ p_i d_i,   K = Σ p_i K_i,   p_i = n_i / Σ n_i   over the sampled devices

Everything a method is goes into one frozen dataclass. The server only ever sees the *sum* of the devices' summands, so
write your update as a function of a sum: here Σ n_i d_i, Σ n_i K_i and Σ n_i.

Run it with: python examples/own_algorithm.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

import fedbc
from fedbc import checks, trees
from fedbc.algorithms import Context, Finished, parameter


@dataclass(frozen=True)
class FedNova(fedbc.Algorithm):
    """Federated averaging of normalised local steps."""

    name: ClassVar[str] = "fednova"
    lr: float = parameter(0.01, "rate of the local steps")

    def __post_init__(self) -> None:
        checks.number("lr", self.lr, above=0)

    def init_server(self, params: Any) -> Any:
        return params  # the server keeps z alone; any pytree of arrays would do

    def init_device(self, params: Any, context: Context) -> Any:
        return params  # what a device keeps from round to round: here its last model

    def local_model(self, device: Any) -> Any:
        return device

    def begin(self, message: Any, device: Any, context: Context) -> Any:
        return {"w": message, "z": message, "loss": jnp.zeros(()), "n": context.examples, "K": context.steps}

    def step(self, loss: Any, carry: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(carry["w"], batch)
        return {**carry, "w": trees.axpy(-self.lr, gradient, carry["w"]), "loss": carry["loss"] + value}

    def finish(self, carry: Any) -> Finished:
        w, z = carry["w"], carry["z"]
        n, K = jnp.asarray(carry["n"], float), jnp.asarray(carry["K"], float)
        summand = {"nd": trees.scale(n / K, trees.sub(z, w)), "nK": n * K, "n": n}
        info = {"drift": trees.sqdist(w, z), "loss": carry["loss"] / K, "weight": n}
        return Finished(w, summand, info)

    def update(self, server: Any, total: Any, population: Any) -> Any:
        return trees.axpy(-total["nK"] / total["n"] ** 2, total["nd"], server)


def main(rounds: int = 100) -> dict[str, dict[str, float]]:
    """Compare it with FedAvg on the synthetic federation; a table of the means of the last rounds."""
    federation, model = fedbc.data.synthetic(devices=30, seed=1), fedbc.models.logistic(60, 10)
    table = {}
    for algorithm in (fedbc.FedAvg(lr=0.01), FedNova(lr=0.01)):
        result = fedbc.simulate(algorithm, model, federation, rounds=rounds, epochs=5, sample=10, seed=1)
        table[algorithm.name] = result.summary()
    print(f"{'method':10}{'global accuracy':>18}{'worst device':>15}{'training loss':>16}")
    for name, row in table.items():
        print(f"{name:10}{row['global_accuracy']:18.3f}{row['worst_accuracy']:15.3f}{row['global_loss']:16.3f}")
    return table


if __name__ == "__main__":
    main()

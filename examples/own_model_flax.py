"""A model written in Flax."""

import jax.numpy as jnp
from flax import linen as nn

import fedbc


class Network(nn.Module):
    hidden: int = 32

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.relu(nn.Dense(self.hidden)(x))
        x = nn.Dropout(0.1, deterministic=not train)(x)
        return nn.Dense(10)(x)


def main(rounds=50):
    model = fedbc.models.from_flax(Network(), jnp.zeros((1, 60)), training="train")
    fed = fedbc.data.synthetic(devices=30, alpha=0.5, beta=0.5, seed=1)
    result = fedbc.simulate(
        fedbc.FedBC(lr=0.01, dual_lr=0.01, momentum=0.5), model, fed, rounds=rounds, sample=10, seed=1
    )
    print(result.history[["round", "global_accuracy", "local_accuracy"]].tail(1).to_string(index=False))
    return result


if __name__ == "__main__":
    main()

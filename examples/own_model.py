"""Your own model: any pair of functions `init(key)` and `apply(params, x)`."""

import jax
import jax.numpy as jnp

import fedbc


def init(key):
    first, second = jax.random.split(key)
    return {
        "inner": 0.1 * jax.random.normal(first, (60, 32)),
        "outer": 0.1 * jax.random.normal(second, (32, 10)),
    }


def apply(params, x):
    return jnp.tanh(x @ params["inner"]) @ params["outer"]


def main(rounds=50):
    model = fedbc.models.Model(init, apply, name="two layers")
    fed = fedbc.data.synthetic(devices=30, alpha=0.5, beta=0.5, seed=1)
    result = fedbc.simulate(
        fedbc.FedBC(lr=0.01, dual_lr=0.01, momentum=0.5), model, fed, rounds=rounds, sample=10, seed=1
    )
    print(result.history[["round", "global_accuracy", "local_accuracy"]].tail(1).to_string(index=False))
    return result


if __name__ == "__main__":
    main()

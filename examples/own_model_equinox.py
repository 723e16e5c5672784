"""A model written in Equinox."""

import equinox as eqx
import jax

import fedbc


def make(key):
    return eqx.nn.MLP(in_size=60, out_size=10, width_size=32, depth=1, key=key)


def main(rounds=50):
    model = fedbc.models.from_equinox(make)
    fed = fedbc.data.synthetic(devices=30, alpha=0.5, beta=0.5, seed=1)
    result = fedbc.simulate(
        fedbc.FedBC(lr=0.01, dual_lr=0.01, momentum=0.5), model, fed, rounds=rounds, sample=10, seed=1
    )
    print(result.history[["round", "global_accuracy", "local_accuracy"]].tail(1).to_string(index=False))
    # The trained module, to be used as any other.
    module = eqx.combine(result.global_model, make(jax.random.key(0)))
    print(jax.vmap(module)(fed.test.x[:3]).argmax(axis=1), fed.test.y[:3])
    return result


if __name__ == "__main__":
    main()

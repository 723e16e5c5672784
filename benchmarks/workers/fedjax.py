"""FedJAX's federated averaging with its jit backend.

The models are plain JAX, with the operations that Haiku's layers would use (channels-last convolutions, an LSTM cell
that multiplies inputs and state by one matrix), so that they start from fedbc's very parameters.
"""

from __future__ import annotations

from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

from benchmarks.workers.protocol import Arrays, Contestant, Job, Round, serve

EVALUATION_BATCH = 1000
Params = dict[str, Any]


def dense(params: Params, name: str, x: Any) -> Any:
    return x @ params[f"{name}w"] + params[f"{name}b"]


def logistic(params: Params, x: Any) -> Any:
    return dense(params, "", x)


def mlp(params: Params, x: Any) -> Any:
    return dense(params, "out.", jax.nn.relu(dense(params, "hidden.", x)))


def cnn(params: Params, x: Any) -> Any:
    for name in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(
            x, params[f"{name}.w"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + params[f"{name}.b"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)  # the dense weights expect the colours first
    x = jax.nn.relu(dense(params, "dense1.", x))
    return dense(params, "out.", jax.nn.relu(dense(params, "dense2.", x)))


def lstm(params: Params, x: Any) -> Any:
    h = params["embedding"][x.T]
    for i in range(2):
        weights = jnp.concatenate([params[f"layers.{i}.w_ih"], params[f"layers.{i}.w_hh"]])
        bias = params[f"layers.{i}.b_ih"] + params[f"layers.{i}.b_hh"]

        def cell(state: Any, inputs: Any, weights: Any = weights, bias: Any = bias) -> Any:
            h, c = state
            i, f, g, o = jnp.split(jnp.concatenate([inputs, h], axis=1) @ weights + bias, 4, axis=1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((h.shape[1], 256))
        h = jax.lax.scan(cell, (zero, zero), h)[1]
    return dense(params, "out.", h[-1])


MODELS = {"logistic": logistic, "mlp": mlp, "cnn": cnn, "lstm": lstm}


def initial_params(arrays: dict[str, np.ndarray]) -> Params:
    """fedbc's parameters, the kernels of convolutions turned from (out, in, 5, 5) to FedJAX's usual (5, 5, in, out)."""
    return {k: jnp.asarray(v.transpose(2, 3, 1, 0) if v.ndim == 4 else v) for k, v in arrays.items()}


class FedJax(Contestant):
    packages = ("fedjax", "jax", "jaxlib", "dm-haiku", "numpy")

    def __init__(self, job: Job) -> None:
        fedjax.set_for_each_client_backend("jit")
        data, apply = Arrays(job), MODELS[job["model"][0]]
        params = initial_params(data.initial)
        self.model = fedjax.Model(
            init=lambda rng: params,
            apply_for_train=lambda params, batch, rng: apply(params, batch["x"]),
            apply_for_eval=lambda params, batch: apply(params, batch["x"]),
            train_loss=lambda batch, outputs: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], outputs),
            eval_metrics={"accuracy": fedjax.metrics.Accuracy()},
        )
        batching = fedjax.ShuffleRepeatBatchHParams(batch_size=job["batch_size"], num_epochs=job["epochs"])
        self.algorithm = fed_avg.federated_averaging(
            fedjax.model_grad(self.model),
            fedjax.optimizers.sgd(job["lr"], momentum=job["momentum"]),
            fedjax.optimizers.sgd(1.0),
            batching,
        )
        self.devices = [
            fedjax.ClientDataset({"x": data.train_x[data.of(i)], "y": data.train_y[data.of(i)]})
            for i in range(len(data.sizes))
        ]
        # Batches are filled across epochs, so that there are fewer of them than with a short batch at each epoch's end.
        self.steps = -(-data.sizes * job["epochs"] // job["batch_size"])
        test = fedjax.ClientDataset({"x": data.test_x, "y": data.test_y})
        self.test = list(test.padded_batch(batch_size=EVALUATION_BATCH))
        self.state = self.algorithm.init(params)
        self.key = jax.random.PRNGKey(job["seed"])

    def round(self, number: int, devices: list[int], evaluate: bool) -> Round:
        self.key, *keys = jax.random.split(self.key, 1 + len(devices))
        chosen = [(d, self.devices[d], key) for d, key in zip(devices, keys, strict=True)]
        self.state, _ = self.algorithm.apply(self.state, chosen)
        jax.block_until_ready(self.state.params)
        steps = int(self.steps[devices].sum())
        if not evaluate:
            return Round(steps)
        return Round(steps, float(fedjax.evaluate_model(self.model, self.state.params, self.test)["accuracy"]))


if __name__ == "__main__":
    serve(FedJax)

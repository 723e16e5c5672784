"""The bare compiled loop: the same number of SGD steps, an equal share a core, with nothing federated around them.

A step is fedbc's own model and gradient, with momentum, on full batches from a fixed table of row numbers. There are
no devices, no masks, no aggregation, no state, no new batches each round. The variant says in which form the examples
lie in memory: as fedbc stores them (decoded in the step), or decoded beforehand.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import workloads
from benchmarks.workers.protocol import Arrays, Contestant, Job, Round, serve
from fedbc import runtime, trees
from fedbc.simulation.lanes import Lanes

CHUNK = 256  # test examples at once
TABLE = 4096  # rows of the table of batches, used in turn: more would only cost memory


class BareLoop(Contestant):
    packages = ("jax", "jaxlib")

    def __init__(self, job: Job) -> None:
        self.model, federation = workloads.build(job)
        self.lr, self.momentum = job["lr"], job["momentum"]
        stored = job["variant"] == "as stored"
        self.decode = federation.decode if stored else lambda shared, x: x
        self.steps = job["epochs"] * -(-federation.train.sizes // job["batch_size"])

        self.lanes = Lanes(runtime.usable_cores())
        cores = self.lanes.count
        x = federation.train.x if stored else Arrays(job).train_x
        self.data = self.lanes.put((x, federation.train.y, federation.shared))
        draw = np.random.default_rng(job["seed"])
        rows = draw.integers(0, len(x), (cores, TABLE, job["batch_size"]), np.int32)
        self.rows = [jax.device_put(own) for own in rows]  # each core its own
        self.params = self.lanes.put(self.model.init(jax.random.key(job["seed"])))
        test_x = federation.test.x if stored else Arrays(job).test_x
        self.test_data = self.lanes.put((test_x, federation.test.y, federation.shared))
        self.chunks = -(-len(test_x) // CHUNK // cores)
        self.first = np.arange(cores, dtype=np.int32) * self.chunks * CHUNK
        self.training = self.lanes.compiled(self._train, tiny=self.model.tiny)
        self.evaluation = self.lanes.compiled(self._evaluate)
        if stored:  # once is enough
            self.facts = {"matmul_flops": matmul_rate()}

    def _evaluate(self, first: Any, params: Any, data: Any) -> Any:
        """The right answers among this core's share of the test examples."""
        x, y, shared = data

        def chunk(c: Any, right: Any) -> Any:
            begin = first + c * CHUNK
            own = self.decode(shared, jax.lax.dynamic_slice_in_dim(x, begin, CHUNK))
            labels = jax.lax.dynamic_slice_in_dim(y, begin, CHUNK)
            return right + jnp.sum(self.model.correct(self.model.outputs(params, own), labels))

        return jax.lax.fori_loop(0, self.chunks, chunk, jnp.zeros((), int))

    def _train(self, steps: Any, rows: Any, params: Any, data: Any) -> Any:
        x, y, shared = data

        def loss(w: Any, own: Any) -> Any:
            outputs = self.model.outputs(w, self.decode(shared, x[own]))
            return jnp.mean(self.model.loss(outputs, y[own]))

        def step(k: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            w, velocity = carry
            gradient = jax.grad(loss)(w, rows[k % TABLE])
            velocity = trees.axpy(self.momentum, velocity, gradient)
            return trees.axpy(-self.lr, velocity, w), velocity

        w, _ = jax.lax.fori_loop(0, steps, step, (params, trees.zeros_like(params)))
        return w

    def round(self, number: int, devices: list[int], evaluate: bool) -> Round:
        """Train from the initial model each time; accuracy is not reported, for this trains no federated model."""
        steps = int(self.steps[devices].sum())
        each = np.full(self.lanes.count, -(-steps // self.lanes.count), np.int32)
        self.training(each, self.rows, self.params, self.data)
        if evaluate:
            self.evaluation(self.first, self.params, self.test_data)
        return Round(steps)


def matmul_rate(size: int = 2048, repeats: int = 3) -> float:
    """FLOP/s of a large matrix product on all cores, the best of several tries: one product a core, as lanes run."""
    lanes = Lanes(runtime.usable_cores())
    product = lanes.compiled(lambda a: a @ a)
    a = jax.device_put(np.ones((lanes.count, size, size), np.float32))
    times = []
    for _ in range(1 + repeats):  # the first compiles
        began = time.perf_counter()
        product(a)
        times.append(time.perf_counter() - began)
    return lanes.count * 2 * size**3 / min(times[1:])


if __name__ == "__main__":
    serve(BareLoop)

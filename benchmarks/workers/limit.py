"""The bare compiled loop: the same number of SGD steps, an equal share a core, with nothing federated around them.

A step is fedbc's own model and gradient, with momentum, on full batches from a fixed table of row numbers. There are
no devices, no masks, no aggregation, no state, no new batches each round. The variant says in which form the examples
lie in memory: as fedbc stores them (decoded in the step), or decoded beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import workloads
from benchmarks.workers.protocol import Arrays, Contestant, Job, Round, serve
from fedbc import trees

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

        self.mesh = Mesh(np.asarray(jax.devices()), ("core",))
        everywhere, by_core = NamedSharding(self.mesh, PartitionSpec()), NamedSharding(self.mesh, PartitionSpec("core"))
        x = federation.train.x if stored else Arrays(job).train_x
        self.data = jax.device_put((x, federation.train.y, federation.shared), everywhere)
        draw = np.random.default_rng(job["seed"])
        rows = draw.integers(0, len(x), (self.mesh.size, TABLE, job["batch_size"]), np.int32)
        self.rows = jax.device_put(rows, by_core)
        self.params = jax.device_put(self.model.init(jax.random.key(job["seed"])), everywhere)
        test_x = federation.test.x if stored else Arrays(job).test_x
        self.test_data = jax.device_put((test_x, federation.test.y, federation.shared), everywhere)
        self.chunks = -(-len(test_x) // CHUNK // self.mesh.size)
        self.compiled = self._on_cores(self._train, 4)
        self.evaluation = self._on_cores(self._evaluate, 3)
        if stored:  # once is enough
            self.facts = {"matmul_flops": matmul_rate()}

    def _on_cores(self, function: Callable[..., Any], arguments: int) -> Callable[..., Any]:
        """The function on every core, its second argument split over them."""
        specs = [PartitionSpec("core") if i == 1 else PartitionSpec() for i in range(arguments)]
        out = PartitionSpec("core")
        return jax.jit(jax.shard_map(function, mesh=self.mesh, in_specs=tuple(specs), out_specs=out, check_vma=False))

    def _evaluate(self, params: Any, first: Any, data: Any) -> Any:
        """The right answers among this core's share of the test examples."""
        x, y, shared = data

        def chunk(c: Any, right: Any) -> Any:
            begin = first[0] + c * CHUNK
            own = self.decode(shared, jax.lax.dynamic_slice_in_dim(x, begin, CHUNK))
            labels = jax.lax.dynamic_slice_in_dim(y, begin, CHUNK)
            return right + jnp.sum(self.model.correct(self.model.outputs(params, own), labels))

        return jax.lax.fori_loop(0, self.chunks, chunk, jnp.zeros((), int))[None]

    def _train(self, params: Any, rows: Any, data: Any, steps: Any) -> Any:
        x, y, shared = data

        def loss(w: Any, own: Any) -> Any:
            outputs = self.model.outputs(w, self.decode(shared, x[own]))
            return jnp.mean(self.model.loss(outputs, y[own]))

        def step(k: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            w, velocity = carry
            gradient = jax.grad(loss)(w, rows[0, k % TABLE])
            velocity = trees.axpy(self.momentum, velocity, gradient)
            return trees.axpy(-self.lr, velocity, w), velocity

        w, _ = jax.lax.fori_loop(0, steps, step, (params, trees.zeros_like(params)))
        return jax.tree.map(lambda a: a[None], w)

    def round(self, number: int, devices: list[int], evaluate: bool) -> Round:
        """Train from the initial model each time; accuracy is not reported, for this trains no federated model."""
        steps = int(self.steps[devices].sum())
        each = -(-steps // self.mesh.size)
        done: Any = self.compiled(self.params, self.rows, self.data, np.int32(each))
        if evaluate:
            first = np.arange(self.mesh.size, dtype=np.int32) * self.chunks * CHUNK
            done = done, self.evaluation(self.params, first, self.test_data)
        jax.block_until_ready(done)
        return Round(steps)


def matmul_rate(size: int = 2048, repeats: int = 3) -> float:
    """FLOP/s of a large matrix product on all cores, the best of several tries: one product a core, as lanes run."""
    mesh = Mesh(np.asarray(jax.devices()), ("core",))
    by_core = PartitionSpec("core")
    product = jax.jit(jax.shard_map(lambda a: a @ a, mesh=mesh, in_specs=by_core, out_specs=by_core, check_vma=False))
    a = jax.device_put(np.ones((mesh.size, size, size), np.float32), NamedSharding(mesh, by_core))
    times = []
    for _ in range(1 + repeats):  # the first compiles
        began = time.perf_counter()
        jax.block_until_ready(product(a))
        times.append(time.perf_counter() - began)
    return mesh.size * 2 * size**3 / min(times[1:])


if __name__ == "__main__":
    serve(BareLoop)

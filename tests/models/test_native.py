"""The convolution in machine code equals the one in XLA's products, and models do without it where it cannot be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native_forms import assert_close, without_native
from needs import missing

from fedbc import models, native
from fedbc.models import convolution


def layer(channels: int, outputs: int, size: int, n: int, seed: int = 0) -> tuple[Any, jax.Array]:
    rng = np.random.default_rng(seed)
    params = {"w": rng.normal(size=(outputs, channels, 5, 5)), "b": rng.normal(size=outputs)}
    x = jnp.asarray(rng.normal(size=(channels, size, size, n)), jnp.float32)
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), params), x


def value_and_gradients(params: Any, x: jax.Array) -> Any:
    def total(params: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(convolution.convolve_and_pool(params, x)))

    # A function of its own each time: the traced form depends on what is available.
    return jax.jit(lambda p, x: (convolution.convolve_and_pool(p, x), jax.grad(total, (0, 1))(p, x)))(params, x)


def test_it_is_used_where_there_is_a_compiler() -> None:
    assert native.available() == (shutil.which("c++") is not None)
    params, x = layer(3, 6, 32, 20)
    program = jax.jit(convolution.convolve_and_pool).lower(params, x).as_text()
    assert ("fedbc_pooled" in program) == native.available()


# Outputs in one block, in several and in a rest; rows that are whole vectors and that are not.
@pytest.mark.parametrize(("channels", "outputs", "size"), [(3, 6, 32), (6, 16, 14), (1, 1, 6), (2, 7, 8), (5, 11, 10)])
@pytest.mark.parametrize("n", [8, 9, 20])
def test_values_and_gradients(channels: int, outputs: int, size: int, n: int) -> None:
    params, x = layer(channels, outputs, size, n)
    with without_native():
        wanted = value_and_gradients(params, x)
    assert_close(value_and_gradients(params, x), wanted)


def test_images_need_not_be_square() -> None:
    params, x = layer(2, 3, 12, 10)
    x = x[:, :, :8]
    with without_native():
        wanted = value_and_gradients(params, x)
    assert_close(value_and_gradients(params, x), wanted)


def test_of_equal_values_the_first_gets_the_gradient() -> None:
    params = {"w": jnp.zeros((1, 1, 5, 5)).at[0, 0, 2, 2].set(1.0), "b": jnp.zeros(1)}
    slope = jax.grad(lambda x: jnp.sum(convolution.convolve_and_pool(params, x)))(jnp.ones((1, 8, 8, 9)))
    wanted = np.zeros((8, 8))
    wanted[2:6:2, 2:6:2] = 1  # the left upper one of each four pixels that the kernel picks
    np.testing.assert_array_equal(slope[0, :, :, 4], wanted)


def test_what_is_not_a_number_stays() -> None:
    """A run that diverges must be seen to."""
    params, x = layer(1, 1, 6, 8)
    x = x.at[0, 0, 0, 3].set(jnp.nan)  # one of four outputs of one image
    assert np.isnan(convolution.convolve_and_pool(params, x)).ravel().tolist() == [k == 3 for k in range(8)]


def test_second_derivatives() -> None:
    """As exact MAML takes them: through a step of gradient descent."""
    params, x = layer(2, 3, 8, 9)

    def after_a_step(params: Any, x: jax.Array) -> jax.Array:
        def total(params: Any, x: jax.Array) -> jax.Array:
            return jnp.mean(convolution.convolve_and_pool(params, x) ** 2)

        gradient, slope = jax.grad(total, (0, 1))(params, x)
        return total(jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient), x - 0.1 * slope)

    with without_native():
        wanted = jax.jit(jax.grad(lambda p, x: after_a_step(p, x), (0, 1)))(params, x)
    assert_close(jax.jit(jax.grad(after_a_step, (0, 1)))(params, x), wanted, 1e-4)


def test_many_models_at_once() -> None:
    several = [layer(2, 3, 8, 9, seed) for seed in range(3)]
    stacked = [jax.tree.map(lambda *a: jnp.stack(a), *part) for part in zip(*several, strict=True)]
    together = jax.vmap(value_and_gradients)(*stacked)
    for k, one in enumerate(several):
        assert_close(jax.tree.map(lambda a, k=k: a[k], together), value_and_gradients(*one), 1e-6)


def test_lanes_do_not_disturb_each_other() -> None:
    """Lanes are threads, and each has memory of its own; sizes differ so that it is shared out anew."""
    cases = [layer(2, 3, size, 9, seed) for seed in range(4) for size in (8, 14)]
    functions = [jax.jit(value_and_gradients).lower(*case).compile() for case in cases]
    alone = [jax.block_until_ready(function(*case)) for function, case in zip(functions, cases, strict=True)]

    def again(number: int) -> Any:
        return jax.block_until_ready(functions[number % len(cases)](*cases[number % len(cases)]))

    with ThreadPoolExecutor(4) as threads:
        for number, got in enumerate(threads.map(again, range(200))):
            wanted = alone[number % len(cases)]
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
                np.testing.assert_array_equal(a, b)


def test_other_batches_and_precisions_take_the_other_form() -> None:
    model = models.cnn()
    params = jax.jit(model.init)(jax.random.key(0))
    few = jax.jit(model.apply).lower(params, jnp.zeros((7, 32, 32, 3))).as_text()
    assert "fedbc_pooled" not in few
    with jax.enable_x64(True):
        precise = jax.tree.map(lambda a: a.astype(jnp.float64), params)
        program = jax.jit(model.apply).lower(precise, jnp.zeros((20, 32, 32, 3), jnp.float64)).as_text()
    assert "fedbc_pooled" not in program


REPORT = """
import jax, jax.numpy as jnp
from fedbc import models
from fedbc import native
model = models.cnn()
params = jax.jit(model.init)(jax.random.key(0))
x = jax.random.normal(jax.random.key(1), (20, 32, 32, 3))
print(native.available(), float(jnp.sum(jnp.abs(jax.jit(model.apply)(params, x)))))
"""


def elsewhere(folder: Path, **environment: str) -> tuple[bool, float]:
    """Whether the functions are there in a new process that keeps its programs in `folder`, and a model's output."""
    variables = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder), **environment}
    said = subprocess.run([sys.executable, "-c", REPORT], env=variables, capture_output=True, text=True, check=True)
    assert said.stderr == ""
    yes, total = said.stdout.split()
    return yes == "True", float(total)


def test_without_a_compiler_or_where_it_is_not_wanted(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\n[ $# = 1 ] && echo version && exit\nexit 1\n")
    broken.chmod(0o755)
    results = [
        elsewhere(tmp_path / "none", CXX="no-such-compiler"),
        elsewhere(tmp_path / "broken-cache", CXX=str(broken)),
        elsewhere(tmp_path / "unwanted", FEDBC_NATIVE="0"),
    ]
    assert not any(yes for yes, _ in results)
    assert not list(tmp_path.glob("*/native/*"))
    usual = elsewhere(tmp_path / "usual")
    assert usual[0] == native.available()
    np.testing.assert_allclose([total for _, total in results], usual[1], rtol=1e-5)


def test_it_is_compiled_once(tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        missing("there is no C++ compiler", "FEDBC_REQUIRE_COMPILER")
    assert elsewhere(tmp_path)[0]
    (library,) = tmp_path.glob("native/*.so")
    made = library.stat().st_mtime_ns
    assert elsewhere(tmp_path)[0]
    assert [file.stat().st_mtime_ns for file in tmp_path.glob("native/*")] == [made]


def test_a_library_that_others_could_have_written_is_not_loaded(tmp_path, monkeypatch):
    from fedbc import runtime

    shared, own = tmp_path / "shared", tmp_path / "own"
    monkeypatch.setattr(runtime, "compiled_folder", lambda: shared)
    monkeypatch.setattr(runtime, "own_compiled_folder", lambda: own)
    assert native._safe_folder() == shared / "native"
    (shared / "native").chmod(0o777)
    assert native._safe_folder() == own / "native"
    (shared / "native").chmod(0o755)
    shared.chmod(0o777)  # somebody could put another folder in its place
    assert native._safe_folder() == own / "native"
    own.chmod(0o777)
    assert native._safe_folder() not in (shared / "native", own / "native")
    assert native._safe_folder().stat().st_mode & 0o777 == 0o700
    shared.chmod(0o1777)  # as /tmp: what is there is its owner's to replace
    assert native._safe_folder() == shared / "native"

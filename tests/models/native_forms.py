"""For tests that compare machine code with the form of a model that does without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbc import native


@contextmanager
def without_native() -> Iterator[None]:
    """As on a machine that has no compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "available", lambda: False)
        yield


def assert_close(got: Any, wanted: Any, precision: float = 1e-5) -> None:
    """Two pytrees, number by number, each array to a precision relative to its largest."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=precision, atol=precision * float(jnp.max(jnp.abs(b))))

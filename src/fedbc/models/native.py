"""Machine code for what XLA does slowly on a CPU, compiled from C++ where it is first needed.

Any C++ compiler of the machine will do (`CXX`, or `c++`); the library is kept with JAX's compiled programs. Without a
compiler, and with FEDBC_NATIVE=0, models are right all the same, and slower.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

import jax

from fedbc import runtime

_SOURCE = Path(__file__).with_name("convolution.cc")
_FUNCTIONS = ("fedbc_pooled", "fedbc_weight_gradient", "fedbc_input_gradient")
# The program is for this machine only. Sums may be reordered nowhere but where the source does so.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-w")


@functools.cache
def available() -> bool:
    """Whether the functions can be called on this machine; the first call compiles them, which takes some seconds."""
    if os.environ.get("FEDBC_NATIVE") == "0" or jax.default_backend() != "cpu":
        return False
    try:
        library = ctypes.CDLL(str(_built()))
    except (OSError, subprocess.SubprocessError):  # no compiler, one that cannot do it, or nowhere to keep the library
        return False
    for name in _FUNCTIONS:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return True


def _built() -> Path:
    """The library's file; what it depends on is part of its name."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    of = [_SOURCE.read_bytes(), version, " ".join(_FLAGS).encode(), metadata.version("jaxlib").encode()]
    key = hashlib.sha256(b"\0".join([*of, runtime.processor().encode()])).hexdigest()[:16]
    file = runtime.compiled_folder() / "native" / f"convolution-{key}.so"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / "convolution.so"
            include = f"-I{jax.ffi.include_dir()}"
            subprocess.run([compiler, *_FLAGS, include, str(_SOURCE), "-o", str(made)], capture_output=True, check=True)
            made.replace(file)  # other processes may be doing the same
    return file

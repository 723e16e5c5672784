"""Machine code for what XLA does slowly on a CPU, compiled from C++ where it is first needed.

Any C++ compiler of the machine will do (`CXX`, or `c++`); the library is kept with JAX's compiled programs. Without a
compiler, and with FEDBC_NATIVE=0, everything is right all the same, and slower.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import itertools
import os
import shutil
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from fedbc import runtime, storage

_FUNCTIONS = {
    "convolution.cc": ("pooled", "convolution_weight_gradient", "convolution_input_gradient"),
    "background.cc": ("background_product", "background_weight_gradient"),
    "crop.cc": ("crop",),
    "general.cc": ("convolution", "convolution_kernel_gradient"),
    "pooling.cc": ("pooling_gradient",),
}
"""By the source that has them; there their names begin with `fedbc_`."""
_HEADER = "vectors.h"
# The program is for this machine only. Sums may be reordered nowhere but where the source does so.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-w")


@functools.cache
def available() -> bool:
    """Whether the functions can be called on this machine; the first call compiles them, which takes some seconds."""
    if os.environ.get("FEDBC_NATIVE") == "0" or not runtime.on_cpu():
        return False
    try:
        library = ctypes.CDLL(str(_build()))
    except (OSError, subprocess.SubprocessError):  # no compiler, one that cannot do it, or nowhere to keep the library
        return False
    for name in itertools.chain.from_iterable(_FUNCTIONS.values()):
        function = getattr(library, f"fedbc_{name}")
        jax.ffi.register_ffi_target(f"fedbc_{name}", jax.ffi.pycapsule(function), platform="cpu")
    return True


def call(name: str, result: Any, *arguments: jax.Array, **attributes: Any) -> Any:
    """Call a function, once it is `available`; with `vmap`, one after the other.

    result: shapes and types of what it gives.
    attributes: what is known when the program is compiled.
    """
    return jax.ffi.ffi_call(f"fedbc_{name}", result, vmap_method="sequential")(*arguments, **attributes)


def _build() -> Path:
    """The library's file; what it depends on is part of its name."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    here = Path(__file__).parent
    of = [
        *((here / name).read_bytes() for name in (*_FUNCTIONS, _HEADER)),
        version,
        " ".join(_FLAGS).encode(),
        metadata.version("jaxlib").encode(),
    ]
    key = hashlib.sha256(b"\0".join([*of, runtime.processor().encode()])).hexdigest()[:16]
    file = _safe_folder() / f"functions-{key}.so"
    if not (file.exists() and storage.is_safe_from_others(file)):
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / "functions.so"
            sources = [str(here / name) for name in _FUNCTIONS]
            command = [compiler, *_FLAGS, f"-I{jax.ffi.include_dir()}", *sources, "-o", str(made)]
            subprocess.run(command, capture_output=True, check=True)
            made.replace(file)  # other processes may be doing the same
    return file


def _safe_folder() -> Path:
    """Where libraries are kept: a folder that nobody else can write to, since what lies there is run."""
    for compiled in dict.fromkeys((runtime.compiled_folder(), runtime.own_compiled_folder())):
        folder = compiled / "native"
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if storage.is_safe_from_others(folder):
                return folder
    return _folder_of_process()


@functools.cache
def _folder_of_process() -> Path:
    folder = tempfile.mkdtemp(prefix="fedbc-native-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)

"""A device's private key, as `fedbc deploy keys` made it."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedbc.errors import InputError


def read_private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """A device's key; another file is an InputError."""
    try:
        key = load_ssh_private_key(file.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is not a device's private key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{file} is not an elliptic-curve key, as Flower needs it")
    return key

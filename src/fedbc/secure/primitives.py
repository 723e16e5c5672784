"""The primitives, each a call of a library; the package's docstring says which serves what."""

from __future__ import annotations

import hashlib

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedbc.secure.session import KEY_BYTES, Refused

SECRET_BYTES = 16
"""Of a secret that is shared, 128 bits; the keys that it stands for are derived from it."""
SHARE_BYTES = 4 + SECRET_BYTES
"""A share's number, and the share."""
NO_NONCE = bytes(12)
"""Each key encrypts a single message."""


def private_from(secret: bytes) -> bytes:
    """A private key of X25519 that a secret stands for."""
    return HKDF(hashes.SHA256(), KEY_BYTES, None, b"fedbc X25519").derive(secret)


def public_of(private: bytes) -> bytes:
    """The public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, roster: bytes, purpose: str) -> bytes:
    """A key that both ends of a pair find, for one purpose of one attempt."""
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of low order: the result would be known to all
        raise Refused("a public key among its keys is not one of X25519") from None
    return HKDF(hashes.SHA256(), KEY_BYTES, roster, purpose.encode()).derive(shared)


def seed_key(seed: bytes, roster: bytes) -> bytes:
    """The key of a device's own mask."""
    return HKDF(hashes.SHA256(), KEY_BYTES, roster, b"own mask").derive(seed)


def keystream(key: bytes, length: int) -> np.ndarray:
    """So many numbers of 64 bits: ChaCha20's keystream."""
    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * length)), "<u8")


def encrypted(key: bytes, text: bytes, about: bytes) -> bytes:
    """Text that only who has the key can read or have written, about what both know."""
    return ChaCha20Poly1305(key).encrypt(NO_NONCE, text, about)


def decrypted(key: bytes, text: bytes, about: bytes) -> bytes:
    """What `encrypted` encrypted."""
    try:
        return ChaCha20Poly1305(key).decrypt(NO_NONCE, text, about)
    except (InvalidTag, ValueError):
        raise Refused("it does not decrypt: it was changed, or is of another attempt") from None


def signed(key: ec.EllipticCurvePrivateKey, text: bytes) -> bytes:
    """A signature of the text."""
    return key.sign(text, ec.ECDSA(hashes.SHA256()))


def is_signed(key: ec.EllipticCurvePublicKey, signature: bytes, text: bytes) -> bool:
    """Whether the signature is of this text and key."""
    try:
        key.verify(signature, text, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def split(secret: bytes, threshold: int, number: int) -> list[bytes]:
    """Shares of a secret, of which any `threshold` give it back and fewer tell nothing."""
    return [place.to_bytes(4, "big") + share for place, share in Shamir.split(threshold, number, secret, ssss=False)]


def joined(shares: list[bytes]) -> bytes | None:
    """The secret of so many shares as the threshold; None if two of them are the same one."""
    try:
        return bytes(Shamir.combine([(int.from_bytes(share[:4], "big"), share[4:]) for share in shares], ssss=False))
    except ValueError:
        return None


def committed(seed: bytes) -> bytes:
    """What tells later whether it is this seed, and nothing of it now."""
    return hashlib.sha256(b"fedbc own mask" + seed).digest()

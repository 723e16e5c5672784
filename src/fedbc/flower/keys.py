"""A certificate authority, the server's certificate, and one key pair per device: what security rests on.

    ca.crt, ca.key           the authority; ca.key signs further certificates and belongs in a safe place
    server.crt, server.key   the SuperLink's TLS certificate and key
    superexec.secret         what the SuperLink and the process that runs the ServerApp know each other by
    device-0, device-0.pub   a SuperNode's key pair, in OpenSSH's format; the public half is registered

Private files are for their owner only (600), in a folder that is, too (700). What exists is never overwritten.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedbc import checks, storage
from fedbc.errors import InputError
from fedbc.flower.node_key import read_private_key

AUTHORITY_DAYS = 3650
"""How long the authority is valid: every device has its certificate, and would need another one."""
CURVE = ec.SECP384R1()
DEVICE_CURVE = ec.SECP256R1()
"""A device signs each of its requests, and the server checks it: eight times as fast as with the other curve."""
LOCAL = ("localhost", "127.0.0.1", "::1")


def make_keys(
    folder: Path, *, devices: int, hosts: Sequence[str] = (), days: int = 365, renew: bool = False
) -> list[Path]:
    """Make what is missing in the folder; returns the files that were made.

    devices: how many devices there are; keys for new ones are added to those that exist.
    hosts: names or addresses under which devices reach the server, besides this machine's own.
    days: how long the server's certificate is valid; the authority's is for ten years, if that is not longer.
    renew: make a new server certificate, signed by the authority that is there.
    """
    checks.integer("devices", devices, at_least=0)
    checks.integer("days", days, at_least=1)
    names = [_name(host) for host in dict.fromkeys([*LOCAL, *hosts])]
    with storage.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
    made = _authority(folder, max(days, AUTHORITY_DAYS))
    server = folder / "server.crt"
    if not renew and server.exists() and (lacks := _not_in(server, names)):
        raise InputError(f"{server} is not for {', '.join(lacks)}: add --renew to make a new one, with all names")
    if renew or not server.exists():
        made += _server(folder, names, days)
    made += _missing(folder / "superexec.secret", secrets.token_hex(32))
    for device in range(devices):
        made += _device(folder / f"device-{device}")
    return made


def _device(private: Path) -> list[Path]:
    """A device's pair, as far as it is missing; where only the public half is, the other one is on the device."""
    public, made = private.with_suffix(".pub"), []
    if public.exists():
        return []
    if not private.exists():
        key = ec.generate_private_key(DEVICE_CURVE)
        made = _missing(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    text = read_private_key(private).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    storage.write_atomically(public, text + b"\n")
    return [*made, public]


def _authority(folder: Path, days: int) -> list[Path]:
    certificate, private = folder / "ca.crt", folder / "ca.key"
    if certificate.exists() and private.exists():
        return []
    if certificate.exists() or private.exists():
        raise InputError(f"{folder} has only one of ca.crt and ca.key: restore the other one, or give another folder")
    key = ec.generate_private_key(CURVE)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedbc deployment authority")])
    built = (
        _begun(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    made = _missing(private, _pem(key))
    storage.write_atomically(certificate, built.public_bytes(Encoding.PEM))
    return [*made, certificate]


def _server(folder: Path, names: list[x509.GeneralName], days: int) -> list[Path]:
    issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    issuer_key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{folder}/ca.key is not a key that fedbc made")
    key = ec.generate_private_key(CURVE)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedbc deployment server")])
    built = (
        _begun(name, issuer.subject, key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA384())
    )
    storage.write_atomically(folder / "server.key", _pem(key), private=True)
    storage.write_atomically(folder / "server.crt", built.public_bytes(Encoding.PEM))
    return [folder / "server.key", folder / "server.crt"]


def _begun(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or len(host) > 253 or not all(c.isascii() and (c.isalnum() or c in ".-") for c in host):
        raise InputError(f"host={host!r} is not accepted: give a name such as server.example.org, or an address")
    return x509.DNSName(host)


def _not_in(certificate: Path, names: Sequence[x509.GeneralName]) -> list[str]:
    """The names for which a certificate is not."""
    try:
        read = x509.load_pem_x509_certificate(certificate.read_bytes())
        known = list(read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise InputError(f"{certificate} is damaged: {error}; add --renew to make a new one") from None
    return [str(name.value) for name in names if name not in known]


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _missing(path: Path, content: bytes | str) -> list[Path]:
    if path.exists():
        return []
    storage.write_atomically(path, content, private=True)
    return [path]

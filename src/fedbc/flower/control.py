"""What the person who runs a deployment asks of its SuperLink: registering keys, revoking them, seeing who is there."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.proto import control_pb2 as control
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from fedbc import storage
from fedbc.errors import InputError
from fedbc.flower.link import check_authority
from fedbc.flower.roster import public_keys, read_public_key

__all__ = ["Control", "NodeState", "pack"]

REVOKED = "revoked"


@dataclass(frozen=True)
class NodeState:
    """A device's key, as the SuperLink knows it."""

    node: int
    status: str
    """registered, online, offline"""
    key: bytes


class Control:
    """A SuperLink's control, on this machine or at this end of an SSH tunnel."""

    def __init__(self, folder: Path, address: str) -> None:
        """`folder` holds the keys."""
        certificate = folder / "ca.crt"
        check_authority(certificate, "go to the app's folder, or make keys first")
        self.folder, self.address = folder, address
        self._client: Any = ControlHttpClient.from_server_address(
            address, False, str(certificate), interceptors=[RuntimeVersionHttpInterceptor(component_name="fedbc")]
        )

    def close(self) -> None:
        """Close its connection."""
        self._client.close()

    def register(self) -> dict[int, str]:
        """Register the public keys of the folder; what became of each device's."""
        done = {}
        for key, device in sorted(public_keys(self.folder).items(), key=lambda item: item[1]):
            try:
                with _explained(self.address):
                    reply = self._client.RegisterNode(control.RegisterNodeRequest(public_key=key))
                done[device] = f"registered as node {reply.node_id}"
            except _AlreadyThereError:
                done[device] = "was registered already"
        return done

    def nodes(self) -> list[NodeState]:
        """The keys that are registered."""
        with _explained(self.address):
            reply = self._client.ListNodes(control.ListNodesRequest())
        return [
            NodeState(node.node_id, node.status, node.public_key)
            for node in reply.nodes_info
            if node.status != "unregistered"
        ]

    def revoke(self, device: int) -> list[str]:
        """Have a device's key refused from now on, and put it aside; what was done."""
        public = self.folder / f"device-{device}.pub"
        if not public.is_file():
            raise InputError(f"{public} does not exist: there is no such key to revoke")
        key, done = read_public_key(public), []
        for node in self.nodes():
            if node.key == key:
                with _explained(self.address):
                    self._client.UnregisterNode(control.UnregisterNodeRequest(node_id=node.node))
                done.append(f"node {node.node} is refused from now on")
        with contextlib.suppress(FileNotFoundError):  # first: 'keys' takes a private key without a public one for new
            os.unlink(public.with_suffix(""))
        aside = self.folder / REVOKED
        with storage.explained(aside):
            aside.mkdir(mode=0o700, exist_ok=True)
            number = 1
            while (aside / f"device-{device}-{number}.pub").exists():
                number += 1
            storage.move_durably(public, aside / f"device-{device}-{number}.pub")
        return [*done, f"its public key is now {aside / f'device-{device}-{number}.pub'}"]


class _AlreadyThereError(Exception):
    """The key is registered."""


@contextlib.contextmanager
def _explained(address: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        told = FlowerError.from_json(error.response.text)
        if told is not None and told.code == ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
            raise _AlreadyThereError from None
        raise InputError(f"{address} refuses: {told.message if told else error.response.text:.200}") from None
    except httpx.TransportError as error:
        raise InputError(f"{address} does not answer ({error}): is superlink.sh running there?") from None


def pack(folder: Path, target: Path) -> Mapping[str, list[Path]]:
    """A folder for each machine of a deployment, with what belongs there and nothing else; by machine, the files.

    The server gets no private key but its own, and not the authority's; a device gets its own key, and the
    public ones of all: in a secure sum it takes their word for who is who, not the server's.
    """
    keys = folder / "keys"
    devices = sorted(public_keys(keys).values())
    server = ["env.sh", "superlink.sh", "superexec.sh", "keys/ca.crt", "keys/server.crt", "keys/server.key"]
    server += ["keys/superexec.secret", *(f"keys/device-{device}.pub" for device in devices)]
    machines = {"server": server}
    for device in devices:
        own = ["env.sh", "supernode.sh", "keys/ca.crt", f"keys/device-{device}"]
        machines[f"device-{device}"] = [*own, *(f"keys/device-{other}.pub" for other in devices)]
    made: dict[str, list[Path]] = {}
    for machine, names in machines.items():
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise InputError(f"{folder / missing[0]} does not exist: it belongs on {machine}")
        place = target / machine
        _clear(place)
        with storage.explained(place):
            (place / "keys").mkdir(parents=True, mode=0o700)
            for name in names:
                shutil.copy(folder / name, place / name)
        made[machine] = [place / name for name in names]
    return made


def _clear(place: Path) -> None:
    """Remove what was packed there before; a folder with anything else in it stays as it is, and is refused."""
    scripts = {"env.sh", "superlink.sh", "superexec.sh", "supernode.sh"}
    found = [path.relative_to(place) for path in place.rglob("*")] if place.is_dir() else []
    foreign = [path for path in found if path.parts[0] != "keys" and str(path) not in scripts]
    if foreign:
        raise InputError(f"{place} has {foreign[0]}, which is not of 'fedbc deploy pack': give another folder")
    if found:
        shutil.rmtree(place)

"""`fedbc deploy doctor` and `fedbc deploy status`: is this machine's part of a deployment well, and who is there."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cryptography import x509

from fedbc.errors import InputError
from fedbc.flower.checked import FLOWER
from fedbc.flower.control import Control
from fedbc.flower.link import AHEAD, BEHIND, seconds_ahead
from fedbc.flower.roster import public_keys
from fedbc.flower.scaffold import split_address
from fedbc.runs import RunFolder, deployed

__all__ = ["Finding", "control_of", "look", "status"]

LEAST_FREE = 10**9
SOON = datetime.timedelta(days=30)
STALE_SECONDS = 60
REPLACED = {
    "ca.crt": "make a new authority and new keys in a new folder ('fedbc deploy keys'), for the server and all devices",
    "server.crt": "make a new one with 'fedbc deploy keys keys --renew', on the machine with ca.key",
}
"""What to do about a certificate that runs out."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    is_well: bool
    what: str


def look(folder: Path, address: str | None = None) -> list[Finding]:
    """Look at a machine's part of a deployment, in its folder; `address` is the server's, if it is another one."""
    if address is not None:
        split_address(address)
    is_server, is_device = (folder / "superlink.sh").is_file(), (folder / "supernode.sh").is_file()
    if not is_server and not is_device:
        raise InputError(f"{folder} is not a folder of a deployment: it has neither superlink.sh nor supernode.sh")
    server = address or _address(folder)
    found = [*_packages(), *_disk(folder), *_private_files(folder / "keys"), *_certificates(folder / "keys")]
    found += _server_answers(folder, server)
    if is_server:
        found += _registered(folder, server)
    if is_device:
        found += _devices(folder)
    return found


def control_of(folder: Path, address: str | None = None) -> Control:
    """The control of a folder's SuperLink; `address` is its own, if it is another one than the scripts say."""
    if address is not None:
        split_address(address)
    return Control(folder / "keys", address or _address(folder))


def _address(folder: Path) -> str:
    """Where the server's script, or a device's, finds the server: a variable goes before what stands there."""
    for name, variable, host in (("superlink.sh", "PORT", "127.0.0.1:"), ("supernode.sh", "SUPERLINK", "")):
        file = folder / name
        if file.is_file() and (said := re.search(rf"\$\{{{variable}:-([^}}]+)\}}", file.read_text())):
            return host + (os.environ.get(variable) or said.group(1))
    raise InputError(f"{folder}: its scripts do not tell the server's address: give it with --address host:port")


def _packages() -> Iterator[Finding]:
    for name in ("fedbc", "flwr", "jax"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(name == "fedbc", f"{name} is not installed as a package")
            continue
        is_well = name != "flwr" or version.startswith(FLOWER)
        yield Finding(is_well, f"{name} {version}" + ("" if is_well else f": fedbc.flower works with {FLOWER}*"))


def _disk(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    said = f"{free / 1e9:.1f} GB are free on the disk of {folder.resolve()}"
    yield Finding(free >= LEAST_FREE, said if free >= LEAST_FREE else f"{said}: make room, states cannot be kept")


def _private_files(keys: Path) -> Iterator[Finding]:
    if not keys.is_dir():
        yield Finding(False, f"{keys} does not exist: make keys with 'fedbc deploy keys', or copy them here")
        return
    names = [file for file in sorted(keys.iterdir()) if file.is_file() and file.suffix not in (".crt", ".pub")]
    open_ones = [file.name for file in names if stat.S_IMODE(file.stat().st_mode) & 0o077]
    if open_ones:
        yield Finding(False, f"others can read {', '.join(open_ones)}: chmod 600 in {keys}")
    else:
        yield Finding(True, f"{len(names)} private files in {keys}, for their owner only")
    if (keys / "ca.key").exists():
        said = "fine for a trial on one machine; on a server keep it elsewhere ('fedbc deploy pack')"
        yield Finding(True, f"the authority's key, ca.key, is in {keys}: {said}")


def _certificates(keys: Path) -> Iterator[Finding]:
    for name in ("ca.crt", "server.crt"):
        file = keys / name
        if not file.is_file():
            if name == "ca.crt":
                yield Finding(False, f"{file} does not exist: copy the authority's certificate here")
            continue
        try:
            ends = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
        except ValueError as error:
            yield Finding(False, f"{file} is damaged: {error}")
            continue
        left = ends - datetime.datetime.now(datetime.UTC)
        is_well = left > SOON
        hint = "" if is_well else f": {REPLACED[name]}"
        yield Finding(is_well, f"{file} is valid until {ends:%Y-%m-%d}{hint}")


def _server_answers(folder: Path, address: str) -> Iterator[Finding]:
    """Whether the server is reached, shows a certificate of the authority, and has the same time."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        context = ssl.create_default_context(cafile=str(folder / "keys" / "ca.crt"))
    except OSError:
        return  # it is missing or damaged, which was said
    try:
        before = time.time()
        with (
            socket.create_connection((host, int(port)), 10) as plain,
            context.wrap_socket(plain, server_hostname=host) as link,
        ):
            link.sendall(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            answer = link.recv(4096).decode("latin-1")
    except ssl.SSLCertVerificationError as error:
        yield Finding(
            False, f"{address} shows a certificate that keys/ca.crt does not vouch for: {error.verify_message}"
        )
        return
    except OSError as error:
        hint = "is superlink.sh running there, with HOST=0.0.0.0 for other machines, and no firewall between?"
        yield Finding(False, f"{address} does not answer ({error.strerror or error}): {hint}")
        return
    yield Finding(True, f"{address} answers, with the authority's certificate")
    if said := re.search(r"^date: (.+?)\r?$", answer, re.MULTILINE | re.IGNORECASE):
        ahead = seconds_ahead(said.group(1), before, time.time())
        is_well = -BEHIND / 2 < ahead < AHEAD - 2
        hint = (
            "" if is_well else f": at most {AHEAD} s ahead and {BEHIND} s behind are accepted; set the clock (chrony)"
        )
        yield Finding(is_well, f"this machine's clock and the server's differ by {abs(ahead):.0f} s{hint}")


def _registered(folder: Path, address: str) -> Iterator[Finding]:
    try:
        keys = public_keys(folder / "keys")
        nodes = {node.key: node for node in control_of(folder, address).nodes()}
    except InputError as error:
        yield Finding(False, str(error))
        return
    missing = sorted(device for key, device in keys.items() if key not in nodes)
    if missing:
        yield Finding(False, f"devices {_listed(missing)} are not registered: fedbc deploy register")
    else:
        yield Finding(True, f"all {len(keys)} devices are registered")
    there = sum(nodes[key].status == "online" for key in keys if key in nodes)
    yield Finding(True, f"{there} of {len(keys)} devices are connected")


def _devices(folder: Path) -> Iterator[Finding]:
    """What the devices of this folder noted of themselves."""
    for file in sorted((folder / "state").glob("device-*.json")):
        try:
            facts = json.loads(file.read_text())
            ago, connected = time.time() - float(facts["at"]), bool(facts.get("connected"))
        except (OSError, ValueError, KeyError, TypeError):
            yield Finding(False, f"{file} cannot be read")
            continue
        if not connected:
            yield Finding(False, f"{file.stem} is not connected: {facts.get('why', 'no reason is known')}")
        elif ago > STALE_SECONDS:
            yield Finding(False, f"{file.stem} was last connected {ago:.0f} s ago: is supernode.sh running?")
        else:
            yield Finding(True, f"{file.stem} is connected, as node {facts.get('node_id')}")


def status(folder: Path, address: str | None = None) -> list[str]:
    """Who is there, and how the latest runs stand, in lines."""
    keys = public_keys(folder / "keys")
    try:
        nodes = {node.key: node.status for node in control_of(folder, address).nodes()}
        states = {device: nodes.get(key, "not registered") for key, device in keys.items()}
        lines = [
            f"{len(found)} of {len(keys)} devices {state}: {_listed(found)}"
            for state in ("online", "offline", "registered", "not registered")
            if (found := sorted(device for device, known in states.items() if known == state))
        ]
    except InputError as error:
        lines = [str(error)]
    for run in _latest(folder / "runs"):
        stands = deployed.read_status(run.path)
        if stands is not None:
            lines += ["", *_run_lines(run, stands)]
    return lines


def _latest(runs: Path, count: int = 3) -> list[RunFolder]:
    found = [run for run in (RunFolder.find(runs) if runs.is_dir() else []) if (run.path / deployed.FILE).is_file()]
    return sorted(found, key=lambda run: (run.path / deployed.FILE).stat().st_mtime)[-count:]


def _run_lines(run: RunFolder, found: deployed.Status) -> list[str]:
    ago = time.time() - found.since
    phase = "finished" if run.is_finished else f"{found.phase}, for {ago:.0f} s"
    lines = [f"{run.path}: round {found.round} of {found.rounds}, {phase}"]
    lagging = {d.device: found.round - d.taken for d in found.devices if d.asked and d.taken < found.round}
    away = [device.device for device in found.devices if not device.here]
    if away:
        lines.append(f"  away: devices {_listed(away)}")
    for device, rounds in sorted(lagging.items(), key=lambda item: -item[1])[:10]:
        lines.append(f"  device {device}: last taken {rounds} rounds ago")
    lines += [
        f"  device {faulty.device}: {faulty.faults} answers not used, the last: {faulty.fault}"
        for faulty in sorted(found.devices, key=lambda d: -d.faults)[:10]
        if faulty.faults
    ]
    moves = ", ".join(f"device {device} {move:.3g}" for device, move in found.largest_moves.items())
    if moves:
        lines.append(f"  moved the model furthest in the last round, in medians: {moves}")
    return lines


def _listed(devices: list[int]) -> str:
    shown = ", ".join(map(str, devices[:20]))
    return shown if len(devices) <= 20 else f"{shown}, and {len(devices) - 20} more"

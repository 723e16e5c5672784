"""systemd's units for a machine of a deployment: started with it, restarted always, held to its folder."""

from __future__ import annotations

import getpass
import re
from pathlib import Path

from fedbc import storage
from fedbc.errors import InputError

__all__ = ["write_units"]

MEMORY = re.compile(r"[1-9][0-9]*[KMGT]?|[1-9][0-9]?%|100%|infinity")
"""What systemd takes for a limit."""
UNIT = """[Unit]
Description=fedbc: {what}
After=network-online.target
Wants=network-online.target

[Service]
User={user}
WorkingDirectory={folder}
Environment="PATH={path}"
{environment}ExecStart=/bin/sh {folder}/{command}
Restart=always
RestartSec=5
KillMode=control-group
TimeoutStopSec=20
# What a run executes here can write to this folder, and not to the rest of the machine.
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome={home}
ReadWritePaths={folder}
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
MemoryMax={memory}

[Install]
WantedBy=multi-user.target
"""


def write_units(folder: Path, target: Path, *, path: str, memory: str = "75%") -> list[Path]:
    """Write the units for what this folder runs: the server's two scripts, or each device whose key is here.

    path: the PATH under which `fedbc` is found. memory: the most that each of them may use.
    """
    whole = folder.resolve()
    if any(character.isspace() or character == "%" for character in str(whole)):
        raise InputError(f"folder={str(whole)!r} is not accepted: systemd wants a path without spaces and %")
    if not MEMORY.fullmatch(memory):
        raise InputError(f"memory={memory!r} is not accepted: give a share or a size, such as 75% or 2G")
    if not path.isprintable() or '"' in path or "\\" in path:
        raise InputError(f"path={path!r} is not accepted: systemd cannot be told of it")
    services = []
    if (whole / "superlink.sh").is_file():
        services.append(("fedbc-superlink", "the server", "superlink.sh", "Environment=HOST=0.0.0.0\n"))
        services.append(("fedbc-superexec", "the server's part of runs", "superexec.sh", ""))
    if (whole / "supernode.sh").is_file():
        for key in sorted((whole / "keys").glob("device-*")):
            if not key.suffix:
                number = key.name.removeprefix("device-")
                services.append((f"fedbc-{key.name}", f"device {number}", f"supernode.sh {number}", ""))
    if not services:
        raise InputError(f"{folder} has neither superlink.sh nor a device's key: there is nothing to run")
    home = "read-only" if whole.is_relative_to("/home") or whole.is_relative_to("/root") else "yes"
    with storage.explained(target):
        target.mkdir(parents=True, exist_ok=True)
    made = []
    for name, what, command, environment in services:
        text = UNIT.format(
            what=what,
            user=getpass.getuser(),
            folder=whole,
            path=path.replace("%", "%%"),
            command=command,
            environment=environment,
            home=home,
            memory=memory,
        )
        storage.write_atomically(target / f"{name}.service", text)
        made.append(target / f"{name}.service")
    return made

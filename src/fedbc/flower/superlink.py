"""`fedbc deploy superlink`: Flower's SuperLink with the guard in front, and checks of what lies beside it."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from fedbc.errors import InputError
from fedbc.flower.checked import check_version
from fedbc.flower.memory import cap_memory

__all__ = ["check_folder", "main"]


def main(arguments: list[str]) -> None:
    """Run `flower-superlink` with these arguments, guarded."""
    check_version()
    host = _value("--host", arguments)
    certificate = _value("--ssl-ca-certfile", arguments)
    if host not in ("127.0.0.1", "localhost", "::1") and certificate is not None:
        check_folder(Path(certificate).parent)
    cap_memory()
    import uvicorn
    from flwr.server.superlink.linkstate import linkstate_factory
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    from fedbc.flower.guard import Guard
    from fedbc.flower.linkstate import LastingLinkState

    # Who asks is found by the connection alone: what a request says of it in its headers does not count.
    uvicorn.run = functools.partial(uvicorn.run, proxy_headers=False, server_header=False)
    factory: Any = linkstate_factory
    factory.SqlLinkState = LastingLinkState
    extensions.get_middleware = lambda: (Middleware(Guard),)
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


def check_folder(keys: Path) -> None:
    """Refuse to serve other machines beside keys that do not belong here: a run's code could read them."""
    found = [file.name for file in [keys / "ca.key", *sorted(keys.glob("device-*"))] if file.exists()]
    secret = [name for name in found if not name.endswith(".pub")]
    if secret:
        raise InputError(
            f"{keys} has {', '.join(secret[:3])}{', ...' if len(secret) > 3 else ''}: keys of the authority and of "
            "devices do not belong on a server that other machines reach: what a run executes there can read them. "
            "Keep them on your own machine, and send the server what 'fedbc deploy pack server' gives"
        )


def _value(name: str, arguments: list[str]) -> str | None:
    return arguments[arguments.index(name) + 1] if name in arguments[:-1] else None

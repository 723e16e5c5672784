"""The guard in front of a SuperLink's one port: devices may reach it from anywhere, everything else only its own user.

Flower 1.41 serves devices (`/v1/fleet`), `flwr` (`/v1/control`) and a run's processes (`/v1/runtime`) on one port, and
asks neither of the last two for a password: whoever reaches them can start a run, which executes code on the server and
on every device. The guard lets pass

- from anywhere: POST to one of the twelve routes that devices need, compared whole, so that no spelling of another
  path passes for one of them, and with a body of bounded size;
- from this machine: everything, if the user who asks is the one who runs the SuperLink, or root.

All else gets 403. An error of the server's own, such as a full disk, goes out as 503 where Flower says 500: for its
clients 503 is a reason to ask again, and 500 one to give up for good.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OBJECT_ROUTE = "/v1/fleet/push-object"
FLEET_ROUTES = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "register-node",
        "activate-node",
        "deactivate-node",
        "unregister-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
MOST_OBJECT = 64 * 2**20
"""The most bytes of an object that a device may push; fedbc's have 16 MB, Flower's 5."""
MOST_OTHER = 2**20
ESTABLISHED = "01"
KNOWN_SECONDS = 1.0
log = logging.getLogger("flwr.fedbc")


class Guard:
    """ASGI middleware: lets pass what may pass."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, refuse, or turn an error of the server's own into one that is asked again."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a websocket: uvicorn refuses it when nobody accepts it
        refusal = why_refused(scope)
        if refusal:
            log.warning("refused: %s %.200s from %s: %s", scope["method"], scope["path"], scope.get("client"), refusal)
            await _answer(send, 403, "refused: only devices may come from elsewhere")
            return
        reply = _Reply(send)
        most = MOST_OBJECT if scope["path"] == OBJECT_ROUTE else MOST_OTHER
        body = _Body(receive, most if scope["path"] in FLEET_ROUTES else None)
        if body.is_too_large(scope):
            await reply.instead(413, f"a body of more than {most} bytes is not taken")
            return
        try:
            await self.app(scope, body, reply)
        except Exception:
            if body.too_large:
                await reply.instead(413, f"a body of more than {most} bytes is not taken")
                return
            log.exception("the SuperLink failed at %s", scope["path"])
            await reply.instead(503, "the server failed for the moment: ask again")


class _Body:
    """Passes a request's body on, up to a size."""

    def __init__(self, receive: Receive, most: int | None) -> None:
        self.receive, self.most, self.taken, self.too_large = receive, most, 0, False

    def is_too_large(self, scope: Scope) -> bool:
        """Whether it says so itself, beforehand."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        return self.most is not None and (not length.isdigit() or int(length) > self.most)

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self.receive()
        self.taken += len(message.get("body", b""))
        if self.most is not None and self.taken > self.most:
            self.too_large = True
            raise ValueError("the body is too large")
        return message


class _Reply:
    """Passes a reply on, with 503 for 500."""

    def __init__(self, send: Send) -> None:
        self.send, self.begun = send, False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            if message["status"] == 500:
                message = {**message, "status": 503}
        await self.send(message)

    async def instead(self, status: int, text: str) -> None:
        if not self.begun:
            await _answer(self.send, status, text)


async def _answer(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def why_refused(scope: Scope) -> str:
    """Why a request may not pass; empty if it may."""
    if scope["path"] in FLEET_ROUTES and scope.get("raw_path", b"").decode("latin-1") == scope["path"]:
        return "" if scope["method"] == "POST" else "devices only post"
    client = scope.get("client")
    if not client or not _is_loopback(client[0]):
        return "it comes from another machine"
    user = _USERS.of(tuple(client[:2]), tuple(scope["server"][:2]))
    if user is not None and user not in (os.getuid(), 0):
        return f"it comes from user {user}, and the SuperLink runs for user {os.getuid()}"
    return ""


def _is_loopback(address: str) -> bool:
    try:
        return _address(address).is_loopback
    except ValueError:
        return False


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(text)
    return getattr(found, "ipv4_mapped", None) or found


def user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user whose process is at the client's end of a connection within this machine, as Linux tells it.

    None on systems that do not tell. A connection that is not found is nobody's (-1), and refused.
    """
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    if not tables[0].exists():
        return None
    wanted = tuple((_address(address), port) for address, port in (client[:2], server[:2]))
    for table in tables:
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            _, here, there, state, _, _, _, user, *_ = line.split()
            if state == ESTABLISHED and (_end(here), _end(there)) == wanted:
                return int(user)
    return -1


class _Users:
    """Whose a connection is, for a second: a closed one's numbers are not given out again for longer than that."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[float, int | None]] = {}

    def of(self, client: Any, server: Any) -> int | None:
        """The user at the client's end."""
        now = time.monotonic()
        at, user = self._known.get((client, server), (-float("inf"), None))
        if now - at > KNOWN_SECONDS:
            self._known = {ends: found for ends, found in self._known.items() if now - found[0] <= KNOWN_SECONDS}
            user = user_of(client, server)
            self._known[client, server] = (now, user)
        return user


_USERS = _Users()


def _end(text: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    """An end of a connection, as the kernel writes it: words of the address in the machine's order, and the port."""
    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[begin : begin + 8]) for begin in range(0, len(address), 8)]
    data = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return _address(str(ipaddress.ip_address(data))), int(port, 16)

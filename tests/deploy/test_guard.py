"""What the guard lets pass, without a network; test_door has it with a real one and another user."""

import asyncio
import os

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from flwr.supercore.routers.runtime import create_runtime_router
from flwr.superlink.routers.control import router as control
from flwr.superlink.routers.fleet.router import router as fleet

from fedbc.flower import guard

OUTSIDE = ("10.0.0.9", 40000)
SERVER = ("10.0.0.1", 8000)


def paths(router):
    app = FastAPI(openapi_url=None)
    app.include_router(router)
    return {context.path for context in iter_route_contexts(app.routes)}


FORBIDDEN = [
    *sorted(paths(control)),
    *sorted(paths(create_runtime_router("SuperLink"))),
    *("/", "/docs", "/openapi.json", "/health", "/docs/oauth2-redirect", "/v1/fleet", "/v1/fleet/"),
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/pull-messages/../../control/start-run",
    "/v1/fleet//pull-messages",
    "/V1/fleet/pull-messages",
    "//v1/control/start-run",
    "/v1/fleet/pull-messages/",
    "/v1/fleet/pull-messages\x00",
]


def ask(path, *, client=OUTSIDE, server=SERVER, method="POST", body=b"", raw=None, app=None, headers=(), kind="http"):
    """The status that a request gets, and whether it reached the app."""
    reached, statuses = [], []

    async def inner(scope, receive, send):
        reached.append(scope["path"])
        if app is not None:
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    parts = iter([body[i : i + 100_000] for i in range(0, len(body), 100_000)] or [b""])

    async def receive():
        return {"type": "http.request", "body": next(parts, b""), "more_body": True}

    async def send(message):
        statuses.append(message.get("status"))

    raw_path = path.encode("latin-1") if raw is None else raw
    scope = {"type": kind, "path": path, "raw_path": raw_path, "method": method, "headers": list(headers)}
    asyncio.run(guard.Guard(inner)(scope | {"client": client, "server": server}, receive, send))
    return (statuses or [None])[0], bool(reached)


def test_there_are_routes_to_forbid():
    assert sum(path.startswith("/v1/control/") for path in FORBIDDEN) > 30
    assert sum(path.startswith("/v1/runtime/") for path in FORBIDDEN) > 10
    assert paths(fleet) == guard.FLEET_ROUTES


@pytest.mark.parametrize("path", FORBIDDEN)
def test_nothing_but_fleet_is_reached_from_outside(path):
    for method in ("POST", "GET", "OPTIONS"):
        assert ask(path, method=method) == (403, False)


def test_devices_pass_and_only_as_they_should():
    for path in guard.FLEET_ROUTES:
        assert ask(path) == (200, True)
        assert ask(path, method="GET") == (403, False)
        assert ask(path, raw=path.replace("fleet", "%66leet").encode()) == (403, False)
    assert ask("/v1/fleet/pull-messages", kind="websocket") == (None, False)
    for client in (None, ("testclient", 1), ("", 0)):
        assert ask("/v1/control/list-runs", client=client) == (403, False)


def test_from_this_machine_its_user_alone(monkeypatch):
    here = {"client": ("127.0.0.1", 40000), "server": ("127.0.0.1", 8000)}
    for user, passes in ((os.getuid(), True), (0, True), (None, True), (12345, False), (-1, False)):
        monkeypatch.setattr(guard, "_USERS", guard._Users())
        monkeypatch.setattr(guard, "user_of", lambda client, server, user=user: user)
        assert ask("/v1/control/start-run", **here) == ((200, True) if passes else (403, False))


def test_the_kernel_says_whose_connection_it_is():
    import socket

    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as listening:
            try:
                listening.bind((address, 0))
            except OSError:
                continue  # no IPv6 here
            listening.listen()
            with socket.create_connection(listening.getsockname()[:2]) as client:
                mine, there = client.getsockname()[:2], client.getpeername()[:2]
                assert guard.user_of(mine, there) == os.getuid()
                assert guard.user_of((mine[0], mine[1]), (there[0], there[1] ^ 1)) == -1
                assert guard.user_of(("127.0.0.2", mine[1]), there) == -1


def test_bodies_are_bounded():
    other, large = "/v1/fleet/push-messages", b"x" * (guard.MOST_OTHER + 1)

    async def reads(scope, receive, send):
        taken = 0
        while taken < len(large) and (message := await receive())["body"]:
            taken += len(message["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    assert ask(other, body=large[:1000], app=reads) == (200, True)
    assert ask(other, body=large, app=reads) == (413, True)
    assert ask(other, headers=[(b"content-length", str(len(large)).encode())]) == (413, False)
    assert ask(guard.OBJECT_ROUTE, body=large, app=reads) == (200, True)


def test_errors_of_the_server_are_asked_again():
    async def fails(scope, receive, send):
        raise OSError("database or disk is full")

    async def says_so(scope, receive, send):
        await send({"type": "http.response.start", "status": 500, "headers": []})

    assert ask("/v1/fleet/pull-messages", app=fails) == (503, True)
    assert ask("/v1/fleet/pull-messages", app=says_so) == (503, True)

"""The server of `fedbc watch`: one page and its data, for browsers on this machine."""

from __future__ import annotations

import base64
import errno
import hashlib
import ipaddress
import json
import os
import re
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedbc.errors import InputError
from fedbc.runs import RunFolder
from fedbc.watch import page
from fedbc.watch.runs import View, WatchedRun

LOOK_SECONDS = 0.5
"""However many browsers ask, the folders are looked at so often at most."""
MOST_RUNS = 30
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
DEFAULT_PORT = 8765
TRIES = 20
"""Ports that are tried from the usual one on, if none is asked for."""


class Watcher:
    """Looks at the runs of a place, for all browsers together."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise InputError(f"{root} is not a folder with a run")
        self.root = root
        if not RunFolder.find(root):
            raise InputError(f"{root} holds no runs: neither it nor a folder in it has a spec.json")
        self._lock = threading.Lock()
        self._runs: dict[RunFolder, WatchedRun] = {}
        self._views: list[View] = []
        self._note = ""
        self._answer: dict[str, Any] = {}
        self._looked_at = -LOOK_SECONDS

    def html(self) -> str:
        """The page as of now."""
        with self._lock:
            self._look()
            return page.html(self.root.resolve().name, self._views, self._answer, self._note)

    def data(self) -> dict[str, Any]:
        """The data as of now, with their version."""
        with self._lock:
            self._look()
            return self._answer

    def _look(self) -> None:
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        folders = RunFolder.find(self.root)
        # The latest: a folder of folders may hold very many runs.
        latest = sorted(folders, key=lambda f: f.path.stat().st_mtime, reverse=True)[:MOST_RUNS]
        kept = [f for f in folders if f in latest]
        self._note = f"The latest {MOST_RUNS} of {len(folders)} runs are shown." if len(folders) > MOST_RUNS else ""
        self._runs = {f: self._runs.get(f) or WatchedRun(self._name(f.path), f) for f in kept}
        self._views = [run.look() for run in self._runs.values()]
        found = page.data(self._views)
        text = json.dumps(found, sort_keys=True, default=str)
        self._answer = found | {"version": hashlib.sha256(text.encode()).hexdigest()[:16]}
        self._looked_at = time.monotonic()

    def _name(self, folder: Path) -> str:
        return folder.resolve().name if folder == self.root else folder.relative_to(self.root).as_posix()


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "fedbc", ""
    protocol_version = "HTTP/1.1"
    timeout = 30  # a browser that opens a connection and says nothing does not hold a thread for ever
    server: Server

    def do_GET(self) -> None:
        if not self.server.knows(self.headers.get("Host", "")):
            # A page from elsewhere whose name was made to point at this machine asks under that name.
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this name is not mine\n")
            return
        asked = urlsplit(self.path)
        if asked.path == "/":
            text = self.server.watcher.html()
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", text.encode(), _policy(text))
        elif asked.path == "/data.json":
            data = self.server.watcher.data()
            if parse_qs(asked.query).get("have") == [data["version"]]:
                self._send(HTTPStatus.NO_CONTENT, None, b"")
            else:
                self._send(HTTPStatus.OK, "application/json", json.dumps(data, allow_nan=False).encode())
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here\n")

    do_HEAD = do_GET  # noqa: N815 (the library's name)

    def _send(self, status: HTTPStatus, kind: str | None, content: bytes, policy: str = "default-src 'none'") -> None:
        self.send_response(status)
        if kind is not None:
            self.send_header("Content-Type", kind)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(content)))
        for name, value in (
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a page that asks every second would fill the terminal."""


def _policy(text: str) -> str:
    """Only the page's own scripts may run, and they may ask only us; Vega compiles its expressions, hence eval."""
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join([*(f"'sha256-{h}'" for h in hashes), "'unsafe-eval'"])
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class Server(ThreadingHTTPServer):
    """Serves until it is shut down; threads end with the process."""

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # elsewhere it would let two servers share a port

    def __init__(self, watcher: Watcher, host: str, port: int | None) -> None:
        self.watcher, self.host = watcher, host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        ports = [port] if port is not None else range(DEFAULT_PORT, DEFAULT_PORT + TRIES)
        for tried in ports:
            try:
                super().__init__((host, tried), _Handler)
                return
            except (OSError, OverflowError) as error:
                taken = getattr(error, "errno", None) == errno.EADDRINUSE
                if not taken:
                    raise InputError(f"host={host!r}, port={tried}: cannot be served from: {error}") from None
        raise InputError(f"port={ports[0]} is taken: give another --port, or 0 for any that is free")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the midst of an answer is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where the page is."""
        shown = "127.0.0.1" if self.host in ("0.0.0.0", "::") else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{shown}:{self.server_address[1]}/"

    def knows(self, host: str) -> bool:
        """Whether a request was meant for us, by its Host header."""
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not name:
            name, port = host, "80"
        if port and port != str(self.server_address[1]):
            return False
        name = name.lower()
        if name in LOOPBACK or name in (self.host.lower(), f"[{self.host.lower()}]"):
            return True
        if self.host not in ("0.0.0.0", "::"):
            return False
        try:  # all addresses of this machine: names that others could have made up are still refused
            ipaddress.ip_address(name.strip("[]"))
            return True
        except ValueError:
            return name in (socket.gethostname().lower(), socket.getfqdn().lower())

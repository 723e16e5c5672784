"""What a SuperLink lets in that other machines reach: a real one, in a network of its own, which ends with it."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from loopback import Loopback, until
from needs import missing
from test_guard import FORBIDDEN

from fedbc.flower.control import pack
from fedbc.flower.guard import FLEET_ROUTES

ADDRESS = "10.77.0.1"
NETWORK = f"ip link set lo up && ip addr add {ADDRESS}/32 dev lo"
ASK = """
import json, os, socket, ssl, sys
port, forbidden, fleet = int(sys.argv[1]), *map(json.loads, sys.argv[2:])
context = ssl.create_default_context(cafile="keys/ca.crt")
context.check_hostname = False
TYPE = "Content-Type: application/protobuf"

def ask(host, path, method="POST"):
    with context.wrap_socket(socket.create_connection((host, port), 60)) as link:
        head = f"{method} {path} HTTP/1.1", "Host: x", "Content-Length: 0", TYPE, "Connection: close", "", ""
        link.sendall("\\r\\n".join(head).encode())
        return int(link.recv(100).split()[1])

found = {"outside": {f"{how} {path}": ask(OUTSIDE, path, how) for path in forbidden for how in ("POST", "GET")}}
found["devices"] = {path: ask(OUTSIDE, path) for path in fleet}
found["own"] = {path: ask("127.0.0.1", path) for path in forbidden if path.startswith("/v1/")}
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
found["another user"] = {path: ask("127.0.0.1", path) for path in forbidden}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The statuses of all that was asked, by who asked."""
    if os.getuid() != 0 or not shutil.which("ip") or subprocess.run(["unshare", "-n", "true"], check=False).returncode:
        missing("a network of its own cannot be made without root", "FEDBC_REQUIRE_ROOT")
    with Loopback(tmp_path_factory.mktemp("door")) as loop:
        loop.prepare(1)
        pack(loop.app, loop.app / "machines")
        server = loop.app / "machines" / "server"
        command = f"{NETWORK} && exec ./superlink.sh"
        link = loop.start("superlink", "unshare", "-n", "sh", "-c", command, folder=server, HOST="0.0.0.0")
        until(lambda: link.ended or "Uvicorn running" in link.text, 60, "SuperLink")
        paths = [path for path in FORBIDDEN if "\x00" not in path]  # with that, it is no request
        given = [str(loop.port), json.dumps(paths), json.dumps(sorted(FLEET_ROUTES))]
        done = subprocess.run(
            ["nsenter", "-t", str(link.popen.pid), "-n", sys.executable, "-c", f"OUTSIDE = {ADDRESS!r}\n{ASK}", *given],
            cwd=server,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr + link.text
        return json.loads(done.stdout)


@pytest.mark.parametrize("who", ["outside", "another user"])
def test_everything_but_what_devices_need_is_refused(who, asked):
    assert len(asked[who]) > 50
    assert set(asked[who].values()) == {403}, {path: status for path, status in asked[who].items() if status != 403}


def test_devices_are_let_in_and_have_to_show_a_key(asked):
    assert set(asked["devices"]) == FLEET_ROUTES
    assert set(asked["devices"].values()) == {401}, asked["devices"]


def test_the_superlink_s_own_user_reaches_the_rest(asked):
    assert not {path: status for path, status in asked["own"].items() if status == 403 and ".." not in path}

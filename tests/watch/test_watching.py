"""`fedbc watch` as people use it: a server that answers only whom it should, and a page that follows a real run."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import pytest
from browser import PHONE
from watch_server import watching

from fedbc.cli import main
from fedbc.runs import RunFolder, RunSpec, begin, execute_in, live
from fedbc.watch.server import Server, Watcher

SPEC = RunSpec({"name": "fedbc"}, {"name": "synthetic", "devices": 4}, run={"rounds": 3})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two finished runs, as `fedbc run fedbc fedavg` writes them."""
    parent = tmp_path_factory.mktemp("runs") / "two"
    for name in ("fedbc", "fedavg"):
        spec = RunSpec({"name": name}, SPEC.data, run=SPEC.run)
        begin(RunFolder(parent / name), spec)
        execute_in(RunFolder(parent / name), spec).finished()
    return parent


@pytest.fixture
def server(folder):
    with Server(Watcher(folder), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path, method="GET", **headers):
    where = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=120)
    with contextlib.closing(where) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


def test_page_and_data_with_the_headers_that_they_should_have(server):
    status, headers, content = ask(server, "/")
    assert status == 200
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "script-src 'sha256-" in policy
    assert "http" not in re.sub(r"'sha256-[^']*'", "", policy)
    assert b"<h1>two</h1>" in content
    status, headers, content = ask(server, "/data.json")
    data = json.loads(content)
    assert (status, headers["Content-Type"], data["state"]) == (200, "application/json", "finished")
    assert [cells[:3] for cells in data["cells"]] == [["fedavg", "finished", "3 of 3"], ["fedbc", "finished", "3 of 3"]]
    assert ask(server, f"/data.json?have={data['version']}")[::2] == (204, b"")
    status, headers, content = ask(server, "/", "HEAD")
    assert (status, content) == (200, b"")
    assert int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize(
    "path", ["/../secret", "/%2e%2e/etc/passwd", "/fedbc/spec.json", "//etc/passwd", "/data.json/x"]
)
def test_nothing_else_is_there(server, path):
    status, headers, content = ask(server, path)
    assert (status, content) == (404, b"there is nothing here\n")
    assert headers["Content-Security-Policy"] == "default-src 'none'"


def test_nothing_can_be_sent(server):
    assert ask(server, "/", "POST")[0] == 501


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost:{port}", 200),
        ("LOCALHOST:{port}", 200),
        ("[::1]:{port}", 200),
        ("evil.example:{port}", 403),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:{port}", 403),
        ("127.0.0.1:1", 403),
        ("192.168.0.7:{port}", 403),
        ("", 403),
    ],
)
def test_a_name_that_was_made_to_point_here_is_refused(server, host, status):
    host = host.format(port=server.server_address[1])
    assert ask(server, "/data.json", Host=host)[0] == status


def test_on_all_addresses_numbers_are_accepted_and_strange_names_are_not(folder):
    with Server(Watcher(folder), "0.0.0.0", 0) as server:
        port = server.server_address[1]
        assert server.knows(f"192.168.0.7:{port}")
        assert server.knows(f"{socket.gethostname()}:{port}")
        assert not server.knows(f"evil.example:{port}")
        assert server.url == f"http://127.0.0.1:{port}/"


def test_mistakes_are_one_line(folder, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, said in (
            ([folder, "--port", port], f"port={port} is taken: give another --port, or 0"),
            ([folder, "--port", 70000], "port=70000 is not accepted"),
            ([folder, "--host", "256.1.1.1", "--port", 0], "host='256.1.1.1', port=0: cannot be served from"),
            ([tmp_path / "nowhere"], "nowhere is not a folder with a run"),
            ([tmp_path], "holds no runs"),
        ):
            with pytest.raises(SystemExit) as stop:
                main(["watch", *map(str, arguments), "--no-open"])
            error = capsys.readouterr().err
            assert (stop.value.code, error.count("\n")) == (2, 1)
            assert said in error


def test_the_usual_port_gives_way_if_it_is_taken(folder):
    with Server(Watcher(folder), "127.0.0.1", None) as one, Server(Watcher(folder), "127.0.0.1", None) as two:
        assert one.url != two.url


def leave(browser):
    """Leave the page before its server goes: it would complain of that on the console, as it should."""
    browser.driver.get("about:blank")


STATE = "return document.getElementById('watch-state')?.dataset.state"
ROUND = "return parseInt(document.querySelector('#table-runs tbody').rows[0].cells[2].textContent)"
LAST_POINT = """const rows = fedbcPage.views['global-accuracy'].data('global_accuracy');
  return rows.length ? rows[rows.length - 1].round : 0;"""


def test_the_page_follows_a_real_run_over_ctrl_c_and_resume_to_its_end(tmp_path, browser):
    """A run in a process of its own; nobody touches the page, which is loaded anew only when it gets other charts."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "fedbc", "run", "--quiet", "--checkpoint-every", "5"]
    new = ["--devices", "6", "--sample", "3", "--rounds", "100000", "--momentum", "0.5", "--out", str(folder)]
    with subprocess.Popen([*command, *new], stderr=subprocess.PIPE, text=True) as process:
        follower = live.Follower(RunFolder(folder))
        while not follower.refresh():
            assert process.poll() is None, process.stderr.read()
        with watching(folder) as address:
            browser.open(address)
            browser.wait(
                f"return (() => {{ {STATE} }})() === 'running' && document.querySelector('[data-chart=drifts]')"
            )
            browser.wait_for_charts()
            first = browser.run(ROUND)
            browser.wait(f"return (() => {{ {ROUND} }})() > arguments[0] + 10", first)
            browser.wait(f"return (() => {{ {LAST_POINT} }})() > arguments[0]", first)
            assert browser.run("return document.title").endswith("% · run")
            assert "rounds/s" in browser.text("#table-runs")
            browser.screenshot("watch-running")
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 130
            browser.wait(f"return (() => {{ {STATE} }})() === 'stopped'")
            assert "stopped after round" in browser.text("#table-runs")
            until = browser.run(ROUND) + 30
            again = [*command, "--resume", str(folder), "--rounds", str(until)]
            subprocess.run(again, check=True, timeout=120)
            browser.wait(f"return (() => {{ {STATE} }})() === 'finished'")
            browser.wait(f"return (() => {{ {LAST_POINT} }})() === arguments[0]", until)
            assert browser.run(ROUND) == until
            assert sorted(browser.charts()) == sorted(
                ["global-accuracy", "local-accuracy", "global-loss", "local-loss", "drift", "multipliers", "drifts"]
            )
            assert all(browser.marks(chart) > 0 for chart in browser.charts())
            assert browser.run("return performance.getEntriesByType('resource').map(e => new URL(e.name).origin)"
                               ".every(o => o === location.origin)")  # fmt: skip
            assert browser.errors() == []
            browser.screenshot("watch-finished")
            leave(browser)


def test_several_runs_in_the_dark_and_on_a_phone(folder, browser):
    with watching(folder) as address:
        browser.open(address)
        assert browser.text("#watch-word") == "finished"
        before = browser.marks("global-accuracy")
        browser.click("[data-toggles=hidden] input")
        browser.wait("return [...document.querySelectorAll('[data-toggles=hidden] input')].some(i => !i.checked)")
        assert browser.marks("global-accuracy") < before
        browser.click("[data-toggles=hidden] input")
        browser.dark()
        browser.wait_for_charts()
        assert browser.marks("global-accuracy") == before
        browser.screenshot("watch-several-dark")
        browser.open(address, width=PHONE)
        assert browser.sideways() <= 0
        browser.screenshot("watch-several-phone")
        leave(browser)


def test_the_page_outlives_its_server(folder, browser):
    with watching(folder) as address:
        browser.open(address)
        port = urlsplit(address).port
    browser.wait("return document.getElementById('watch-state').dataset.gone === 'yes'")
    assert "fedbc watch has ended" in browser.text("#watch-state")
    assert browser.marks("global-accuracy") > 0
    assert [said for said in browser.errors() if "data.json" not in said or "Failed to load resource" not in said] == []
    with watching(folder, "--port", str(port)):
        browser.wait("return document.getElementById('watch-state').dataset.gone === undefined")
        assert browser.text("#watch-word") == "finished"
        browser.errors()  # those of the time without a server
        leave(browser)

from __future__ import annotations

import hashlib
import http.server
import io
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from fedbc.data import files
from fedbc.errors import InputError

CONTENT = np.random.default_rng(0).bytes(1_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """/good knows ranges, /whole does not, /breaks sends at most 300,000 bytes a connection, /dead none."""

    ranges: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.ranges.append(wanted)
        kind = self.path.strip("/").split(".")[0]
        if kind == "missing":
            self.send_error(404)
            return
        content = CONTENT[::-1] if kind == "wrong" else CONTENT
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and kind != "whole" else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        sent = {"breaks": 300_000, "dead": 0}.get(kind, len(content))
        self.wfile.write(content[start : start + sent])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(files, "_PAUSE", 0.0)
    Handler.ranges.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def published(*urls: str) -> files.Published:
    return files.Published("numbers.bin", MD5, urls)


def test_a_download_is_whole_and_leaves_no_part_file(server: str, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "numbers.bin"
    files.download(published(f"{server}/good"), target)
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]
    assert Handler.ranges == [None]


def test_a_download_goes_on_from_the_part_file(server: str, tmp_path: Path) -> None:
    (tmp_path / "numbers.bin.part").write_bytes(CONTENT[:400_000])
    files.download(published(f"{server}/good"), tmp_path / "numbers.bin")
    assert (tmp_path / "numbers.bin").read_bytes() == CONTENT
    assert Handler.ranges == ["bytes=400000-"]


def test_a_part_file_that_is_already_whole_is_taken(server: str, tmp_path: Path) -> None:
    (tmp_path / "numbers.bin.part").write_bytes(CONTENT)
    files.download(published(f"{server}/good"), tmp_path / "numbers.bin")
    assert (tmp_path / "numbers.bin").read_bytes() == CONTENT


def test_a_connection_that_breaks_is_resumed(server: str, tmp_path: Path) -> None:
    files.download(published(f"{server}/breaks"), tmp_path / "numbers.bin")
    assert (tmp_path / "numbers.bin").read_bytes() == CONTENT
    assert Handler.ranges == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]


def test_a_server_without_ranges_starts_again(server: str, tmp_path: Path) -> None:
    (tmp_path / "numbers.bin.part").write_bytes(b"something else")
    files.download(published(f"{server}/whole"), tmp_path / "numbers.bin")
    assert (tmp_path / "numbers.bin").read_bytes() == CONTENT


def test_a_download_given_up_keeps_what_it_has(server: str, tmp_path: Path) -> None:
    part = tmp_path / "numbers.bin.part"
    part.write_bytes(CONTENT[:1000])
    with pytest.raises(OSError, match="the connection broke"):
        files.download(published(f"{server}/dead"), tmp_path / "numbers.bin")
    assert part.read_bytes() == CONTENT[:1000]
    assert not (tmp_path / "numbers.bin").exists()


def test_wrong_content_is_refused_and_removed(server: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"numbers.bin is damaged or not the published file .*expected md5 {MD5}"):
        files.download(published(f"{server}/wrong"), tmp_path / "numbers.bin")
    assert list(tmp_path.iterdir()) == []


def test_the_next_address_is_tried(server: str, tmp_path: Path) -> None:
    files.download(published(f"{server}/missing", f"{server}/good"), tmp_path / "numbers.bin")
    assert (tmp_path / "numbers.bin").read_bytes() == CONTENT


def test_two_downloads_at_once_do_not_disturb_each_other(server: str, tmp_path: Path) -> None:
    target = tmp_path / "numbers.bin"
    errors: list[BaseException] = []

    def run() -> None:
        try:
            files.download(published(f"{server}/breaks"), target)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert target.read_bytes() == CONTENT


def test_without_a_network_one_line_says_what_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PAUSE", 0.0)
    root = tmp_path / "absent"
    missing = [published("http://127.0.0.1:9/numbers.bin"), files.Published("more.bin", MD5, ("http://127.0.0.1:9/m",))]
    with pytest.raises(InputError) as caught:
        files.obtain("counting", missing, root, "sub")
    message = str(caught.value)
    assert message.startswith(f"counting needs numbers.bin, more.bin: not found in {root}")
    assert "http://127.0.0.1:9/numbers.bin" in message
    assert f"put what is missing into {root / 'sub'}" in message
    assert "FEDBC_DATA" in message
    assert "\n" not in message
    assert not root.exists()


def test_progress_is_shown_on_a_terminal_only(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files.download(published(f"{server}/good"), tmp_path / "quiet.bin")
    assert capfd.readouterr() == ("", "")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    files.download(published(f"{server}/good"), tmp_path / "shown.bin")
    assert "numbers.bin" in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_the_data_folder_comes_from_argument_then_variable_then_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert files.folder().name == "fedbc"
    monkeypatch.setenv("FEDBC_DATA", str(tmp_path / "variable"))
    assert files.folder() == tmp_path / "variable"
    assert files.folder(str(tmp_path)) == tmp_path
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is not a folder"):
        files.folder(str(tmp_path / "file"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere cannot be read"):
        files.read_any(tmp_path / "nowhere")

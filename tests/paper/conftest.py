"""Where the real data and the browser are; without them a test says loudly that it did not run, or fails in CI."""

import os
import shutil
from pathlib import Path

import pytest

DATA = Path(os.environ.get("FEDBC_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def _missing(message, variable):
    message = f"NOT TESTED: {message} ({variable}=1 makes this a failure)"
    if os.environ.get(variable) == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture
def real_data(monkeypatch):
    """The published data files, for this process and its workers."""
    if not DATA.exists():
        _missing(f"{DATA} is absent", "FEDBC_REQUIRE_DATA")
    monkeypatch.setenv("FEDBC_DATA", str(DATA))
    return DATA


@pytest.fixture
def chromium():
    """The browser's program."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    _missing("there is no Chromium (Debian's package is `chromium`)", "FEDBC_REQUIRE_BROWSER")

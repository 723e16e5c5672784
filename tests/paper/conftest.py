"""Where the real data are; without them a test says loudly that it did not run, or fails in CI."""

import os
from pathlib import Path

import pytest
from needs import missing

DATA = Path(os.environ.get("FEDBC_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


@pytest.fixture
def real_data(monkeypatch):
    """The published data files, for this process and its workers."""
    if not DATA.exists():
        missing(f"{DATA} is absent", "FEDBC_REQUIRE_DATA")
    monkeypatch.setenv("FEDBC_DATA", str(DATA))
    return DATA

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"
DATA = Path(os.environ.get("FEDBC_DATA") or SHARED / "data")


def _or_skip(path: Path) -> Path:
    if path.exists():
        return path
    message = f"NOT TESTED on real data: {path} is absent (FEDBC_REQUIRE_DATA=1 makes this a failure)"
    if os.environ.get("FEDBC_REQUIRE_DATA") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the published data files."""
    return _or_skip(DATA)


@pytest.fixture(scope="session")
def paper_tables() -> Path:
    return _or_skip(SHARED / "paper" / "tables.json")


@pytest.fixture(autouse=True)
def _no_data_folder_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDBC_DATA", raising=False)

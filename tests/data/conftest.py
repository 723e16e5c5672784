from __future__ import annotations

import os
from pathlib import Path

import pytest
from needs import missing

SHARED = Path(__file__).resolve().parents[3] / "shared"
DATA = Path(os.environ.get("FEDBC_DATA") or SHARED / "data")


def _or_skip(path: Path) -> Path:
    if not path.exists():
        missing(f"real data: {path} is absent", "FEDBC_REQUIRE_DATA")
    return path


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

import os
from pathlib import Path

import pytest
from inprocess import Small


@pytest.fixture
def deployed(tmp_path, make_federation, tiny_model):
    def make(federation=None, **config):
        return Small(tmp_path, federation or make_federation(sizes=(20, 20)), tiny_model, **config)

    return make


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the published data files, where there is one: FEDBC_REQUIRE_DATA=1 asks for it."""
    path = Path(os.environ.get("FEDBC_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
    if not path.exists() and os.environ.get("FEDBC_REQUIRE_DATA") == "1":
        pytest.fail(f"{path} is absent")
    return path

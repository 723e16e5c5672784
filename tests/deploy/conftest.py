import pytest
from inprocess import Small


@pytest.fixture
def deployed(tmp_path, make_federation, tiny_model):
    def make(federation=None, **config):
        return Small(tmp_path, federation or make_federation(sizes=(20, 20)), tiny_model, **config)

    return make

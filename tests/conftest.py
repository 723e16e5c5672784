"""Shared by all tests: settings of hypothesis, small federations, a browser."""

import signal

import numpy as np
import pytest
from hypothesis import settings

import fedbc

# A shell that starts the tests in the background has them, and every process that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("default", deadline=None, max_examples=60)
settings.load_profile("default")


def small_federation(sizes=(7, 23, 12, 40, 5), *, features=4, classes=3, test=6, seed=0):
    """A few devices with ragged sizes; each labels by a model of its own, so that they disagree."""
    rng = np.random.default_rng(seed)
    train, held = [], []
    for n in sizes:
        w = rng.normal(size=(features, classes))
        x = rng.normal(rng.normal(size=features), 1, (n + test, features))
        y = np.argmax(x @ w, axis=1)
        train.append((x[:n], y[:n]))
        held.append((x[n:], y[n:]))
    return fedbc.data.federation(train, held, classes=classes, name="small")


@pytest.fixture(scope="session")
def make_federation():
    return small_federation


@pytest.fixture
def small():
    return small_federation()


@pytest.fixture
def tiny_model():
    return fedbc.models.logistic(4, 3)


@pytest.fixture(scope="session")
def started_browser(tmp_path_factory):
    from browser import Browser

    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture
def browser(started_browser):
    """Chromium; a page that complains on the console fails the test that opened it."""
    yield started_browser
    assert started_browser.errors() == []

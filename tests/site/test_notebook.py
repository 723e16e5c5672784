"""The notebook tells the paper's story: its sentences hold where its sliders can be put, and it works in a browser."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "paper_story.py"


@pytest.fixture(scope="module")
def tell():
    """Run the notebook with its sliders put somewhere; what its cells define."""
    spec = importlib.util.spec_from_file_location("paper_story", NOTEBOOK)
    notebook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebook)
    told = {}

    def run(gamma=0.3, heterogeneity=0.5, sample=6, start="local"):
        key = (gamma, heterogeneity, sample, start)
        if key not in told:
            values = {"gamma": gamma, "heterogeneity": heterogeneity, "sample": sample, "start": start}
            told[key] = notebook.app.run(defs=values)[1]
        return told[key]

    return run


def accuracy(names, kind, method="FedBC"):
    return names["ends"][method][f"{kind}_accuracy"]


def test_gamma_trades_global_for_local_accuracy(tell):
    small, large = tell(gamma=0.001), tell(gamma=30.0)
    assert accuracy(large, "local") > accuracy(small, "local") + 0.03
    assert accuracy(large, "global") < accuracy(small, "global") - 0.2
    # "The circle walks to the triangle": local-only training is the far end.
    assert accuracy(large, "local") == pytest.approx(accuracy(large, "local", "local only"), abs=0.02)
    assert accuracy(large, "global", "FedAvg") > accuracy(large, "global", "local only") + 0.3
    assert f"{100 * accuracy(small, 'local'):.1f} %" in small["story"]


def test_who_is_at_the_constraint(tell):
    small, large = tell(gamma=0.001), tell(gamma=30.0)
    assert (small["ours"].multipliers > 0).all()
    assert (small["devices"]["drift"] > 0.001).all()
    assert (large["ours"].multipliers == 0).all()
    assert (large["devices"]["drift"] < 30).all()


def test_weights_by_lambda_are_more_even(tell):
    shares = tell(gamma=0.001)["shares"]
    assert shares["coefficient"].std() < shares["coefficient_by_examples"].std()
    alike = tell(gamma=30.0)["shares"]["coefficient"]
    assert alike.to_numpy() == pytest.approx(1 / 6)  # where no lambda is left, all count alike


def test_it_opens_where_some_devices_strain_and_no_model_is_worse_than_fedavg_s(tell):
    opened = tell(gamma=0.1, heterogeneity=1.0, start="global")
    assert accuracy(opened, "global") > accuracy(opened, "global", "FedAvg")
    assert accuracy(opened, "local") > accuracy(opened, "local", "FedAvg") + 0.01
    multipliers = opened["ours"].multipliers
    assert multipliers.min() < 0.01 < 0.1 < multipliers.max()


def test_training_from_z_never_reaches_a_large_gamma(tell):
    large = tell(gamma=30.0, start="global")
    assert (large["ours"].multipliers == 0).all()
    assert large["devices"]["drift"].max() < 1
    assert accuracy(large, "global") == pytest.approx(accuracy(large, "global", "FedAvg"), abs=0.05)
    assert accuracy(large, "local") == pytest.approx(accuracy(large, "local", "FedAvg"), abs=0.05)


def test_heterogeneity_costs_the_models_for_all_most(tell):
    alike, apart = tell(gamma=0.001, heterogeneity=0.0), tell(gamma=0.001, heterogeneity=1.5)
    lost = {k: accuracy(alike, k) - accuracy(apart, k) for k in ("global", "local")}
    assert lost["global"] > 0.1
    assert lost["local"] < lost["global"] / 2
    assert lost["global"] > accuracy(alike, "global", "FedAvg") - accuracy(apart, "global", "FedAvg") > 0


def test_few_devices_a_round_cost_the_global_model(tell):
    assert accuracy(tell(gamma=0.001, sample=2), "global") < accuracy(tell(gamma=0.001, sample=6), "global") - 0.1


def test_marimo_finds_nothing_to_complain_of():
    done = subprocess.run(
        [sys.executable, "-m", "marimo", "check", "--strict", str(NOTEBOOK)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def served(tmp_path):
    """The notebook's address, served on loopback by `marimo run`."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "marimo",
        "-q",
        "run",
        str(NOTEBOOK),
        "--headless",
        "--no-token",
        "--port",
        str(port),
    ]
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 60
        while not _answers(address):
            assert server.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until, "marimo does not answer"
            time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def _answers(address):
    try:
        with urllib.request.urlopen(address, timeout=5) as page:
            return page.status == 200
    except OSError:
        return False


STORY = """return [...document.querySelectorAll('p, span.paragraph')].map(e => e.textContent)
  .find(t => t.startsWith(arguments[0]))"""
DEEP = """const wanted = arguments[0];
  const find = root => [...root.querySelectorAll('*')].flatMap(e =>
    [...(e.matches(wanted) ? [e] : []), ...(e.shadowRoot ? find(e.shadowRoot) : [])]);
  const found = find(document);"""
SLIDERS = DEEP + "return found"
CHARTS = DEEP + "return found.length == 4 && found.every(c => c.width > 100) && found.map(c => c.toDataURL())"


def test_a_slider_moves_the_charts(served, browser):
    browser.open(served)
    assert "FedBC's local models" in browser.wait(STORY, "With gamma = 0.1,")
    before = browser.wait(CHARTS, "canvas")
    slider = browser.run(SLIDERS, "[role=slider]")[0]
    slider.send_keys(Keys.END)
    browser.wait(STORY, "With gamma = 30,")
    browser.wait(CHARTS + ".every((picture, i) => picture != arguments[1][i])", "canvas", before)
    browser.screenshot("notebook")
    fetched = browser.run("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in fetched if not name.startswith((served, "data:", "blob:"))] == []
    # marimo's page preloads pictures that it does not show.
    assert [said for said in browser.errors() if "was preloaded using link preload" not in said] == []
    browser.open("about:blank")

"""The foundation of pages: what a page says, its charts in a browser, figures and tables as files."""

import json
import re
import subprocess
import sys

import altair as alt
import pandas as pd
import pytest
from browser import PHONE
from markupsafe import Markup

from fedbc.errors import InputError
from fedbc.reports import Chart, Column, Page, Pick, Prose, Section, Table, Toggles, write_figure, write_table
from fedbc.reports.charts import javascript

METHODS = ["fedbc", "fed</script>avg"]
ROWS = pd.DataFrame([{"method": m, "device": d, "score": d + i} for i, m in enumerate(METHODS) for d in range(5)])


def points(**more):
    chart = (
        alt.Chart(ROWS)
        .mark_point(filled=True, size=120)
        .encode(
            x=alt.X("device:O"),
            y=alt.Y("score:Q"),
            color=alt.Color("method:N", scale=alt.Scale(domain=METHODS)),
            opacity=alt.condition("device == null || datum.device == device", alt.value(1), alt.value(0.2)),
            tooltip=["method:N", "device:O", "score:Q"],
        )
        .add_params(alt.param(name="hidden", value=[]), alt.param(name="device", value=None))
        .transform_filter("indexof(hidden, datum.method) < 0")
        .properties(width="container", height=160)
    )
    return Chart("points", "Scores", chart, "Ten points, two methods.", "Higher is better.", **more)


def table():
    frame = pd.DataFrame({"method": METHODS, "score": [0.5, float("nan")], "score_std": [0.01, float("nan")]})
    columns = [Column("method", "method"), Column("score", "score, %", 1, "score_std", 100)]
    return Table("scores", "Scores", frame, columns, "In 100 & more.")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    bars = Chart("bars", "Bars", points().chart.mark_bar().to_dict(), "Bars of the same.", wide=True)
    parts = [Prose("All <b> here"), Prose(Markup("<em>well</em>"), soft=True), table(), points(), bars]
    controls = [
        Toggles("hidden", "Methods", METHODS),
        Pick("device", "Device", [(d, f"device {d}") for d in range(5)]),
    ]
    page = Page("A page", [Prose("What it is.")], [Section("all", "All", parts)], controls, "Made by a test.")
    return page.write(tmp_path_factory.mktemp("page") / "page.html")


def test_a_page_is_one_file_with_words_for_everything(page):
    text = page.read_text()
    assert "All &lt;b&gt; here" in text
    assert "<em>well</em>" in text
    assert '<th scope="row">fedbc</th><td class="number">50.0 ± 1.0</td>' in text
    assert text.count(javascript()) == 1
    assert re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=(?!\"data:)", text.replace(javascript(), "")) == []
    data = json.loads(re.search(r'id="page-data">(.*?)</script>', text).group(1))
    assert data["charts"]["points"]["description"] == "Ten points, two methods."
    assert [len(rows) for rows in data["rows"].values()] == [10]  # both charts share them


def test_charts_follow_the_controls_and_a_click(page, browser):
    browser.open(page)
    assert browser.charts() == ["points", "bars"]
    assert browser.run("return performance.getEntriesByType('resource').length") == 0  # nothing was loaded
    assert (browser.marks("points"), browser.marks("bars")) == (10, 10)
    assert browser.run("return document.querySelector('[data-chart=points] svg').parentElement.ariaLabel") is not None
    browser.click("[data-toggles=hidden] input")
    assert (browser.marks("points"), browser.marks("bars")) == (5, 5)
    browser.click("[data-toggles=hidden] input")
    browser.choose("select[data-pick=device]", "3")
    faint = "return document.querySelectorAll('[data-chart=points] g.role-mark path[opacity=\"0.2\"]').length"
    assert browser.run(faint) == 8
    browser.click("[data-chart=points] g.role-mark path")  # a point of device 0
    assert browser.run("return document.querySelector('select[data-pick]').value") == "0"
    browser.click("[data-chart=points] g.role-mark path")
    assert browser.run(faint) == 0
    browser.screenshot("page-light")


def test_charts_follow_light_and_dark(page, browser):
    browser.open(page)
    colours = (
        "return [...document.querySelectorAll('[data-chart=points] .role-axis text')].map(t => t.getAttribute('fill'))"
    )
    light = browser.run(colours)
    browser.click("[data-toggles=hidden] input")
    browser.dark()
    browser.wait_for_charts()
    assert set(browser.run(colours)) == {"#e3e8ed"} != set(light)
    assert browser.marks("points") == 5  # the controls still hold
    browser.screenshot("page-dark")


def test_a_page_fits_on_a_phone(page, browser):
    browser.open(page, width=PHONE)
    assert browser.sideways() <= 0
    assert 250 < browser.run("return document.querySelector('[data-chart=points] svg').clientWidth") < PHONE
    browser.screenshot("page-phone")


def test_figures_are_written(tmp_path):
    png, svg = write_figure(points(), tmp_path / "figures")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text()
    assert "Scores" in text  # its title
    assert text.count('aria-roledescription="point"') == 10


def test_tables_are_written(tmp_path):
    csv, tex = write_table(table(), tmp_path / "tables")
    assert pd.read_csv(csv)["score"].tolist()[0] == 0.5
    text = tex.read_text()
    assert r"fedbc & 50.0 $\pm$ 1.0 \\" in text
    assert "score, \\%" in text
    assert " & -- " in text  # a value that is absent


def test_a_chart_without_words_is_refused():
    with pytest.raises(InputError, match="no description"):
        Chart("points", "Points", {}, " ")


@pytest.mark.parametrize("module", ["fedbc", "fedbc.flower", "fedbc.cli.run", "fedbc.cli.sweep"])
def test_reports_cost_nothing_until_they_are_made(module):
    """A run begins, and a deployed device answers a message, without what draws pages."""
    heavy = ("altair", "jinja2", "matplotlib", "optuna", "pandas", "vl_convert")
    script = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

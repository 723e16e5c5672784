"""The page "Twelve clinics": every command and every block as it stands, and the numbers that it tells."""

import re

import pandas as pd
import pytest
from snippets import ROOT, blocks, fresh_arguments, run_commands, run_python

import fedbc

PAGE = "docs/twelve-clinics.md"


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """All blocks, in order, in one folder."""
    folder = tmp_path_factory.mktemp("clinics")
    names: dict = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        fresh_arguments(patch)
        for block in blocks(PAGE):
            assert block.mark is None
            if block.language == "sh":
                run_commands(block.code.replace("--out choice", "--out choice --workers 1"), str)
            elif block.language == "python":
                run_python(block.code, PAGE, block.line, names)
    return folder, names


def tables():
    """The page's tables, as lists of cells."""
    text = (ROOT / PAGE).read_text()
    return [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]


def test_the_numbers_of_the_page_are_those_of_its_runs(walked):
    _, names = walked
    told = {cells[0]: cells[1:] for cells in reversed(tables())}  # the first of a name; later ones are the card's
    for row in names["rows"].to_dict("records"):
        examples, common, own, decision = told[row["device"]]
        assert int(examples) == row["examples"]
        assert abs(float(common) - 100 * row["global_accuracy"]) < 0.06
        assert abs(float(own) - 100 * row["local_accuracy"]) < 0.06
        assert decision == row["decision"]
    tested = names["tested"]
    share = tested["examples"] / tested["examples"].sum()
    for words, column in (
        ("the global model", "global_accuracy"),
        ("each clinic's own model", "local_accuracy"),
        ("as decided", "decided"),
    ):
        mean, worst = (float(re.match(r"[\d.]+", cell)[0]) for cell in told[words])
        assert abs(mean - 100 * (tested[column] * share).sum()) < 0.3  # the order of sums may turn a patient
        assert abs(worst - 100 * tested[column].min()) < 0.06
    table = pd.read_csv(walked[0] / "choice" / "tables" / "summary.csv").set_index("method")
    for method, words in (("fedavg", "FedAvg"), ("fedbc", "FedBC, own start, no limit"), ("localonly", "local-only")):
        found = [100 * table.loc[method, c] for c in ("global_accuracy", "local_accuracy", "worst_accuracy")]
        assert [abs(float(cell) - v) < 0.3 for cell, v in zip(told[words], found, strict=True)] == [True] * 3


def test_names_are_in_every_file(walked):
    folder, names = walked
    for file in ("choice/index.html", "choice/tables/devices.csv", "final/devices.csv", "model/model-card.md"):
        text = (folder / file).read_text()
        assert "Fichte" in text, file
        assert "device 3" not in text, file
    predictions = pd.read_csv(folder / "predictions.csv")
    assert predictions["model"].tolist() == predictions["clinic"].tolist()
    assert (
        predictions["prediction"].tolist()
        == names["final"].predict(names["new"], list(names["new"]["clinic"])).tolist()
    )
    assert (folder / "clinics.png").stat().st_size > 10000
    assert {r.path.name for r in fedbc.RunFolder.find(folder)} >= {"final", "choosing"}


def test_the_card_on_the_page_is_the_card(walked):
    card = (walked[0] / "model" / "model-card.md").read_text()
    (shown,) = (b.code for b in blocks(PAGE) if b.language == "text" and b.section == "The card")
    for line in shown.splitlines():
        assert line == "..." or line in card, line

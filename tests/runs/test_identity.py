"""What a run is known by: what it computes, however it was written down and wherever its files lie."""

import dataclasses
import json
from pathlib import Path

import pytest

import fedbc
from fedbc.runs import CATALOG, Lines, RunSpec, identity, spec
from fedbc.runs.catalog import Option

RESULTS = Path(__file__).parents[2] / "results"


def test_where_files_lie_and_how_a_run_is_done_do_not_count():
    here = RunSpec({"name": "fedavg"}, {"name": "mnist", "data_dir": "here"}, run={"lanes": 1})
    there = RunSpec({"name": "fedavg"}, {"name": "mnist", "data_dir": "there"}, run={"lanes": 4})
    assert here.identity == there.identity == RunSpec({"name": "fedavg"}, {"name": "mnist"}).identity
    assert here.identity != RunSpec({"name": "fedavg"}, {"name": "mnist", "classes": 2}).identity


def test_numbers_are_the_same_however_they_are_written():
    assert RunSpec({"name": "fedavg", "lr": 1}).identity == RunSpec({"name": "fedavg", "lr": 1.0}).identity
    infinite = RunSpec({"name": "fedbc", "tolerance": float("inf")})
    assert identity(json.loads(fedbc.storage.to_json(infinite.to_dict()))) == infinite.identity


def test_a_new_argument_with_a_default_leaves_identities_as_they_are(monkeypatch):
    before = RunSpec({"name": "fedavg", "lr": 0.1})
    written = before.to_dict()
    old = CATALOG["algorithm"]["fedavg"]
    new = dataclasses.replace(old, options={**old.options, "added": Option("added", "float", 0.5, "")})
    monkeypatch.setitem(CATALOG["algorithm"], "fedavg", new)
    spec._defaults.cache_clear()
    spec._counted_of_text.cache_clear()
    after = RunSpec({"name": "fedavg", "lr": 0.1})
    assert after.to_dict()["algorithm"]["added"] == 0.5
    assert identity(written) == after.identity == before.identity
    assert RunSpec({"name": "fedavg", "lr": 0.1, "added": 0.7}).identity != before.identity
    monkeypatch.undo()
    spec._defaults.cache_clear()
    spec._counted_of_text.cache_clear()


def test_a_default_that_changes_makes_another_run(monkeypatch):
    """Files state all values, so that what was run with the old default is not taken for a run with the new one."""
    written = RunSpec({"name": "fedavg"}).to_dict()
    old = CATALOG["algorithm"]["fedavg"]
    rate = dataclasses.replace(old.options["lr"], default=0.7)
    monkeypatch.setitem(CATALOG["algorithm"], "fedavg", dataclasses.replace(old, options={**old.options, "lr": rate}))
    spec._defaults.cache_clear()
    spec._counted_of_text.cache_clear()
    assert identity(written) != RunSpec({"name": "fedavg"}).identity
    monkeypatch.undo()
    spec._defaults.cache_clear()
    spec._counted_of_text.cache_clear()


def test_the_committed_results_are_found_as_before():
    """Every line is found by the specification that it states, as many as there were distinct ones before."""
    files = sorted(RESULTS.glob("*.jsonl"))
    assert len(files) > 10
    for file in files:
        texts = [json.loads(text) for text in file.read_text().splitlines()]
        lines = Lines(file).read()
        assert len(lines) == len({line["hash"] for line in texts}), file
        for line in texts:
            if "spec" in line:
                assert lines[RunSpec.from_dict(line["spec"]).identity]["spec"] == line["spec"]


@pytest.mark.parametrize("part", ["algorithm", "data", "model", "run"])
def test_every_value_that_differs_from_its_default_counts(part):
    base = RunSpec({"name": "fedbc"}, {"name": "mnist"})
    for key, value in base.to_dict()[part].items():
        if key == "name" or (part, key) in spec.NOT_COMPUTED:
            continue
        changed = {**base.to_dict(), part: {**base.to_dict()[part], key: "another" if value != "another" else 1}}
        assert identity(changed) != base.identity, key

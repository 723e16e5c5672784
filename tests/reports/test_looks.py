"""What charts share: a method's colour, numbers that do not touch, lines that hide."""

import pandas as pd
import pytest

from fedbc.algorithms import ALGORITHMS
from fedbc.drawing import COLOURS, COLOURS_ON_DARK, MORE, MORE_ON_DARK, places
from fedbc.reports import Toggles
from fedbc.reports.charts import light_config
from fedbc.reports.curves_over_rounds import hidden_lines, hidden_words
from fedbc.reports.marks import by_method, colour_places
from fedbc.reports.page import MANY


def test_a_method_has_the_same_colour_on_every_page():
    everywhere = colour_places({name: name for name in ALGORITHMS})
    assert len(set(everywhere.values())) == len(ALGORITHMS)
    assert (everywhere["fedbc"], everywhere["fedavg"]) == (0, 1)
    for some in (["ditto", "fedavg"], ["pfedme", "localonly", "fedbc"], list(reversed(ALGORITHMS))):
        assert colour_places({name: name for name in some}) == {name: everywhere[name] for name in some}
    named = colour_places({"ours": "fedbc", "theirs": "fedavg"})
    assert named == {"ours": 0, "theirs": 1}


def test_two_of_a_kind_differ_and_take_nobodys_colour():
    found = colour_places({"fedavg, lr 0.1": "fedavg", "fedavg, lr 0.2": "fedavg", "mine": "mine", "fedbc": "fedbc"})
    assert (found["fedavg, lr 0.1"], found["fedbc"]) == (1, 0)
    assert len(set(found.values())) == 4
    many = places([str(i) for i in range(50)], {}, [], 20)
    assert set(many.values()) == set(range(20))


def test_the_scale_puts_each_method_at_its_colour():
    colour = by_method({"ditto": "ditto", "fedbc": "fedbc"}).to_dict()
    domain = colour["scale"]["domain"]
    assert domain.index("fedbc") == 0
    assert domain.index("ditto") == colour_places({"ditto": "ditto"})["ditto"]
    assert len(domain) == len(set(domain)) == len(COLOURS) + len(MORE)
    assert colour["legend"]["values"] == ["ditto", "fedbc"]


def test_light_and_dark_have_as_many_colours():
    assert len(COLOURS) + len(MORE) == len(COLOURS_ON_DARK) + len(MORE_ON_DARK) >= len(ALGORITHMS)


def test_many_runs_are_folded_up_and_have_no_legends():
    runs = {f"run {i}": "fedavg" for i in range(26)}
    assert by_method(runs).to_dict()["legend"] is None
    toggles = Toggles("hidden", "Runs", list(runs), colour_places(runs))
    assert toggles.many
    assert not Toggles("hidden", "Runs", list(runs)[:MANY]).many


def test_numbers_on_an_axis_that_would_touch_are_left_out():
    assert light_config()["axis"]["labelOverlap"] == "greedy"


@pytest.mark.parametrize(("shift", "hidden"), [(0.0, [("a", "b")]), (0.4, [("a", "b")]), (5.0, [])])
def test_a_line_that_hides_under_another_is_named(shift, hidden):
    lines = {"a": [0, 50, 100], "b": [shift, 50 + shift, 100 + shift], "c": [100, 50, 0]}
    rows = [{"round": r, "method": m, "value": v} for m, vs in lines.items() for r, v in enumerate(vs)]
    assert hidden_lines(pd.DataFrame(rows)) == hidden


def test_of_many_lines_that_hide_their_number_is_said():
    def words(names):
        return hidden_words(pd.DataFrame([{"round": r, "method": m, "value": r} for m in names for r in range(3)]))

    assert words(["a", "b"]) == "a lies under b."
    assert words(["a", "b", "c"]) == "a and b lie under c."
    assert words([f"run {i}" for i in range(26)]) == "25 lines lie under run 25."
    assert words(["a"]) == ""

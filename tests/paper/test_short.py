"""What the report says of its own choices, beside the tables that rest on them."""

from fedbc.paper import hyperparameters, short
from fedbc.paper.evidence import Evidence
from fedbc.paper.methods import METHODS

GROUP = hyperparameters.TUNINGS["mnist-e1"]


def told(folder, score, old=None):
    """The remarks where SCAFFOLD's rates have these accuracies on held-out data: score(rate, C)."""
    lines = {}
    for algorithm in METHODS["scaffold"].candidates():
        for spec in GROUP.specs(algorithm, GROUP.rungs[-1]):
            summary = {"global_accuracy": score(algorithm["lr"], spec.data["classes"])}
            lines[spec.identity] = {"hash": spec.identity, "spec": spec.to_dict(), "summary": summary}
    hyperparameters.write_choices(folder / "chosen", GROUP, lines, keep={"scaffold": old} if old else None)
    found = Evidence(folder)
    found.store.lines |= lines
    return short.remarks(found)


def test_what_one_choice_for_all_settings_costs(tmp_path):
    """0.01 is best with C = 3 and fails with C = 1, so that 0.001 is best in the mean."""

    def score(rate, classes):
        return {0.001: 0.90, 0.01: 0.30 if classes == 1 else 0.96 if classes == 3 else 0.91}.get(rate, 0.1)

    said = told(tmp_path, score)
    assert list(said) == ["mnist-global-e1"]
    assert (
        "on held-out data 96.0 % at rate 0.01 against 90.0 (E = 1, C = 3, exponent = 1.2)." in (said["mnist-global-e1"])
    )
    assert "C = 2" not in said["mnist-global-e1"]  # a point is not much
    assert told(tmp_path, lambda rate, classes: 1 - rate) == {}


def test_an_old_choice_is_named(tmp_path):
    said = told(tmp_path, lambda rate, classes: 1 - rate, old=METHODS["scaffold"].candidates()[1])
    assert "SCAFFOLD with momentum stands at rate 0.01, of old chosen" in said["mnist-global-e1"]

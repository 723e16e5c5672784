"""A run ends at its target, without improvement, or out of time, and its history says why."""

import numpy as np
import pytest

import fedbc
from fedbc.simulation.ending import Ending, Reason

MODEL = fedbc.models.logistic(4, 2)


def federation():
    rng = np.random.default_rng(0)
    pairs = []
    for n in (12, 9, 15):
        x = rng.normal(size=(n, 4))
        pairs.append((x, (x[:, 0] > 0).astype(int)))
    return fedbc.data.federation(pairs, pairs, classes=2, name="easy")


def run_one(**options):
    given = {"rounds": 40, "batch_size": 5, "lanes": 1, "seed": 3, **options}
    return fedbc.simulate(fedbc.FedAvg(lr=0.3), MODEL, federation(), **given)


def rows(*scores, seconds=1.0):
    return [
        {"round": i, "seconds": seconds} | ({} if s is None else {"global_accuracy": s, "global_test_loss": 1 - s})
        for i, s in enumerate(scores, 1)
    ]


@pytest.mark.parametrize(
    ("ending", "history", "reason"),
    [
        (Ending(target_accuracy=0.8), rows(0.5, 0.79), None),
        (Ending(target_accuracy=0.8), rows(0.5, 0.8), Reason.TARGET),
        (Ending(target_accuracy=0.8), rows(0.9, None), None),  # not measured in the last round
        (Ending(patience=2), rows(0.5, 0.6, 0.6), None),
        (Ending(patience=2), rows(0.5, 0.6, 0.6, 0.6), Reason.PATIENCE),  # as good is not better
        (Ending(patience=2), rows(0.5, 0.6, 0.5, 0.61), None),
        (Ending(time_budget=3.0), rows(0.5, 0.5), None),
        (Ending(time_budget=3.0), rows(0.5, 0.5, 0.5), Reason.TIME),
        (Ending(time_budget=3.0), rows(0.5, 0.5, None), None),
    ],
)
def test_reasons(ending, history, reason):
    assert ending.reason(history, late=ending.is_over_time(history)) == reason


def test_models_without_an_accuracy_are_watched_by_their_loss():
    history = [{"round": i, "seconds": 1.0, "global_test_loss": v} for i, v in enumerate((3.0, 2.0, 2.5, 2.1), 1)]
    assert Ending(patience=2).reason(history, late=False) is Reason.PATIENCE
    assert Ending(patience=3).reason(history, late=False) is None


def test_a_target_ends_the_run_and_history_says_so(tmp_path):
    whole = run_one(patience=1000)
    assert whole.history["ended"].iloc[-1] == "rounds"
    assert whole.history["ended"].iloc[:-1].isna().all()
    target = float(whole.history["global_accuracy"].iloc[3])
    result = run_one(target_accuracy=target)
    reached = int(np.argmax(whole.history["global_accuracy"] >= target)) + 1
    assert result.rounds == reached < 40
    assert result.history["ended"].iloc[-1] == result.summary()["ended"] == "target_accuracy"
    loaded = fedbc.load(result.save(tmp_path / "kept"))
    assert loaded.history["ended"].iloc[-1] == "target_accuracy"
    assert "ended" not in run_one(rounds=2).history


def test_patience_ends_the_run_and_stays_so_when_it_is_resumed(tmp_path):
    result = run_one(patience=4, checkpoint=tmp_path / "run")
    scores = result.history["global_accuracy"].to_numpy()
    assert result.history["ended"].iloc[-1] == "patience"
    assert int(np.argmax(scores)) + 1 == result.rounds - 4
    again = run_one(patience=4, checkpoint=tmp_path / "run", resume=True)
    assert again.rounds == result.rounds


def test_a_run_that_has_ended_goes_on_until_something_else_ends_it(tmp_path):
    """What ends a run does not tell one run from another; a time budget counts all of a run's rounds."""
    assert run_one(time_budget=1e-9, checkpoint=tmp_path / "run").history["ended"].tolist() == ["time_budget"]
    assert run_one(time_budget=1e-9, checkpoint=tmp_path / "run", resume=True).rounds == 1
    more = run_one(time_budget=1e9, patience=4, checkpoint=tmp_path / "run", resume=True)
    wanted = run_one(patience=4)
    assert more.rounds == wanted.rounds > 1
    assert more.history["ended"].tolist()[-1] == "patience"
    assert more.history["ended"].iloc[:-1].isna().all()
    np.testing.assert_array_equal(more.history["global_accuracy"], wanted.history["global_accuracy"])


def test_a_run_that_came_to_its_last_round_gets_more_of_them(tmp_path):
    run_one(rounds=2, patience=30, checkpoint=tmp_path / "run")
    more = run_one(rounds=4, patience=30, checkpoint=tmp_path / "run", resume=True)
    assert more.history["ended"].isna().tolist() == [True, True, True, False]


def test_time_ends_with_a_round_that_is_evaluated():
    result = run_one(time_budget=1e-6, evaluate_every=30)
    assert result.rounds == 2
    assert result.history["ended"].iloc[-1] == "time_budget"
    assert np.isfinite(result.history["global_accuracy"].iloc[-1])


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"target_accuracy": 1.5}, "target_accuracy=1.5 is not accepted"),
        ({"patience": 0}, "patience=0 is not accepted"),
        ({"time_budget": 0.0}, "time_budget=0.0 is not accepted"),
        ({"patience": 3, "evaluate": ("local",)}, "patience=3 needs 'global' in evaluate"),
    ],
)
def test_what_means_nothing_is_told_in_a_sentence(chosen, sentence):
    with pytest.raises(fedbc.InputError, match=sentence):
        run_one(**chosen)


def test_a_callback_ends_the_run_and_adds_columns_to_history(tmp_path):
    def watch(row, result):
        if row["round"] % 2 == 0:
            so_far = result()
            assert so_far.rounds == row["round"]
            row["worst_f1"] = so_far.evaluate(metrics=["f1"])["local_f1"].min()
        return row["round"] == 5

    result = run_one(on_round=watch, checkpoint=tmp_path / "run")
    assert result.rounds == 5
    assert result.history["ended"].iloc[-1] == "on_round"
    assert result.history["worst_f1"].notna().tolist() == [False, True, False, True, False]
    assert result.summary()["worst_f1"] > 0
    assert run_one(checkpoint=tmp_path / "run", resume=True).history["worst_f1"].notna().sum() == 2
    loaded = fedbc.load(result.save(tmp_path / "kept")).history
    assert loaded["worst_f1"].iloc[3] == pytest.approx(result.history["worst_f1"].iloc[3])
    seen = []
    assert run_one(rounds=3, on_round=seen.append).rounds == len(seen) == 3
    assert run_one(rounds=3, on_round=lambda row: row["global_accuracy"]).rounds == 3  # a number is no True


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"global_accuracy": 1.0}, "on_round changed 'global_accuracy'"),
        ({"mine": "good"}, "on_round added 'mine' of type str"),
        ({"mine": [1.0]}, "on_round added 'mine' of type list"),
    ],
)
def test_a_callback_adds_numbers_and_changes_none(change, sentence):
    with pytest.raises(fedbc.InputError, match=sentence):
        run_one(rounds=2, on_round=lambda row: row.update(change))

"""A result in use: predictions, scores, words, pictures; from memory and from its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedbc
from fedbc import FedBC, InputError
from fedbc.errors import Notice
from fedbc.export import export
from fedbc.models import linear, logistic


def clinics(rows: int = 120, seed: int = 0) -> pd.DataFrame:
    """What is ill in the north is well in the south: only a device's own model can be right."""
    rng = np.random.default_rng(seed)
    age, names = rng.normal(60, 10, rows), np.resize(["north", "south", "7"], rows)
    ill = (age > 60) ^ (names == "south")
    return pd.DataFrame({"clinic": names, "age": age, "diagnosis": np.where(ill, "ill", "well")})


@pytest.fixture(scope="module")
def trained() -> Any:
    federation = fedbc.data.from_frame(clinics(), label="diagnosis", device="clinic")
    method = FedBC(lr=0.5, tolerance=100.0, start="local")
    return fedbc.simulate(method, logistic(1, 2), federation, rounds=10, epochs=2, seed=1)


def softmax(result: Any, params: Any, age: np.ndarray) -> np.ndarray:
    """In float64, by hand."""
    (column,) = result.meaning.encoding.columns
    logits = ((age - column.mean) / column.deviation)[:, None] @ np.asarray(params["w"], float) + np.asarray(
        params["b"]
    )
    exponents = np.exp(logits - logits.max(1, keepdims=True))
    return exponents / exponents.sum(1, keepdims=True)


def own(result: Any, name: str) -> Any:
    number = result.meaning.device_names.index(name)
    return {key: value[number] for key, value in result.local_models.items()}


def test_predictions_are_those_of_the_model_by_hand(trained: Any) -> None:
    new = clinics(50, seed=3).drop(columns=["diagnosis", "clinic"])
    for device, params in ((None, trained.global_model), ("south", own(trained, "south"))):
        expected = softmax(trained, params, new["age"].to_numpy())
        np.testing.assert_allclose(trained.predict(new, device, probabilities=True), expected, rtol=1e-4)
        assert trained.predict(new, device).tolist() == np.asarray(["ill", "well"])[expected.argmax(1)].tolist()
    old = pd.DataFrame({"age": [90.0]})
    assert trained.predict(old, "north")[0] == "ill"
    assert trained.predict(old, "south")[0] == "well"
    assert trained.predict(pd.concat([old, old]), ["south", "north"]).tolist() == ["well", "ill"]
    encoded = fedbc.data.encode(trained.meaning.encoding, old)
    assert trained.predict(encoded, "south")[0] == "well"


def test_a_result_from_its_folder_answers_alike(trained: Any, tmp_path: Path) -> None:
    trained.save(tmp_path / "r")
    federation = fedbc.data.from_frame(clinics(), label="diagnosis", device="clinic")
    loaded = fedbc.load(tmp_path / "r", model=logistic(1, 2), data=federation)
    new = clinics(30, seed=4)
    np.testing.assert_array_equal(loaded.predict(new, "7"), trained.predict(new, "7"))
    pd.testing.assert_frame_equal(loaded.evaluate(), trained.evaluate())
    assert loaded.devices["device"].tolist() == trained.devices["device"].tolist()
    with pytest.raises(InputError, match=r"does not say how to build its model.*model=\.\.\."):
        fedbc.load(tmp_path / "r").predict(new)


def test_scores_are_the_history_s(trained: Any) -> None:
    rows, last = trained.evaluate(), trained.history.iloc[-1]
    assert rows["device"].tolist() == ["7", "north", "south"]
    np.testing.assert_allclose(rows["local_accuracy"].mean(), last["local_accuracy"], rtol=1e-6)
    weighted = (rows["global_accuracy"] * rows["examples"]).sum() / rows["examples"].sum()
    np.testing.assert_allclose(weighted, last["global_accuracy"], rtol=1e-6)
    assert (rows["local_accuracy"] > 0.8).all()
    new = clinics(60, seed=5)
    scored = trained.evaluate(new, {"errors": lambda y, p: (y != p).sum()})
    for row in scored.to_dict("records"):
        mine = new[new["clinic"] == row["device"]]
        wrong = (trained.predict(mine, row["device"]) != mine["diagnosis"]).sum()
        assert row["local_errors"] == wrong
        assert np.isclose(row["local_accuracy"], 1 - wrong / len(mine))
    with pytest.raises(InputError, match="label='dead' is unknown"):
        trained.evaluate(new.assign(diagnosis="dead"))


def test_a_table_is_answered_row_by_row(trained: Any) -> None:
    new = clinics(9, seed=6).drop(columns="diagnosis")
    new.loc[0, "clinic"] = "east"
    with pytest.warns(Notice, match="1 of 9 rows are of devices that the run did not have, first 'east'"):
        told = trained.answer_table(new, local=True)
    assert told["model"].tolist()[:3] == ["global", "south", "7"]
    assert told["prediction"].tolist()[1] == trained.predict(new.iloc[[1]], "south")[0]
    assert told["prediction"].tolist()[0] == trained.predict(new.iloc[[0]])[0]
    assert told["probability"].between(0.5, 1).all()


@pytest.mark.parametrize(
    ("x", "more", "words"),
    [
        (pd.DataFrame({"years": [1.0]}), {}, "column='age' is unknown"),
        (np.zeros((2, 3)), {}, r"shape \(3,\), but the model learned from \(1,\)"),
        (np.array([[np.nan]]), {}, "NaN or Inf"),
        (np.zeros((2, 1)), {"device": "nord"}, "device='nord' is unknown.*did you mean 'north'"),
        (np.zeros((2, 1)), {"device": 3}, "from 0 to 2"),
        (np.zeros((2, 1)), {"device": ["north", np.nan]}, "device=nan is not accepted"),
        (np.zeros((2, 1)), {"device": ["north"]}, "1 names but x has 2 examples"),
        (np.zeros((0, 1)), {}, "no examples"),
    ],
)
def test_questions_that_cannot_be_answered(trained: Any, x: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        trained.predict(x, **more)


def test_what_is_no_picture_metric_or_folder_is_refused(trained: Any, tmp_path: Path) -> None:
    for ask, words in (
        (lambda: trained.plot(tmp_path / "x.foo"), "must end in one of .png, .svg, .pdf"),
        (lambda: trained.plot(5), "path=5 is not accepted"),
        (lambda: trained.evaluate(metrics=5), "metrics=5 is not accepted"),
        (lambda: trained.evaluate(metrics=["speed"]), "metrics='speed' is unknown"),
        (lambda: export(trained, None), "folder=None is not accepted"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError, match=words):
            ask()
    assert "global_auc" in trained.evaluate(metrics="auc")


def test_quantities_and_stored_images() -> None:
    frame = clinics().assign(dose=lambda f: 0.2 * f["age"] - 12).drop(columns="diagnosis")
    federation = fedbc.data.from_frame(frame, label="dose", device="clinic")
    result = fedbc.simulate(FedBC(lr=0.3), linear(1), federation, rounds=40, seed=1)
    np.testing.assert_allclose(result.predict(pd.DataFrame({"age": [50.0, 70.0]})), [-2, 2], atol=0.1)
    assert set(result.evaluate()) == {"device", "examples", "global_loss", "local_loss"}
    with pytest.raises(InputError, match="predicts quantities"):
        result.predict(pd.DataFrame({"age": [50.0]}), probabilities=True)
    images = np.random.default_rng(0).integers(0, 256, (20, 2, 2, 1)).astype(np.uint8)
    parts = [np.arange(10), np.arange(10, 20)]
    stored = fedbc.data.from_partition(
        images, (images[:, 0, 0, 0] > 127).astype(int), parts, decode=lambda _, x: x / 255.0
    )
    seen = fedbc.simulate(FedBC(lr=0.1), logistic(4, 2), stored, rounds=2)
    z = seen.global_model
    np.testing.assert_array_equal(seen.predict(images), (images.reshape(20, 4) / 255.0 @ z["w"] + z["b"]).argmax(1))


def test_words_and_pictures(trained: Any, tmp_path: Path) -> None:
    assert repr(trained).count("\n") < 3
    assert "10 rounds, 3 devices" in repr(trained)
    assert "<svg" in trained._repr_html_()
    assert trained.plot(tmp_path / "p.png").stat().st_size > 1000
    assert len(trained.plot().axes) == 3
    with pytest.raises(InputError, match="does not know its model"):
        replace(trained, source=None).predict(np.zeros((1, 1)))

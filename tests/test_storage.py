"""Files: trees of arrays come back as they were, whole or not at all."""

import errno
import json
import os

import numpy as np
import pytest

from fedbc import InputError, storage

TREE = {"a": np.float32(3.5), "b": [np.arange(6).reshape(2, 3), {"c": np.zeros((0, 4))}], "d": np.array(7)}


def test_arrays_come_back_with_their_shapes_and_types(tmp_path):
    storage.write_arrays(tmp_path / "f", storage.named(TREE, "tree"), {"round": 3})
    arrays, facts = storage.read_arrays(tmp_path / "f")
    assert facts == {"round": 3}
    again = storage.restored(TREE, arrays, "tree")
    for (name, old), (_, new) in zip(storage.named(TREE).items(), storage.named(again).items(), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype), name
        np.testing.assert_array_equal(old, new)
    nested = storage.nested(arrays, "tree")
    assert nested["a"].shape == ()
    assert nested["b"][0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_numbers_that_leave_gaps_stay_names():
    """A PyTorch Sequential has parameters at some of its places only."""
    arrays = {f"model.layers.{i}.w": np.full(1, i) for i in (0, 1, 4, 10)}
    nested = storage.nested(arrays, "model")
    assert storage.named(nested, "model").keys() == arrays.keys()
    assert nested["layers"]["10"]["w"] == 10


def test_strided_arrays_are_stored_by_value(tmp_path):
    whole = np.arange(12.0).reshape(3, 4)
    storage.write_arrays(tmp_path / "f", {"t": whole.T, "s": whole[:, ::2]}, {})
    arrays, _ = storage.read_arrays(tmp_path / "f")
    np.testing.assert_array_equal(arrays["t"], whole.T)
    np.testing.assert_array_equal(arrays["s"], whole[:, ::2])


def test_a_failed_write_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "f"
    storage.write_atomically(path, "old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="the disk is full; nothing was left half-written"):
        storage.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_folder_appears_when_it_is_complete(tmp_path):
    def fails():
        with storage.new_folder(tmp_path / "run") as folder:
            (folder / "file").write_text("x")
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        fails()
    assert list(tmp_path.iterdir()) == []
    with storage.new_folder(tmp_path / "run") as folder:
        (folder / "file").write_text("x")
    assert (tmp_path / "run" / "file").read_text() == "x"
    with pytest.raises(InputError, match="exists already"), storage.new_folder(tmp_path / "run"):
        pass


def test_files_of_others_are_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="is not a file of fedbc's"):
        storage.read_arrays(tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="does not exist"):
        storage.read_arrays(tmp_path / "none")


def test_json_has_words_for_what_json_lacks():
    text = storage.to_json({"a": float("inf"), "b": [float("nan"), 1.5], "c": (1, 2)})
    assert json.loads(text) == {"a": "inf", "b": ["nan", 1.5], "c": [1, 2]}

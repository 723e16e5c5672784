from __future__ import annotations

import inspect
import warnings
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

from fedbc.data import Federation, OtherEditionWarning, files, shakespeare
from fedbc.data.shakespeare import ALPHABET, WINDOW, encode, roles
from fedbc.errors import InputError

LONG = "words and more words that go on and on until there are more than eighty of them in a row, and so forth"
TEXT = f"""The Complete Works

1609

THE SONNETS

by William Shakespeare

  From fairest creatures we desire increase,
  One. of a kind that looks like a speech but is the only one


1601

AS YOU WISH

by William Shakespeare


ACT I. SCENE 1.
Enter nobody

  ORLANDO. First line   with   spaces
    second line
  not a continuation
    but this is one
                        a stage direction that far in counts as words
  Sir Toby. {LONG}
    {LONG}
    end.
  SIR TOBY. again
  MUTE. one line
    and two

1593

THE COMEDY OF ERRORS

by William Shakespeare

DRAMATIS PERSONAE

AEGEON. {LONG}
any line goes on
  with or without indent
ACT I. SCENE 1
this belongs to nobody
DUKE. {LONG}
one
two
<<THIS ELECTRONIC VERSION
neither does this
"""


def decoded(federation: Federation, which: str, device: int) -> list[str]:
    """A device's examples as text: 80 characters and the one to predict."""
    x, y = getattr(federation, which).of(device)
    windows = np.asarray(jax.jit(federation.decode)(federation.shared, x))
    return ["".join(ALPHABET[c] for c in [*window, label]) for window, label in zip(windows, y, strict=True)]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "raw_data.txt").write_text(TEXT)
    return tmp_path


def load(folder: Path, **arguments: object) -> Federation:
    """Load without the warning that this is not LEAF's text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OtherEditionWarning)
        return shakespeare(data_dir=str(folder), **arguments)  # type: ignore[arg-type]


def test_leafs_statistics_on_leafs_text(real_data: Path) -> None:
    text = (real_data / "shakespeare" / "raw_data.txt").read_text(encoding="utf-8-sig")
    found = roles(text)
    counts = np.array([len(words) - 80 for words in found.values()])
    assert len(counts) == 1129
    assert counts.sum() == 4_226_158
    assert round(counts.mean(), 2) == 3743.28
    assert round(counts.std(), 2) == 6212.26
    assert (counts.min(), np.median(counts), counts.max()) == (3, 1163, 66903)
    characters = set("".join(found.values()))
    assert len(characters) == 79
    assert characters < set(ALPHABET)
    assert len(ALPHABET) == len(set(ALPHABET)) == 80


def test_the_default_is_138_devices_with_a_tenth_of_the_examples(real_data: Path) -> None:
    for seed in (1, 2):
        made = shakespeare(seed=seed, data_dir=str(real_data))
        assert made.devices == 138
        sizes = made.train.sizes + made.test.sizes
        assert sizes.min() >= 20
        # Roles with fewer than 20 examples were drawn, too, and dropped afterwards.
        assert 422_615 - 20 * 20 <= sizes.sum() <= 422_615
        assert made.classes == 80
        assert made.test.sizes.min() >= 1
        held = sum(a.nbytes for a in (made.train.x, made.train.y, made.test.x, made.test.y, made.shared))
        assert held < 5e6


def test_the_draw_is_determined_by_the_seed(real_data: Path) -> None:
    one, same, other = (shakespeare(devices=5, seed=s, data_dir=str(real_data)).facts["roles"] for s in (1, 1, 2))
    assert one == same
    assert one != other


def test_a_fraction_alone_gives_as_many_devices_as_it_takes(real_data: Path) -> None:
    made = shakespeare(fraction=1.0, data_dir=str(real_data))
    assert made.devices == 1108
    tenth = shakespeare(fraction=0.1, data_dir=str(real_data))
    assert abs(len(tenth.train.y) + len(tenth.test.y) - 422_615) < 400


def test_windows_are_the_roles_words(real_data: Path) -> None:
    made = shakespeare(devices=8, data_dir=str(real_data))
    text = (real_data / "shakespeare" / "raw_data.txt").read_text(encoding="utf-8-sig")
    words = roles(text)
    for device, role in enumerate(made.facts["roles"]):
        expected = [words[role][i : i + 81] for i in range(len(words[role]) - 80)]
        assert decoded(made, "train", device) + decoded(made, "test", device) == expected


def test_an_ordered_split_keeps_test_labels_out_of_training(small: Path) -> None:
    made = load(small, devices=2, split="ordered")
    for device in range(2):
        last_seen = made.train.of(device)[0].max() + WINDOW
        assert (made.test.of(device)[0] + WINDOW > last_seen).all()


def test_a_shuffled_split_holds_the_same_windows(small: Path) -> None:
    ordered, shuffled = (load(small, devices=2, split=s) for s in ("ordered", "shuffled"))
    assert ordered.facts == shuffled.facts
    for device in range(2):
        one, other = (sorted(decoded(f, "train", device) + decoded(f, "test", device)) for f in (ordered, shuffled))
        assert one == other
    assert not np.array_equal(ordered.test.x, shuffled.test.x)


def test_the_rules_on_a_small_text() -> None:
    found = roles(TEXT)
    assert list(found) == [
        "AS YOU WISH: ORLANDO",
        "AS YOU WISH: SIR TOBY",
        "THE COMEDY OF ERRORS: AEGEON",
        "THE COMEDY OF ERRORS: DUKE",
    ]
    assert found["AS YOU WISH: ORLANDO"] == (
        "First line with spaces second line but this is one a stage direction that far in counts as words "
    )
    assert found["AS YOU WISH: SIR TOBY"] == f"{LONG} {LONG} end. again "
    assert found["THE COMEDY OF ERRORS: AEGEON"] == f"{LONG} any line goes on with or without indent "
    assert found["THE COMEDY OF ERRORS: DUKE"] == f"{LONG} one two "


def test_line_ends_encodings_and_the_archive_do_not_matter(small: Path, tmp_path: Path) -> None:
    plain = load(small, devices=3)
    for number, content in enumerate(
        [TEXT.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + TEXT.encode(), TEXT.encode("latin-1") + b"\xe9\n"]
    ):
        folder = tmp_path / str(number) / "shakespeare"
        folder.mkdir(parents=True)
        (folder / "100.txt").write_bytes(content)
        assert np.array_equal(load(folder.parent, devices=3).train.x, plain.train.x)
    zipped = tmp_path / "zipped"
    zipped.mkdir()
    with zipfile.ZipFile(zipped / "1994-01-100.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("100.txt", TEXT)
    assert np.array_equal(load(zipped, devices=3).train.y, plain.train.y)


def test_unknown_characters_take_the_last_code() -> None:
    assert encode("\n A}").tolist() == [0, 1, ALPHABET.index("A"), 79]
    assert encode("é’\U0001f3ad~\x80").tolist() == [79] * 5


def test_max_samples_keeps_the_first_ones(small: Path) -> None:
    whole, cut = load(small, devices=4, min_samples=5), load(small, devices=4, min_samples=5, max_samples=10)
    assert (cut.train.sizes + cut.test.sizes).tolist() == [10] * 4
    both = decoded(whole, "train", 1) + decoded(whole, "test", 1)
    assert decoded(cut, "train", 1) + decoded(cut, "test", 1) == both[:10]
    assert len(cut.shared) == 4 * 90


def test_stride_thins_each_role_evenly(small: Path) -> None:
    whole, thin = load(small, devices=4, min_samples=5), load(small, devices=4, min_samples=5, stride=3)
    for device in range(4):
        every = decoded(whole, "train", device) + decoded(whole, "test", device)
        assert decoded(thin, "train", device) + decoded(thin, "test", device) == every[::3]
    both = load(small, devices=4, min_samples=5, stride=3, max_samples=2)
    assert (both.train.sizes + both.test.sizes).tolist() == [2] * 4
    assert len(both.shared) == 4 * (3 + 81)


def test_another_edition_warns(small: Path) -> None:
    with pytest.warns(OtherEditionWarning, match="raw_data.txt is another edition than LEAF's: it has 4 roles with"):
        shakespeare(devices=2, data_dir=str(small))


def test_a_text_without_roles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raw_data.txt").write_text("Call me Ishmael.\n" * 50)
    with pytest.raises(InputError, match=r"raw_data\.txt has no speaking roles in the layout"):
        shakespeare(data_dir=str(tmp_path))


@pytest.mark.parametrize("content", [b"no archive", b"PK\x03\x04 truncated"])
def test_a_damaged_archive_is_named_with_its_checksum(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1994-01-100.zip").write_bytes(content)
    with pytest.raises(InputError, match=r"1994-01-100\.zip is damaged .*b8d60664a90939fa7b5d9f4dd064a1d5"):
        shakespeare(data_dir=str(tmp_path))


def test_an_archive_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "1994-01-100.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("100.txt", TEXT)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="no text unpacks from it: Bad CRC"):
        shakespeare(data_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": 0}, "devices=0 is not accepted"),
        ({"fraction": 0.0}, "fraction=0.0 is not accepted"),
        ({"fraction": 1.5}, "fraction=1.5 is not accepted"),
        ({"seed": -1}, "seed=-1 is not accepted"),
        ({"min_samples": 0}, "min_samples=0 is not accepted"),
        ({"max_samples": 0}, "max_samples=0 is not accepted"),
        ({"stride": 0}, "stride=0 is not accepted"),
        ({"split": "random"}, "split='random' is unknown"),
        ({"test_share": 1.0}, "test_share=1.0 is not accepted"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_read(
    arguments: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "folder", lambda _: pytest.fail("read before the arguments were checked"))
    with pytest.raises(InputError, match=message):
        shakespeare(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": 5}, "devices=5 cannot be met: 3 roles have min_samples=20 examples or more"),
        ({"devices": 1, "fraction": 1.0}, "devices=1 and fraction=1 do not go together"),
        ({"fraction": 0.01}, "fraction=0.01 leaves no role with min_samples=20"),
    ],
)
def test_what_the_text_cannot_give_is_refused(small: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(small, **arguments)


def test_every_argument_has_a_line_of_help() -> None:
    lines = [line.strip() for line in (shakespeare.__doc__ or "").splitlines()]
    for name in inspect.signature(shakespeare).parameters:
        assert any(line.startswith(f"{name}: ") and line.endswith((".", ").")) for line in lines), name

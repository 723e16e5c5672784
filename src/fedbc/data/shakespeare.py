"""Shakespeare's plays, one device per speaking role: predict the next character from the 80 before it.

The preprocessing follows the rules of the LEAF benchmark (Caldas et al., 2018) on the text that LEAF uses, Project
Gutenberg's eBook #100 of 1994. That edition is copyrighted by World Library, Inc.: it may be used and passed on for
personal, non-commercial purposes only. Nothing of it is contained in this package.

- A line "by William Shakespeare" starts a play; its title is the nearest text two to seven lines above. A play with
  fewer than two roles is none (the sonnets, the poems, the licence).
- "  NAME. words" (indented by two spaces) starts a speech; lines indented by four go on with it. *The Comedy of
  Errors* is not indented: there every line goes on with the speech, until a new one, an act or a "<" begins.
- Names count in upper case. A role of two lines or fewer is left out.
- A role's lines are joined by spaces, and runs of spaces become one. Each stretch of 80 characters with a character
  after it is an example, and the character after it its label.
"""

from __future__ import annotations

import io
import re
import string
import warnings
import zipfile
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import checks
from fedbc.data import files
from fedbc.data import partition as partitions
from fedbc.data.federation import Federation, Shared
from fedbc.errors import InputError, Notice

WINDOW = 80
# LEAF's 80 characters. One that is not among them takes the last code, as LEAF's one-hot vectors do.
ALPHABET = f"\n !\"&'(),-.{string.digits}:;>?{string.ascii_uppercase}[]{string.ascii_lowercase}}}"
ROLES, EXAMPLES = 1129, 4_226_158  # what LEAF reports for its text
PAPER_DEVICES, PAPER_FRACTION = 138, 0.1

_ARCHIVE = files.Published(
    "1994-01-100.zip",
    "b8d60664a90939fa7b5d9f4dd064a1d5",
    # Project Gutenberg has moved the file before; LEAF names the second address.
    (
        "https://www.gutenberg.org/files/100/old/old/1994-01-100.zip",
        "https://www.gutenberg.org/files/100/old/1994-01-100.zip",
    ),
)
_NAMES = ("raw_data.txt", "100.txt", _ARCHIVE.name)
_AUTHOR = "by William Shakespeare"
_UNINDENTED = "THE COMEDY OF ERRORS"
_SPEECH = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
_DRAWS = 20_000  # 138 devices come about once in 140 draws of 10 %


class OtherEditionWarning(Notice):
    """The text is not the one that LEAF's figures were computed on, so results do not compare with others'."""


def shakespeare(
    devices: int | None = None,
    fraction: float | None = None,
    seed: int = 1,
    *,
    min_samples: int = 20,
    max_samples: int | None = None,
    stride: int = 1,
    split: str = "ordered",
    test_share: float = 0.2,
    data_dir: str | None = None,
) -> Federation:
    """Speaking roles of Shakespeare's plays as devices; by default 138 of them with 10 % of all examples.

    devices: how many roles; alone, they are drawn at random among those with min_samples examples.
    fraction: the share of all examples; alone, roles come in random order until they have it, as in LEAF.
    seed: of the draw of the roles and of a shuffled split.
    min_samples: roles with fewer examples are left out.
    max_samples: keep at most that many examples of each role, its first ones.
    stride: characters from one of a role's examples to the next; with 10 it has a tenth of them, from all of its words.
    split: ordered, so that a role's last words are its test set, or shuffled (see below).
    test_share: the share of each device's examples that is its test set.
    data_dir: the folder of the data files; else the one that FEDBC_DATA names, else the user's cache folder.

    LEAF draws roles in random order until a fraction of all examples is reached, cuts the last role to size, and then
    drops roles with too few examples. The number of devices is left to chance (10 % gives 112 on average); the paper's
    draw gave 138, and its seed is not known. With both `devices` and `fraction`, the draw is repeated until it has that
    many devices: a fair draw of LEAF's kind, with the paper's number, but not the paper's very roles. With neither,
    both are the paper's.

    Neighbouring examples share 79 characters, so a shuffled split tests on characters that were seen in training as
    part of other examples' input. In an ordered split no test label occurs in any training example. (LEAF also splits
    in order, and drops 79 examples in between and the roles for which that leaves none to test on.)
    """
    if devices is None and fraction is None:
        devices, fraction = PAPER_DEVICES, PAPER_FRACTION
    if devices is not None:
        checks.integer("devices", devices, at_least=1)
    if fraction is not None:
        checks.number("fraction", fraction, above=0, at_most=1)
    checks.integer("seed", seed, at_least=0)
    checks.integer("min_samples", min_samples, at_least=1)
    if max_samples is not None:
        checks.integer("max_samples", max_samples, at_least=1)
    checks.integer("stride", stride, at_least=1)
    checks.choice("split", split, partitions.ORDERS)
    checks.number("test_share", test_share, above=0, below=1)

    path = _locate(files.folder(data_dir))
    texts = roles(_read(path))
    counts = np.array([len(text) - WINDOW for text in texts.values()], np.int64)
    _check_edition(path, counts)
    kept = -(-_draw(counts, devices, fraction, min_samples, seed) // stride)
    if max_samples is not None:
        kept = np.minimum(kept, max_samples)

    chosen = np.flatnonzero(kept)
    names = list(texts)
    # The text of one role after the other: each ends with the label of its last example.
    lengths = (kept[chosen] - 1) * stride + WINDOW + 1
    codes = encode("".join(texts[names[i]][:length] for i, length in zip(chosen, lengths, strict=True)))
    beginnings = np.cumsum(lengths) - lengths
    starts = np.concatenate([b + stride * np.arange(n) for b, n in zip(beginnings, kept[chosen], strict=True)])
    starts = starts.astype(np.int32)
    return partitions.from_partition(
        starts,
        codes[starts + WINDOW],
        np.split(np.arange(len(starts)), np.cumsum(kept[chosen])[:-1]),
        test_share=test_share,
        split=split,
        seed=seed,
        classes=len(ALPHABET),
        name="shakespeare",
        shared=codes,
        decode=decode,
        class_names=tuple(ALPHABET),
        facts={"roles": [names[i] for i in chosen]},
    )


def decode(shared: Shared, x: jax.Array) -> jax.Array:
    """The codes of the 80 characters from each start on."""
    return jnp.asarray(shared)[x[..., None] + jnp.arange(WINDOW)].astype(jnp.int32)


def encode(text: str) -> np.ndarray:
    """The place of each character in the alphabet."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    table = np.full(129, len(ALPHABET) - 1, np.uint8)
    table[[ord(c) for c in ALPHABET]] = np.arange(len(ALPHABET))
    return table[np.minimum(points, 128)]


def roles(text: str) -> dict[str, str]:
    """The words of each speaking role, long enough for an example, by "PLAY: ROLE" in the order of appearance."""
    plays: list[tuple[str, dict[str, list[str]]]] = []
    speaker: list[str] | None = None  # the lines of the role that is speaking
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if _AUTHOR in line:
            above = lines[max(0, number - 7) : max(0, number - 1)]
            title = next((found.strip() for found in reversed(above) if found.strip()), "")
            plays.append((title, {}))
            speaker = None
            continue
        if not plays:
            continue
        title, speeches = plays[-1]
        unindented = title == _UNINDENTED
        starts = _SPEECH.match(line, 0 if unindented else 2) if unindented or line.startswith("  ") else None
        if starts:
            name, words = starts[1].upper(), starts[2]
            if unindented and name.startswith("ACT "):
                speaker = None
            else:
                speaker = speeches.setdefault(name, [])
                speaker.append(words)
        elif speaker is not None and unindented:
            if line.startswith("<"):
                speaker = None
            else:
                speaker.append(line)
        elif speaker is not None and line.startswith("    "):
            speaker.append(line[4:])
    joined = {
        f"{title}: {name}": re.sub("  +", " ", " ".join(said) + " ")
        for title, speeches in plays
        for name, said in speeches.items()
        if len(speeches) > 1 and len(said) > 2
    }
    return {role: words for role, words in joined.items() if len(words) > WINDOW}


def _draw(counts: np.ndarray, devices: int | None, fraction: float | None, min_samples: int, seed: int) -> np.ndarray:
    """How many examples of each role are kept, 0 for a role that was not drawn."""
    eligible = np.flatnonzero(counts >= min_samples)
    if devices is not None and devices > len(eligible):
        raise InputError(
            f"devices={devices} cannot be met: {len(eligible)} roles have min_samples={min_samples} examples or more"
        )
    rng = np.random.default_rng(seed)
    if fraction is None:
        kept = np.zeros_like(counts)
        chosen = rng.permutation(eligible)[:devices]
        kept[chosen] = counts[chosen]
        return kept
    wanted = int(fraction * counts.sum())
    drawn = set()
    for _ in range(_DRAWS if devices is not None else 1):
        order = rng.permutation(len(counts))
        before = np.cumsum(counts[order]) - counts[order]
        kept = np.zeros_like(counts)
        kept[order] = np.clip(wanted - before, 0, counts[order])
        kept[kept < min_samples] = 0
        drawn.add(np.count_nonzero(kept))
        if devices in (None, np.count_nonzero(kept)) and kept.any():
            return kept
    if devices is None:
        raise InputError(f"fraction={fraction:g} leaves no role with min_samples={min_samples} examples: raise it")
    raise InputError(
        f"devices={devices} and fraction={fraction:g} do not go together: that share of the examples was found on "
        f"{min(drawn)} to {max(drawn)} roles; give only one of the two"
    )


def _check_edition(path: Path, counts: np.ndarray) -> None:
    if len(counts) == 0:
        raise InputError(
            f"{path} has no speaking roles in the layout of Project Gutenberg's eBook #100 of 1994 "
            f"({_ARCHIVE.name}): put that text in its place"
        )
    if (len(counts), counts.sum()) != (ROLES, EXAMPLES):
        warnings.warn(
            f"{path} is another edition than LEAF's: it has {len(counts)} roles with {counts.sum()} examples, "
            f"not {ROLES} with {EXAMPLES}",
            OtherEditionWarning,
            stacklevel=3,
        )


def _locate(root: Path) -> Path:
    found = files.find(root, [folder + name for name in _NAMES for folder in ("shakespeare/", "")])
    if found is None:
        files.obtain("shakespeare", [_ARCHIVE], root, "shakespeare")
    return found or root / "shakespeare" / _ARCHIVE.name


def _read(path: Path) -> str:
    content = files.read_any(path)
    if path.suffix == ".zip":
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                name = next(n for n in archive.namelist() if n.lower().endswith(".txt"))
                content = archive.read(name)
        except (zipfile.BadZipFile, zlib.error, EOFError, StopIteration, NotImplementedError, RuntimeError) as error:
            raise files.damaged(str(path), _ARCHIVE.md5, f"no text unpacks from it: {error}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")

"""Results files in parts that a repository takes: NAME.jsonl grows, and what is full becomes NAME.1.jsonl and so on."""

from __future__ import annotations

from pathlib import Path

from fedbc import storage

LARGEST = 900_000
"""Bytes of a part that is full."""


def parts_of(file: Path) -> list[Path]:
    """The parts of a results file in the order in which they were written; the one that grows is the last."""
    full: list[Path] = []
    while (part := _part(file, len(full) + 1)).exists():
        full.append(part)
    return [*full, file]


def split_into_parts(file: Path, largest: int = LARGEST) -> None:
    """Move the lines of a file that has become too large to parts, whole lines each."""
    if not file.exists() or file.stat().st_size <= largest:
        return
    rest = file.read_bytes()
    while len(rest) > largest:
        at = rest.rfind(b"\n", 0, largest) + 1 or rest.find(b"\n") + 1
        if not at:
            break
        storage.write_atomically(_part(file, len(parts_of(file))), rest[:at].decode())
        rest = rest[at:]
        # After each part: a line that is in two files counts once, one that is in none is lost.
        storage.write_atomically(file, rest.decode())


def _part(file: Path, number: int) -> Path:
    return file.with_suffix(f".{number}{file.suffix}")

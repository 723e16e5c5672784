"""Files with a table: what separates their columns, which character marks decimals, and what is wrong with them."""

from __future__ import annotations

import collections
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbc import storage
from fedbc.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".tsv", ".parquet")
_SEPARATORS = (",", ";", "\t", "|")
_FRACTION = r"\s*[+-]?\d+,\d+\s*"
_WHOLE_FRACTION = r"^(-?(?:0|[1-9]\d*))\.0+$"


def read_table(path: Path, words: Sequence[str] = ()) -> pd.DataFrame:
    """One file with a table.

    words: columns whose values are names, even where they look like numbers: clinic 007 is not clinic 7.
    """
    import pandas as pd

    if not storage.is_there(path) or not path.is_file():
        raise InputError(f"{path} does not exist, or is not a file")
    try:
        return pd.read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path, words)
    except InputError:
        raise
    except ImportError:
        raise InputError(f"{path.name} needs PyArrow: pip install 'fedbc[parquet]'") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} cannot be read as a table: byte {error.start} is not UTF-8: save it as text in UTF-8"
        ) from None
    except (ValueError, OSError) as error:  # what pandas and PyArrow say of files that are none
        raise InputError(f"{path} cannot be read as a table: {str(error).splitlines()[0]}") from None


def _read_csv(path: Path, words: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    with path.open(encoding="utf-8-sig", newline="") as file:
        first = next((line for line in file if line.strip()), "")
    separator = max(_SEPARATORS, key=first.count)  # the first of equals: one column alone is separated by nothing
    heading = next(csv.reader([first], delimiter=separator), [])
    twice = [name for name, count in collections.Counter(heading).items() if name.strip() and count > 1]
    if twice:  # pandas would call the second one name.1, which then predicts the first
        raise InputError(f"{path} has {heading.count(twice[0])} columns called {twice[0]!r}: give each its own name")

    def read(decimal: str) -> pd.DataFrame:
        kinds = dict.fromkeys(words, str)
        return pd.read_csv(path, sep=separator, decimal=decimal, dtype=kinds, low_memory=False)

    frame = read(".")
    if not isinstance(frame.index, pd.RangeIndex):  # pandas takes the columns too many for names of rows
        raise InputError(f"{path} has rows with more values than its first line has names: each column needs one")
    if separator != "," and any(_has_commas(frame[name]) for name in frame if name not in words):
        frame = read(",")  # as spreadsheets write where commas mark decimals
    for name in words:
        if name in frame:  # 2.0 is what is left of clinic 2 where a gap has made fractions of whole numbers
            frame[name] = frame[name].str.replace(_WHOLE_FRACTION, r"\1", regex=True)
    return frame


def _has_commas(column: pd.Series) -> bool:
    values = column.dropna()
    return bool(len(values)) and values.dtype.kind not in "biufc" and bool(values.str.fullmatch(_FRACTION).all())

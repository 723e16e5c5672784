"""A federation from a table, with one row per example: pandas, Polars, Arrow, or what else narwhals reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbc import checks
from fedbc.data.encoding import Columns, Encoding, Words, fit
from fedbc.data.federation import Federation, Split, canonical, from_splits
from fedbc.data.meaning import Meaning
from fedbc.data.partition import by_id, divide
from fedbc.data.rows import Rows, natural
from fedbc.data.suspicious import look_at_columns, look_at_new_rows, look_at_test
from fedbc.errors import InputError, unknown

Array = np.ndarray

TASKS = ("classification", "regression")
MANY_CLASSES = 50
"""Whole numbers with more different values are not taken for classes unless that is said."""


def from_frame(
    frame: Any,
    *,
    label: str,
    device: str,
    test: Any = None,
    test_share: float = 0.2,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    task: str | None = None,
    seed: int = 1,
    name: str = "table",
) -> Federation:
    """A federation from a table with one row per example. The names of devices and classes stay with it.

    frame: a frame of pandas, Polars, PyArrow or another library that narwhals reads.
    label: the column to predict. Words, whole numbers and yes or no make classification, fractions regression.
    device: the column that says whose row it is: a clinic, a person, a machine.
    test: the rows to test on: another frame with the same columns, or the name of a column of yes and no. If not given,
        `test_share` of each device's rows, drawn by `seed`.
    features: the columns to predict from; all others if not given.
    drop: columns to leave out, such as the number of a patient.
    categorical: columns of numbers that stand for kinds, such as the code of a scanner.
    task: "classification" or "regression", where the label's type leaves that open.

    Numeric columns are standardised and words become zeros and ones by one rule for all devices, made of sums that each
    device adds to over its training rows; missing values are allowed in both (`fedbc.data.encoding` says what becomes
    of them), not in the label or the device. `Federation.encoding` is the rule.
    """
    checks.integer("seed", seed, at_least=0)
    if task is not None:
        checks.choice("task", task, TASKS)
    for what, given in (("features", features), ("drop", drop), ("categorical", categorical)):
        if isinstance(given, str):
            raise InputError(f"{what}={given!r} is not accepted: give a list of columns, such as {[given]!r}")
    rows = Rows.of("frame", frame)
    separate = Rows.of("test", test) if test is not None and not isinstance(test, str) else None
    mark = test if isinstance(test, str) else None
    chosen = _features(rows, label, device, mark, features, drop)
    for wanted in categorical:
        if wanted not in chosen:
            raise unknown("categorical", wanted, chosen)
    values, owners = rows.columns(chosen, categorical), rows.words(device, "device")
    parts = sorted(by_id(owners), key=lambda part: natural(owners[part[0]]))
    names = [str(owners[part[0]]) for part in parts]
    labels: list[Array]
    if separate is not None:
        train, tested = parts, _rows_of(separate.words(device, "device"), names)
        as_words = {name: column.dtype == object for name, column in values.items()}
        test_values = separate.columns(chosen, categorical, as_words)
        labels, classes = _labels(rows, label, task, separate)
    else:
        halves = _halves(rows, parts, names, mark, test_share, seed)
        train, tested = [h[0] for h in halves], [h[1] for h in halves]
        test_values = values
        both, classes = _labels(rows, label, task)
        labels = [both[0], both[0]]
    encoding = fit([{c: values[c][part] for c in chosen} for part in train], label, device)
    look_at_columns(values, labels[0], parts, len(classes))
    splits = _encoded(encoding, values, labels[0], train), _encoded(encoding, test_values, labels[1], tested)
    if separate is not None:
        look_at_test(*splits)
    return from_splits(
        *splits,
        classes=len(classes) if classes else None,
        name=name,
        device_names=tuple(names),
        class_names=classes,
        encoding=encoding,
    )


def encode(encoding: Encoding, frame: Any) -> Array:
    """The model's input for the rows of a new table with the same columns; others may be there and are passed over."""
    rows = Rows.of("table", frame)
    as_words = {column.name: isinstance(column, Words) for column in encoding.columns}
    columns = rows.columns(list(as_words), (), as_words)
    look_at_new_rows(encoding, columns)
    return canonical(encoding.encode(columns))


def labelled(encoding: Encoding, frame: Any, classes: Sequence[str]) -> tuple[Array, Array]:
    """The devices and the labels of a new table's rows, the labels as numbers."""
    rows = Rows.of("data", frame)
    return rows.words(encoding.device, "device"), _known_labels(rows, encoding, classes)


def from_own_table(
    meaning: Meaning,
    frame: Any,
    device: int,
    *,
    test_column: str | None = None,
    test_share: float = 0.2,
    seed: int = 1,
) -> Federation:
    """The federation of one device alone, from its own table, by the rule of a federation that knows it.

    It has the examples that `from_frame` gives this device from a table of all: rows are encoded and divided alike.

    meaning: of the federation: `Federation.meaning`, or `Result.meaning`.
    frame: the device's rows. A column that says whose they are may be absent; another device's are refused.
    device: its number in the federation.
    test_column, test_share, seed: as in `fedbc.data.read`.
    """
    if meaning.encoding is None:
        raise InputError("meaning says nothing of columns: give that of a federation from a table")
    encoding, name = meaning.encoding, meaning.device_label(meaning.device_number(device, len(meaning.device_names)))
    rows = Rows.of("table", frame)
    if encoding.device in rows.names:
        others = set(rows.words(encoding.device, "device")) - {name}
        if others:
            raise InputError(f"the table has rows of {sorted(others)[0]!r}, but device {device} is {name!r}")
    labels = _known_labels(rows, encoding, meaning.class_names)
    parts = _halves(rows, [np.arange(len(labels))], [name], test_column, test_share, seed, first=device)
    x = encode(encoding, frame)
    train, test = (Split(x[part], labels[part], np.asarray([0, len(part)])) for part in parts[0])
    classes = len(meaning.class_names) or None
    return from_splits(
        train,
        test,
        classes=classes,
        name=name,
        device_names=(name,),
        class_names=meaning.class_names,
        encoding=encoding,
    )


def _known_labels(rows: Rows, encoding: Encoding, classes: Sequence[str]) -> Array:
    if not classes:
        rows.words(encoding.label, "label")  # none may be missing
        return canonical(rows.numbers(encoding.label)[:, None])
    words = rows.words(encoding.label, "label")
    strange = sorted(set(words) - set(classes))
    if strange:
        raise unknown("label", strange[0], classes)
    return np.asarray([classes.index(word) for word in words], np.int32)


def device_words(encoding: Encoding, frame: Any) -> list[str | None]:
    """The devices of a new table's rows; None where it does not say."""
    return Rows.of("table", frame).kinds(encoding.device).tolist()


def owners_of(frame: Any, device: str) -> Array:
    """Whose each row of a table is, by name."""
    return Rows.of("table", frame).words(device, "device")


def _features(
    rows: Rows, label: str, device: str, mark: str | None, features: Sequence[str] | None, drop: Sequence[str]
) -> list[str]:
    special = [label, device, *([mark] if mark is not None else [])]
    for name in (*special, *(features or ()), *drop):
        rows.need(name)
    if label == device:
        raise InputError(f"label={label!r} is the device's column, too: give two")
    chosen = [n for n in (features if features is not None else rows.names) if n not in drop]
    for name in special:
        if features is not None and name in chosen:
            raise InputError(
                f"features has {name!r}, which is not to predict from: it is a label, device or test column"
            )
    chosen = [n for n in chosen if n not in special]
    if not chosen:
        raise InputError(f"{rows.what} has no columns left to predict {label!r} from")
    return chosen


def _halves(
    rows: Rows, parts: list[Array], names: list[str], mark: str | None, share: float, seed: int, first: int = 0
) -> list[tuple[Array, Array]]:
    """Each device's rows for training and for testing; `first` is the first one's number."""
    if mark is None:
        return [divide(part, share, "shuffled", [seed, i]) for i, part in enumerate(parts, first)]
    is_test = _yes_or_no(rows, mark)
    for part, name in zip(parts, names, strict=True):
        if is_test[part].all():
            raise InputError(f"device {name!r} has no training rows: all are marked by column {mark!r}")
    if not is_test.any():
        raise InputError(f"column {mark!r} marks no row to test on")
    return [(part[~is_test[part]], part[is_test[part]]) for part in parts]


def _yes_or_no(rows: Rows, name: str) -> Array:
    words = {
        "true": True,
        "false": False,
        "1": True,
        "0": False,
        "yes": True,
        "no": False,
        "test": True,
        "train": False,
    }
    values = [words.get(value.lower()) for value in rows.words(name, "test")]
    if None in values:
        wrong = rows.words(name, "test")[values.index(None)]
        raise InputError(f"column {name!r} has {wrong!r}: a test column holds yes or no, true or false, 1 or 0")
    return np.asarray(values, bool)


def _rows_of(owners: Array, names: list[str]) -> list[Array]:
    strange = sorted(set(owners) - set(names))
    if strange:
        raise InputError(f"test has rows of device {strange[0]!r}, which has no training rows")
    return [np.flatnonzero(owners == name) for name in names]


def _labels(rows: Rows, label: str, task: str | None, test: Rows | None = None) -> tuple[list[Array], tuple[str, ...]]:
    """The labels as numbers, of the training table and of the test table if there is one; and the classes' names."""
    tables = [rows] if test is None else [rows, test]
    task = task or _task(rows, label)
    if task == "regression":
        targets = []
        for table in tables:
            if not table.is_numeric(label):
                raise InputError(f"label {label!r} holds words, which regression cannot predict")
            table.words(label, "label")  # none may be missing
            targets.append(table.numbers(label)[:, None])
        return targets, ()
    found = [table.words(label, "label") for table in tables]
    classes = sorted(set(found[0]), key=natural)
    if len(classes) < 2:
        raise InputError(f"label {label!r} is {classes[0]!r} in every row: there is nothing to learn")
    if 2 * len(classes) > len(found[0]) > MANY_CLASSES:
        raise InputError(
            f"label {label!r} has {len(classes)} different values in {len(found[0])} rows, as a text or an identifier "
            "has: there is nothing to learn of most"
        )
    place = {name: i for i, name in enumerate(classes)}
    strange = sorted(set(found[-1]) - set(classes))
    if strange:
        raise InputError(f"test has the label {strange[0]!r}, which no training row has")
    return [np.asarray([place[v] for v in values], np.int32) for values in found], tuple(classes)


def _task(rows: Rows, label: str) -> str:
    if not rows.is_numeric(label):
        return "classification"
    values = rows.numbers(label)
    whole = (values == np.floor(values))[~np.isnan(values)].all()
    if not whole:
        return "regression"
    if rows.frame.schema[label].is_float() or len(np.unique(values)) > MANY_CLASSES:
        raise InputError(
            f"label {label!r} may be a class or a quantity ({len(np.unique(values))} different whole numbers): say "
            "task='classification' or task='regression'"
        )
    return "classification"


def _encoded(encoding: Encoding, values: Columns, labels: Array, parts: list[Array]) -> Split:
    rows = np.concatenate(parts)
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    x = encoding.encode({name: column[rows] for name, column in values.items()})
    return Split(canonical(x), canonical(labels[rows]), offsets)

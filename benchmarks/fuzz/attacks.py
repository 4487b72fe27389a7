"""Replies of a hostile node: each attack changes one good reply, as it would go over the wire.

An attack gets the records of the reply and a generator, and changes the records. It is *legal* if
what it makes is within all bounds: nobody can tell it from an honest reply.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict

from corsage.benchmarks.bad_values import of_message
from corsage.core.messages.replies import Reply

Change = Callable[[RecordDict, np.random.Generator], Any]
MAGIC = b"\x93NUMPY"
OWNED = "\x1b]0;owned\x07"


@dataclass(frozen=True)
class Attack:
    """One way to be hostile.

    Parameters
    ----------
    name : what it does.
    change : changes the records; False if there is nothing in them that it could change.
    legal : whether the result is within all bounds.
    kind : `train` or `evaluate`, where it makes sense in one of them only.
    error : replies so instead.
    """

    name: str
    change: Change
    legal: bool = False
    kind: str = ""
    error: Error | None = None


def attacks() -> list[Attack]:
    """All of them."""
    return [*of_arrays(), *of_numbers(), *of_words(), *of_records(), *of_errors()]


# Arrays.


def of_arrays() -> Iterator[Attack]:
    """What an array says of itself, its bytes, and its values."""
    for field, lies in ARRAY_LIES.items():
        for lie in lies:
            yield Attack(f"{field} {str(lie)[:24]!r}", changing(field, lie))
    for name, data in DATA.items():
        yield Attack(f"data: {name}", with_data(data))
    for value in (np.nan, np.inf, -np.inf, 1e300, -1e300, 1e160):
        yield Attack(f"float64 of {value}", with_values(value))
    for value in (np.nan, np.inf, -np.inf, 3e38, 1e30, -1e25):
        yield Attack(f"one entry {value}", with_entry(value))
    yield Attack("one entry 0.5", with_entry(0.5), legal=True)
    for single, double in ((1e10, 1e80), (-1e15, -1e140), (1e15, 1e15), (6e16, 6e152), (0.0, 0.0)):
        yield Attack(f"entries {single:g}, double {double:g}", filled(single, double), legal=True)
        yield Attack(
            f"signs times {single:g}, double {double:g}", filled(single, double, True), legal=True
        )
    yield Attack("-10 times", scaled(-10.0), legal=True)
    yield Attack("array left out", in_place(lambda record, name, _: record.pop(name)))
    yield Attack(
        "array renamed",
        in_place(lambda record, name, _: record.update({OWNED + name: record.pop(name)})),
    )
    yield Attack("array too many", extra_array)
    yield Attack("mean and rows swapped", swapped)
    yield Attack("rows one more", one_more_row)


ARRAY_LIES: dict[str, tuple[Any, ...]] = {
    "dtype": ("float16", "object", "<f4", "int64", "", "O", "\x1b[2Jfloat32", "U9" * 9999),
    "shape": ((10**13,), (), (-1,), (0,), (2,) * 64, (1, 1, 1)),
    "stype": ("", "pickle", "torch.Tensor", "numpy.ndarray\x00"),
}


def in_place(made: Callable[[Any, str, np.random.Generator], Any]) -> Change:
    """Something done to one array, given its record and its name; False: it cannot be."""

    def change(content: RecordDict, rng: np.random.Generator) -> bool:
        found = [(record, name) for record in content.array_records.values() for name in record]
        return bool(found) and made(*found[int(rng.integers(len(found)))], rng) is not False

    return change


def of_one(made: Callable[[Array, np.random.Generator], Array | None]) -> Change:
    """One array as something else; None: this one cannot be that."""

    def other(record: Any, name: str, rng: np.random.Generator) -> bool:
        old, new = record[name], made(record[name], rng)
        if new is None or all(getattr(new, own) == getattr(old, own) for own in ARRAY_FIELDS):
            return False
        record[name] = new
        return True

    return in_place(other)


ARRAY_FIELDS = ("dtype", "shape", "stype", "data")


def changing(field: str, lie: Any) -> Change:
    """A lie about an array."""
    return of_one(
        lambda old, _: Array(**{own: getattr(old, own) for own in ARRAY_FIELDS} | {field: lie})
    )


def header(words: bytes, version: bytes = b"\x01\x00") -> bytes:
    """The beginning of a file of NumPy's, with these words in its header."""
    words = words.ljust(118)
    return MAGIC + version + len(words).to_bytes(2, "little") + words


def saved(array: Any, **options: Any) -> bytes:
    """A file of NumPy's."""
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def zipped() -> bytes:
    """An archive of NumPy's."""
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(3))
    return buffer.getvalue()


BOMB = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000,), }"
DATA: dict[str, Callable[[bytes], bytes]] = {
    "none": lambda good: b"",
    "garbage": lambda good: b"not an array",
    "cut": lambda good: good[:-3],
    "header only": lambda good: good[:128],
    "too long": lambda good: good + bytes(64),
    "an archive": lambda good: zipped(),
    "a bad archive": lambda good: b"PK\x03\x04" + good[4:],
    "objects": lambda good: saved(np.array([{}], object), allow_pickle=True),
    "a header of 10^13 numbers": lambda good: header(BOMB) + good[128:],
    "a header that is nested": lambda good: header(b"(" * 400) + good[128:],
    "a header that is no Python": lambda good: header(b"{'descr': '<f4'\n  ]") + good[128:],
    "a header that is code": lambda good: header(b"__import__('os').abort()") + good[128:],
    "version 3": lambda good: MAGIC + b"\x03\x00" + good[8:],
    "a long header": lambda good: good[:8] + b"\xff\xff" + good[10:],
    "fortran order": lambda good: good.replace(
        b"'fortran_order': False", b"'fortran_order': True ", 1
    ),
    "big endian": lambda good: good.replace(b"'<f", b"'>f", 1),
}


def with_data(made: Callable[[bytes], bytes]) -> Change:
    """Other bytes in one array."""
    return of_one(lambda old, _: Array(old.dtype, old.shape, old.stype, made(old.data)))


def written(array: Any) -> Array:
    """An array as NumPy writes it."""
    return Array(str(array.dtype), array.shape, "numpy.ndarray", saved(array))


def with_values(value: float) -> Change:
    """One array full of a value, in double precision."""
    return of_one(lambda old, _: written(np.full(old.shape, value)))


def with_entry(value: float) -> Change:
    """One entry of one array."""

    def made(old: Array, rng: np.random.Generator) -> Array | None:
        array = np.array(old.numpy())
        if not array.size:
            return None
        # what float64 holds and float32 does not is an attack of its own
        array.reshape(-1)[int(rng.integers(array.size))] = value * (
            1e130 if array.itemsize == 8 and abs(value) > 1 else 1
        )
        return written(array)

    return of_one(made)


def filled(single: float, double: float, signs: bool = False) -> Change:
    """One array full of numbers that are large, and may be finite in all that follows."""

    def made(old: Array, rng: np.random.Generator) -> Array:
        array = old.numpy()
        sign = rng.choice([-1.0, 1.0], array.shape) if signs else np.ones(array.shape)
        value = double if array.dtype == np.float64 else single
        return written((value * sign).astype(array.dtype))

    return of_one(made)


def scaled(factor: float) -> Change:
    """One array times a number."""
    return of_one(lambda old, _: written((old.numpy() * factor).astype(old.numpy().dtype)))


def extra_array(content: RecordDict, rng: np.random.Generator) -> bool:
    """An array that nobody asked for."""
    record: Any = content.get("arrays", ArrayRecord())
    record["more"] = written(np.zeros(3))
    content["arrays"] = record
    return True


def swapped(content: RecordDict, rng: np.random.Generator) -> bool:
    """Rows for a mean, or a mean for rows."""
    arrays, rows = content.pop("arrays", None), content.pop("rows", None)
    if arrays is not None:
        content["rows"] = arrays
    if rows is not None:
        content["arrays"] = rows
    return arrays is not None or rows is not None


def one_more_row(content: RecordDict, rng: np.random.Generator) -> bool:
    """One user more than there is."""
    if "rows" not in content or not content["rows"]:
        return False
    record: Any = content["rows"]
    for name in list(record):
        rows = record[name].numpy()
        record[name] = written(np.concatenate([rows, rows[:1]]))
    return True


# Numbers.

NAN, INF = float("nan"), float("inf")
NUMBERS: tuple[Any, ...] = (
    *(NAN, INF, -INF, -1.0, 0.5, 1e9, 1e18, 1e150, -1e150, 1e300),
    2**64 - 1,
)


def of_numbers() -> Iterator[Attack]:
    """Each number of a reply: its value, and what it is."""
    for name in ("num-examples", "correct", "loss", "squared-error", "cluster", "alpha", "found"):
        for value in NUMBERS:
            # a mean loss has no bound but 0, and a user may pick any model, or mix in half of one
            legal = (name == "loss" and 0 <= value <= 1e140) or (name == "alpha" and value == 0.5)
            yield Attack(f"{name} {value}", with_number(name, value), legal)
    for value in (0.0, 1e-300, 1.0, 1e9, -1e9, 1e60, 1e139, -1e139):
        yield Attack(f"some number {value:g}", with_some_number(value), legal=True)
    for name, change in SHAPES.items():
        yield Attack(f"a number that is {name}", change)
    yield Attack("weight 1e9", lambda content, rng: metrics(content).update({"weight": 1e9}))
    yield Attack(
        "a number too many", lambda content, rng: metrics(content).update({"more": [1e300]})
    )


def metrics(content: RecordDict) -> MetricRecord:
    """A reply's numbers."""
    found = content["metrics"]
    assert isinstance(found, MetricRecord)
    return found


def with_number(name: str, value: Any) -> Change:
    """One user's number."""

    def change(content: RecordDict, rng: np.random.Generator) -> bool:
        old: Any = metrics(content).get(name)
        if not old:
            return False
        place = int(rng.integers(len(old)))
        if old[place] == value:
            return False
        new = [float(each) for each in old] if isinstance(value, float) else [int(o) for o in old]
        new[place] = value
        metrics(content)[name] = new
        return True

    return change


def with_some_number(value: float) -> Change:
    """One user's number, whichever."""

    def change(content: RecordDict, rng: np.random.Generator) -> bool:
        names = [name for name in metrics(content) if name != "num-examples"]
        return bool(names) and with_number(names[int(rng.integers(len(names)))], value)(
            content, rng
        )

    return change


def shaped(made: Callable[[list[float]], Any]) -> Change:
    """One number of all users as something else."""

    def change(content: RecordDict, rng: np.random.Generator) -> bool:
        names = [name for name, value in metrics(content).items() if isinstance(value, list)]
        if not names:
            return False
        name = names[int(rng.integers(len(names)))]
        new = made(list(metrics(content)[name]))  # type: ignore[arg-type]
        if new is None:
            del metrics(content)[name]
        else:
            metrics(content)[name] = new
        return True

    return change


SHAPES: dict[str, Change] = {
    "missing": shaped(lambda old: None),
    "no list": shaped(lambda old: old[0]),
    "a list too short": shaped(lambda old: old[:-1]),
    "a list too long": shaped(lambda old: [*old, *old]),
    "a list of a million": shaped(lambda old: [0.0] * 10**5),
}


# Words.


def of_words() -> Iterator[Attack]:
    """Who did what."""
    for number, (name, value) in enumerate(of_message(Reply)):
        yield Attack(f"bad {name} {number}", with_word(name, value))
    for name in ("users", "failed", "causes", "lost"):
        for value in (b"bytes", [b"x"], ["nobody"], ["x"] * 9999):
            yield Attack(f"{name} {str(value)[:12]}", with_word(name, value))
    yield Attack("users named twice", changed("users", lambda old: [*old, *old]))
    yield Attack("one user left out", changed("users", lambda old: old[:-1]))
    yield Attack("a user of another node", changed("users", lambda old: [*old[:-1], "0"]))
    yield Attack("users that are lost", of_word("lost", lambda known: known["users"]))
    yield Attack("kept of an evaluation", with_word("kept", True), kind="evaluate")
    for value in EXCHANGES:
        yield Attack(f"exchange {value!r}", with_word("exchange", value))
    yield Attack("a word too many", with_word("more", "\x1b[2J" * 999))


EXCHANGES = ("", "0" * 32, b"0")


def words(content: RecordDict) -> ConfigRecord:
    """A reply's words."""
    found = content["config"]
    assert isinstance(found, ConfigRecord)
    return found


def of_word(name: str, made: Callable[[ConfigRecord], Any]) -> Change:
    """Another word, of all that there are."""

    def change(content: RecordDict, rng: np.random.Generator) -> bool:
        words(content)[name] = made(words(content))
        return True

    return change


def with_word(name: str, value: Any) -> Change:
    """Another word."""
    return of_word(name, lambda _: value)


def changed(name: str, made: Callable[[list[str]], list[str]]) -> Change:
    """Another list of words."""
    return of_word(name, lambda known: made(list(known.get(name, []))))  # type: ignore[arg-type]


# Records.


def of_records() -> Iterator[Attack]:
    """Records that are missing, or of another kind."""
    for name in ("config", "metrics", "arrays", "rows"):
        yield Attack(f"no {name}", without(name))
        for kind in (ArrayRecord, MetricRecord, ConfigRecord):
            yield Attack(f"{name} as {kind.__name__}", as_kind(name, kind))
    yield Attack("nothing", without("config", "metrics", "arrays", "rows"))
    more = ArrayRecord({"a": Array(np.zeros(3))})
    yield Attack("a record too many", lambda content, rng: content.update({"more": more}))


def without(*names: str) -> Change:
    """Records that are missing."""
    return lambda content, rng: bool([content.pop(n) for n in names if n in content])


def as_kind(name: str, kind: type[Any]) -> Change:
    """An empty record of another kind in the place of one."""

    def change(content: RecordDict, rng: np.random.Generator) -> bool:
        if name not in content or isinstance(content[name], kind):
            return False
        del content[name]
        content[name] = kind()
        return True

    return change


def of_errors() -> Iterator[Attack]:
    """A node that says that it failed."""
    for reason in (
        None,
        "",
        "boom",
        "not finite: model",
        "\x1b[2J\x1b]0;owned\x07\r\nfake line",
        "x" * 10**5,
    ):
        error = Error(code=2, reason=reason)
        yield Attack(f"error {str(reason)[:12]!r}", lambda content, rng: True, error=error)

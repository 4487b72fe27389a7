"""Ways to spoil a message: structured ones, which know what a device reads, drawn by a seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from corsage.benchmarks.bad_values import of_kind, of_message
from corsage.benchmarks.device.messages import ALL, KINDS, Draft, honest
from corsage.clients import client_class
from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.keys import declared as keys_of
from corsage.core.messages.asked import USUAL_OPTIONS
from corsage.core.messages.fields import columns_of
from corsage.core.messages.wire import Settings, Task
from corsage.core.registry import algorithm_keys

Random = np.random.Generator
PATHS = (
    "{outside}/secret.json",
    "../../outside/secret",
    "~/.ssh/id_rsa",
    "/dev/zero",
    "/etc/passwd",
    "../../../private/secret",
)
MODELS = ("os:_exit", "os:abort", "builtins:exit", "planted:factory", "planted:leak", "sys:exit")
NUMBERS = (10**9, 10**18, 2**63, 10**300, -1, -(10**9), 0, 1e300, float("nan"), float("inf"), -0.5)
WORDS = ("", "x" * 5000, "\x1b[2J\r\nuser 0 is fine", "None", "true", "1e9", "1,1,1", "9" * 5000)
NESTED: tuple[Any, ...] = ([1, [2]], {"a": {"b": []}}, None, [], {}, True, False)
FILES = ("cluster-map", "data-file", "data-dir", "cache-dir", "run-dir", "state-dir", "resume")
BAD = (*of_message(Settings, "settings"), *of_message(Task))
"""Columns of tasks, and values that none of them may have."""


@cache
def counting_keys() -> tuple[str, ...]:
    """Keys that count, of every algorithm."""
    groups = (TrainKeys, ModelKeys, *algorithm_keys().values())
    return tuple(name for group in groups for name, kind, _ in keys_of(group) if kind is int)


@dataclass(frozen=True)
class Attack:
    """One hostile message, and what it is."""

    name: str
    message: Message


def value(rng: Random, outside: str) -> Any:
    """A hostile value."""
    kinds = (PATHS, MODELS, NUMBERS, WORDS, NESTED)
    chosen = pick(rng, pick(rng, kinds))
    return chosen.format(outside=outside) if chosen in PATHS else chosen


def pick(rng: Random, choices: Any) -> Any:
    """One of some things."""
    return choices[int(rng.integers(len(choices)))]


# Each of these spoils a draft in place and says what it did.


def a_key(draft: Draft, rng: Random, outside: str) -> str:
    """Some key has a hostile value."""
    keys = draft.settings["keys"]
    name = pick(rng, sorted(keys))
    keys[name] = value(rng, outside)
    return f"key {name}"


def a_large_key(draft: Draft, rng: Random, outside: str) -> str:
    """Work without end, or memory without bounds."""
    name = pick(rng, counting_keys())
    draft.settings["keys"][name] = pick(rng, (10**3, 10**9, 10**12, 2**52))
    return f"large {name}"


def a_model(draft: Draft, rng: Random, outside: str) -> str:
    """Code of the server's choice, or a model that does not fit into memory."""
    keys = draft.settings["keys"]
    hidden = ("1000000000", "1," * 500, "1,1000000000", "-1", "0", "x" * 999, "9" * 400, "100000")
    if rng.random() < 0.5:
        keys["model"], keys["hidden"] = "mlp", pick(rng, hidden)
        return "hidden layers"
    keys["model"] = pick(rng, MODELS)
    return "model"


def a_file(draft: Draft, rng: Random, outside: str) -> str:
    """A path of the server's choice."""
    name = pick(rng, FILES)
    path = pick(rng, PATHS).format(outside=outside)
    if rng.random() < 0.5:
        draft.settings["keys"][name] = path
    else:
        draft.config[name] = path
    return f"file {name}"


def a_setting(draft: Draft, rng: Random, outside: str) -> str:
    """What stays the same all run long is hostile, or missing."""
    name = pick(rng, sorted(draft.settings))
    if rng.random() < 0.2:
        del draft.settings[name]
        draft.settings.setdefault("keys", {})
        return f"no {name}"
    if name != "keys":
        draft.settings[name] = value(rng, outside)
    elif rng.random() < 0.3:
        draft.settings["keys"] = {}
    return f"setting {name}"


def a_shape(draft: Draft, rng: Random, outside: str) -> str:
    """Other samples, or classes without number."""
    large = pick(rng, (10**5, 10**9, 10**18))
    if rng.random() < 0.5:
        draft.settings["num-classes"] = large
        return "classes"
    draft.settings["input-shape"] = pick(rng, ([large], [6] * 100, [6, large], [-1], [[6]], "6"))
    return "input shape"


def a_column(draft: Draft, rng: Random, outside: str) -> str:
    """Other columns of the file."""
    names = ("label-column", "user-column", "cluster-column", "feature-columns", "labels")
    name = pick(rng, names)
    draft.settings["keys"][name] = pick(rng, ("secret", "user", "x", "numbers", "none", "\n"))
    return f"column {name}"


def an_experiment(draft: Draft, rng: Random, outside: str) -> str:
    """A folder of the server's choice."""
    draft.settings["experiment"] = pick(rng, (*PATHS, "", ".", "..", "a/b", "\0", "x" * 10**5))
    return "experiment"


def a_version(draft: Draft, rng: Random, outside: str) -> str:
    """Versions that are paths, or none at all."""
    name: str = pick(rng, ("versions", "keep"))
    draft.config[name] = pick(
        rng, (["../../../outside/secret"] * 2, [-1, -1], [2**62] * 2, [0.5] * 2, [0] * 999, [3])
    )
    return name


def users(draft: Draft, rng: Random, outside: str) -> str:
    """Somebody else, nobody, everybody, or one twice."""
    lists: tuple[list[str], ...] = (
        ["carl"],
        ["../bob"],
        ["ann"] * 2,
        ["ann"] * 20_000,
        [""],
        [],
        ["x" * 10**5],
    )
    draft.config["users"] = pick(rng, lists)
    return "users"


def a_field(draft: Draft, rng: Random, outside: str) -> str:
    """A field of the task that is not of its kind."""
    name, found = pick(rng, BAD)
    (draft.settings if name in columns_of(Settings, "settings") else draft.config)[name] = found
    return f"field {name}"


def an_option(draft: Draft, rng: Random, outside: str) -> str:
    """An option of the algorithm, or of evaluations."""
    kinds = {**USUAL_OPTIONS, **client_class(draft.algorithm).takes.options}
    name = pick(rng, sorted({*kinds, "ask", "walk", "local-steps"}))
    found = value(rng, outside)
    if name in kinds and rng.random() < 0.5:
        found = pick(rng, list(of_kind(kinds[name])))
    if name == "walk":
        large = pick(rng, (10**3, 10**9, -1))
        found = pick(rng, ([[0, large, 0]], [[large, 1, 0]], [[1]], [[0, 1, 0]] * 10**4, "x"))
    if name == "ask":
        found = pick(rng, ("__init__", "respond", "_got", "keys", "step", "losses", "prox"))
    if not draft.cohorts and not isinstance(found, str | int | float | bool):
        found = str(found)
    if isinstance(found, int) and not isinstance(found, bool) and not draft.cohorts:
        found = max(min(found, 2**63 - 1), -(2**63))  # what Flower can send
    draft.options[name] = found
    if name.startswith("adapt"):
        draft.options.setdefault("adapt", True)
        draft.options.setdefault("adapt-epochs", 1)
    return f"option {name}"


def an_array(draft: Draft, rng: Random, outside: str) -> str:
    """An array of another shape, or of strange numbers."""
    arrays = pick(rng, (draft.shared, draft.rows))
    name = pick(rng, sorted(arrays) or ["model"])
    old = np.asarray(arrays.get(name, np.zeros(3, np.float32)))
    arrays[name] = pick(
        rng,
        (
            old.astype(np.float64) * np.nan,
            np.full_like(old, np.inf, np.float32),
            np.full(old.shape, 1e300),
            old[..., None],
            np.zeros((2, *old.shape), np.float32),
            np.zeros(0, np.float32),
            old.astype(np.complex64),
            np.full(old.shape, "x" * 50),
            np.zeros(old.shape, np.int8),
            np.zeros((0, *old.shape), np.float64),
            np.full(old.shape, 10**6, np.int64),
        ),
    )
    return f"array {name}"


def no_array(draft: Draft, rng: Random, outside: str) -> str:
    """An array is missing."""
    arrays = pick(rng, (draft.shared, draft.rows))
    if arrays:
        del arrays[pick(rng, sorted(arrays))]
    return "no array"


def another_algorithm(draft: Draft, rng: Random, outside: str) -> str:
    """The arrays of one algorithm under the name of another."""
    draft.settings["algorithm"] = pick(rng, (*ALL, "os", "__init__", "", "fedrep.fedrep"))
    return "algorithm"


SPOILERS: tuple[Callable[[Draft, Random, str], str], ...] = (
    a_key, a_key, a_key, a_large_key, a_model, a_file, a_setting, a_shape, a_column, an_experiment,
    a_version, users, a_field, a_field, a_field, an_option, an_option, an_array, an_array,
    no_array, another_algorithm,
)  # fmt: skip


# These spoil what is sent.


def bomb(content: RecordDict, rng: Random) -> str:
    """JSON that is deep, long, or none."""
    record: Any = content["config"]
    deep, wide = "[" * 10**5, json.dumps([[]] * 3 * 10**5)
    record["settings"] = pick(
        rng, (deep, wide, '{"a":' * 10**4, "", "x" * (2**20 + 1), "null", "7")
    )
    return "bomb"


def cohort_bomb(content: RecordDict, rng: Random) -> str:
    """The same in what is said to cohorts."""
    record: Any = content["config"]
    texts = ("[" * 10**5, "{}", "null", '{"walk": ' + "[" * 10**4, "1" * 10**4, '{"ann": "bob"}')
    others = ('{"ann": ["carl"]}', '{"ann": []}', '{"../x": ["ann"]}', '{"carl": ["ann", "ann"]}')
    record["members"] = pick(rng, (*texts, *others))
    if rng.random() < 0.5:
        record["cohort-options"] = pick(rng, ([pick(rng, texts)], ["{}"] * 1000, "x", [1]))
    return "cohorts"


def wrong_record(content: RecordDict, rng: Random) -> str:
    """A record of another type, or none."""
    name = pick(rng, ("config", "arrays", "rows"))
    others: tuple[Any, ...] = (MetricRecord({"x": 1}), ConfigRecord({"x": 1}), ArrayRecord(), None)
    other = pick(rng, others)
    content.pop(name, None)
    if other is not None:
        content[name] = other
    return f"record {name} as {type(other).__name__}"


def lying_header(content: RecordDict, rng: Random) -> str:
    """An array that says something else of itself than its bytes are."""
    record = content.get(pick(rng, ("arrays", "rows")))
    if not isinstance(record, ArrayRecord) or not record:
        return "header"
    name = pick(rng, list(record))
    old = record[name]
    huge = (10**13,)
    lies = (
        Array("float32", huge, "numpy.ndarray", old.data),
        Array(old.dtype, old.shape, "numpy.ndarray", old.data[:20]),
        Array(old.dtype, old.shape, "numpy.ndarray", b"PK\x03\x04" + old.data),
        Array(old.dtype, old.shape, "numpy.ndarray", npy("{'descr': '<f4', 'shape': (" * 500)),
        Array("float32", huge, "numpy.ndarray", npy(header(huge))),
        Array("object", (1,), "numpy.ndarray", npy(header((1,), "|O")) + b"cos\nsystem\n."),
        Array("float32", (-1,), "numpy.ndarray", old.data),
        Array("x" * 10**5, old.shape, "numpy.ndarray", old.data),
        Array(old.dtype, old.shape, "torch.Tensor", old.data),
        Array(old.dtype, old.shape * 40, "numpy.ndarray", old.data),
        Array(old.dtype, old.shape, "numpy.ndarray", b""),
    )
    record[name] = pick(rng, lies)
    return f"header of {name}"


def npy(header: str) -> bytes:
    """The beginning of a file of NumPy's."""
    return (
        b"\x93NUMPY\x01\x00" + len(header[:60000]).to_bytes(2, "little") + header[:60000].encode()
    )


def header(shape: tuple[int, ...], kind: str = "<f4") -> str:
    """A header."""
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n"


LATE: tuple[Callable[[RecordDict, Random], str], ...] = (
    bomb, cohort_bomb, wrong_record, lying_header, lying_header,
)  # fmt: skip


def attack(seed: int, number: int, outside: str) -> Attack:
    """Hostile message `number` of a seed: all algorithms, kinds and ways in turns."""
    rng = np.random.default_rng([seed, number])
    name, kind = ALL[number % len(ALL)], KINDS[number // len(ALL) % len(KINDS)]
    draft = honest(name, kind, int(rng.integers(10)))
    ways = [SPOILERS[int(rng.integers(len(SPOILERS)))] for _ in range(int(rng.integers(1, 3)))]
    late = rng.random() < 0.25
    try:
        done = [] if late else [way(draft, rng, outside) for way in ways]
        content = draft.content()
    except (TypeError, ValueError, OverflowError, KeyError):  # not even Flower would send it
        content, late = honest(name, kind).content(), True
    if late:
        done = [pick(rng, LATE)(content, rng)]
    return Attack(f"{name}: {kind}: {', '.join(done)}", Message(content, 1, kind))

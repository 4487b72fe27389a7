"""Messages as an honest server sends them to one device, of every algorithm: to be spoilt."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from corsage.clients import client_class
from corsage.core.configuration.config import Config
from corsage.core.messages.asked import Form
from corsage.core.messages.encoding import encode
from corsage.core.messages.wire import Task, encode_task
from corsage.core.registry import ALGORITHMS

FEATURES, CLASSES = 6, 2
USERS = ("ann", "bob")
KINDS = ("train", "evaluate", "query")
MOMENTA = {"eta": 0.01, "a1": 0.3, "a2": 0.3, "b1": 0.5, "b2": 0.5}
OPTIONS: dict[str, Any] = {
    "aggregation-steps": 1,
    "local-steps": 3,
    "fold": "models",
    "fold-number": 0,
    "fold-share": 0.3,
    "gamma": 1.0,
    "walk": [[0, 2, 0], [1, 3, 4]],
    "step": 0.01,
    "pull": 0.1,
    "global": [False],
    "momenta": MOMENTA,
    "oracle": [0.5, 0.5, 1.0, 1.0, 1.0, 1.0],
    "refresh": False,
    "moves": True,
    "em": False,
    "as": "newton",
    "next": "newton",
    "ratios": [0.0, 0.1, 1.0],
}
"""What options are in an honest message; the question apart."""
ASKED = {
    "async-l2gd": ("step", "facts"),
    "async-al2sgd": ("begin", "step", "facts"),
    "single-cluster": ("step", "deliver", "reml", "folds", "held-out"),
    "convex-clustering": ("prox", "gradient", "hessian", "minimise", "slack", "facts", "held_out"),
}
"""The questions of the algorithms that ask several; others take those of one of these."""


@dataclass
class Draft:
    """A message in parts that can be spoilt one by one."""

    algorithm: str
    kind: str
    config: dict[str, Any]
    settings: dict[str, Any]
    options: dict[str, Any]
    shared: dict[str, Any]
    rows: dict[str, Any]
    cohorts: bool = False

    def content(self) -> RecordDict:
        """The message's content."""
        config = {**self.config, "settings": json.dumps(self.settings)}
        if not self.cohorts:
            config |= self.options
        elif self.kind != "query":
            config["cohort-options"] = [json.dumps(self.options) for _ in config["users"]]
        content = RecordDict({"config": ConfigRecord({k: v for k, v in config.items() if v != []})})
        content["arrays"] = encode(self.shared)
        if self.rows:
            content["rows"] = encode(self.rows)
        return content

    def message(self) -> Message:
        """The message."""
        return Message(self.content(), 1, self.kind)


def honest(name: str, kind: str, number: int = 0) -> Draft:
    """A message of an algorithm; `number` says which question it asks."""
    cls = client_class(name)
    convex = "K" not in str(cls.takes.shared) or name.endswith("clusters")
    convex = convex and hasattr(cls, "answers")
    model = {"model": "linear", "loss": "logistic"} if convex else {"model": "mlp", "hidden": "4"}
    asked = ""
    if "ask" in cls.takes.options:
        some = ASKED.get(name) or ASKED["single-cluster" if cls.cohorts else "convex-clustering"]
        asked = some[number % len(some)]
    if quadratic := asked in ("reml", "folds", "held-out"):
        model |= {"loss": "squared", "labels": "numbers"}
    own = {"al2sgd-oracle": "sample"} if name == "async-al2sgd" else {}
    config = Config.parse({**model, **own, "dataset": "csv", "data-file": "x", "head-epochs": 1})
    users = ["ann"] if cls.cohorts else list(USERS)
    record = encode_task(
        Task(
            name,
            f"{name}-run",
            0,
            () if kind == "query" else (FEATURES,),
            0 if kind == "query" or quadratic else CLASSES,
            round=1,
            users=[] if kind == "query" else users,
            versions=[] if kind == "query" else [0] * len(users),
            keep=[] if kind == "query" else [0] * len(users),
            device_data=config.device_data,
            train=config.train,
            model=config.model,
            keys=config.keys_of(name),
        )
    )
    whole = FEATURES + 1 if convex else 4 * (FEATURES + 1) + 2 * 5
    head = whole if convex else 10
    sizes = {"P": whole, "B": whole - head, "H": head, "K": 1}
    sizes |= {"F": FEATURES if convex else 4, "C": CLASSES}
    options = {k: copy.deepcopy(v) for k, v in OPTIONS.items() if k in cls.takes.options}
    if "ask" in cls.takes.options:
        options["ask"] = asked
        sizes |= {"K": 20} if quadratic else {}
    kept = dict(record)
    settings = json.loads(str(kept.pop("settings")))
    query = kind == "query"
    return Draft(
        name,
        kind,
        kept,
        settings,
        {} if query else options,
        {} if query else {k: filled(form, sizes) for k, form in cls.takes.shared.items()},
        {}
        if query
        else {k: rows(f, sizes, len(users)) for k, f in cls.takes.rows.items() if k != UNSENT},
        cls.cohorts,
    )


def filled(form: Form, sizes: dict[str, int]) -> Any:
    """An array of a form, small numbers."""
    shape = tuple(side if isinstance(side, int) else sizes[side] for side in form.sides)
    if form.kind == "i":
        return np.zeros(shape, np.int64)
    return np.full(shape, 0.1, np.float32)


def rows(form: Form, sizes: dict[str, int], count: int) -> Any:
    """The same, a row a user."""
    return np.stack([filled(form, sizes)] * count)


UNSENT = "weights"
"""No column of the data weighs rows."""
ALL = tuple(ALGORITHMS)

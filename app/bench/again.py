"""A cell of the bench run again, by any engine, and compared with its line to the last digit."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from corsage.app.bench.jobs import kept, perform, versions
from corsage.app.bench.protocol import Json, config_of, described, digest
from corsage.app.bench.sets import CONSTANT_ROW
from corsage.core.configuration.config import Config

COMPARED_FIELDS = ("config", "config_hash", "data", "versions")
"""Fields of a line that are compared besides its rows, and besides whether it failed."""


def differences(
    line: Mapping[str, Any], keys: Mapping[str, Any], mine: str, where: Mapping[str, Any]
) -> list[str]:
    """Lines on all that is not as it was; `keys` change how it is run, and not what.

    `where` are keys that say where files of data are.
    """
    again = elsewhere(line, keys, where) if keys else here(line, mine, where)
    found = []
    if not keys:
        again["config"] = {k: v for k, v in again["config"].items() if k in line["config"]}
        again["config_hash"] = digest(again["config"])  # keys that came since are as they were
        found += [f"{name} is another" for name in COMPARED_FIELDS if again[name] != line[name]]
        if bool(again["failed"]) != bool(line["failed"]):  # words may have become better ones
            found.append(again["failed"] or f"it failed: {line['failed']}")
    for row, result in line["rows"].items():
        new = again["rows"].get(row, {})
        for name, value in result.items():
            if name in new and json.dumps(new[name]) != json.dumps(value):
                found.append(f"{row}: {name} was {shown(value)}, is {shown(new[name])}")
        found += [f"{row} has no {name} now" for name in result if not keys and name not in new]
        found += [f"{row} is not there"] if not new else []
    return found


def shown(value: Any) -> str:
    """A value for a line."""
    return f"{json.dumps(value):.60}"


def here(line: Mapping[str, Any], mine: str, where: Mapping[str, Any]) -> Json:
    """The line once more, as a worker makes it."""
    what = {key: line[key] for key in ("place", "method", "trial", "seed")}
    again: Json = perform({**what, "keys": {**places(line["config"]), **where}}, mine)
    return json.loads(json.dumps(again))  # type: ignore[no-any-return]


def places(config: Mapping[str, Any]) -> Json:
    """The keys of a line that differ from what they are by themselves."""
    from corsage.core.configuration.known_keys import defaults

    usual, method = defaults(), str(config["strategy"])
    own = {k: v for k, v in config.items() if k != "strategy"}
    found = {k: v for k, v in own.items() if v != usual.get(k)}
    preferred = described(config_of(found, method))  # a data set may have its own defaults
    return found | {k: v for k, v in own.items() if preferred.get(k) != v}


def elsewhere(line: Mapping[str, Any], keys: Mapping[str, Any], where: Mapping[str, Any]) -> Json:
    """The same by another engine, or on other nodes; the row of new users is not compared."""
    from corsage.app.engines import simulate

    if line["method"] == CONSTANT_ROW:
        return here(line, "", where)  # no engine runs it
    logging.getLogger("flwr").setLevel(logging.ERROR)
    values = {**places(line["config"]), "strategy": line["method"], **where, **keys}
    with tempfile.TemporaryDirectory() as folder:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            done = simulate(Config.parse(values), Path(folder) / "run")
        results = json.loads((done / "summary.json").read_text())["results"]
    final = line["seed"] is not None
    return {"rows": {one["strategy"]: kept(one, final) for one in results}, "versions": versions()}

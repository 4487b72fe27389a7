"""The users' known clusters from a JSON file: {"user": "cluster"} or {"cluster": ["user", ...]}.

Or from a CSV file with the columns user and cluster, such as the clusters.csv of a run that found
them: so groups that one method finds are known to another.
Users are named as in the run: as the data name them with partition=natural, else 0, 1, 2, ...
A user that the map does not name has no known cluster.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from corsage.core.errors import DataError
from corsage.datasets.sample_table import some

FORM = 'write {"user": "cluster", ...} or {"cluster": ["user", ...], ...}'


def digest(file: str) -> str:
    """A digest of the file's content."""
    return blake2b(content(file), digest_size=12).hexdigest()


def content(file: str) -> bytes:
    """The file's bytes."""
    try:
        return Path(file).expanduser().read_bytes()
    except OSError as error:
        cause = error.strerror or error
        raise DataError(
            f"cluster-map={file}: cannot be read ({cause}); check the path (a device reads a file "
            "of its own)."
        ) from error


def read(file: str) -> dict[str, str]:
    """Each user's cluster."""
    if file.endswith(".csv"):
        return of_lines(file)
    try:
        # As pairs: a key that is there twice would otherwise lose its first value in silence.
        pairs = json.loads(content(file), object_pairs_hook=Pairs)
    except (ValueError, RecursionError) as error:
        raise DataError(f"cluster-map={file}: not JSON ({error}); {FORM}.") from error
    if not isinstance(pairs, Pairs) or not pairs:
        raise DataError(f"cluster-map={file}: names no user; {FORM}.")
    listed = [isinstance(value, list) and not isinstance(value, Pairs) for _, value in pairs]
    if any(listed) and not all(listed):
        raise DataError(f"cluster-map={file}: names and lists mixed; {FORM}.")
    known: dict[str, str] = {}
    for key, value in pairs:
        for user in value if listed[0] else [key]:
            cluster = key if listed[0] else value
            own, name = word(user, file), word(cluster, file)
            if known.setdefault(own, name) != name:
                raise DataError(
                    f"cluster-map={file}: user {own} is in the clusters {known[own]!r} and "
                    f"{name!r}; a user has one cluster."
                )
    return known


def of_lines(file: str) -> dict[str, str]:
    """Each user's cluster by the lines of a CSV file, which are of one method."""
    try:
        rows = list(csv.DictReader(content(file).decode("utf-8-sig").splitlines(), strict=True))
    except (ValueError, csv.Error) as error:
        raise DataError(f"cluster-map={file}: not CSV ({error}).") from error
    if not rows or not {"user", "cluster"} <= {*rows[0]}:
        raise DataError(f"cluster-map={file}: has no lines with the columns user and cluster.")
    methods = {str(row.get("strategy") or "").partition("+")[0] for row in rows}
    if len(methods) > 1:
        raise DataError(
            f"cluster-map={file}: has the clusters of {', '.join(sorted(methods))}; keep one's "
            "lines."
        )
    known: dict[str, str] = {}
    for row in rows:
        own, name = word(row["user"], file), word(row["cluster"], file)
        if known.setdefault(own, name) != name:
            raise DataError(f"cluster-map={file}: user {own} is in {known[own]!r} and {name!r}.")
    return known


class Pairs(list[tuple[str, Any]]):
    """A JSON object as the pairs that it is written as."""


def word(value: Any, file: str) -> str:
    """A user's or a cluster's name, which may be a whole number."""
    named = isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
    if not named or not str(value).strip():
        raise DataError(
            f"cluster-map={file}: {json.dumps(value)} is no name; names are text or whole numbers: "
            f"{FORM}."
        )
    return str(value).strip()


def of(users: Iterable[str], everybody: Iterable[str], file: str) -> dict[str, str]:
    """The clusters of `users`; refuses a map with a user who is not among `everybody`."""
    known = read(file)
    names = set(everybody)
    unknown = [user for user in known if user not in names]
    if unknown:
        raise DataError(
            f"cluster-map={file}: no such users: {some(unknown)}; the run has {len(names)}, such "
            f"as {min(names)}: name them in the same way, or leave those out."
        )
    return {user: known[user] for user in users if user in known}

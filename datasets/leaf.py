"""The JSON files of LEAF (Caldas et al. 2018): samples by user, as its preprocessing writes them.

Either `train/*.json` and `test/*.json`, or `all_data*.json`, in `data-dir`, or where LEAF's scripts
put them below it (`data/`, `data/all_data/`). If both are there, train and test are taken: LEAF
makes them last, of the users that it has sampled. Each user's two parts become one pool, which is
split anew by `test-fraction`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corsage.core.errors import DataError
from corsage.core.groups import DataKeys

EXPECTED = "train/*.json and test/*.json, or all_data*.json"


def files(keys: DataKeys, hub: str) -> list[Path]:
    """LEAF's files in a fixed order; none if only the hub is left to ask."""
    if not keys.data_dir:
        return []
    here = Path(keys.data_dir).expanduser()
    for folder in (here, here / "data"):
        train, test = (listed(folder / part, "*.json") for part in ("train", "test"))
        if train and test:
            return train + test
        if train or test:
            lacking = "test" if train else "train"
            raise missing(keys, hub, f"{folder / lacking} has no *.json")
    for folder in (here, here / "all_data", here / "data" / "all_data"):
        if found := listed(folder, "all_data*.json"):
            return found
    raise missing(keys, hub, f"neither is in {here}, in {here / 'data'} or in all_data there")


def listed(folder: Path, pattern: str) -> list[Path]:
    """The folder's files, all_data_2 before all_data_10."""
    return sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))


def missing(keys: DataKeys, hub: str, looked: str = "no data-dir is set") -> DataError:
    """The error that says which files were expected, where, and how to get them."""
    return DataError(
        f"dataset={keys.dataset}: expected LEAF's files {EXPECTED}; {looked}. Set data-dir=FOLDER "
        f"that has them (`preprocess.sh` in data/{keys.dataset} of github.com/TalwalkarLab/leaf "
        "makes them), or `pip install corsage[hub]` and leave data-dir empty to download "
        f"{hub} instead."
    )


def users(path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """The users of one file with their samples x and labels y, checked against its own counts."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        names, counts = content["users"], content["num_samples"]
        data = content["user_data"]
        pairs = [(str(n), int(c)) for n, c in zip(names, counts, strict=True)]
        owned = [(n, c, data[n]["x"], data[n]["y"]) for n, c in pairs]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not as LEAF writes it: users, num_samples and user_data of each user with "
            f"x and y are expected ({type(error).__name__}: {error}); make it again."
        ) from error
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or lists of two lengths
        raise DataError(f"{path}: damaged or not JSON ({error}); make it again.") from error
    for name, count, x, y in owned:
        if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == count:
            said = f"{size(x)} samples, {size(y)} labels"
            raise DataError(f"{path}: user {name}: {said}, but num_samples says {count}.")
        if count:
            yield name, x, y


def size(value: Any) -> str:
    """The length of what should be a list."""
    return str(len(value)) if isinstance(value, list) else f"{type(value).__name__} for"

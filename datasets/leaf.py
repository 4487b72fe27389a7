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

from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import DataError


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
            raise missing(keys, hub, f"{folder / ('test' if train else 'train')} has no *.json")
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
        f"dataset={keys.dataset}: expected LEAF's files train/*.json and test/*.json, or "
        f"all_data*.json; {looked}. Set data-dir=FOLDER that has them (`preprocess.sh` in "
        f"data/{keys.dataset} of github.com/TalwalkarLab/leaf makes them), or `pip install "
        f"corsage[hub]` and leave data-dir empty to download {hub} instead."
    )


def users(path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """The users of one file with their samples x and labels y, checked against its own counts."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        counts = zip(content["users"], content["num_samples"], strict=True)
        data = content["user_data"]
        owned = [(str(n), int(c), list(data[n]["x"]), list(data[n]["y"])) for n, c in counts]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: damaged, or not as LEAF writes it: users, num_samples, and user_data with x "
            f"and y of each user are expected ({type(error).__name__}: {error}); make it again."
        ) from error
    for name, count, x, y in owned:
        if not len(x) == len(y) == count:
            said = f"{len(x)} samples, {len(y)} labels, but num_samples says {count}"
            raise DataError(f"{path}: user {name}: {said}.")
        if count:
            yield name, x, y

"""`corsage forget`: what is left is the run of a federation that the user was never in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app import forget as command
from corsage.app.command import run
from corsage.app.run.loaded import load
from corsage.core.arrays import Floats

GONE = "person-of-no-return"


def table(folder: Path, gone: bool, cluster: str = "a") -> Path:
    """16 users, whose columns have units that move with each of them; or all but one."""
    rng = np.random.default_rng(5)
    lines = ["who,group,x,z,y"]
    for user in range(16):
        theta = [2.0, -1.0, 3.0] + rng.standard_normal(3) * [0.5, 1.0, 2.0]
        name, group = (GONE, cluster) if user == 7 else (f"u{user}", "ab"[user % 2])
        for row in rng.standard_normal((12, 3)) * [3.0, 10.0, 1.0] + [user, 5.0, 0.0]:
            y = theta[0] * row[0] + theta[1] * row[1] + theta[2] + row[2]
            if name != GONE or not gone:
                lines.append(f"{name},{group},{row[0]!r},{row[1]!r},{float(y)!r}")
    path = folder / "table.csv"
    path.write_text("\n".join(lines).replace("np.float64(", "").replace(")", ""))
    return path


def made(folder: Path, gone: bool = False, cluster: str = "a", **keys: Any) -> Path:
    """The run folder of a run on it."""
    folder.mkdir()
    words = {
        "strategy": "mixed-model", "dataset": "csv", "data-file": table(folder, gone, cluster),
        "user-column": "who", "cluster-column": "group", "label-column": "y", "model": "linear",
        "labels": "numbers", "mixed-intervals": "never", "mixed-variances": "one",
        "mixed-keep-sums": "true",
        "run-dir": folder / "runs", "cache-dir": folder / "cache",
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }  # fmt: skip
    assert run([f"{key}={value}" for key, value in words.items()]) == 0
    return next((folder / "runs").iterdir())


def coefficients(folder: Path) -> dict[str, Floats]:
    """Every user's model, for columns as they are in the table."""
    row = load(folder)["mixed-model"]
    at = np.concatenate([np.zeros((1, 2)), np.eye(2)])
    return {user: np.asarray(row.user(user).predict(at)) for user in row.users}


@pytest.mark.parametrize(
    "keys",
    [
        {"mixed_intervals": "auto", "mixed_variances": "auto"},
        {"scale": "none"},
        {"scale": "user", "mixed_variances": "full"},
        {"cluster": "alone"},
        {"mixed_grouping": "found"},
    ],
)
def test_what_is_left_is_a_run_without_the_user(keys: dict[str, Any], tmp_path: Path) -> None:
    folder = made(tmp_path / "with", **keys)
    wanted = made(tmp_path / "without", gone=True, **keys)
    before = coefficients(folder)
    assert run(["forget", str(folder), f"user={GONE}"]) == 0
    found, refitted = coefficients(folder), coefficients(wanted)
    assert set(found) == set(refitted) == set(before) - {GONE}
    for user, model in refitted.items():
        assert found[user] == pytest.approx(model, rel=1e-10, abs=1e-10)
        assert not np.allclose(found[user], before[user], rtol=1e-6)
    (one,), (other,) = (load(place).json() for place in (folder, wanted))
    assert one["per_user"] == pytest.approx(other["per_user"], rel=1e-9)
    assert one["rounds"] == other["rounds"] == 1
    assert one["bytes_up"] == 0 and one["bytes_down"] == other["bytes_down"]
    assert names(folder) == names(wanted)
    assert not [p for p in folder.parent.rglob("*") if p.is_file() and GONE in read(p)]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def names(folder: Path) -> set[str]:
    """All files, but those that have the run's own number in their names."""
    return {p.name for p in folder.rglob("*") if ".sqlite" not in p.name}


def read(path: Path) -> str:
    """A file's bytes and its name, as text."""
    return f"{path}{path.read_bytes().decode('latin-1')}"


def test_one_after_the_other_and_then_it_can_be_used_as_any_run(tmp_path: Path) -> None:
    folder = made(tmp_path / "with")
    wanted = made(tmp_path / "without", gone=True)
    for place in (folder, wanted):
        assert run(["forget", str(place), "user=u3"]) == 0
    assert run(["forget", str(folder), f"user={GONE}"]) == 0
    found, refitted = coefficients(folder), coefficients(wanted)
    assert all(found[u] == pytest.approx(refitted[u], rel=1e-10) for u in refitted)
    assert run(["--resume", str(folder)]) == 0  # has nothing to do
    assert set(coefficients(folder)) == set(refitted)
    assert run(["report", str(folder)]) == 0


def files(folder: Path) -> dict[str, bytes]:
    """What is in all files, but those that SQLite tidies up when it closes them."""
    own = [p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"]
    return {str(p): p.read_bytes() for p in own if ".sqlite" not in p.name}


@pytest.fixture(scope="module")
def forgotten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has forgotten a user: nothing that is tried here may change it."""
    folder = made(tmp_path_factory.mktemp("forgotten") / "with")
    assert run(["forget", str(folder), f"user={GONE}"]) == 0
    assert run(["--resume", str(folder)]) == 0  # nothing is left to do
    return folder


@pytest.mark.parametrize(
    "words", [["strategy=mixed-model,exact-global"], ["num-rounds=200"], ["--from-round", "0"]]
)
def test_who_was_forgotten_does_not_come_back(
    words: list[str], forgotten: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The data set has the user still: what is trained in the folder would learn from it."""
    folder = forgotten
    before = coefficients(folder)
    capsys.readouterr()
    assert run(["--resume", str(folder), *words]) == 2
    assert "users were forgotten here" in capsys.readouterr().err
    assert run(["--resume", str(folder)]) == 0
    assert not [p for p in folder.rglob("*") if p.is_file() and GONE in read(p)]
    found = coefficients(folder)
    assert all(np.array_equal(found[user], before[user]) for user in before)


@pytest.mark.parametrize(
    ("keys", "user", "why"),
    [
        ({"strategy": "mixed-model,local", "local_rounds": 0}, GONE, "local cannot forget"),
        ({"new_users": 0.2}, GONE, "has users that are new"),
        ({"test_fraction": 0}, GONE, "was fitted to all rows"),
        ({"mixed_keep_sums": "false"}, GONE, "set mixed-keep-sums=true"),
        ({"known_gamma": 1.0, "mixed_variances": "auto"}, GONE, "sums of each user are not kept"),
        ({"mixed_variances": "summed"}, GONE, "sums of each user are not kept"),
        ({}, "nobody", "user nobody: is not among its 16 users"),
    ],
)
def test_a_run_that_cannot_forget_says_so_and_stays(
    keys: dict[str, Any], user: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys.pop("local_rounds", None)
    folder = made(tmp_path / "run", **keys)
    before = files(folder.parent)
    assert run(["forget", str(folder), f"user={user}"]) != 0
    said = capsys.readouterr().err
    assert why in said and said.strip().splitlines()[-1].startswith("corsage: ")
    assert files(folder.parent) == before


def test_a_word_that_only_the_user_has_and_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made(tmp_path / "run")
    (folder / "notes.txt").write_text("of my own")
    before = files(folder.parent)
    assert run(["forget", str(folder), f"user={GONE}"]) == 1
    assert "notes.txt: not of the run" in capsys.readouterr().err
    assert files(folder.parent) == before
    (folder / "notes.txt").unlink()
    path = tmp_path / "run" / "table.csv"
    path.write_text(path.read_text().replace("u3,b", "u33,b"))
    before = files(folder.parent)
    assert run(["forget", str(folder), f"user={GONE}"]) == 2
    assert "the data are not those that the run began with: " in capsys.readouterr().err
    assert files(folder.parent) == before


def test_killed_on_the_way_the_run_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "run")
    before = files(folder)

    def killed(one: Path, other: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "exchange", killed)
    assert run(["forget", str(folder), f"user={GONE}"]) == 130
    assert files(folder) == before
    monkeypatch.undo()
    left = folder.parent / f"{command.FORGETTING}{folder.name}-x"  # of one that was killed outright
    left.mkdir()
    assert run(["forget", str(folder), f"user={GONE}"]) == 0
    assert not left.exists() and GONE not in json.dumps(load(folder).json())


@pytest.mark.parametrize("words", [[], ["runs"], ["runs", "user="], ["--x", "user=a"]])
def test_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["forget", *words]) == 2
    assert "needs one run folder and user=NAME" in capsys.readouterr().err
    assert run(["forget", "--help"]) == 0

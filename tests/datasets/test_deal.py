"""Files for devices: what a device reads is what a simulation deals to that user."""

import numpy as np
import pytest
import torch

from corsage.app.device_files import run
from corsage.core.configuration.config import Config
from corsage.datasets.dealing.federated import on_device, simulated
from corsage.networks.training import to_tensors

SITES = [("Ann/x", "north"), ("bob", "south"), ("eve", "")]


def own_csv(path):
    """A file of three users, their samples in turns, with classes 0 and 1."""
    numbers = np.random.default_rng(0).normal(size=(60, 3))
    lines = [
        f"{a},{b},{c},{int(a > 0)},{SITES[i % 3][0]},{SITES[i % 3][1]}"
        for i, (a, b, c) in enumerate(numbers)
    ]
    path.write_text("\n".join(["a,b,c,label,user,site", *lines]) + "\n")
    return str(path)


def files_of(out):
    """File and user of each line that was printed."""
    lines = [line.split(": ", 1) for line in out.splitlines()]
    return {rest.split(",")[0].removeprefix("user "): (path, rest) for path, rest in lines}


CASES = {
    "digits": {"num-users": "4", "seed": "3"},
    "few": {"num-users": "5", "max-train-samples": "20", "test-fraction": "0.3"},
    "sizes": {"num-users": "4", "partition": "iid", "size-sigma": "1.0"},
    "csv": {"dataset": "csv", "partition": "natural", "num-users": "0", "cluster-column": "site"},
}
CASES["numbers"] = {**CASES["csv"], "labels": "numbers", "label-column": "c"}


@pytest.mark.parametrize("case", CASES)
def test_device_has_the_users_part_of_the_simulation(case, tmp_path, capsys):
    values = dict(CASES[case])
    if "dataset" in values:
        values["data-file"] = own_csv(tmp_path / "own.csv")
    assert run([str(tmp_path / "out"), *(f"{k}={v}" for k, v in values.items())]) == 0
    files = files_of(capsys.readouterr().out)

    config = Config.parse({**values, "cache-dir": str(tmp_path / "cache")})
    everybody = simulated(config.data, config.federation.num_users, config.run.seed)
    # A device knows how to split, and not what the data set was.
    told = ("test-fraction", "max-train-samples", "labels")
    split = {k: v for k, v in values.items() if k in told}
    assert set(files) == set(everybody.users)
    kind, wide = np.float32, torch.float32
    if "dataset" in values:  # raw cells: what is made of them the devices agree on
        kind, wide = np.float64, torch.float64
    for user, (path, line) in files.items():
        data = on_device(path, user, "", Config.parse(split).device_data, config.run.seed)
        mine, theirs = data[user], everybody[user]
        assert (data.shift, data.scale) == (0.0, 1.0) and data.x.dtype == kind
        assert data.facts == everybody.facts
        assert f"{len(theirs.y_train)} training and {len(theirs.y_test)} test samples" in line
        for part in ("train", "test"):
            x, y = getattr(mine, f"x_{part}"), getattr(mine, f"y_{part}")
            raw, labels = getattr(theirs, f"x_{part}"), getattr(theirs, f"y_{part}")
            wanted, same = to_tensors(
                raw, labels, everybody.shift, everybody.scale, types=(wide, wide)
            )
            assert torch.equal(torch.from_numpy(x.copy()), wanted)
            assert y.tolist() == same.tolist()


def test_clusters_and_odd_names(tmp_path, capsys):
    words = [f"{k}={v}" for k, v in CASES["csv"].items()]
    data_file = f"data-file={own_csv(tmp_path / 'own.csv')}"
    assert run([str(tmp_path / "out"), *words, data_file]) == 0
    files = files_of(capsys.readouterr().out)
    assert "cluster north" in files["Ann/x"][1] and "no known cluster" in files["eve"][1]
    assert {path.name for path in (tmp_path / "out").iterdir()} > {"bob.npz", "eve.npz"}
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_classes_that_a_user_lacks_are_said(tmp_path, capsys):
    assert run([str(tmp_path), "num-users=10", "classes-per-user=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("num-classes=10") for line in lines) == 9


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{out}", "num-user=3"], "num-user: no such key. Did you mean num-users?"),
        (["num-users=3"], "the first word is the folder"),
        (["{out}", "dataset=csv"], "needs data-file"),
        (["{out}", "num-users=1000"], "at most 898"),
        (["{file}/out", "num-users=3"], "cannot be written"),
    ],
)
def test_a_mistake_is_one_line(words, says, tmp_path, capsys):
    (tmp_path / "file").touch()
    names = {"out": tmp_path / "out", "file": tmp_path / "file"}
    assert run([word.format(**names) for word in words]) == 2
    out, err = capsys.readouterr()
    assert says in err and err.count("\n") == 1 and not out


def test_seed_and_content(tmp_path, capsys):
    """Another seed deals other files."""
    contents = []
    for seed in (0, 1):
        assert run([str(tmp_path / str(seed)), "num-users=3", f"seed={seed}"]) == 0
        with np.load(tmp_path / str(seed) / "0.npz") as arrays:
            contents.append({name: arrays[name] for name in arrays.files})
    assert set(contents[0]) == {"x", "label"} and contents[0]["x"].shape[1:] == (1, 8, 8)
    assert not np.array_equal(contents[0]["x"], contents[1]["x"])


def test_help(capsys):
    assert run(["--help"]) == 0 and run([]) == 2
    assert "usage" in capsys.readouterr().out

"""What Figures 5 and 6 and Table 1 make of results, on results that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.core.registry import ALGORITHMS
from corsage.experiments.fedrep import figure5, figure6, table1
from corsage.experiments.outcome import Options
from corsage.experiments.runner import Results

Means = tuple[float, ...]
FLAT: Means = (10.0, 9.0, 8.0, 7.5, 8.0)
FALLING: Means = (50.0, 40.0, 30.0, 20.0, 10.0)
HURT: Means = (50.0, 40.0, 30.0, 32.0, 36.0)


def errors(fedrep: Means, fedavg: Means) -> dict[str, dict[int, tuple[float, ...]]]:
    """Three seeds around these means, those of both methods shifted alike."""
    means = {"fedrep": fedrep, "fedavg": fedavg}
    return {
        name: {e: (m - 4.0, m, m + 4.0) for e, m in zip(figure5.EPOCHS, own, strict=True)}
        for name, own in means.items()
    }


@pytest.mark.parametrize(
    ("fedrep", "fedavg", "measured", "inside"),
    [
        (FLAT, HURT, (0.5, 6.0), (True, True)),
        (FLAT, FALLING, (0.5, 0.0), (True, False)),
        ((10.0, 9.0, 11.0, 8.0, 7.0), HURT, (2.0, 6.0), (False, True)),
        ((7.0, 7.5, 8.0, 8.5, 9.0), FALLING, (2.0, 0.0), (False, False)),
        (FALLING, (50.0, 40.0, 30.0, 30.0, 30.5), (0.0, 0.5), (True, False)),
    ],
    ids=["both", "fedavg gains", "worse in the middle", "worse bit by bit", "hurt by noise"],
)
def test_the_claims_of_figure_5(
    fedrep: Means, fedavg: Means, measured: Means, inside: tuple[bool, ...]
) -> None:
    """FedRep may lose the noise and no more; FedAvg must lose more than that."""
    claims = figure5.claims(errors(fedrep, fedavg))
    assert [claim.name.split()[0] for claim in claims] == ["fedrep", "fedavg"]
    assert [claim.measured for claim in claims] == pytest.approx(measured)
    assert tuple(claim.inside for claim in claims) == inside


def test_figure_5_pairs_fedavg_by_seed() -> None:
    """Of each seed, the error at the largest E minus that at the E which is best on average."""
    found = errors(FLAT, FALLING)
    found["fedavg"] |= {10: (1.0, 2.0, 3.0), 20: (2.0, 4.0, 9.0)}
    assert figure5.claims(found)[1].values == pytest.approx((1.0, 2.0, 6.0))


def adapted(shift: float) -> dict[str, Any]:
    """A row of `NAME+new`, its cases in another order than that of the figure."""
    epochs = reversed(figure6.EPOCHS)
    return {"new_users": [{"epochs": e, "accuracy": {"mean": e / 100 + shift}} for e in epochs]}


def test_the_curve_of_figure_6() -> None:
    """Percents by epochs, one a seed, for the method that is asked for."""
    results: Results = {"fedrep+new": [adapted(0.5), adapted(0.25)], "local+new": [adapted(0.0)]}
    curve = figure6.curve(results, "fedrep+new")
    assert list(curve) == list(figure6.EPOCHS)
    for epochs, values in curve.items():
        assert values == pytest.approx((epochs + 50, epochs + 25))
    assert set(figure6.METHODS) <= set(ALGORITHMS)


def test_the_papers_table() -> None:
    """Fifteen rows of seven percents; each row is an algorithm, with fine-tuning or without."""
    assert len(table1.PAPER) == 15
    assert {len(row) for row in table1.PAPER.values()} == {7}
    assert all(0 < number < 100 for row in table1.PAPER.values() for number in row)
    assert {name.removesuffix("+ft") for name in table1.PAPER} <= set(ALGORITHMS)
    assert set(table1.BEYOND) <= set(ALGORITHMS) - set(table1.PAPER)
    places = [column.place for column in table1.COLUMNS if column.place is not None]
    assert places == list(range(7))


def test_rows_are_in_the_papers_order() -> None:
    """What the paper does not have comes last, as it came."""
    names = ["pfedme", "fedrep", "cfl", "fedavg+ft", "fedavg", "local"]
    expected = ["local", "fedavg", "fedavg+ft", "fedrep", "pfedme", "cfl"]
    assert table1.order(names) == expected
    assert table1.order([*reversed(table1.PAPER)]) == list(table1.PAPER)


def column(start: str) -> table1.Column:
    """The first column whose title begins like that."""
    return next(column for column in table1.COLUMNS if column.title.startswith(start))


@pytest.mark.parametrize(
    ("title", "own"),
    [
        ("mnist by writer", {"data_file": "w.npz"}),
        ("fashion-mnist", {}),
        ("cifar10 ", {"data_dir": str(Path("all/cifar10"))}),
        ("cifar100", {"data_dir": str(Path("all/cifar100"))}),
        ("sent140", {"data_dir": str(Path("all/sent140"))}),
        ("femnist", {"data_dir": str(Path("all/femnist"))}),
    ],
)
def test_each_column_gets_its_own_files(title: str, own: dict[str, str]) -> None:
    """All columns get the other keys; the options stay as they were."""
    keys = {"data_file": "w.npz", "data_dir": "all", "num_rounds": 3}
    options = Options(keys=keys)
    assert table1.own_keys(column(title), options) == {"num_rounds": 3, **own}
    assert keys == {"data_file": "w.npz", "data_dir": "all", "num_rounds": 3}


def why(found: table1.Column, **given: Any) -> str:
    keys = {**found.keys, **table1.own_keys(found, Options(keys=given))}
    return table1.why_absent(found, keys)


def test_what_is_absent_is_named(tmp_path: Path) -> None:
    """Without the option, what to give; with it, what is not there."""
    assert "data-file=FILE" in why(column("mnist by writer"))
    assert str(tmp_path / "w.npz") in why(
        column("mnist by writer"), data_file=str(tmp_path / "w.npz")
    )
    for place in (found for found in table1.COLUMNS if found.place is not None):
        name = place.keys["dataset"]
        assert f"FOLDER/{name}" in why(place)
        assert str(tmp_path / name) in why(place, data_dir=str(tmp_path))


def test_what_is_present_is_not_absent(tmp_path: Path) -> None:
    """A file of writers as the option says it, and a data set that needs no file."""
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "w.npz", x=x, y=np.arange(60) % 3, writer=np.repeat(np.arange(6), 10))
    assert why(column("mnist by writer"), data_file=str(tmp_path / "w.npz")) == ""
    assert why(table1.Column("digits", {"dataset": "digits", "num_users": 10})) == ""

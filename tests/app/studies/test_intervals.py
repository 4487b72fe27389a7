"""Intervals of paired differences beside scipy's, and what is called best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from corsage.app.studies.comparison import Study
from corsage.app.studies.over_seeds import Done, compared, difference
from corsage.core.configuration.config import Config

RNG = np.random.default_rng(3)


def result(name: str, users: dict[str, float]) -> dict[str, Any]:
    values = np.array(list(users.values()))
    spread = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
    return {"strategy": name, "accuracy": spread, "per_user": users, "worst10": values.min()}


def runs(levels: dict[str, float], seeds: int, noise: float = 0.02, **keys: Any) -> list[Done]:
    """Made-up runs: users differ much, the strategies' users little from each other."""
    found = []
    for seed in range(seeds):
        base = {str(u): float(RNG.uniform(0.3, 0.6)) for u in range(30)}
        rows = [
            result(n, {u: x + level + float(RNG.normal(0, noise)) for u, x in base.items()})
            for n, level in levels.items()
        ]
        config = Config.parse({"strategy": "fedrep,fedavg", "seed": seed, **keys})
        settings = {key: str(value) for key, value in keys.items()}
        found.append(Done(f"seed={seed}", Path("x"), settings, str(seed), config, rows))
    return found


def test_the_interval_over_seeds_is_the_paired_t_interval() -> None:
    pairs = [RNG.normal(0.1, 1.0, 20) for _ in range(5)]
    found = difference(pairs)
    means = [each.mean() for each in pairs]
    wanted = stats.ttest_1samp(means, 0.0).confidence_interval(0.95)
    assert found is not None and found.over_seeds is not None
    assert found.mean == pytest.approx(np.mean(means))
    assert (found.over_seeds.low, found.over_seeds.high) == pytest.approx(tuple(wanted))


def test_the_interval_over_users_of_one_seed_is_the_paired_t_interval() -> None:
    one, other = RNG.normal(0.5, 1.0, 40), RNG.normal(0.0, 1.0, 40)
    found = difference([one - other])
    wanted = stats.ttest_rel(one, other).confidence_interval(0.95)
    assert found is not None and found.over_seeds is None and found.over_users is not None
    assert (found.over_users.low, found.over_users.high) == pytest.approx(tuple(wanted))


def test_the_intervals_over_users_hold_what_they_promise() -> None:
    """Of 400 studies of 3 seeds and 25 users without a difference, some 5% find one."""
    wrong = 0
    for _ in range(400):
        found = difference([RNG.normal(0.0, 1.0, 25) for _ in range(3)])
        wrong += (
            found is not None and found.over_users is not None and found.over_users.excludes_zero
        )
    assert 5 <= wrong <= 40


def test_a_row_is_best_only_if_all_others_are_told_apart_from_it() -> None:
    clear = compared(Study(runs({"fedrep": 0.2, "fedavg": 0.0, "local": 0.1}, 5)).rows)
    assert [one.only_best for one in clear] == [True, False, False]
    near = Study(runs({"fedrep": 0.2001, "fedavg": 0.0, "local": 0.2}, 5))
    assert not any(one.only_best for one in near.compared)
    assert any("No row is best for certain" in note for note in near.notes())
    assert "fedavg" not in next(n for n in near.notes() if "certain" in n).partition("from")[2]


def test_with_one_seed_the_users_decide() -> None:
    study = Study(runs({"fedrep": 0.2, "fedavg": 0.0}, 1))
    assert [one.only_best for one in study.compared] == [True, False]
    assert study.rows[0].sd is None
    assert any(note.startswith("One seed") for note in study.notes())
    assert "of one seed" in study.table and "over seeds" not in study.table


def test_a_row_alone_is_not_best_of_anything() -> None:
    study = Study(runs({"fedrep": 0.2}, 3))
    assert [one.only_best for one in study.compared] == [False]


def test_rows_on_other_users_are_not_compared() -> None:
    few = runs({"fedrep": 0.2, "fedavg": 0.0}, 3, **{"num-users": 20})
    many = runs({"fedrep": 0.3, "fedavg": 0.0}, 3, **{"num-users": 50})
    study = Study([*few, *many])
    assert len({id(one.best) for one in study.compared}) == 2
    assert any("num-users=20, 50" in note for note in study.notes())


def test_new_users_are_others() -> None:
    study = Study(runs({"fedrep": 0.1, "fedrep+new": 0.3}, 3))
    assert all(one.difference is None for one in study.compared)


def test_a_choice_by_test_data_is_said_to_be_one() -> None:
    study = Study([*runs({"fedrep": 0.1}, 2, lr=0.1), *runs({"fedrep": 0.2}, 2, lr=0.2)])
    assert study.settings == ["lr"] and len(study.rows) == 2
    assert any("test data" in note and "lr" in note for note in study.notes())
    assert not any("test data" in note for note in Study(runs({"fedrep": 0.1}, 2)).notes())


def test_a_seed_that_failed_is_left_out_of_pairs_and_named() -> None:
    found = runs({"fedrep": 0.2, "fedavg": 0.0}, 3)
    broken = Done(
        "seed=2", Path("x"), {}, "2", found[2].config, found[2].results[:1], {"fedavg": "no"}
    )
    study = Study([*found[:2], broken], missing={"seed=3": "killed"})
    assert [len(row.seeds) for row in study.rows] == [3, 2]
    assert study.table.count("(2 of 3 seeds)") == 1
    assert {"seed=2: fedavg failed: no", "seed=3 failed: killed"} <= set(study.notes())


def test_records_and_csv_have_a_line_a_run_and_row() -> None:
    study = Study(runs({"fedrep": 0.2, "fedavg": 0.0}, 2, lr=0.1))
    assert len(study.records()) == 4
    lines = study.csv().splitlines()
    assert lines[0].startswith("lr,seed,strategy,measure,mean,std_over_users") and len(lines) == 5
    assert study["fedrep lr=0.1"].seeds == ["0", "1"]
    with pytest.raises(KeyError, match="There are"):
        study["fedper"]

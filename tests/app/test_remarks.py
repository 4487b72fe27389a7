"""What a run's numbers do not say of themselves is said in a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage import simulate
from corsage.app.output.remarks import Remarks, worsened
from corsage.core.measures import MEASURES
from corsage.datasets.dealing.federated import simulated
from tests.support.federations import federate

QUICK: dict[str, Any] = {"num_rounds": 2, "fraction_train": 1.0, "lr": 1e-4}


@pytest.fixture
def incomes(tmp_path: Path) -> dict[str, Any]:
    """Keys for labels that follow an income in dollars and a share."""
    rng = np.random.default_rng(0)
    income, share = rng.normal(30_000, 9_000, 60), rng.random(60)
    label = income / 10_000 + share
    rows = zip(income, share, "abc" * 20, label, strict=True)
    path = tmp_path / "d.csv"
    path.write_text(
        "income,share,user,label\n" + "".join(f"{a},{b},{u},{y}\n" for a, b, u, y in rows)
    )
    data = {"dataset": "csv", "data_file": str(path), "labels": "numbers", "model": "linear",
            "scale": "none"}  # fmt: skip
    return {**QUICK, **data, "num_users": 0, "cache_dir": str(tmp_path / "cache")}


def said(capfd: pytest.CaptureFixture[str], name: str, **keys: Any) -> str:
    simulate(name, **keys)
    return capfd.readouterr().err


def test_wild_inputs_are_named_where_sgd_trains(
    incomes: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    text = said(capfd, "fedavg", **{**incomes, "lr": 1e-10})
    assert text.count("input 1 of 2 is about 3.2e+04 in size, and SGD wants about 1") == 1
    assert "in size" not in said(capfd, "exact-local", **incomes)


def test_an_error_that_rose_is_said_though_nothing_overflowed(
    incomes: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    more = {"lr": 2.6e-9, "momentum": 0.0, "num_rounds": 6, "batch_size": 100, "evaluate_every": 1}
    text = said(capfd, "fedavg", **{**incomes, **more, "fine_tune_epochs": 0})
    assert text.count("RMSE rose from ") == 1
    assert "a smaller lr" in text


def test_models_that_are_no_better_than_a_guess_are_said_to_be_so(
    incomes: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    text = said(capfd, "fedavg", **{**incomes, "lr": 1e-14, "fine_tune_epochs": 0})
    assert text.count("of answering each user's own mean") >= 1
    assert "inputs scaled" in text
    standardised = {**incomes, "lr": 1e-14, "fine_tune_epochs": 0, "scale": "federated"}
    assert "inputs scaled" not in said(capfd, "fedavg", **standardised)


def test_what_learns_is_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    text = said(capfd, "fedrep,local", num_users=12, num_rounds=3, fraction_train=1.0)
    assert "answering" not in text and "in size" not in text


def test_a_key_that_no_strategy_of_the_run_reads_is_named_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    few = {"num_users": 4, "num_rounds": 1, "fraction_train": 1.0, "head_epochs": 3}
    text = said(capfd, "fedavg,local", **few, known_p=0.3)
    wanted = "nobody reads it in this run; it is for "
    assert text.count(f"head-epochs=3: {wanted}fedrep, fedrep-convex, fedrep-known") == 1
    assert text.count(f"known-p=0.3: {wanted}async-l2gd, async-al2sgd") == 1
    assert "nobody reads" not in said(capfd, "local,fedrep", **few)
    simulate(["local", "fedrep"], **few)  # from Python each one has a configuration of its own
    assert "nobody reads" not in capfd.readouterr().err
    few = {"dataset": "hierarchical", "model": "linear", "num_users": 6, "known_refine": 3}
    assert "nobody reads" not in said(capfd, "exact-cluster", **few)


def test_what_is_better_when_it_is_higher_may_rise(capfd: pytest.CaptureFixture[str]) -> None:
    keys: dict[str, Any] = {"num_users": 12, "num_rounds": 3, "fraction_train": 1.0}
    text = said(capfd, "fedavg", measures="balanced-accuracy", evaluate_every=1, **keys)
    assert "rose" not in text


@pytest.mark.parametrize("name", MEASURES)
def test_what_got_worse_over_the_run_is_said_in_the_right_direction(name: str) -> None:
    _, result, _ = federate("local", num_rounds=1)
    high = MEASURES[name].higher_is_better
    verb = "fell" if high else "rose"
    for first, last in ((0.4, 0.8), (0.8, 0.4), (-0.5, -0.8), (0.80, 0.79)):
        row = replace(result.summaries[0], measure=name, curve=[(1, first), (9, last)])
        worse = first - last > 0.05 if high else last - first > 0.05
        assert (f" {verb} from " in worsened(row)) == worse


@pytest.mark.parametrize("measures", ["accuracy,auc", "auc", "accuracy"])
def test_means_over_samples_are_those_of_the_users_weighted_by_their_samples(measures: str) -> None:
    _, result, _ = federate(
        "local", num_rounds=1, measures=measures, partition="dirichlet-by-class"
    )
    row = result.summaries[0].json()
    sizes = [row["test_sizes"][user] for user in row["per_user"]]
    wanted = np.average(list(row["per_user"].values()), weights=sizes)
    assert row["over_samples"] == pytest.approx(wanted, abs=1e-12)
    assert abs(row["over_samples"] - row[measures.split(",", maxsplit=1)[0]]["mean"]) > 1e-4


@pytest.mark.parametrize("better", [-0.1, 0.0, 0.1])
def test_a_row_no_better_than_one_answer_a_user_is_said_to_be_so(better: float) -> None:
    """Devices too: each says what its own training labels would give."""
    strategy, result, notes = federate("local", num_rounds=1)
    row, strategy.members.grid = result.summaries[0], None
    assert row.baseline is not None
    guess = row.baseline.mean
    score = replace(row.score, mean=guess + better)
    other = replace(row, strategy="local+more", score=score)
    fine = replace(row, score=replace(row.score, mean=guess + 0.1))
    Remarks().on_start(strategy)
    Remarks().on_end(strategy, [fine, other])
    told = f"local+more: accuracy {100 * (guess + better):.1f}% is no better than the "
    told += f"{100 * guess:.1f}% of answering each user's own most frequent class"
    assert [note.partition(";")[0] for note in notes.notes] == [told] * (better <= 0)


def test_what_one_answer_scores_is_that_of_the_users_own_training_labels() -> None:
    strategy, result, _ = federate("local", num_rounds=1, measures="accuracy,log-loss")
    config, (row,) = strategy.config, result.summaries
    data = simulated(config.data, config.federation.num_users, config.run.seed)
    scores, lost = [], []
    for user in row.per_user:
        own = data[user]
        counts = np.bincount(own.y_train, minlength=10) + 1.0
        scores.append(np.mean(own.y_test == counts.argmax()))
        lost.append(np.mean(-np.log(counts / counts.sum())[own.y_test]))
    assert row.baseline is not None
    assert row.baseline.mean == pytest.approx(np.mean(scores), abs=1e-12)
    assert row.baseline.means["log-loss"] == pytest.approx(np.mean(lost), rel=1e-12)

"""What a newcomer types: a strategy's name, a data set's, or nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from corsage import IFCA, MixedModel, simulate
from corsage.app.command import run
from corsage.app.nodes.answers import limit_threads
from corsage.core.configuration.command_line import exampled
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.core.keys import flatten
from corsage.core.registry import ALGORITHMS, keys_class
from corsage.networks.criterion import criterion_of

SHORT = {"num_rounds": 1, "fine_tune_epochs": 0}
SLOW = {"convex-clustering": {"convex_lambda": "0.01", "convex_report": False}}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_strategy_runs_by_its_name(name: str) -> None:
    found = simulate(name, progress=False, **SHORT, **SLOW.get(name, {}))
    assert found[name].score.mean > 0 and len(found[name].users) >= 20


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_was_filled_in_is_said(name: str) -> None:
    """Each key that is not the usual one, and no other."""
    values, line = exampled({"strategy": name})
    usual, config = Config.parse(), Config.parse(values)
    changed = {
        key: value
        for group in ("data", "model", "train")
        for key, value in flatten(getattr(config, group)).items()
        if flatten(getattr(usual, group)).get(key, value) != value
    }
    own = {k: v for k, v in values.items() if k in keys_class(name).example}
    assert all(f"{key}={value}" in line for key, value in {**changed, **own}.items())
    assert bool(line) == bool(changed or own)


def test_what_the_user_sets_stays() -> None:
    values, line = exampled({"strategy": "async-al2sgd", "dataset": "moons", "model": "mlp"})
    assert not line
    assert Config.parse(values).model.model == "mlp"
    values, line = exampled({"strategy": "ifca,local", "lr": "0.5"})
    assert values["lr"] == "0.5" and "lr" not in line and values["dataset"] == "ellipses"
    for own in ({"cluster-map": "map.json"}, {"partition": "iid"}, {"classes-per-user": "3"}):
        assert "dataset" not in exampled({"strategy": "fedrep-known", **own})[0]  # the digits


def test_the_first_strategy_that_needs_a_model_has_it() -> None:
    models = {
        names: Config.parse({"strategy": names, "dataset": "moons"}).model.model
        for names in ("fedavg", "fedavg,mixed-model", "fedrep,async-l2gd", "async-l2gd,fedrep")
    }
    assert list(models.values()) == ["mlp", "linear", "mlp", "mlp"]
    with pytest.raises(ConfigError, match="fedrep needs model=mlp and mixed-model model=linear"):
        Config.parse({"strategy": "fedrep,mixed-model", "dataset": "moons"})


def test_strategies_that_do_not_fit_the_digits_are_named() -> None:
    with pytest.raises(ConfigError, match=r"do not fit mixed-model .* such as dataset=hierarch"):
        exampled({"strategy": "fedavg,mixed-model"})
    exampled({"strategy": "mixed-model,fedavg"})


def test_a_linear_model_of_two_classes_has_one_output() -> None:
    model = Config.parse({"model": "linear"}).model
    assert criterion_of(model, 2).name == "logistic"
    assert criterion_of(model, 3).name == "cross-entropy"
    assert criterion_of(Config.parse().model, 2).name == "cross-entropy"


def test_an_object_has_its_example_too() -> None:
    """But not where data are given, nor in a server script, whose devices have theirs."""
    own = [IFCA(num_rounds=2), MixedModel(num_rounds=2)]
    found = simulate([own[0], "local"], num_rounds=2, progress=False)
    assert len(found["local"].users) == len(found["ifca"].users) == 60
    assert own[0].config.train.lr == 0.1 and own[1].config.model.model == "linear"
    x = np.random.default_rng(0).normal(size=(60, 3))
    given = IFCA(num_rounds=2)
    simulate(given, data=(x, (x[:, 0] > 0).astype(int)), user=np.arange(60) % 4, progress=False)
    assert given.config.train.lr == Config.parse().train.lr
    with pytest.raises(ConfigError, match="ifca is on dataset=ellipses, local on dataset=digits"):
        simulate([IFCA(num_rounds=2), "local"], dataset="digits", progress=False)


def test_a_study_is_of_the_example_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["num-rounds=2", "users-per-cluster=4", "mixed-summary=none", f"run-dir={tmp_path}"]
    assert run(["strategy=exact-local", "seed=0,1", *few]) == 0
    assert run(["sweep", "strategy=exact-local", "data-seed=1,2", *few]) == 0
    assert capsys.readouterr().err.count("dataset=hierarchical, the example of exact-local") == 2


def test_a_file_s_ending_says_what_it_is(tmp_path: Path) -> None:
    found, line = exampled({"strategy": "mixed-model", "data-file": "own.CSV"})
    assert found["dataset"] == "csv" and "as the file's name says" in line


def test_data_without_clusters_have_one_centre(tmp_path: Path) -> None:
    rows = [f"{user},{i % 7},{i % 5}" for user in "abcdef" for i in range(12)]
    (tmp_path / "own.csv").write_text("user,label,x\n" + "\n".join(rows) + "\n")
    keys = {"dataset": "csv", "data_file": str(tmp_path / "own.csv"), "labels": "numbers"}
    found, same = (
        simulate("mixed-model", **keys, mixed_grouping=grouping, progress=False)["mixed-model"]
        for grouping in ("auto", "all")
    )
    assert found.per_user == same.per_user
    with pytest.raises(ConfigError, match="no known cluster"):
        simulate("exact-cluster", **keys, progress=False)


def test_a_blas_that_comes_later_is_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """SciPy brings one of its own; threads beyond those that there are only spin."""
    import scipy.linalg
    from threadpoolctl import threadpool_info, threadpool_limits

    def blas() -> set[int]:
        return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}

    monkeypatch.delitem(sys.modules, "scipy.linalg")
    limit_threads(1)
    monkeypatch.setitem(sys.modules, "scipy.linalg", scipy.linalg)
    threadpool_limits(2, user_api="blas")  # as a library that has just been loaded has it
    limit_threads(1)
    assert blas() == {1}

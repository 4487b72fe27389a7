"""A table in, a model for every user out; and what `strategy=auto` comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage import fit, simulate
from corsage.app import command
from corsage.app.automatic import chosen
from corsage.app.results.row import NoModel
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, DataError
from corsage.core.registry import ALGORITHMS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3))
USERS = np.arange(120) % 6
ROWS = ["mixed-model", "random-intercepts", "single-cluster", "exact-global", "exact-local"]
SLOPES = RNG.normal(1.0, 0.1, (6, 3))
NUMBERS = (X * SLOPES[USERS]).sum(axis=1) + RNG.normal(0, 0.1, 120)


def given(y: Any, user: Any = USERS, **more: Any) -> Any:
    return fit(x=X, y=y, user=user, progress=False, num_rounds=3, **more)


def test_numbers_of_users_are_a_mixed_models() -> None:
    found = given(NUMBERS)
    assert list(found) == ROWS
    assert found["mixed-model"].score.mean < 0.3
    with pytest.raises(NoModel, match="fitted to all rows"):
        found["mixed-model"].evaluate()
    near = found["mixed-model"].user(3).predict(X[USERS == 3])
    np.testing.assert_allclose(near, NUMBERS[USERS == 3], atol=0.8)


def test_clusters_that_are_known_are_used() -> None:
    found = given(NUMBERS, cluster=USERS // 2)
    assert list(found) == [*ROWS[:-1], "exact-cluster", "exact-local"]
    some = np.where(USERS < 4, USERS // 2, -1).astype(str)
    some[USERS >= 4] = ""
    assert "exact-cluster" in given(NUMBERS, cluster=some)


def test_few_classes_are_the_mixed_model_s_and_many_inputs_a_network_s() -> None:
    two = given((NUMBERS > 0).astype(int))
    assert list(two) == ["mixed-model", "random-intercepts", "exact-global", "exact-local"]
    more = given(np.digitize(NUMBERS, [-1, 1]))
    assert list(more) == list(two)
    more = given(np.digitize(NUMBERS, [-1, 1]), model="mlp")
    assert list(more) == ["fedrep", "fedrep+own", "fedavg", "fedavg+ft", "fedavg+ft-all", "local"]
    assert more["fedrep"].never_drawn == 0  # few users take part in every round


def test_counts_have_the_mixed_model_that_their_likelihood_needs() -> None:
    counts = np.random.default_rng(0).poisson(np.exp(0.3 * NUMBERS.clip(-3, 3)))
    found = given(counts, labels="numbers", loss="poisson", mixed_random="intercept")
    assert list(found) == ["mixed-model"] and not found.failed


def test_a_key_that_is_given_stays_and_a_strategy_that_is_named_too() -> None:
    assert "fedrep" in given(NUMBERS, model="mlp")
    assert list(given(NUMBERS, strategy="exact-global", model="linear")) == ["exact-global"]
    own = given(NUMBERS, mixed_variances="diagonal")  # who has a model in mind gets no simpler ones
    assert list(own) == ["mixed-model", "exact-global", "exact-local"]


def test_one_user_has_least_squares_of_its_rows() -> None:
    found = given(NUMBERS, user=np.zeros(120, int))
    assert list(found) == ["exact-global"]
    assert str(found).startswith("One user: use exact-global, RMSE ")
    lines = {one["name"]: one for one in found["exact-global"].estimates["coefficients"]}
    known = np.linalg.lstsq(np.column_stack([X, np.ones(120)]), NUMBERS, rcond=None)[0]
    assert [one["estimate"] for one in lines.values()] == pytest.approx(known)
    assert "Fitted to 120 rows, 1 user." in str(found)


def test_networks_say_which_rows_they_are_trained_on() -> None:
    found = given(NUMBERS, model="mlp")
    said = str(found).split("\n")
    assert said[0].startswith(f"Use {found.recommended}, RMSE ")
    assert (
        "Scores are of 24 samples that models had not seen; the models are trained on the other 96"
        in str(found)
    )
    assert found["fedrep"].evaluate() == found["fedrep"].per_user


def test_scores_are_not_taken_for_classes(tmp_path: Path) -> None:
    scores = np.rint(50 + 10 * NUMBERS).astype(int)
    with pytest.raises(ConfigError, match=r"classes, or numbers to predict\? Say labels="):
        given(scores)
    assert list(given(scores, labels="numbers"))[-1] == "exact-local"
    rows = "\n".join(f"{a},{s},{u}" for a, s, u in zip(X[:, 0], scores, USERS, strict=True))
    (tmp_path / "s.csv").write_text(f"a,score,user\n{rows}\n")
    with pytest.raises(ConfigError, match="whole numbers up to"):
        fit(tmp_path / "s.csv", label="score", progress=False)


def test_images_have_networks_and_the_line_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    keys, line = chosen({"strategy": "auto", "num-users": 60})
    assert keys["strategy"] == "fedrep,fedavg,local" and "fraction-train" not in keys
    assert line == (
        "strategy=auto: fedrep,fedavg,local, for 10 classes of 60 users in images or sequences: a "
        "common body with a head a user, beside one model for all (then tuned by each user) and "
        "each alone."
    )
    simulate("auto", num_users=4, num_rounds=1, hidden="4")
    assert "strategy=auto: fedrep,fedavg,local" in capsys.readouterr().err


def test_all_that_it_names_are_strategies() -> None:
    from corsage.app import automatic

    simpler = (automatic.LEVEL_ALONE, automatic.AROUND_ONE, "exact-cluster")
    names = (*automatic.LINEAR, *automatic.NETWORKS.split(","), *simpler)
    assert set(names) <= set(ALGORITHMS)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [",".join(map(str, (*x, y, u))) for x, y, u in zip(X, NUMBERS, USERS, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c,score,school", *rows]))
    words = ["dataset=csv", f"data-file={tmp_path}/t.csv", "user-column=school", "labels=numbers"]
    more = ["label-column=score", "strategy=auto", f"run-dir={tmp_path}/runs", "num-rounds=2"]
    assert command.run([*words, *more], "") == 0
    out = capsys.readouterr()
    assert f"strategy=auto: {','.join(ROWS)}, for numbers of 6 users" in out.err
    (folder,) = (tmp_path / "runs").iterdir()
    assert "mixed-model" in folder.name
    frame = fit(tmp_path / "t.csv", user="school", label="score", labels="numbers", progress=False)
    assert list(frame) == ROWS


def test_where_it_cannot_be_decided_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="strategy=auto: it is decided where the data are"):
        Config.parse({"strategy": "auto"})
    with pytest.raises(ConfigError, match="strategy=auto: it stands alone"):
        chosen({"strategy": "auto,local"})
    with pytest.raises(ConfigError, match="fit: give data"):
        fit()


def test_a_table_is_as_wide_as_its_levels() -> None:
    """Exact methods send matrices of all inputs by all."""
    pandas = pytest.importorskip("pandas")
    drugs = [f"d{i % 400}" for i in range(1200)]
    data = pandas.DataFrame({"who": ["a", "b"] * 600, "drug": drugs, "y": RNG.random(1200)})
    found = fit(data, user="who", label="y", num_rounds=1, progress=False)
    assert "fedrep" in found and "mixed-model" not in found


def test_labels_of_one_class_are_refused() -> None:
    with pytest.raises(DataError, match="all labels are of one class"):
        given(np.zeros(120, int))

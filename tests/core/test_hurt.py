"""Who is worse off than alone, or than with one model for all."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from corsage.app.output.notes import notes, percent
from corsage.clients.parts.outcomes import sums
from corsage.core.arrays import Array, Floats
from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.measures import ACCURACY, MEASURES, RMSE, Measure
from corsage.core.messages.replies import Replies
from corsage.core.pairs.hurt import Hurt, Row, hurt, hurts, noises
from corsage.core.pairs.noise import NORMAL_QUANTILE, sums_of
from corsage.core.pairs.sums import packed, wanted
from corsage.networks.batches import Examples
from corsage.networks.criterion import CROSS_ENTROPY, criterion_of
from corsage.networks.user_scores import score
from corsage.strategies.rounds.judged import judged
from tests.support.federations import federate

values = st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1), min_size=1)


def table(**rows: dict[str, float]) -> dict[str, Row]:
    """Rows of accuracies, without errors."""
    return {
        name.replace("_", "+"): Row(name.replace("_", "+"), ACCURACY, own)
        for name, own in rows.items()
    }


def test_users_who_are_worse_off_are_named_the_most_hurt_first() -> None:
    rows = table(fedrep={"a": 0.9, "b": 0.2, "c": 0.6}, local={"a": 0.8, "b": 0.7, "c": 0.7})
    found = hurt(rows["fedrep"], rows)
    assert found == {"alone": Hurt("local", 2 / 3, ["b", "c"], 3)}
    assert hurt(rows["local"], rows) == {}


def test_of_numbers_the_higher_is_the_worse() -> None:
    rows = {n: Row(n, RMSE, {"a": v}) for n, v in {"fedavg": 2.0, "local": 1.0}.items()}
    assert hurt(rows["fedavg"], rows)["alone"].users == ["a"]
    assert hurt(rows["local"], rows)["together"].users == []


def test_a_tie_hurts_nobody() -> None:
    rows = table(fedrep={"a": 0.7, "b": 0.5}, local={"a": 0.7 + 1e-9, "b": 0.5 + 1e-4})
    assert hurt(rows["fedrep"], rows)["alone"].users == ["b"]


def test_errors_that_are_rounding_hurt_nobody() -> None:
    """Labels that a linear model fits without error: RMSE is 1e-14, where a guess has 20."""
    own = {"exact-local": 2e-14, "exact-global": 5e-14}
    results = [
        {"strategy": name, "measure": "rmse", "per_user": {"a": value}, "baseline": {"mean": 20.0}}
        for name, value in own.items()
    ]
    assert hurts(results)["exact-global"]["alone"].users == []
    results[1]["per_user"] = {"a": 1e-6}
    assert hurts(results)["exact-global"]["alone"].users == ["a"]


def test_exact_rows_stand_in_for_local_and_fedavg() -> None:
    rows = table(ditto={"a": 0.5})
    rows |= {n: Row(n, ACCURACY, {"a": 0.9}) for n in ("exact-local", "exact-global")}
    found = hurt(rows["ditto"], rows)
    assert {kind: one.than for kind, one in found.items()} == {
        "alone": "exact-local",
        "together": "exact-global",
    }
    rows["local"] = Row("local", ACCURACY, {"a": 0.1})
    assert hurt(rows["ditto"], rows)["alone"].than == "local"


def test_new_users_are_compared_with_new_users() -> None:
    rows = table(fedrep_new={"n": 0.5}, local={"a": 1.0}, local_new={"n": 0.6}, fedavg={"b": 1.0})
    assert {k: v.than for k, v in hurt(rows["fedrep+new"], rows).items()} == {"alone": "local+new"}


def test_a_user_that_only_one_row_judges_is_not_compared() -> None:
    rows = table(fedrep={"a": 0.1, "b": 0.1}, local={"a": 0.2, "z": 0.2})
    assert hurt(rows["fedrep"], rows)["alone"].compared == 1
    assert hurt(rows["fedrep"], table(fedrep={"a": 0.1}, local={"z": 0.9})) == {}


@given(own=values, other=values)
def test_nobody_is_hurt_both_ways(own: dict[str, float], other: dict[str, float]) -> None:
    rows = {"local": Row("local", ACCURACY, own), "fedavg": Row("fedavg", ACCURACY, other)}
    one = hurt(rows["fedavg"], rows).get("alone", Hurt("", 0.0))
    two = hurt(rows["local"], rows).get("together", Hurt("", 0.0))
    assert not set(one.users) & set(two.users)
    assert one.share + two.share <= 1 + 1e-12


def test_a_table_says_how_many_are_hurt() -> None:
    keys: dict[str, Any] = {"num_users": 8, "num_rounds": 2, "fraction_train": 1.0}
    rows = [s.json() for name in ("fedavg", "local") for s in federate(name, **keys)[1].summaries]
    for row, own in zip(rows, hurts(rows).values(), strict=True):
        row["hurt"] = {kind: one.json() for kind, one in own.items()}
    opening = "Users worse off than alone (local): fedavg "
    [line] = [line for line in notes(rows) if line.startswith(opening)]
    users = rows[0]["hurt"]["alone"]["users"]
    worse = {u for u, v in rows[0]["per_user"].items() if v < rows[1]["per_user"][u]}
    assert set(users) == worse and worse
    assert percent(len(worse) / 8) in line


def test_older_results_have_no_errors_and_none_are_made_up() -> None:
    old = [
        {"strategy": n, "accuracy": {}, "per_user": {"a": v}}
        for n, v in (("local", 1.0), ("fedavg", 0.0))
    ]
    found = hurts(old)["fedavg"]["alone"]
    assert found.users == ["a"] and found.beyond_noise is None
    assert found.json()["share_beyond_noise"] is None


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0%"), (1.0, "100%"), (0.012, "1.2%"), (0.0995, "10%"), (0.42, "42%")]
)
def test_shares_in_few_characters(share: float, text: str) -> None:
    assert percent(share) == text


def judged_row(
    name: str, measure: Measure, outputs: Floats, y: Array, home: bool = True
) -> dict[str, Any]:
    """A result as files have it, of users' outputs (users, samples, outputs) for their labels."""
    users, n = [str(i) for i in range(len(y))], np.full(len(y), y.shape[1])
    data = Examples(torch.zeros(y.size, 1), torch.from_numpy(y.reshape(-1)), n)
    flat = torch.from_numpy(outputs.reshape(y.size, -1))
    criterion = CROSS_ENTROPY if measure.classes else criterion_of(ModelKeys(loss="squared"), 0)
    counts = score(criterion, flat, data, [measure]).counts | {"num-examples": n.astype(float)}
    network = SimpleNamespace(criterion=criterion)
    client: Any = SimpleNamespace(measures=(measure,), network=network, at_home=home)
    own = sums(client, flat, data, wanted(measure, n.tolist()))
    replies = Replies(users=users, metrics=counts, rows={"outcomes": own})
    found = judged(replies, [measure]).scored(measure)
    return {
        "strategy": name,
        "measure": measure.name,
        "per_user": found.per_user,
        "test_sizes": dict.fromkeys(users, y.shape[1]),
        "outcomes": packed(measure, users, users, own, home),
    }


def answers(right: Array) -> Floats:
    """Outputs of two classes that are right for labels 0 where they should be."""
    return np.stack([right, 1 - right], axis=-1).astype(np.float32)


def two_rows(of: tuple[float, float], alike: float) -> list[dict[str, Any]]:
    """fedrep and local on 100 samples of 1,000 users, of which a share has the same answer."""
    rng, shape = np.random.default_rng(0), (1000, 100)
    same, common = rng.random(shape) < alike, rng.random(shape) < 0.8
    y = np.zeros(shape, np.int64)
    rights = [np.where(same, common, rng.random(shape) < share) for share in of]
    rows = zip(("fedrep", "local"), rights, strict=True)
    return [judged_row(name, ACCURACY, answers(right), y) for name, right in rows]


def test_a_difference_on_the_same_samples_is_seen_in_half_the_users_not_in_a_fifth() -> None:
    """Answers agree on more than half of the samples; the rest are 87% and 73% right."""
    rows = two_rows((0.73, 0.87), alike=0.56)
    found = hurts(rows)["fedrep"]["alone"]
    assert len(found.beyond_noise or ()) / 1000 == pytest.approx(0.5, abs=0.06)
    assert found.unsure == 0
    one, other = (np.array(list(row["per_user"].values())) for row in rows)
    apart = np.sqrt((one * (1 - one) + other * (1 - other)) / 100)
    assert (other - one > NORMAL_QUANTILE * apart).mean() == pytest.approx(0.2, abs=0.05)


def test_without_a_difference_chance_is_named_in_one_case_of_twenty() -> None:
    found = hurts(two_rows((0.8, 0.8), alike=0.56))["fedrep"]["alone"]
    assert len(found.beyond_noise or ()) / 1000 < 0.065


@pytest.mark.parametrize(("lost", "won", "sure"), [(3, 0, False), (4, 0, True), (6, 1, True)])
@pytest.mark.parametrize("n", [20, 64, 500])
def test_sure_of_a_share_is_who_mcnemars_test_is_sure_of(
    lost: int, won: int, sure: bool, n: int
) -> None:
    """Mid-p values of McNemar's test are .063, .031, .035: only discordant samples count."""
    own, other = np.ones((1, n), int), np.ones((1, n), int)
    own[0, :lost], other[0, lost : lost + won] = 0, 0
    y = np.zeros((1, n), np.int64)
    rows = [
        judged_row(name, ACCURACY, answers(right), y)
        for name, right in (("fedrep", own), ("local", other))
    ]
    assert hurts(rows)["fedrep"]["alone"].beyond_noise == ["0"] * sure


@pytest.mark.parametrize("name", ["rmse", "mse", "mae"])
def test_sums_are_of_the_errors_that_are_scored(name: str) -> None:
    """Under a likelihood these are of the mean that a score stands for, not of the score."""
    measure, criterion = MEASURES[name], criterion_of(ModelKeys(loss="poisson"), 0)
    y, scores = torch.tensor([0.0, 3.0, 9.0]), torch.tensor([[0.0], [1.0], [2.0]])
    network = SimpleNamespace(criterion=criterion)
    client: Any = SimpleNamespace(measures=(measure,), network=network, at_home=True)
    own = sums(client, scores, Examples(torch.zeros(3, 1), y, np.array([3])), 3)
    errors = (scores[:, 0].exp() - y).abs().double().numpy()
    assert sorted(own[0]) == pytest.approx(sorted(errors if name == "mae" else errors**2), rel=1e-6)


@pytest.mark.parametrize("name", ["rmse", "mse", "mae"])
def test_the_noise_of_errors_is_that_of_their_differences(name: str) -> None:
    """Of an RMSE by its slope; on devices in sums of five samples, of which there must be eight."""
    rng, measure, n = np.random.default_rng(1), MEASURES[name], 60
    y = rng.normal(size=(40, n)).astype(np.float32)
    outputs = [y + rng.normal(size=y.shape) * 0.1 + 3 * rng.normal(size=y.shape) ** 3 for _ in "ab"]
    outputs[1] = 0.9 * outputs[0] + 0.1 * outputs[1]
    each = [np.abs(o - y) if name == "mae" else np.square(o - y) for o in outputs]
    if name == "rmse":
        each = [square / (2 * np.sqrt(square.mean(1, keepdims=True))) for square in each]
    known = (each[0] - each[1]).std(1, ddof=1) / np.sqrt(n)
    for home, factor, close in ((True, t.ppf(0.95, n - 1), 1e-3), (False, t.ppf(0.95, 11), 1.2)):
        rows = [
            judged_row(row, measure, o.astype(np.float32), y, home)
            for row, o in zip(("fedrep", "local"), outputs, strict=True)
        ]
        one, other = (Row(r["strategy"], measure, r["per_user"], 0.0, sums_of(r)) for r in rows)
        found = noises(one, other, list(one.values))
        assert len(found) == 40
        assert NORMAL_QUANTILE * found / factor == pytest.approx(known, rel=close)
        assert np.median(NORMAL_QUANTILE * found / factor / known) == pytest.approx(1, abs=0.2)
    few = [
        judged_row(r, measure, outputs[0][:, :35], y[:, :35], False) for r in ("fedrep", "local")
    ]
    one, other = (Row(r["strategy"], measure, r["per_user"], 0.0, sums_of(r)) for r in few)
    assert np.isnan(noises(one, other, list(one.values))).all()


def test_only_trained_models_are_compared_and_those_of_the_end_with_each_other() -> None:
    own = {"fedrep": 0.9, "fedrep+own": 0.8, "fedavg+ft": 0.8, "local": 0.5, "local+own": 1.0}
    rows = {n: Row(n, ACCURACY, {"a": v, "b": v}) for n, v in own.items()}
    rows["fedrep"] = replace(rows["fedrep"], values={"a": 0.9, "b": 0.0}, untrained=frozenset("b"))
    assert hurt(rows["fedrep"], rows)["alone"] == Hurt("local", 0.0, [], 1)
    rows["local"] = replace(rows["local"], untrained=frozenset("ab"))
    assert hurt(rows["fedrep"], rows) == {}
    for name in ("fedrep+own", "fedavg+ft"):
        assert hurt(rows[name], rows)["alone"] == Hurt("local+own", 1.0, ["a", "b"], 2)
    del rows["local+own"], rows["local"]
    rows["local"] = Row("local", ACCURACY, {"a": 0.9})
    assert hurt(rows["fedrep+own"], rows)["alone"].than == "local"


@pytest.mark.parametrize(
    "change",
    [{"packed": "!"}, {"packed": "AAAA"}, {"sums": -1}, {"sums": "x"}, {"least": 1e400}, {}],
    ids=str,
)
def test_sums_that_cannot_be_are_none(change: dict[str, Any]) -> None:
    y = np.zeros((2, 9), np.int64)
    row = judged_row("local", ACCURACY, answers(y), y)
    changed = {**row["outcomes"], **change} if change else {"packed": row["outcomes"]["packed"]}
    assert sums_of(row) is not None and sums_of({**row, "outcomes": changed}) is None

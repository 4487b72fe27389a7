"""The answer in words: which model to use, and what it says, before the table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group

from corsage.app.output.summary import findings_tables
from corsage.core.measures import ACCURACY, LOG_LOSS, MAE, MSE, RMSE, measure_of

Result = Mapping[str, Any]

FAVOURITE = "mixed-model"
"""It is one model for all, or one each, where the data are best served by that."""
SURE_ERRORS = 2.0
"""Standard errors of a mean difference over users that chance hardly exceeds."""
AS_LARGE = 0.99
"""A share of the largest variance from which on another is as large."""
WORTH_ANOTHER = 1e-3
"""A share of the loss; what is gained by less is not worth another model, however certain it is."""
WHAT = {
    "exact-global": "for one model",
    "fedavg": "for one model",
    "exact-cluster": "for one a cluster",
    "exact-local": "alone",
    "local": "alone",
    "mixed-model": "for mixed-model",
}
"""Rows that the first sentence names, where they are there."""
ADDED_UP = (ACCURACY, LOG_LOSS, MAE, MSE, RMSE)
"""Measures that are means over rows, or roots of these."""
UNTOLD = ("last\n10", "steps")
"""Columns of the table that say nothing of models that are solved in one go."""
FINDINGS_FIRST = ("coefficients", "clusters' estimates", "variances", "users' estimates")
"""The order of findings by their titles."""
NOT_COUNTED = "Set aside: sums"
"""How the title of the finding on users begins whose sums are not counted."""
COLUMNS_TOLD = 30
"""Columns that are described one by one."""


def is_answer(results: Sequence[Result]) -> bool:
    """Tell whether results are those of a fit."""
    return bool(results) and all("held_out" in result for result in results)


def of_all_rows(results: Sequence[Result]) -> bool:
    """Tell whether results are of models that were fitted to all rows."""
    return is_answer(results) and not any("trained" in one["held_out"] for one in results)


def recommended(results: Sequence[Result]) -> str:
    """The row to use: the mixed model, unless another is better by more than noise; or the best."""
    names = [str(result["strategy"]) for result in results]
    favourite = results[names.index(FAVOURITE) if FAVOURITE in names else 0]
    if not favourite.get("held_out", {"rows": 1})["rows"]:
        return str(favourite["strategy"])
    measure = measure_of(favourite)
    best = max(results, key=lambda one: float(measure.merit(one[measure.name]["mean"])))
    if FAVOURITE not in names:
        return str(best["strategy"])
    return str((best if ahead(best, favourite) else favourite)["strategy"])


def ahead(one: Result, other: Result) -> bool:
    """Tell whether users are better off in a row than in another, beyond noise: paired."""
    measure = measure_of(one)
    users = [user for user in one["per_user"] if user in other["per_user"]]
    merits = [measure.merit([row["per_user"][user] for user in users]) for row in (one, other)]
    gains = np.asarray(merits[0]) - np.asarray(merits[1])
    if len(gains) < 2:
        return False
    return bool(gains.mean() > SURE_ERRORS * gains.std(ddof=1) / math.sqrt(len(gains)))


def ahead_for_most(one: Result, other: Result) -> bool:
    """Tell whether more users are better off in a row than in another than chance would have it.

    Where users' labels differ in size, one of them drowns the mean of `ahead`, and not this.
    """
    measure = measure_of(one)
    users = [user for user in one["per_user"] if user in other["per_user"]]
    merits = [measure.merit([row["per_user"][user] for user in users]) for row in (one, other)]
    gains = np.sign(np.asarray(merits[0]) - np.asarray(merits[1]))
    return bool(gains.sum() > SURE_ERRORS * math.sqrt(np.abs(gains).sum()))


def ahead_over_rows(one: Result, other: Result) -> bool:
    """Tell whether a row's mean loss over all held-out rows is less, beyond noise: paired.

    The rows of a user go together.
    """
    measure, sizes = measure_of(one), other["test_sizes"]
    users = [user for user in one["per_user"] if user in other["per_user"]]
    if measure not in ADDED_UP or len(users) < 2:
        return False
    values = np.array([[row["per_user"][user] for user in users] for row in (one, other)])
    merits = measure.merit(values**2 if measure is RMSE else values)
    share = np.array([sizes[user] for user in users], np.float64)
    share /= share.sum()
    gains = merits[0] - merits[1]
    gain, n = float(share @ gains), len(users)
    error = math.sqrt(n / (n - 1) * float(np.square(share * (gains - gain)).sum()))
    return gain > max(SURE_ERRORS * error, WORTH_ANOTHER * abs(float(share @ merits[1])))


def tables(results: Sequence[Result]) -> list[Group]:
    """The findings of the row that is recommended; nothing of a plain comparison."""
    if not is_answer(results):
        return []
    name = recommended(results)
    own = next(result for result in results if result["strategy"] == name)
    found = sorted(own.get("findings", []), key=lambda one: rank(str(one["title"])))
    return findings_tables([{**own, "findings": found}])


def rank(title: str) -> int:
    """The place of a finding: what is estimated first, how it was found last."""
    return next(
        (n for n, start in enumerate(FINDINGS_FIRST) if title.startswith(start)),
        len(FINDINGS_FIRST),
    )


def lines(results: Sequence[Result]) -> list[str]:
    """The sentence that leads, how it was found, and the numbers of the fit; or nothing."""
    if not is_answer(results):
        return []
    name = recommended(results)
    own = next(result for result in results if result["strategy"] == name)
    others = [other for other in results if other is not own]
    found = [sentence(own, others), *doubts(own, others), how(own)]
    fit = own.get("fit") or {}
    if fit:
        dropped = own["held_out"].get("dropped", [])
        found.append(size(fit, "Data:" if "trained" in own["held_out"] else "Fitted to"))
        found += apart(own)
        found += taken(fit["columns"], dropped) if "columns" in fit else []
        found += [label(fit["label"])] if "label" in fit else []
        found += [quality(fit)] if quality(fit) else []
    return found


def sentence(own: Result, others: Sequence[Result]) -> str:
    """The sentence on whether users differ, which row to use, and how it compares."""
    held, name = own["held_out"], str(own["strategy"])
    users = f"Users ({held['who']})" if held.get("who") else "Users"
    if not held["rows"]:
        why = f" ({held['why'].rstrip('.')})" if held.get("why") else ""
        return f"{name}: nothing was held out, and nothing compared{why}."
    measure = measure_of(own)
    known = [other for other in others if str(other["strategy"]) in WHAT]
    numbers = [
        f"{measure.text(other[measure.name]['mean'])} "
        + WHAT.get(str(other["strategy"]), f"for {other['strategy']}")
        for other in known or others
    ]
    told = f"use {name}, {measure.word} {measure.text(own[measure.name]['mean'])}{measure.unit}"
    told += f" against {listed(numbers)}" if numbers else ""
    most = differs_most(own)
    one = next((other for other in others if other["strategy"] == "exact-global"), None)
    if len(own["per_user"]) == 1 and not others:
        return f"One user: {told}."
    if name == "exact-global":
        return f"{users} do not differ by more than noise: {told}."
    if one is None:
        return f"{told[0].upper()}{told[1:]}{most}."
    differ = ahead(own, one) or ahead_for_most(own, one)
    words = "differ" if differ else "differ by no more than noise"
    return f"{users} {words}: {told}{most if words == 'differ' else ''}."


def listed(words: Sequence[str]) -> str:
    """Words with commas, and one "and"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def doubts(own: Result, others: Sequence[Result]) -> Iterator[str]:
    """Rows that are ahead of the one to use: by noise, or over rows where users are unequal."""
    if not own["held_out"]["rows"]:
        return
    measure = measure_of(own)
    mean = measure.merit(own[measure.name]["mean"])
    near = [other for other in others if measure.merit(other[measure.name]["mean"]) > mean]
    if near:
        each = [f"{one['strategy']} ({measure.text(one[measure.name]['mean'])})" for one in near]
        yield f"By no more than noise ahead of it: {listed(each)}."
    for other in others:
        if ahead_over_rows(other, own):
            values = (measure.text(row["over_samples"]) for row in (other, own))
            yield (
                f"But over all held-out rows, of which some users have more than others, "
                f"{other['strategy']} is better by more than noise: {' against '.join(values)}."
            )


def differs_most(own: Result) -> str:
    """The coefficient that varies most between users, each by its column's own spread."""
    estimates = own.get("estimates") or {}
    spread = estimates.get("spread")
    names = [one["name"] for one in estimates.get("coefficients", [])]
    names = [name for name in names if name != "intercept"]
    if spread is None or spread["alone"]:
        return ""
    sizes = np.mean([np.diag(d) for d in spread["users"].values()], 0)[: len(names)]
    if not len(sizes) or sizes.max() <= 0:
        return "; they differ in level alone" if np.any(list(spread["users"].values())) else ""
    if len(sizes) > 1 and np.sort(sizes)[-2] > AS_LARGE * sizes.max():
        return ""  # one variance for all of them
    most = names[int(sizes.argmax())]
    if any(one["level"] == f"user: {most}" and one["low"] == 0 for one in estimates["variances"]):
        return ""  # as far as the data tell, it does not differ
    return f"; the effect of {most} differs most"


def how(own: Result) -> str:
    """The sentence on how rows were compared, and which rows the models are of."""
    held = own["held_out"]
    if "trained" in held:
        name = str(own["strategy"]).partition("+")[0]
        again = f" strategy={name} test-fraction=0 trains one on all." if held["again"] else ""
        return (
            f"Scores are of {held['rows']:,} samples that models had not seen; the models are "
            f"trained on the other {held['trained']:,}, and not again on all.{again}"
        )
    if not held["rows"]:
        return (
            "Nothing was held out: the scores below are of the rows that the models were fitted to."
        )
    way = f"{held['share']:.0%} of each user's rows, held out"
    if held["folds"] > 1:
        way = f"{held['folds']}-fold cross-validation within users"
    return (
        f"Scores are of {held['rows']:,} rows that models had not seen ({way}); the models and "
        "all estimates are fitted to all rows."
    )


def size(fit: Mapping[str, Any], what: str) -> str:
    """The rows, users and clusters."""
    users = f"{fit['users']:,} user{'' if fit['users'] == 1 else 's'}"
    clusters = f", {fit['clusters']:,} clusters" if fit.get("clusters") else ""
    return f"{what} {fit['rows']:,} rows, {users}{clusters}."


def apart(own: Result) -> Iterator[str]:
    """A line on the users that no coefficient and no variance counts."""
    for finding in own.get("findings", []):
        if finding["title"].startswith(NOT_COUNTED):
            names = [what if who == "..." else who for who, what in finding["rows"]]
            yield (
                f"Coefficients and variances are without {listed(names)}: sums that are not like "
                "the others' (liars, or units of another size). mixed-aside=false counts all."
            )


def taken(columns: Sequence[Mapping[str, Any]], dropped: Sequence[str]) -> Iterator[str]:
    """A line on the kind of each column, and those that were left out."""
    if not columns:
        yield "Columns: none; a model of the intercept alone."
        return
    if "name" not in columns[0]:
        yield f"Columns: {len(columns)} of numbers."
        return
    out = f"; left out: {', '.join(dropped)}" if dropped else ""
    told = [column(one) for one in columns[:COLUMNS_TOLD]]
    more = f" and {len(columns) - COLUMNS_TOLD} more" if len(columns) > COLUMNS_TOLD else ""
    yield f"Columns: {', '.join(told)}{more}{out}."


def column(one: Mapping[str, Any]) -> str:
    """A column, its kind, and how many of its cells are missing."""
    kind = f"{one['levels']} words" if one["kind"] == "words" else one["kind"]
    gaps = f", {one['missing']:,} missing" if one.get("missing") else ""
    return f"{one['name']} ({kind}{gaps})"


def label(one: Mapping[str, Any]) -> str:
    """The label, and its kind."""
    kind = f"{one['classes']} classes" if one["classes"] else "a number"
    return f"Predicted: {one['name']} ({kind})."


def quality(fit: Mapping[str, Any]) -> str:
    """R^2 in words."""
    if "r2_marginal" in fit:
        return (
            f"R² {fit['r2_marginal']:.3f} by the model of all, {fit['r2_conditional']:.3f} with "
            "users' own (marginal, conditional)."
        )
    return f"R² {fit['r2']:.3f} of the rows that were fitted." if "r2" in fit else ""

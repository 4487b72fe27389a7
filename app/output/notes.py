"""Notes beside a table's means: users who are worse off, models no better than a guess.

A note is a line under the table; `measures_table` has the measures that the table has no room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from corsage.core.measures import DASH, MEASURES, Measure, measure_of
from corsage.core.messages.replies import reading_order
from corsage.core.pairs.hurt import NEW_SUFFIX, ROW_ALONE, ROW_TOGETHER

Result = Mapping[str, Any]
NAMED_USERS = 3
"""Users that a note names."""
REFERENCE_WORDS = {ROW_ALONE: "alone", ROW_TOGETHER: "together"}
TITLES = ("measure", "strategy", "mean ± std", "pooled", "users")


def notes(results: Sequence[Result]) -> list[str]:
    """The lines under a table of these results."""
    found = [*over_samples(results), *drawn_notes(results), *hurt_notes(results)]
    found += useless_notes(results)
    return [*found, *uncounted(results), *untested(results), *chosen(results)]


def over_samples(results: Sequence[Result]) -> Iterator[str]:
    """The rows over all test samples, where users have unequal numbers of them."""
    known = [result for result in results if uneven(result)]
    if known:
        each = (f"{r['strategy']} {measure_of(r).text(r['over_samples'])}" for r in known)
        yield f"Over all test samples instead of users, of whom some have many: {', '.join(each)}"


def uneven(result: Result) -> bool:
    """True if some user has twice the test samples of another, or more."""
    sizes = result.get("test_sizes", {}).values()
    return "over_samples" in result and max(sizes) >= 2 * min(sizes)


def drawn_notes(results: Sequence[Result]) -> Iterator[str]:
    """The means of users who were drawn, of those who never were, and of new ones, in a line."""
    new = {str(r["strategy"]): r for r in results if str(r["strategy"]).endswith(NEW_SUFFIX)}
    own = [r for r in results if r.get("untrained")]
    if own:
        heads = "Users trained, never drawn" + ", new" * bool(new)
        each = (f"{r['strategy']} {by_drawing(r, new)}" for r in own)
        yield f"{heads}: {'; '.join(each)}"


def by_drawing(result: Result, new: Mapping[str, Result]) -> str:
    """Such means of a row: `98.2% (33), 9.4% (17), 97.8% (10)`."""
    measure = measure_of(result)
    later = new.get(f"{result['strategy']}{NEW_SUFFIX}", {}).get("per_user", {})
    return ", ".join(
        f"{measure.text(sum(group) / len(group))}{measure.unit} ({len(group):,})"
        for group in drawn_or_not(result, result["per_user"], later)
        if group
    )


def drawn_or_not(
    result: Result, own: Mapping[str, float], later: Mapping[str, float]
) -> tuple[list[float], list[float], list[float]]:
    """Scores of the users of a row who were drawn, of those who never were, and of new ones."""
    without = {*result.get("untrained", ())}
    drawn = [value for user, value in own.items() if user not in without]
    return drawn, [own[user] for user in sorted(without) if user in own], [*later.values()]


def hurt_notes(results: Sequence[Result]) -> Iterator[str]:
    """Of each reference, how many users of each row would be better off with it."""
    if any(fitted_to_all(result) for result in results):
        return  # each user is best off with what was fitted to these very rows
    for kind, words in REFERENCE_WORDS.items():
        own = [(str(r["strategy"]), r["hurt"][kind]) for r in results if kind in r.get("hurt", {})]
        for than in dict.fromkeys(str(hurt["than"]) for _, hurt in own):
            each = [f"{name} {shares(hurt)}" for name, hurt in own if hurt["than"] == than]
            yield f"Users worse off than {words} ({than}): {', '.join(each)}"


def fitted_to_all(result: Result) -> bool:
    """True if scores are of the rows that models were fitted to: nothing was held out."""
    return not result.get("held_out", {"rows": 1})["rows"]


def shares(hurt: Mapping[str, Any]) -> str:
    """The share of users who are hurt, and beyond noise: `12% (beyond noise 4%)`."""
    sure = hurt.get("share_beyond_noise")
    if sure is None or not hurt["share"]:
        return percent(hurt["share"])
    rest = f", not known of {hurt['unsure']:,}" if hurt.get("unsure") else ""
    return f"{percent(hurt['share'])} (beyond noise {percent(sure)}{rest})"


def percent(share: float) -> str:
    """A share in percent, without decimals where they say nothing."""
    return f"{100 * share:.0f}%" if share in (0, 1) or share >= 0.0995 else f"{100 * share:.1f}%"


def useless_notes(results: Sequence[Result]) -> Iterator[str]:
    """The rows whose models are no better than one answer a user, in a line."""
    same: dict[str, list[str]] = {}
    for result in results:
        if not fitted_to_all(result) and (said := useless(result)):
            mean, level = said
            same.setdefault(level, []).append(f"{result['strategy']}: {mean}")
    for level, rows in same.items():
        yield f"{', '.join(rows)} {'is' if len(rows) == 1 else 'are'} no better than the {level}"


def useless(result: Result) -> tuple[str, str] | None:
    """The mean of a row whose models are no better than one answer a user, and what that gives."""
    measure, guess = measure_of(result), result.get("baseline")
    if not guess or measure.merit(result[measure.name]["mean"]) > measure.merit(guess["mean"]):
        return None
    mean, other = (
        f"{measure.text(value)}{measure.unit}"
        for value in (result[measure.name]["mean"], guess["mean"])
    )
    return f"{measure.word} {mean}", f"{other} of answering {guess['answer']}"


def uncounted(results: Sequence[Result]) -> Iterator[str]:
    """The measures that some tested users do not have."""
    said = dict.fromkeys(
        f"{MEASURES[name].word} is of {own['users']} of {result['users']} users: the other test "
        f"samples do not have {MEASURES[name].needs}"
        for result in results
        for name, own in result.get("measures", {}).items()
        if name in MEASURES and MEASURES[name].needs and own["users"] < result["users"]
    )
    yield from said


def untested(results: Sequence[Result]) -> Iterator[str]:
    """The users without test samples; rows with the same ones share a line."""
    same: dict[tuple[str, ...], list[str]] = {}
    for result in results:
        if names := result.get("untested"):
            same.setdefault(tuple(names), []).append(str(result["strategy"]))
    for names, rows in same.items():
        order = sorted(names, key=reading_order)
        more = f" and {len(order) - NAMED_USERS} more" if len(order) > NAMED_USERS else ""
        whose = "" if len(same) == 1 else f" ({', '.join(rows)})"
        users = "1 user has" if len(order) == 1 else f"{len(order):,} users have"
        named = ", ".join(order[:NAMED_USERS]) + more
        yield f"{users} no test samples, and no share in these numbers{whose}: {named}"


def chosen(results: Sequence[Result]) -> Iterator[str]:
    """The values that keys which nobody set came to."""
    said = dict.fromkeys(words for result in results for words in result.get("chosen", []))
    if said:
        yield f"By default: {'; '.join(said)}"


def tops(measure: Measure, results: Sequence[Result], means: Sequence[float | None]) -> list[bool]:
    """The best means, each among rows of the same users; what is shown as equal to it, is as good.

    A row that has no other beside it is the best of nothing, unless it is the only one.
    """
    whose = [frozenset(result.get("per_user", ())) for result in results]
    found = []
    for users, mean in zip(whose, means, strict=True):
        beside = [
            m
            for m, u in zip(means, whose, strict=True)
            if m is not None and not users.isdisjoint(u)
        ]
        top = measure.text(max(beside, key=lambda m: float(measure.merit(m)))) if beside else ""
        compared = len(beside) > 1 or len(results) == 1
        found.append(mean is not None and compared and measure.text(mean) == top)
    return found


def measures_table(results: Sequence[Result]) -> Table | None:
    """All measures but the first, one block each; None if there is only one."""
    names = dict.fromkeys(name for result in results for name in result.get("measures", {}))
    first = {measure_of(result).name for result in results}
    others = [MEASURES[name] for name in names if name in MEASURES and name not in first]
    if not others:
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for place, title in enumerate(TITLES):
        table.add_column(Text(title), justify="right" if place > 1 else "left", no_wrap=place > 1)
    for measure in others:
        for row in block(measure, results):
            table.add_row(*row)
    return table


def block(measure: Measure, results: Sequence[Result]) -> Iterator[list[Text]]:
    """The rows of one measure, the best of them bold."""
    own = [(r, r["measures"][measure.name]) for r in results if measure.name in r["measures"]]
    bold = tops(measure, [result for result, _ in own], [found["mean"] for _, found in own])
    for place, (result, found) in enumerate(own):
        mean = measure.text(found["mean"])
        style = "bold" if bold[place] else ""
        spread = f"{mean} ± {measure.text(found['std'])}" if found["mean"] is not None else DASH
        yield [
            Text(measure.title if not place else ""),
            Text(str(result["strategy"]), style),
            Text(spread, style),
            Text(measure.text(found["pooled"])),
            Text(f"{found['users']:,}"),
        ]

"""Text of the page before its pictures: table, notes, other measures, users who are worse off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from corsage.app.output.notes import drawn_or_not, over_samples
from corsage.app.output.summary import (
    Result,
    best,
    cells,
    columns,
    dropped_note,
    never_drawn,
    shared_measure,
)
from corsage.app.report import result_fields
from corsage.app.report.drawing import sample
from corsage.app.report.shell import Drawn, sorted_table
from corsage.core.measures import DASH, MEASURES, Measure, measure_of
from corsage.core.pairs.hurt import NEW_SUFFIX

NOISE_MEANING = (
    " Beyond noise: worse by more than the user's test samples explain; chance alone comes so far "
    "in one case of twenty."
)
"""What the column of that name means."""
FOLDED = 6
"""Warnings from which on the others are behind a fold."""
NOTED_USERS = 50
"""Users that a note names."""


def headline(results: Sequence[Result], drawn: Drawn) -> str:
    """The result table, as on the terminal, and who is not in the numbers as others are."""
    measure = shared_measure(results)
    lines, css = [], []
    for result, top in zip(results, best(results), strict=True):
        name, *rest = cells(result)
        going = "" if "per_user" in result else f", round {result['rounds']:,}"
        first = f"{sample(drawn.looks[name])}{escape(name)}{going}"
        lines.append([first, *map(escape, rest)])
        css.append(f"best {drawn.line(name)}" if top else drawn.line(name))
    return (
        sorted_table(columns(measure), lines, css, [*map(sorting, results)], "filters")
        + f'<p class="soft">{escape(measure.meaning)}, of all users, each on its own test data, '
        "whether or not it was drawn for training; ± is the standard deviation over users. "
        "Steps: gradients of minibatches that a user computed. "
        f"{escape(never_drawn(results))}</p>\n"
    )


def sorting(result: Result) -> list[float | None]:
    """Numbers by which the cells of a line are sorted, in the order of `columns`."""
    measure = measure_of(result)
    found = result[measure.name]
    names = (f"{measure.name}_last10", "worst10"), ("gradient_steps", "bytes_up", "bytes_down")
    some = [[result.get(name) for name in own] for own in names]
    last = result.get("messages"), result.get("seconds")
    return [None, found["mean"], *some[0], found[measure.worst], *some[1], *last]


def trained_or_not(results: Sequence[Result], drawn: Drawn) -> str:
    """Users who trained, who were never drawn, and new ones, apart; empty if all trained."""
    measure, there = shared_measure(results), result_fields.by_name(results)
    lines, css, values = [], [], []
    for name, result in there.items():
        own, later = (
            result_fields.per_user(found, measure) if (found := there.get(one)) else {}
            for one in (name, name + NEW_SUFFIX)
        )
        groups = drawn_or_not(result, own, later)
        if not name.endswith(NEW_SUFFIX) and any(groups[1:]):
            means = [sum(group) / len(group) if group else None for group in groups]
            said = [
                DASH if mean is None else f"{measure.text(mean)} ({len(group):,})"
                for mean, group in zip(means, groups, strict=True)
            ]
            lines.append([f"{sample(drawn.looks[name])}{escape(name)}", *said])
            css.append(drawn.line(name))
            values.append([None, *means])
    if not lines:
        return ""
    heads = ("strategy", "trained\n(users)", "never drawn\n(users)", "new\n(users)")
    some = [k for k in range(len(heads)) if not k or any(v[k] is not None for v in values)]
    keys = [[own[k] for k in some] for own in values]
    shown = [[own[k] for k in some] for own in (heads, *lines)]
    return (
        f"<h3>Trained, never drawn and new users: {escape(measure.title)}</h3>\n"
        f"{sorted_table(shown[0], shown[1:], css, keys, 'filters')}"
    )


def notes(results: Sequence[Result], failed: Mapping[str, str]) -> str:
    """Strategies without a result, rows that are no better than a guess, users without tests."""
    lines = [
        f"<strong>{escape(name)} failed:</strong> {escape(why)}" for name, why in failed.items()
    ]
    level, below = guesses(results)
    level += [f"{said}." for said in over_samples(results)]
    lines += [escape(said) for said in (*below, *without_tests(results))]
    lines += [f"{escape(said)}." for said in dropped(results)]
    marked = [f'<p class="warn">{line}</p>\n' for line in lines]
    if len(marked) > FOLDED:
        more = f"<details><summary>{len(marked) - FOLDED} more</summary>"
        marked = [*marked[:FOLDED], more, *marked[FOLDED:], "</details>"]
    plain = "".join(f'<p class="soft">{escape(said)}</p>\n' for said in level)
    return f'<div class="notes">{plain}{"".join(marked)}</div>' if plain or marked else ""


def dropped(results: Sequence[Result]) -> list[str]:
    """Users whose replies could not be used, once for rows of one training, such as `fedavg+ft`."""
    found, said = by_training(results), []
    for rows in found.values():
        notes_of = [note for row in rows if (note := dropped_note(row, names=NOTED_USERS))]
        said += notes_of[:1]
    return said


def by_training(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Rows by what was trained for them: `fedavg` and `fedavg+ft` are of one training."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(str(result["strategy"]).partition("+")[0], []).append(result)
    return found


def guesses(results: Sequence[Result]) -> tuple[list[str], list[str]]:
    """Score of one constant answer, and the rows that are no better."""
    measure = shared_measure(results)
    found: dict[tuple[str, float], list[Result]] = {}
    for result in results:
        given = result.get("baseline") or {}
        if given.get("mean") is not None:
            answer = (str(given.get("answer", "")), float(given["mean"]))
            found.setdefault(answer, []).append(result)
    levels, below = [], []
    for (words, mean), rows in found.items():
        shown = f"{measure.word} {measure.text(mean)}{measure.unit}"
        levels.append(f"Without any model, always answering {words}: {shown}.")
        names = no_better(rows, mean, measure)
        if names:
            verb = "are" if len(names) > 1 else "is"
            below.append(f"{', '.join(names)} {verb} no better than always answering {words}.")
    return levels, below


def no_better(rows: Sequence[Result], mean: float, measure: Measure) -> list[str]:
    """The rows whose mean is not above that of one answer."""
    level = float(measure.merit([mean])[0])
    merits = {str(r["strategy"]): measure.merit([r[measure.name]["mean"]])[0] for r in rows}
    return [name for name, merit in merits.items() if float(merit) <= level]


def without_tests(results: Sequence[Result]) -> list[str]:
    """Users who are in no number, for want of test samples."""
    missing = result_fields.untested(results)
    if not missing:
        return []
    who = "1 user has no test samples and is"
    if len(missing) > 1:
        who = f"{len(missing):,} users have no test samples and are"
    return [f"{who} in no number: {listed(missing)}."]


def listed(users: Sequence[str], most: int = NOTED_USERS) -> str:
    """Users by name; of many the first."""
    more = f" and {len(users) - most:,} more" if len(users) > most else ""
    return ", ".join(users[:most]) + more


def tested(results: Sequence[Result]) -> str:
    """Numbers of users' test samples; empty if results do not say."""
    sizes = sorted(result_fields.test_sizes(results).values())
    if not sizes:
        return ""
    middle = sizes[len(sizes) // 2]
    text = f"Test samples a user: {sizes[0]:,} to {sizes[-1]:,}, "
    text += f"half of the users have {middle:,} or more."
    if sizes[0] == sizes[-1]:
        text = f"Every user has {sizes[0]:,} test samples."
    few = sum(size < 10 for size in sizes)
    if few:
        text += (
            f" {few:,} of {len(sizes):,} have fewer than 10: their own numbers are mostly chance."
        )
    return f'<p class="soft">{text}</p>'


def all_measures(results: Sequence[Result], drawn: Drawn) -> str:
    """All measures of all rows, where there are several or pooled ones: mean, spread, pooled."""
    main = shared_measure(results)
    names = {name: None for r in results for name in (r.get("measures") or {})}
    found = [MEASURES[name] for name in names]
    pooled = {m.name for m in found if any(entry(r, m).get("pooled") is not None for r in results)}
    if len(found) < 2 and not pooled:
        return ""
    found.sort(key=lambda m: m.name != main.name)
    heads, lines = ["strategy"], [[str(r["strategy"])] for r in results]
    for measure in found:
        heads.append(f"{measure.title}\nmean ± std")
        for line, result in zip(lines, results, strict=True):
            line.append(mean_of(entry(result, measure), measure))
        if measure.name in pooled:
            heads.append(f"{measure.title}\npooled")
            for line, result in zip(lines, results, strict=True):
                line.append(measure.text(entry(result, measure).get("pooled")))
    texts, css = [[*map(escape, line)] for line in lines], [drawn.line(line[0]) for line in lines]
    counted = [said for m in found if (said := counts(results, m))]
    return (
        f"<h2>All measures</h2>\n{sorted_table(heads, texts, css, kind='filters')}\n"
        '<p class="soft">Mean over users, who each count the same; pooled: over all test samples '
        f"together. {escape(' '.join(counted))}</p>"
    )


def entry(result: Result, measure: Measure) -> Mapping[str, Any]:
    """A result's words on a measure."""
    found: Mapping[str, Any] = (result.get("measures") or {}).get(measure.name) or {}
    return found


def mean_of(found: Mapping[str, Any], measure: Measure) -> str:
    """Mean and spread over users."""
    if found.get("mean") is None:
        return DASH
    spread = f" ± {measure.text(found['std'])}" if found.get("std") is not None else ""
    return measure.text(found["mean"]) + spread


def counts(results: Sequence[Result], measure: Measure) -> str:
    """Over how many users a measure is, where that is not all of them."""
    found = {
        int(users)
        for r in results
        if (users := entry(r, measure).get("users")) is not None and users < r["users"]
    }
    return f"{measure.word}: of {min(found):,} users, the others have none." if found else ""


def worse_off(results: Sequence[Result], drawn: Drawn) -> str:
    """Users whom a strategy hurts, against being alone and against one model for all."""
    found = result_fields.hurt(results)
    if not found:
        return ""
    parts = {
        than: [h for h in found if (h.than, h.kind) == than]
        for than in {(h.than, h.kind): None for h in found}
    }
    certain = any(h.certain is not None for h in found)
    tables = "\n".join(hurt_table(*than, lines, drawn) for than, lines in parts.items())
    return (
        f"<h2>Who is worse off</h2>\n{tables}\n"
        '<p class="soft">Users whose own number is worse than with the other method, by however '
        f"little; with few test samples part of it is chance.{NOISE_MEANING * certain}</p>"
    )


def hurt_table(than: str, kind: str, found: Sequence[result_fields.Hurt], drawn: Drawn) -> str:
    """All strategies against one."""
    words = "alone" if kind == "alone" else "with one model for all"
    sure = any(h.certain is not None for h in found)
    some = [h for h in found if h.users]
    none = ", ".join(h.strategy for h in found if not h.users)
    heads = ["strategy", "users", *["beyond noise"] * sure, "who, the worst hurt first"]
    values = [[None, h.share, *[h.certain] * sure, None] for h in some]
    css = [drawn.line(h.strategy) for h in some]
    lines = [hurt_line(h, sure) for h in some]
    table = sorted_table(heads, lines, css, values, "filters words") if some else ""
    nobody = f'<p class="soft">Nobody: {escape(none)}.</p>' if none else ""
    return f"<h3>Worse off than {words} ({escape(than)})</h3>\n{table}{nobody}"


def hurt_line(found: result_fields.Hurt, sure: bool) -> list[str]:
    """One strategy: how many, how large a share, who."""
    count, first, rest = len(found.users), found.users[:5], found.users[5:NOTED_USERS]
    who = escape(", ".join(first)) or DASH
    if rest:
        more = f" and {count - NOTED_USERS:,} more" if count > NOTED_USERS else ""
        who = f"<details><summary>{who}, ...</summary>{escape(', '.join(rest))}{more}</details>"
    beyond = [DASH if found.certain is None else f"{found.certain:,}"] * sure
    return [escape(found.strategy), f"{count:,} ({100 * found.share:.1f}%)", *beyond, who]


def wide(heads: Iterable[str], body: str) -> str:
    """A table of lines that are markup already."""
    head = "".join(f"<th>{escape(h).replace(chr(10), '<br>')}</th>" for h in heads)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'

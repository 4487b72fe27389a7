"""The table of the bench: on the terminal, as CSV and as LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from rich import box
from rich.text import Text

from corsage.app.bench.audit import audit
from corsage.app.bench.journal import BenchFolder
from corsage.app.bench.rows import NEW_SAMPLES, Beside, Results
from corsage.app.output.summary import human_bytes, human_seconds
from corsage.app.output.terminal import Airy, Name, heads, terminal
from corsage.app.studies.means_table import BOLD, signed, tabular, within
from corsage.app.studies.over_seeds import Difference
from corsage.core.files import guarded, write_atomically
from corsage.core.measures import DASH, Measure

Cell = Callable[[Beside, Sequence[Beside]], str]
"""The text of a row among those of its set."""
BENCH_TITLES = (
    *("row", "{}\n± sd", "over\nsamples", "worst\n10%", "to\nFedAvg+FT", "95%\nseeds"),
    *("95%\nusers", "hurt vs\nalone", "alone,\n> noise", "hurt vs\nFT", "FT,\n> noise"),
    *("others'\ndata", "new\n5", "new\n20", "new\nall"),
    *("new 5\nto FT", "95%\nusers", "new 20\nto FT", "95%\nusers", "new all\nto FT", "95%\nusers"),
    *("beat\nconstant", "default→\ntuned", "best round\nadds", "rounds\nto 95%", "bytes", "CPU"),
)

SHOWN = (0, 1, 3, 4, 5, 8, 10, 11, 14, 22, 26)
"""The columns that the terminal has room for; the page and the CSV file have all."""


def cells(one: Beside) -> list[str]:
    """The texts of a row."""
    entry = one.entry
    if not entry.results:
        return [entry.row, "no result", *[""] * (len(BENCH_TITLES) - 2)]
    study, found = entry.study, one.difference
    measure = entry.measure
    text = measure.text
    up, down = entry.average("bytes_up"), entry.average("bytes_down")
    hurt = [share for kind in ("alone", "together") for share in one.hurt.get(kind, (None, None))]
    return [
        entry.row,
        f"{text(study.mean)} ± {text(study.sd)}" if study.sd is not None else text(study.mean),
        text(entry.average("over_samples")), text(entry.average("worst10")),
        signed(found.mean, measure) + one.star if found else "",
        within(found.over_seeds, measure) if found else "",
        within(found.over_users, measure) if found else "",
        *map(percent, hurt),
        text(entry.others), *(text(entry.new_users(samples)) for samples in NEW_SAMPLES),
        *(word for samples in NEW_SAMPLES for word in apart(one.new.get(samples), measure)),
        "" if one.beats is None else f"{one.beats[0]}/{one.beats[1]}",
        gained(entry.gain, measure), gained(entry.inflation, measure),
        DASH if entry.rounds_to_most is None else f"{entry.rounds_to_most:.0f}",
        DASH if up is None or down is None else human_bytes(up + down),
        DASH if entry.cpu is None else human_seconds(entry.cpu),
    ]  # fmt: skip


def apart(found: Difference | None, measure: Measure) -> tuple[str, str]:
    """A difference, and its interval over users."""
    return (signed(found.mean, measure), within(found.over_users, measure)) if found else ("", "")


def gained(value: float | None, measure: Measure) -> str:
    """A difference, if there is one."""
    return DASH if value is None else signed(value, measure)


def percent(share: float | None) -> str:
    """A share in percent."""
    return DASH if share is None else f"{100 * share:.0f}%"


def titles(group: Sequence[Beside]) -> list[str]:
    """The heads of a set's columns."""
    measure = next((one.entry.measure for one in group if one.entry.results), None)
    return [title.format(measure.title if measure else "score") for title in BENCH_TITLES]


def numbers(one: Beside) -> dict[str, object]:
    """The numbers of a row, as they are and not as they are shown."""
    entry, found = one.entry, one.difference
    if not entry.results:
        return {"row": entry.row, "failed": entry.failed}
    seeds, users = (found.over_seeds, found.over_users) if found else (None, None)
    nobody = (None, None)
    return {
        "row": entry.row, "measure": entry.measure.name, "seeds": len(entry.results),
        "mean": entry.study.mean, "sd": entry.study.sd,
        "over samples": entry.average("over_samples"), "worst tenth": entry.average("worst10"),
        "to fedavg+ft": found and found.mean, "p by Holm": found and one.p_value,
        "seeds low": seeds and seeds.low, "seeds high": seeds and seeds.high,
        "users low": users and users.low, "users high": users and users.high,
        **dict(zip(HURT_COLUMNS, (share for kind in ("alone", "together")
                                  for share in one.hurt.get(kind, nobody)), strict=True)),
        "others' data": entry.others,
        **{name: entry.new_users(samples) for name, samples in NEW_COLUMNS.items()},
        **{f"{name}{end}": value for name, samples in NEW_COLUMNS.items()
           for end, value in ends(one.new.get(samples)).items()},
        **dict(zip(("beats constant", "of"), one.beats or nobody, strict=True)),
        "tuned minus default": entry.gain, "best round minus last": entry.inflation,
        "rounds to 95%": entry.rounds_to_most, "bytes up": entry.average("bytes_up"),
        "bytes down": entry.average("bytes_down"), "CPU seconds": entry.cpu,
    }  # fmt: skip


def ends(found: Difference | None) -> dict[str, float | None]:
    """A difference to FedAvg+FT as columns: its mean, and its intervals' ends."""
    seeds, users = (found.over_seeds, found.over_users) if found else (None, None)
    return {
        " to fedavg+ft": found.mean if found else None,
        ", seeds low": seeds.low if seeds else None, ", seeds high": seeds.high if seeds else None,
        ", users low": users.low if users else None, ", users high": users.high if users else None,
    }  # fmt: skip


def sorting(one: Beside) -> list[float | None]:
    """Keys by which the cells of a row are sorted; None: their words, or nothing."""
    found = {key: value for key, value in numbers(one).items() if isinstance(value, int | float)}
    won, up = found.get("beats constant"), found.get("bytes up")
    return [
        None,
        *map(found.get, ("mean", "over samples", "worst tenth", "to fedavg+ft", "seeds low")),
        *map(found.get, ("users low", *HURT_COLUMNS, "others' data", *NEW_COLUMNS)),
        *(found.get(name + end) for name in NEW_COLUMNS
          for end in (" to fedavg+ft", ", users low")),
        None if won is None else won / found["of"],
        *map(found.get, ("tuned minus default", "best round minus last", "rounds to 95%")),
        None if up is None else up + found["bytes down"], found.get("CPU seconds"),
    ]  # fmt: skip


NEW_COLUMNS = dict(zip(("new after 5", "new after 20", "new after all"), NEW_SAMPLES, strict=True))
"""The columns of new users, and after how many samples."""
HURT_COLUMNS = ("hurt vs alone", "hurt vs alone beyond noise", "hurt vs fedavg+ft",
                "hurt vs fedavg+ft beyond noise")  # fmt: skip


def csv_text(results: Results) -> str:
    """A line a set and row, of numbers as they are."""
    lines = [{"set": name, **numbers(one)} for name, own in results.sets.items() for one in own]
    names = dict.fromkeys(key for line in lines for key in line)
    out = io.StringIO()
    writer = csv.DictWriter(out, [*names], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def to_latex(results: Results) -> str:
    """Tables of means, of others' data and of new users: a line a row, a column a set."""
    tables: dict[str, Cell] = {
        "the mean over users; the best of a set is bold": mean_of,
        "others' data": lambda one, _: one.entry.measure.text(one.entry.others),
        "new users, with all of their samples; a star where their interval leaves out 0": new_cell,
    }
    rows = dict.fromkeys(one.entry.row for group in results.sets.values() for one in group)
    at = {(n, o.entry.row): o for n, group in results.sets.items() for o in group}

    def text(name: str, row: str, cell: Cell) -> str:
        one = at.get((name, row))
        return cell(one, results.sets[name]) if one and one.entry.results else DASH

    lines = {
        title: [[row, *(text(name, row, cell) for name in results.sets)] for row in rows]
        for title, cell in tables.items()
    }
    return "\n".join(
        f"% {title}\n{tabular(['', *results.sets], own)}" for title, own in lines.items()
    )


def new_cell(one: Beside, group: Sequence[Beside]) -> str:
    """The score of new users, starred if it differs from FedAvg+FT's over the users."""
    found = one.new.get(0)
    sure = found is not None and found.over_users is not None and found.over_users.excludes_zero
    return one.entry.measure.text(one.entry.new_users(0)) + "*" * sure


def mean_of(one: Beside, group: Sequence[Beside]) -> str:
    """The mean and its deviation, bold if it is the best of its set."""
    return BOLD * (one.entry.merit == group[0].entry.merit) + cells(one)[1]


def drawn(name: str, group: Sequence[Beside]) -> Airy:
    """The table of a set for the terminal."""
    table = Airy(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim", title=name
    )
    lines = [cells(one) for one in group]
    shown = [k for k in SHOWN if not k or any(line[k] not in ("", DASH) for line in lines)]
    names = titles(group)
    heads(table, [names[k] for k in shown])
    for line in lines:
        table.add_row(Name(line[0], ""), *(Text(line[k]) for k in shown[1:]))
    return table


def overview(results: Results, cell: Cell, title: str) -> Airy:
    """A line a row, a column a set."""
    table = Airy(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim", title=title
    )
    heads(table, ["row", *(name.replace("-", "\n") for name in results.sets)])
    texts: dict[str, dict[str, str]] = {}
    for name, group in results.sets.items():
        for one in (one for one in group if one.entry.results):
            texts.setdefault(one.entry.row, {})[name] = cell(one, group)
    order = results.ranks.means
    for row in sorted(texts, key=lambda row: order.get(row, math.inf)):
        table.add_row(Name(row, ""), *(Text(texts[row].get(name, DASH)) for name in results.sets))
    return table


def marked(one: Beside, group: Sequence[Beside]) -> str:
    """The mean; the best of its set, and what differs from FedAvg+FT, are marked."""
    best = "◂" if one.entry.merit == group[0].entry.merit else one.star
    return one.entry.measure.text(one.entry.study.mean) + best


def alone(one: Beside, group: Sequence[Beside]) -> str:
    """The share of users who are better off alone, beyond noise."""
    return percent(one.hurt["alone"][1]) if "alone" in one.hurt else DASH


def audited(results: Results) -> Iterator[str]:
    """The effect of each choice on the rankings, in a line."""
    for what, group in groupby(audit(results), key=lambda one: one.what):
        own = [*group]
        moved = [f"{one.place} ({one.instead} for {one.first})" for one in own if one.moved_first]
        taus = [one.tau for one in own]
        yield (
            f"By {what}: Kendall's tau {min(taus):.2f} to {max(taus):.2f}; "
            f"another is first on {', '.join(moved) or 'no set'}."
        )


def conclude(folder: BenchFolder) -> None:
    """Show the table, and write it down."""
    from corsage.app.bench.page import page

    results = Results.of([*folder.lines.values()], folder.costs)
    show(results)
    for file, text in (
        ("table.csv", csv_text(results)), ("table.tex", to_latex(results)),
        ("report.html", page(results, folder)),
    ):  # fmt: skip
        guarded(write_atomically, folder.folder / file, text)
    place = f"Bench folder: {folder.folder}"
    terminal().print(place, soft_wrap=True, highlight=False)


def show(results: Results) -> None:
    """Show all on the terminal: each set, the means, and what holds over the sets."""
    console = terminal()
    for name, group in results.sets.items():
        console.print(drawn(name, group), crop=False)
        console.print()
    if len(results.sets) > 1:
        for cell, title in ((marked, "Means"), (alone, "Users better off alone, beyond noise")):
            console.print(overview(results, cell, title), crop=False)
            console.print()
    own = results.ranks
    if own.rows:
        best = sorted(own.means.items(), key=lambda item: item[1])
        console.print("Mean ranks: " + ", ".join(f"{row} {rank:.1f}" for row, rank in best))
    for note in [*audited(results), *results.notes()]:
        console.print(note, highlight=False)

"""A study's table on the terminal."""

from __future__ import annotations

from rich import box
from rich.text import Text

from corsage.app.output.notes import uneven
from corsage.app.output.summary import human_bytes, human_count, human_seconds, plain
from corsage.app.output.terminal import Airy, Name, heads, terminal
from corsage.app.studies.comparison import Study
from corsage.app.studies.over_seeds import Compared, Interval, StudyRow
from corsage.core.measures import DASH, Measure


def titles_of(study: Study) -> list[str]:
    """The heads of the columns."""
    measure = study.rows[0].measure
    several = "± sd over seeds" if len(study.seeds) > 1 else "of one seed"
    return [
        "strategy", *study.settings, f"{measure.title}\n{several}", "std over\nusers",
        "over\nsamples", "worst\n10%", "to the\nbest", "95%\nover seeds", "95%\nover users",
        "steps\na user", "bytes", "time",
    ]  # fmt: skip


def cells(one: Compared, study: Study) -> list[str]:
    """A row's line; a row that not every seed has says how many do."""
    row, found = one.row, one.difference
    text = row.measure.text
    middle = f"{text(row.mean)} ± {text(row.sd)}" if row.sd is not None else text(row.mean)
    seeds = within(found.over_seeds, row.measure) if found else ""
    users = within(found.over_users, row.measure) if found else ""
    mean = signed(found.mean, row.measure) if found else "best" if one.only_best else ""
    seen, asked = len(row.seeds), len(study.seeds)
    some = f" ({seen} of {asked} seeds)" if seen < asked else ""
    return [
        row.strategy + some, *(row.settings.get(key, DASH) for key in study.settings), middle,
        text(row.over_users), DASH if (all_of := over_samples(row)) is None else text(all_of),
        text(row.average("worst10")), mean, seeds, users,
        *costs(row),
    ]  # fmt: skip


def over_samples(row: StudyRow) -> float | None:
    """The mean over test samples instead of users, where these have unequal numbers of them."""
    return row.average("over_samples") if any(map(uneven, row.by_seed.values())) else None


def costs(row: StudyRow) -> list[str]:
    """Gradient steps, bytes both ways and seconds of a run."""
    steps, seconds = row.average("gradient_steps"), row.average("seconds")
    up, down = row.average("bytes_up"), row.average("bytes_down")
    return [
        DASH if steps is None else human_count(steps),
        DASH if up is None or down is None else human_bytes(up + down),
        DASH if seconds is None else human_seconds(seconds),
    ]


def signed(value: float, measure: Measure) -> str:
    """A difference as it is shown, with its sign."""
    shown = measure.text(abs(value))
    sign = "" if float(shown) == 0 else "+" if value > 0 else "\N{MINUS SIGN}"
    return sign + shown


def within(interval: Interval | None, measure: Measure) -> str:
    """An interval as it is shown."""
    if interval is None:
        return DASH
    return f"[{signed(interval.low, measure)}, {signed(interval.high, measure)}]"


def study_table(study: Study) -> Airy:
    """One line a row, and below it what a reader must know."""
    table = Airy(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    lines, titles = [cells(one, study) for one in study.compared], titles_of(study)
    shown = [
        place
        for place in range(len(titles))
        if not place or any(line[place] not in ("", DASH) for line in lines)
    ]
    heads(table, [titles[place] for place in shown])
    for one, line in zip(study.compared, lines, strict=True):
        style = "bold" if one.only_best else ""
        table.add_row(Name(line[0], style), *(Text(line[place], style) for place in shown[1:]))
    table.caption = Text("\n".join(study.notes()))
    table.caption_justify = "left"
    return table


def show(study: Study) -> None:
    """Print it, and where it lies."""
    console = terminal()
    if study.rows:
        console.print(study_table(study), crop=False)
    else:
        console.print("\n".join(study.notes()), highlight=False)
    if study.folder:
        console.print(f"Study folder: {study.folder}", soft_wrap=True, highlight=False)


def as_text(study: Study) -> str:
    """It as plain text."""
    if not study.rows:
        return "\n".join(study.notes())
    return plain(study_table(study))

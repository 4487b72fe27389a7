"""A study's table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

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


def sorting(one: Compared, study: Study) -> list[float | None]:
    """Numbers by which the cells of a line are sorted; None: their words."""
    row, found = one.row, one.difference
    up, down = row.average("bytes_up"), row.average("bytes_down")
    ends = [i and i.low for i in (found.over_seeds, found.over_users)] if found else [None, None]
    return [
        None, *(None for _ in study.settings), row.mean, row.over_users, over_samples(row),
        row.average("worst10"), found.mean if found else 0.0, *ends,
        row.average("gradient_steps"), None if up is None or down is None else up + down,
        row.average("seconds"),
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


def filled(study: Study) -> tuple[list[int], list[str], list[list[str]]]:
    """The columns in which some row has something: their places, heads and lines."""
    lines, titles = [cells(one, study) for one in study.compared], titles_of(study)
    shown = [
        place
        for place in range(len(titles))
        if not place or any(line[place] not in ("", DASH) for line in lines)
    ]
    return shown, [titles[k] for k in shown], [[line[k] for k in shown] for line in lines]


class TableText(str):
    """A study's table as the terminal shows it, and as LaTeX."""

    study: Study

    @classmethod
    def of(cls, study: Study) -> TableText:
        """That of a study."""
        made = cls(as_text(study))
        made.study = study
        return made

    def to_latex(self) -> str:
        """The table as a `tabular`; the row that is best for certain is bold."""
        _, titles, lines = filled(self.study)
        bold = [one.only_best for one in self.study.compared]
        return tabular([" ".join(title.split()) for title in titles], lines, bold)


def tabular(
    titles: Sequence[str], lines: Sequence[Sequence[str]], bold: Sequence[bool] | None = None
) -> str:
    """Texts as LaTeX's `tabular`, names at the left and numbers at the right.

    `bold` : of each line, whether it is; without it cells say so themselves, by `BOLD` in front.
    """
    strong = [BOLD * one for one in bold or [False] * len(lines)]
    body = [[latex(first + c) for c in own] for first, own in zip(strong, lines, strict=True)]
    rows = [" & ".join(own) + r" \\" for own in [[*map(latex, titles)], *body]]
    head = r"\begin{tabular}{l" + "r" * (len(titles) - 1) + "}"
    return "\n".join(
        [head, r"\hline", rows[0], r"\hline", *rows[1:], r"\hline", r"\end{tabular}", ""]
    )


BOLD = "\0"
"""Stands in front of a bold cell."""
LATEX = {
    **{one: "\\" + one for one in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": "$<$", ">": "$>$", "|": r"\textbar{}", "±": r"$\pm$", "\u2192": r"$\to$",
    "\N{MINUS SIGN}": "$-$", DASH: "--",
}  # fmt: skip


def latex(text: str) -> str:
    """Text as LaTeX writes it, bold if it says so."""
    own = text.removeprefix(BOLD)
    written = "".join(LATEX.get(letter, letter) for letter in own)
    return rf"\textbf{{{written}}}" if own != text and own else written


def study_table(study: Study) -> Airy:
    """One line a row, and below it what a reader must know."""
    table = Airy(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    _, titles, lines = filled(study)
    heads(table, titles)
    for one, line in zip(study.compared, lines, strict=True):
        style = "bold" if one.only_best else ""
        table.add_row(Name(line[0], style), *(Text(cell, style) for cell in line[1:]))
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

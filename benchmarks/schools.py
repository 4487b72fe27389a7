"""A file of 139 schools, as an analyst has one: pupils of very unequal schools, words, gaps.

The shape is that of a well-known survey (High School and Beyond): a score, the pupil's
socio-economic status, sex as a word, whether of a minority, and the school's sector. The numbers
are drawn; what they were drawn from is in `TRUTH`.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

SCHOOLS, PUPILS, MOST = 139, 60, 200
TRUTH = {"ses": 2.2, "sex=male": 1.2, "minority": -2.9, "intercept": 12.0}
"""Coefficients of the model of all."""
SECTORS = {"public": -0.8, "catholic": 1.2, "private": 0.4}
SCHOOL_SD, NOISE_SD = 1.6, 6.0
HEADER = ("school", "sector", "sex", "ses", "minority", "score")


def sizes(rng: np.random.Generator) -> list[int]:
    """Pupils of each school: 1 to 200, about 60 in the mean; the first three have 1, 2 and 200."""
    drawn = np.clip(np.rint(rng.gamma(1.6, PUPILS / 1.6, SCHOOLS)), 1, MOST).astype(int)
    drawn[:3] = 1, 2, MOST
    return [int(size) for size in drawn]


def pupils(seed: int = 0, gaps: float = 0.02) -> list[tuple[Any, ...]]:
    """The rows of the file; a share of `gaps` of the statuses is missing."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[Any, ...]] = []
    for number, size in enumerate(sizes(rng)):
        sector = list(SECTORS)[int(rng.choice(3, p=[0.55, 0.35, 0.1]))]
        place = SECTORS[sector] + SCHOOL_SD * rng.standard_normal()
        status, share = 0.4 * rng.standard_normal(), rng.beta(1, 2.5)
        for _ in range(size):
            ses = round(status + 0.65 * rng.standard_normal(), 3)
            male, minority = bool(rng.random() < 0.47), int(rng.random() < share)
            score = TRUTH["intercept"] + place + TRUTH["ses"] * ses + TRUTH["sex=male"] * male
            score += TRUTH["minority"] * minority + NOISE_SD * rng.standard_normal()
            shown = "" if rng.random() < gaps else ses
            sex = "male" if male else "female"
            rows.append((f"s{number + 1}", sector, sex, shown, minority, round(score, 3)))
    return rows


def write_schools(path: Path, seed: int = 0, gaps: float = 0.02) -> Path:
    """The file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows(pupils(seed, gaps))
    return path

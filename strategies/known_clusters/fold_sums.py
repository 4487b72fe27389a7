"""The exchange in which users send the sums of folds of their rows, and what is said of these."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from corsage.core.arrays import Arrays, Floats
from corsage.solvers.known_clusters.folds import HELD_OUT_FOLDS
from corsage.strategies.known_clusters.clusters.cohorts import Cohort, Present
from corsage.strategies.known_clusters.coins.conversation import Request, ask_each, check_enough
from corsage.strategies.known_clusters.coins.impossible import quadratic_fault
from corsage.strategies.known_clusters.kept_sums import KeptSums
from corsage.strategies.known_clusters.mixed_solution import MixedSolution
from corsage.strategies.known_clusters.own_sums import TRAVELLED, note_floor
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.turns import Script

EVERYBODY_IN = "all"
"""The cluster of everybody, before any group is known."""
FEW_ROWS = 2


def asked(solution: MixedSolution, present: Present) -> Script[KeptSums]:
    """The sums of all users, and of each fold."""
    conversation = ask_each(solution.job, present, partial(question, solution), counted=True)
    replies = yield conversation
    check_enough(solution.job, 0, replies)
    answers = [answer for own in conversation.found.values() for answer in own]
    note_floor(solution.job, answers)
    rows = np.concatenate([answer.rows["folds"] for answer in answers])
    note_folds(solution.job, rows[..., -1])
    users = [user for answer in answers for user in answer.cohort.users]
    clusters = [EVERYBODY_IN] * len(users)
    folds = [
        KeptSums(users, clusters, own[:, -1], np.ascontiguousarray(own[:, :-1]))
        for own in rows.swapaxes(0, 1)
    ]
    whole = rows.sum(1)
    return KeptSums(users, clusters, whole[:, -1], np.ascontiguousarray(whole[:, :-1]), folds)


def question(solution: MixedSolution, cohort: Cohort) -> Request:
    """The question to a cohort."""
    d, users, members = solution.size, len(cohort.users), solution.job.members.everybody
    template = {"folds": np.zeros((users, HELD_OUT_FOLDS, d * (d + 1) // 2 + d + 2))}
    counts = [members[user].train for user in cohort.users]
    intercept = solution.job.config.model.intercept
    fault = partial(fold_fault, d=d, counts=counts, intercept=intercept)
    options = {"ask": "fold-sums", "each": True} if users > 1 else {"ask": "fold-sums"}
    return Request(cohort, {}, options, template, TRAVELLED[2:], fault, each=True)


def fold_fault(rows: Arrays, d: int, counts: Sequence[int], intercept: bool) -> str:
    """Sums of folds are of squares, and together those of all records, or of none."""
    folds, whole = rows["folds"], rows["folds"].sum(1)
    some = whole[:, -1] > 0
    if (folds[..., -1] < 0).any() or (whole[some, -1] != np.array(counts)[some]).any():
        return "its sums cannot be: its folds are not of all its records"
    parts = folds[..., :-1].reshape(-1, folds.shape[2] - 1)
    known = folds[..., -1].ravel().tolist() if intercept else []
    return quadratic_fault({"sums": parts}, d, True, known)


def note_folds(job: Job, counts: Floats) -> None:
    """Say whose folds are fewer, and whose are of so few rows that they are nearly these."""
    there = counts > 0
    few = (there.sum(1) < HELD_OUT_FOLDS).sum()
    near = ((counts <= FEW_ROWS) & there).any(1).sum()
    if few:
        job.note(
            f"mixed-grouping=found: {few:,} of {len(counts):,} users have rows for fewer folds"
        )
    if near and not job.members.at_home:
        job.note(
            f"mixed-grouping=found: {near:,} users sent sums of {FEW_ROWS} rows or "
            "fewer, which are nearly the rows; a larger min-share makes larger folds"
        )

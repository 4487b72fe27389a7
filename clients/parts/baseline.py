"""Scores without any model: of one answer a user, which its own training labels give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from corsage.clients.parts.contract import Got
from corsage.core.arrays import Array, Floats, Ints
from corsage.core.counts import EXAMPLES
from corsage.core.measures import Measure, baseline_of
from corsage.networks.batches import Examples
from corsage.networks.criterion import Criterion
from corsage.networks.outcome_counts import Outcome, counts

if TYPE_CHECKING:
    from corsage.clients.base import Client


def baselines_of(client: Client[Any], got: Got, test: Examples) -> Mapping[str, NDArray[Any]]:
    """The scores of a client's users by one answer each, the best for their training labels."""
    limit, measures = int(got.options.get("adapt-samples", 0)), client.measures
    key = id(client.data), client.names, limit, measures, client.task.seed, "baselines"

    def make() -> Mapping[str, NDArray[Any]]:
        labels, sizes = client.samples.labels(limit)
        criterion, classes = client.network.criterion, client.task.num_classes
        return baselines(criterion, labels, sizes, test, measures, classes)

    return client.cache.get(key, make)


def baselines(
    criterion: Criterion,
    known: Array,
    sizes: Ints,
    test: Examples,
    measures: Sequence[Measure],
    classes: int,
) -> dict[str, Floats]:
    """Each user's measures if its model were one answer; 0 where its test data have no such value.

    Parameters
    ----------
    known, sizes : the users' training labels, one user after the other. Of numbers the answer is
        their mean, of classes how frequent each of them is (with one more sample of every class, so
        that none is impossible).
    test : whose labels are to be guessed.
    classes : how many there are; 0: labels are numbers.
    """
    width = criterion.outputs(classes)
    answers = means_of(known, sizes) if criterion.numbers else log_odds(known, sizes, width)
    outputs = criterion.link(torch.from_numpy(np.repeat(answers, test.sizes, axis=0)))
    outputs = outputs.to(test.y.device)
    n = np.maximum(test.sizes, 1).astype(np.float64)
    found = {**counts(Outcome(criterion, outputs, test), measures), EXAMPLES: n}
    return {baseline_of(one): np.nan_to_num(one.user(found)) for one in measures}


def means_of(labels: Array, sizes: Ints) -> Floats:
    """The mean of each user's labels (users, 1); 0 of none."""
    starts, found = np.cumsum(sizes) - sizes, np.zeros((len(sizes), 1))
    for size in np.unique(sizes[sizes > 0]).tolist():  # rows of one length, each summed as it is
        users = np.flatnonzero(sizes == size)
        found[users, 0] = labels[starts[users, None] + np.arange(size)].mean(1)
    return found


def log_odds(labels: Array, sizes: Ints, outputs: int) -> Floats:
    """log(n_c + 1) of each user and class, or with one output the odds of the second class."""
    width, users = max(outputs, 2), len(sizes)
    places = np.repeat(np.arange(users), sizes) * width + labels.astype(np.int64)
    counts = np.bincount(places, minlength=users * width).reshape(users, width) + 1.0
    return np.asarray(np.log(counts) if outputs > 1 else np.log(counts[:, 1:] / counts[:, :1]))

"""What a user would score without any model: by one answer that its own training labels give it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from corsage.core.arrays import Array, Floats
from corsage.core.measures import Measure, baseline_of
from corsage.core.schema import EXAMPLES
from corsage.networks.batches import Examples
from corsage.networks.counts import Outcome, counts
from corsage.networks.criterion import Criterion


def baselines(
    criterion: Criterion,
    known: Sequence[Array],
    test: Examples,
    measures: Sequence[Measure],
    classes: int,
) -> dict[str, Floats]:
    """Each user's measures if its model were one answer; 0 where its test data have no such value.

    Parameters
    ----------
    known : each user's training labels. Of numbers the answer is their mean, of classes how
        frequent each of them is (with one more sample of every class, so that none is impossible).
    test : whose labels are to be guessed.
    classes : how many there are; 0: labels are numbers.
    """
    width = criterion.outputs(classes)
    answers = np.array([answer(labels, width, criterion.numbers) for labels in known])
    outputs = torch.from_numpy(np.repeat(answers, test.sizes, axis=0)).to(test.y.device)
    n = np.maximum(test.sizes, 1).astype(np.float64)
    found = {**counts(Outcome(criterion, outputs, test), measures), EXAMPLES: n}
    return {baseline_of(one): np.nan_to_num(one.user(found)) for one in measures}


def answer(labels: Array, outputs: int, numbers: bool) -> Floats:
    """What a model would put out that knows these labels, and nothing of any sample."""
    if numbers:
        return np.array([labels.mean() if len(labels) else 0.0], np.float64)
    counts = np.bincount(labels.astype(np.int64), minlength=max(outputs, 2)) + 1.0
    return np.asarray(np.log(counts) if outputs > 1 else np.log(counts[1:] / counts[:1]))

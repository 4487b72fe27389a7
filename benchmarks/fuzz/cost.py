"""Cost of reading replies: milliseconds a message, and memory when one is hostile."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from statistics import median

import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from corsage.app.local_grid import LocalGrid
from corsage.benchmarks.fuzz.attacks import of_arrays
from corsage.core.counts import Number
from corsage.core.messages.encoding import decode, encode
from corsage.core.messages.replies import merge_replies
from corsage.core.messages.schema import Schema

NODES = 4


def replies(size: int, nodes: int = NODES) -> tuple[list[Message], dict[int, list[str]], Schema]:
    """Good replies of one user each, with a model of so many numbers."""
    LocalGrid(ClientApp(), 1)  # sets the identity that Flower needs to make a message
    found, asked = [], {}
    for node in range(2, nodes + 2):
        user, rng = str(node), np.random.default_rng(node)
        model = rng.normal(size=size).astype(np.float32)
        content = RecordDict(
            {
                "arrays": encode({"model": model}),
                "metrics": MetricRecord({"num-examples": [10], "loss": [0.5]}),
                "config": ConfigRecord({"users": [user], "kept": True}),
            }
        )
        found.append(Message(content, reply_to=Message(RecordDict(), node, "train")))
        asked[node] = [user]
    template = {"model": np.zeros(size, np.float32)}
    samples = {user: 10 for users in asked.values() for user in users}
    return found, asked, Schema(template, (), (Number("loss", low=0.0),), samples)


def peak(came: list[Message], asked: dict[int, list[str]], schema: Schema) -> int:
    """The most bytes that reading and merging has at once, besides what came."""
    tracemalloc.start()
    try:
        merge_replies(came, asked, schema)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak_ratio(size: int = 500_000) -> tuple[float, str]:
    """The peak when one reply is hostile, over that of good replies: the worst attack, and which.

    What the hostile reply itself takes is there before: it has come.
    """
    usual = peak(*replies(size))
    worst, which = 0.0, ""
    for attack in of_arrays():
        came, asked, schema = replies(size)
        if attack.change(came[0].content, np.random.default_rng(0)) is False:
            continue
        ratio = peak(came, asked, schema) / usual
        worst, which = max((worst, which), (ratio, attack.name))
    return worst, which


def milliseconds(size: int = 10_000, nodes: int = 50, times: int = 15) -> tuple[float, float]:
    """A message: to read and merge it, and what decoding its arrays takes alone."""
    came, asked, schema = replies(size, nodes)

    def taken(work: Callable[[], object]) -> float:
        seconds = []
        for _ in range(times):
            begin = time.process_time()
            work()
            seconds.append(time.process_time() - begin)
        return 1e3 * median(seconds) / nodes

    whole = taken(lambda: merge_replies(came, asked, schema))
    return whole, taken(lambda: [decode(m.content.array_records["arrays"]) for m in came])

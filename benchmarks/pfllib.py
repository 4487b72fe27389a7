"""The problem on which the rivals were measured, end to end through the house.

Fashion-MNIST, 100 users with exactly two distinct classes each (partition=classes: 20 users a
class, the 70,000 images one pool), 600 training and 100 test images a user, 10 users a round,
batches of 50, lr .01, no momentum, no weight decay; FedRep has 10 epochs of the head and one of the
body, FedAvg one epoch. Models: PFLlib's CNN of 582,026 parameters, and the MLP 784-100-10. The
best rivals' shares of a bare loop on it: PFLlib's .95 (FedRep CNN), 1.7 and 3 (MLP, FedRep and
FedAvg), pfl-research's .73 (FedAvg CNN).

Time: rounds of training through strategy, messages, client app and client, by turns with a bare
loop of the same SGD steps on tensors that are ready. Memory and accuracy: a process of its own runs
`corsage.run_simulation`, run folder, checkpoints, plots and the preparation of the data included.
PFLlib's own accuracy at round 100 is the target; its early curve mostly counts who has been drawn
once, so participants and users that were never drawn are told apart.

    python -m corsage.benchmarks pfllib
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corsage.app.command import run as run_command
from corsage.app.results.metrics import read_rows
from corsage.benchmarks.bare_loop import USERS, plain_model, user_rounds
from corsage.benchmarks.measure import Measure
from corsage.benchmarks.turns import Turns, take, training_data, unevaluated
from corsage.core.configuration.config import Config
from corsage.core.errors import CorsageError
from corsage.experiments.runner import say

SAMPLES, ROUNDS, LIMIT = 600, 100, 800.0  # images a user, rounds for the accuracy, MB
PROBLEM: dict[str, Any] = {
    "dataset": "fashion-mnist",
    "partition": "classes",
    "classes-per-user": 2,
    "num-users": 100,
    "test-fraction": 1 / 7,
    "fraction-train": 0.1,
    "batch-size": 50,
    "lr": 0.01,
    "momentum": 0.0,
    "weight-decay": 0.0,
    "local-epochs": 1,
    "head-epochs": 10,
    "fine-tune-epochs": 0,
}
CNN: dict[str, Any] = {"model": "cnn"}
MLP: dict[str, Any] = {"model": "mlp", "hidden": "100"}


@dataclass(frozen=True)
class Case:
    """One column of the rivals' table.

    Parameters
    ----------
    title, strategy, model : what is run; `model` are its keys.
    turns : how many rounds are timed; those of the MLP are a hundred times as short.
    share : of the bare loop's CPU seconds, at most.
    accuracy : PFLlib's at round 100, if it was measured.
    """

    title: str
    strategy: str
    model: dict[str, Any]
    turns: int
    share: float
    accuracy: float | None = None

    @property
    def keys(self) -> dict[str, Any]:
        """All keys of the case."""
        return {**PROBLEM, **self.model, "strategy": self.strategy}


CASES = [
    Case("FedRep CNN", "fedrep", CNN, 3, 0.27, 0.955),
    Case("FedAvg CNN", "fedavg", CNN, 5, 0.75),
    Case("FedRep MLP", "fedrep", MLP, 15, 0.4, 0.938),
    Case("FedAvg MLP", "fedavg", MLP, 25, 1.0),
]


def speed(case: Case) -> Measure:
    """CPU seconds of a round of training, as a share of the bare loop's."""
    config = unevaluated(case.keys)
    turns = take(Turns(case.turns, bare_round(case, config)), config)
    house, loop = turns.seconds
    beside = f"CPU s a round: bare loop {loop:.3f}, Corsage {house:.3f} ({case.turns} turns)"
    return Measure(f"{case.title}: training", turns.ratio, case.share, "of bare", beside)


def bare_round(case: Case, config: Config) -> Callable[[], None]:
    """The same SGD steps for ten users, without a house."""
    keys, data = config.train, training_data(config, USERS)
    if set(data.sizes.tolist()) != {SAMPLES}:
        raise CorsageError(f"pfllib: users of {set(data.sizes.tolist())} samples, not {SAMPLES}.")
    model = plain_model(config.model)
    return lambda: user_rounds(case.strategy == "fedrep", model, data, keys)


def whole(case: Case) -> list[Measure]:
    """Peak memory of a process that runs the case, and the accuracy that it comes to.

    Where no accuracy was measured, two rounds show the memory: each has all users' evaluation.
    """
    rounds = ROUNDS if case.accuracy is not None else 2
    with tempfile.TemporaryDirectory() as folder:
        places = {"run-dir": folder, "cache-dir": folder}
        keys = {**case.keys, **places, "num-rounds": rounds, "evaluate-every": 20}
        words = [f"{name}={value}" for name, value in keys.items()]
        command = [sys.executable, "-m", "corsage.benchmarks.pfllib", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CorsageError(f"pfllib: the run failed: {done.stderr.strip()[-500:]}")
        rows = read_rows(next(Path(folder).glob(f"*/{case.strategy}")))
    peak = float(done.stdout.split()[-1])
    beside = f"one process, {rounds} rounds, run folder and preparation of the data included"
    found = [Measure(f"{case.title}: peak memory", peak, LIMIT, "MB", beside)]
    if case.accuracy is not None:
        mean = rows[-1]["accuracy"]["mean"]
        notes = "; ".join(words_of(row) for row in rows if row["round"] in (20, 40, ROUNDS))
        title = f"{case.title}: accuracy, round {rounds}"
        found.append(Measure(title, mean, case.accuracy, "", notes, merit=True))
    return found


def words_of(row: dict[str, Any]) -> str:
    """One evaluation in words, participants and users that were never drawn apart."""
    groups = [
        f"{row[key]['users']} {name} {row[key]['accuracy']:.3f}"
        for key, name in (("participants", "participants"), ("newcomers", "never drawn"))
        if key in row
    ]
    return f"round {row['round']}: {row['accuracy']['mean']:.3f} ({', '.join(groups)})"


def peak_memory() -> float:
    """The most memory that this process ever had resident, in MB.

    Not `getrusage`: its peak begins with that of the process that started this one.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise CorsageError("pfllib: /proc/self/status has no VmHWM; peak memory needs Linux.")


def run(cases: list[Case] | None = None) -> Iterator[Measure]:
    """Time first, then memory and accuracy."""
    cases = cases or CASES
    for number, case in enumerate(cases, 1):
        say(f"[{number}/{len(cases)}] {case.title}: {case.turns} rounds and bare loops")
        yield speed(case)
    for number, case in enumerate(cases, 1):
        say(f"[{number}/{len(cases)}] {case.title}: a process of its own")
        yield from whole(case)


if __name__ == "__main__":
    code = run_command(sys.argv[1:], __doc__)
    print(f"\n{peak_memory():.1f}")
    sys.exit(code)

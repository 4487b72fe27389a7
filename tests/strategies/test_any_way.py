"""However a run is driven, killed, resumed and dealt to nodes: it ends with the same numbers.

One machine takes the place of the products {nodes} x {start, outside} x {killed after k} x {lost
replies} x {riding} x {algorithm}: hypothesis draws ways through them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from flwr.app import ArrayRecord, ConfigRecord
from hypothesis import HealthCheck, Phase, assume
from hypothesis import settings as effort
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.run.checkpoint import read_checkpoint
from corsage.core.errors import RoundFailed
from corsage.solvers.convex_clustering import selection
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Result, Strategy
from tests.support.clustered_heads import CONVEX as HEADS
from tests.support.clustered_heads import KNOWN
from tests.support.devices import Devices
from tests.support.federations import CONVEX, KINDS, federate, same_arrays, settings
from tests.support.known_users import HIERARCHICAL, LOGISTIC, SEVERAL, several
from tests.support.resuming import IDENTITY, Stop

NONE = ConfigRecord()
COINS = {"known_p0": 0.1, "known_p": 0.4, "num_rounds": 4, "known_gamma": 1.5, "known_lambda": 0.8}
AUTO = {"known_gamma": "auto", "known_lambda": "auto", "num_rounds": 3}
QUICK = {"mixed_intervals": "never"}
FOUND = {"mixed_grouping": "found", "mixed_summary": "none"}
APART = {"cluster_variance": 20, "user_variance": 0.1, "samples_per_user": 12}
STRENGTHS = str(Path(__file__).parents[1] / "support" / "strengths.json")
NODES = st.sampled_from([2, 3, 5, 12])
EXAMPLES = int(os.environ.get("FUZZ", "1"))
SPECIAL: dict[str, dict[str, Any]] = {
    "lg-fedavg": {"lg_fedavg_warmup_rounds": 2},
    "ifca": {"server_optimizer": "adagrad", "robust": "median"},
    "cfl": {"cfl_eps1": 0.3, "cfl_eps2": 0.5, "num_rounds": 8},
    "single-cluster": {**HIERARCHICAL, "single_cluster_lambda": "cv"},
    "fedrep-convex": {**HEADS, "fedrep_convex_neighbours": 3},
    "fedrep-known": {**KNOWN, "new_users": 0.2},
}
"""What keeps more than the defaults: a warm-up, clusters that are cut, new users."""
NAMES = {*KINDS, *SPECIAL, "apfl", "feddyn", "fedrod"}
"""Of every kind; a number that users keep, a correction at the server; and the worked example."""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, SPECIAL.get(name, {})) for name in sorted(NAMES)},
    "rounds of many exchanges": ("async-l2gd", {**HIERARCHICAL, **COINS, "known_gamma": STRENGTHS}),
    "and their refreshes": (
        "async-al2sgd",
        {**HIERARCHICAL, **COINS, "al2sgd_rho": 0.05, "known_gamma": STRENGTHS},
    ),
    "strengths are estimated": ("async-al2sgd", {**HIERARCHICAL, **AUTO}),
    "and in rounds": ("mixed-model", {**LOGISTIC, **AUTO, "num_rounds": 12, "mixed_em_rounds": 4}),
    "groups are found": ("mixed-model", {**LOGISTIC, **AUTO, "num_rounds": 12, **FOUND}),
    "and of squares": ("mixed-model", {**HIERARCHICAL, **AUTO, **APART, **FOUND, **QUICK}),
    "and refined": ("mixed-model", {**HIERARCHICAL, **AUTO, "known_refine": 1, **QUICK}),
    "several classes": ("mixed-model", {**SEVERAL, **AUTO, **QUICK}),
    "lambda is sought": ("convex-clustering", {"convex_lambda": "auto", "num_rounds": 4}),
    "duals at the server": ("convex-clustering", {"convex_solver": "pdmm", "num_rounds": 6}),
    "edges to neighbours": (
        "convex-clustering",
        {"convex_graph": "knn", "convex_neighbours": 3, "convex_certify_every": 2},
    ),
    "Newton": ("convex-clustering", {"convex_solver": "newton", "fraction_train": 1.0}),
    "a server with a memory": (
        "fedavg",
        {"server_optimizer": "yogi", "server_lr": 0.05, "robust": "clip"},
    ),
    "a falling rate and new users": (
        "fedrep",
        {"lr_schedule": "cosine", "lr_end": 0.001, "new_users": 0.3, "fine_tune_epochs": 1},
    ),
}


class Killed(Stop):
    """Goes on from the checkpoint, if there is one; the process dies in the round `after`."""

    def __init__(self, folder: Path, after: int = 0) -> None:
        super().__init__(folder / "checkpoint", after)

    def on_start(self, strategy: Strategy[Any, Any]) -> None:
        if self.path.exists():
            strategy.restore(parts_in(self.path, strategy))
            strategy.job.hold([dict(strategy.progress.versions)])


def parts_in(path: Path, strategy: Strategy[Any, Any]) -> dict[str, Any]:
    """A checkpoint's."""
    kinds = {name: type(part) for name, part in strategy.parts.items()}
    return read_checkpoint(path, IDENTITY, kinds)


class AnyWay(RuleBasedStateMachine):
    """A run of four rounds or more, one step after the other."""

    name: ClassVar[str]
    keys: ClassVar[dict[str, Any]]
    whole: ClassVar[Strategy[Any, Any]]
    result: ClassVar[Result]
    on_devices: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="any-way"))
        self.rounds = self.whole.progress.round
        self.disturbed = False

    @initialize(nodes=NODES, calls=st.integers(1, 5), later=st.integers(1, 3))
    def begin(self, nodes: int, calls: int, later: int) -> None:
        """Every way has some exchanges from outside; and, later, a death and a resume.

        The simplest way of all, which hypothesis tries first, says least: it is none.
        """
        assume(calls + later > 2)
        self.nodes, self.later = nodes, later
        self.grid = self.made()
        self.strategy = self.fresh()
        self.exchange_from_outside(calls)

    def made(self) -> LocalGrid:
        """So many nodes of the simulation, or the devices, on which everybody has a state."""
        if self.on_devices:
            return Devices(self.folder / "devices", settings(self.name, **self.keys))
        return LocalGrid(app, self.nodes)

    def fresh(self, at: int = 0) -> Strategy[Any, Any]:
        """A process that has just begun."""
        config = settings(self.name, **self.keys)
        found = strategy_class(self.name)(config, [Killed(self.folder, at)], "any way")
        if not self.on_devices:
            found.job.state_dir = str(self.folder / "users")
        return found

    @property
    def kept(self) -> int:
        """The round of the checkpoint."""
        path = self.folder / "checkpoint"
        return parts_in(path, self.whole)["progress"].round if path.exists() else 0

    @property
    def goes_on(self) -> bool:
        """Something is left to do."""
        return self.strategy.progress.round < self.rounds

    @precondition(lambda self: self.goes_on)
    @rule(times=st.integers(1, 6))
    def exchange_from_outside(self, times: int) -> None:
        """Some exchanges, one a call."""
        for _ in range(times):
            messages = list(self.strategy.configure_train(1, ArrayRecord(), NONE, self.grid))
            if not messages:
                return
            self.strategy.aggregate_train(1, self.grid.send_and_receive(messages))
            if not self.goes_on:
                return

    @precondition(lambda self: self.goes_on)
    @rule(they_work=st.booleans(), it_is_told=st.booleans())
    def lose_all_replies(self, they_work: bool, it_is_told: bool) -> None:
        """On their way to the users, or back; the driver says so, or simply goes on."""
        messages = list(self.strategy.configure_train(1, ArrayRecord(), NONE, self.grid))
        self.disturbed = True
        if messages and they_work:
            list(self.grid.send_and_receive(messages))
        if messages and it_is_told:
            try:
                self.strategy.aggregate_train(1, [])
            except RoundFailed:
                return
            # Clusters do not wait for each other: the round goes on with those that have answered,
            # and would come to other numbers.
            assert self.name.startswith("async-")
            self.die(self.nodes)

    @precondition(lambda self: self.goes_on)
    @rule(nodes=NODES)
    def die(self, nodes: int) -> None:
        """Between two exchanges; the nodes are others, as many as before or more or fewer."""
        self.nodes = nodes
        self.strategy, self.grid = self.fresh(), self.made()

    @precondition(lambda self: self.goes_on)
    @rule(later=st.integers(1, 3))
    def die_while_it_runs(self, later: int) -> None:
        """Before the checkpoint of a round that is done."""
        at = min(self.kept + later, self.rounds)
        with pytest.raises(KeyboardInterrupt):
            self.fresh(at).start(self.grid)
        self.die(self.nodes)

    @rule()
    def look(self) -> None:
        """An evaluation from outside; amid a round there is none."""
        messages = list(self.strategy.configure_evaluate(1, ArrayRecord(), NONE, self.grid))
        if messages:
            self.strategy.aggregate_evaluate(1, self.grid.send_and_receive(messages))

    def teardown(self) -> None:
        """To the end, by `start`."""
        try:
            if hasattr(self, "strategy"):
                self.end()
        finally:
            shutil.rmtree(self.folder)

    def end(self) -> None:
        """All numbers are those of the run that nobody disturbed, on a single node.

        Bit for bit, but for methods that solve for many users' convex losses at once.
        """
        if self.goes_on:
            self.die_while_it_runs(self.later)
        result = self.fresh().start(self.grid)
        close = 1e-6 * (self.name in CONVEX)
        assert same_arrays(result.arrays, self.result.arrays, close)
        for mine, theirs in zip(result.json(), self.result.json(), strict=True):
            assert mine["per_user"] == pytest.approx(theirs["per_user"], rel=0, abs=close)
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=0, abs=10 * close)
            assert mine["dropped"] == {} or self.disturbed
            assert mine.get("never_drawn") == theirs.get("never_drawn")
            for count in () if self.disturbed else ("bytes_up", "bytes_down", "messages"):
                assert mine[count] == theirs[count]


def walk(name: str, keys: dict[str, Any], **more: Any) -> None:
    """Some ways through a run of an algorithm with some keys, and the run that nobody disturbs."""
    whole, result, _ = federate(name, **keys)
    own = {"name": name, "keys": keys, "whole": whole, "result": result, **more}
    made: Callable[[], AnyWay] = type("Machine", (AnyWay,), own)
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        made,
        settings=effort(
            max_examples=EXAMPLES,
            stateful_step_count=5,
            database=None,
            deadline=None,
            phases=[Phase.generate],  # a way of five steps is short enough to read
            suppress_health_check=quiet,
        ),
    )


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few lambda along a path: what is asked about one is asked about all."""
    monkeypatch.setattr(selection, "MODELS_GRID", 5)


@pytest.mark.parametrize("case", CASES)
def test_it_ends_with_the_same_numbers(case: str, tmp_path: Path) -> None:
    name, keys = CASES[case]
    file = {"data_file": several(tmp_path)} if keys.get("dataset") == "npz" else {}
    walk(name, {**keys, **file})


@pytest.mark.parametrize(
    ("name", "riding"), [("fedrep", True), ("fedrep", False), ("async-l2gd", True)]
)
def test_on_devices_too(name: str, riding: bool) -> None:
    """Evaluations ride on training, or have messages of their own."""
    keys = {"num_users": 5, "evaluate_every": 1, "evaluate_with_training": riding}
    keys = keys if name != "async-l2gd" else {"evaluate_with_training": riding}
    walk(name, keys, on_devices=True)

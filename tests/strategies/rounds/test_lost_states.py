"""Users whose nodes have lost their states start anew; no run ends for it, nor any resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.errors import RoundFailed, StatesGone
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Strategy
from tests.support.federations import Notes, settings
from tests.support.resuming import Resume, Stop

KEYS: dict[str, Any] = {"num_rounds": 4, "fraction_train": 1.0}


def stopped(name: str, path: Path, after: int, nodes: int = 3, **keys: Any) -> None:
    """A run that stands at the checkpoint before some round; what its users keep is gone."""
    with pytest.raises(KeyboardInterrupt):
        begun(name, [Stop(path, after)], **keys).start(LocalGrid(app, nodes))


def begun(name: str, callbacks: list[Any], **keys: Any) -> Strategy[Any, Any]:
    """A strategy whose users know its run again."""
    return strategy_class(name)(settings(name, **{**KEYS, **keys}), callbacks, experiment="e")


@pytest.mark.parametrize("name", ["fedrep", "ditto", "scaffold", "async-l2gd"])
@pytest.mark.parametrize("least", [1, 12])
def test_all_states_are_gone_and_the_run_goes_on(name: str, least: int, tmp_path: Path) -> None:
    """The users are named once, and what is written down then has forgotten the old states."""
    path, notes = tmp_path / "c", Notes()
    stopped(name, path, 3)
    again = begun(name, [notes, Resume(path, 2)], min_users=least)
    result = again.start(LocalGrid(app, 3))
    assert result.summaries[0].rounds == 4
    assert result.summaries[0].users == 12
    assert any("it starts anew" in note for note in notes.notes)
    assert sum("the round is tried again" in note for note in notes.notes) == 1
    assert all(version > 2 for version in again.progress.versions.values())


def test_a_few_are_gone_and_too_few_others_are_left(tmp_path: Path) -> None:
    """Four of twelve users are on nodes that lost all; ten are needed."""
    path, notes, grid = tmp_path / "c", Notes(), LocalGrid(app, 3)
    with pytest.raises(KeyboardInterrupt):
        begun("fedrep", [Stop(path, 3)]).start(grid)
    forget(grid, 1)
    again = begun("fedrep", [notes, Resume(path, 2)], min_users=10)
    assert again.start(grid).summaries[0].users == 12
    assert set(again.progress.dropped) == {"1", "4", "7", "10"}
    assert any("users 1, 4, 7, 10 are to start anew" in note for note in notes.notes)


def forget(grid: LocalGrid, number: int) -> None:
    """A node of the grid loses what it remembers."""
    contexts = list(vars(grid)["_contexts"].values())
    for name in list(contexts[number].state):
        del contexts[number].state[name]


def test_states_that_are_gone_at_the_last_evaluation(tmp_path: Path) -> None:
    """They are judged by their initial models, and are not left out."""
    path, notes = tmp_path / "c", Notes()
    stopped("fedrep", path, 4, num_rounds=5)
    again = begun("fedrep", [notes, Resume(path, 3)], num_rounds=3)
    result = again.start(LocalGrid(app, 3))
    assert result.summaries[0].users == 12
    assert notes.rows == []
    assert any("it starts anew" in note for note in notes.notes)


def test_whoever_says_so_again_and_again_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state is lost once: a round that fails for another reason fails."""
    path = tmp_path / "c"
    stopped("fedrep", path, 3)
    again = begun("fedrep", [Resume(path, 2)], min_users=13)
    with pytest.raises(RoundFailed, match="round 3: 12 usable replies, min-users=13"):
        again.start(LocalGrid(app, 3))


def test_in_a_simulation_it_is_damage_and_ends_the_strategy(tmp_path: Path) -> None:
    path = tmp_path / "c"
    stopped("fedrep", path, 3)
    again = begun("fedrep", [Resume(path, 2)])
    again.job.members.simulated = True
    with pytest.raises(StatesGone, match="without a state that the run has left there"):
        again.start(LocalGrid(app, 3))

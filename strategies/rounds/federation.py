"""The federation as a strategy sees it: who is there, what is trained, and what it is judged by."""

from __future__ import annotations

import uuid
from dataclasses import replace
from logging import WARNING
from typing import TYPE_CHECKING, Any

from flwr.serverapp import Grid
from flwr.supercore import log

from corsage.core.config import Config
from corsage.core.errors import (
    ModelError,
)
from corsage.core.groups import ModelKeys, TrainKeys
from corsage.core.keys import Keys
from corsage.core.measures import USUAL, Measure, chosen, reported
from corsage.core.replies import Replies
from corsage.core.schema import Number
from corsage.core.text import escaped
from corsage.strategies.rounds.agreed import Agreed
from corsage.strategies.rounds.books import Books
from corsage.strategies.rounds.grids import is_at_home, is_simulation
from corsage.strategies.rounds.outgoing import Outgoing
from corsage.strategies.rounds.owners import Owners
from corsage.strategies.rounds.participants import Attendance, Participants
from corsage.strategies.rounds.patience import Patience
from corsage.strategies.rounds.playing import Player
from corsage.strategies.rounds.reception import Reception
from corsage.strategies.rounds.roster import Roster
from corsage.strategies.rounds.sizes import Scales, carrier_of
from corsage.strategies.rounds.standing import Conduct
from corsage.strategies.rounds.state import Progress
from corsage.strategies.rounds.tables import policy_of, suited
from corsage.strategies.rounds.turnout import Turnout

if TYPE_CHECKING:
    from corsage.networks.network import Network
    from corsage.strategies.rounds.callbacks import Callback
    from corsage.strategies.rounds.turns import Turn


A_DAY = 86_400.0
"""Seconds that nodes on Ray have to start: on a busy machine that takes long, and an engine that
fails says so."""


class Federation:
    """Nodes and the users that they host, messages to them, and what is counted of these.

    Parameters
    ----------
    name, config, keys : the algorithm, all keys, and the algorithm's own.
    callbacks : whose `on_note` is called with what is worth a line.
    experiment : names the run at the nodes: personal state is kept under this name.
    """

    def __init__(
        self, name: str, config: Config, keys: Keys, callbacks: list[Callback], experiment: str = ""
    ) -> None:
        self.name, self.config, self.keys, self.callbacks = name, config, keys, callbacks
        self.experiment = experiment or f"{name}-{uuid.uuid4().hex[:12]}"
        self.state_dir = ""  # where simulated users keep what is theirs; devices know themselves
        self.collects = False  # whether this process takes the users' models at the end
        self.training_path = ""  # that of the run's earlier strategies
        self.simulated = False  # whether the server's own files hold the users' states
        self.timeout = config.federation.round_timeout
        self.progress = Progress()
        self.grid: Grid | None = None
        self.now = Attendance()
        self.least = 1  # users that must be left to ask, whoever is set aside
        self.lasting = False  # each user weighs the same in every round, whoever takes part
        own = config.federation
        self.patience = Patience(own.patience, own.quorum)
        self.conduct = Conduct(lambda: self.progress.standings, self.note)
        owners = Owners(lambda: self.progress.owners, own.registered_keys)
        self.roster = Roster(note=self.note, owners=owners)
        self.agreed = Agreed(
            policy=policy_of(config), frozen=self.frozen, parameters=self.parameters
        )
        self.reception = Reception(
            self.roster,
            self.agreed,
            task=lambda: self.outgoing.task(0, [], {}, raw=True),
            patience=self.patience,
            arrived=lambda node, users: self.conduct.came(users, self.reception.mark(node)),
        )
        self.outgoing, self.books = Outgoing(self), Books(self)
        self.player, self.turnout = Player(self), Turnout(self)
        self.scales = Scales(self.note)
        self.participants = Participants(config, self.roster, self.now)

    def beside(self, name: str, purpose: str) -> Federation:
        """The same nodes and traffic for another algorithm, whose users keep states of their own.

        Nobody is told of its notes but the log.
        """
        keys, experiment = self.config.keys_of(name), f"{self.experiment}-{purpose}"
        other = Federation(name, self.config, keys, [], experiment)
        other.roster, other.grid, other.timeout = self.roster, self.grid, self.timeout
        other.patience, other.conduct = self.patience, self.conduct
        other.now, other.scales = self.now, self.scales
        other.agreed, other.reception = self.agreed, self.reception
        other.participants = Participants(self.config, self.roster, self.now)
        other.state_dir, other.simulated = self.state_dir, self.simulated
        other.progress.training_path = self.progress.training_path
        other.progress.traffic = self.progress.traffic
        return other

    # Who is there.

    @property
    def users(self) -> list[str]:
        """The users that take part in training; nobody is to change the list."""
        return self.participants.users

    @property
    def new_users(self) -> list[str]:
        """The users that come only after training."""
        return self.participants.new_users

    @property
    def sample(self) -> list[str]:
        """The users who are evaluated after a round."""
        return self.participants.sample

    @property
    def train(self) -> TrainKeys:
        """How users train, with what the data say where the keys do not."""
        return suited(self.config.train, self.agreed.preparation)

    @property
    def model(self) -> ModelKeys:
        """The model, with the path that it is trained on, once that is known."""
        own = self.config.model
        return replace(own, training_path=self.progress.training_path or own.training_path)

    @property
    def network(self) -> Network:
        """The model that all users start from, as the nodes build it too."""
        from corsage.networks.build import build_network

        agreed, seed = self.agreed, self.config.run.seed
        return build_network(self.model, agreed.shape, agreed.num_classes, seed)

    def frozen(self, shape: tuple[int, ...], num_classes: int) -> str:
        """The fingerprint of what nobody trains of the model, for such samples."""
        network = self._network_for(shape, num_classes)
        return network.vector.fixed.fingerprint if network else ""

    def parameters(self, shape: tuple[int, ...], num_classes: int) -> int:
        """How many numbers of the model travel, for such samples."""
        network = self._network_for(shape, num_classes)
        return network.whole.stop if network else 0

    def _network_for(self, shape: tuple[int, ...], num_classes: int) -> Network | None:
        """The model for such samples, if there can be one; why not is said elsewhere."""
        from corsage.networks.build import build_network

        keys, seed = self.config.model, self.config.run.seed
        try:
            return build_network(keys, shape, num_classes, seed)
        except ModelError:
            return None

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What users are judged by; the first is what rows are compared by."""
        words = ",".join(self.config.run.measures)
        return chosen(words, self.agreed.num_classes, self.loss)

    @property
    def measure(self) -> Measure:
        """The first measure."""
        return self.measures[0]

    @property
    def judging(self) -> dict[str, Any]:
        """What an evaluation says of the measures; nothing where they are the usual one."""
        words = ",".join(self.config.run.measures)
        return {} if words == USUAL else {"measures": words}

    @property
    def reported(self) -> tuple[Number, ...]:
        """What each user reports of an evaluation, besides its number of samples."""
        return reported(self.measures, self.agreed.num_classes)

    @property
    def loss(self) -> str:
        """The name of the loss, `auto` resolved."""
        from corsage.networks.criterion import criterion_of

        return criterion_of(self.config.model, self.agreed.num_classes).name

    @property
    def convex(self) -> bool:
        """Whether the model is linear with one output: losses with known curvature."""
        return self.config.model.model == "linear" and self.loss != "cross-entropy"

    def join(self, grid: Grid) -> None:
        """Wait until as many nodes are there as the config says; another grid has others."""
        if new := grid is not self.grid:
            self.grid = grid
            self.reception.clear()
            # Nobody is silent there, and the order of work is not ours.
            if is_simulation(grid) or getattr(grid, "patient", False):
                self.patience.times = 0.0
        if not self.roster.members:
            keys = self.config.federation
            patience = A_DAY if is_simulation(grid) else keys.node_timeout
            self.reception.wait(grid, max(keys.num_nodes, 1), patience)
        if new:
            self.scales.carrier = carrier_of(grid)

    def refresh(self) -> None:
        """Before a round: learn which nodes came and went; if none is left, wait for one."""
        assert self.grid is not None
        patience, self.now.number = self.config.federation.node_timeout, self.progress.round + 1
        self.reception.refresh(self.grid, patience, self.now.number)
        if not self.roster.members:
            self.reception.wait(self.grid, 1, patience, self.now.number)
        self.turnout.rest()

    @property
    def at_home(self) -> bool:
        """Whether all users' data are the server's own anyway."""
        return self.grid is not None and is_at_home(self.grid)

    def disconnected(self, replies: Replies) -> set[int]:
        """The silent nodes that are not connected any more."""
        if not replies.silent or self.grid is None:
            return set()
        return set(replies.silent) - set(self.grid.get_node_ids())

    def exchange(self, turn: Turn) -> Replies:
        """What came of a turn: it is sent and waited for."""
        return self.player.complete(turn)

    def note(self, text: str) -> None:
        """One line for the log and for whoever watches."""
        text = escaped(text)
        if not any(callback.shows_notes for callback in self.callbacks):
            log(WARNING, "%s: %s", self.name, text)
        for callback in self.callbacks:
            callback.on_note(text)

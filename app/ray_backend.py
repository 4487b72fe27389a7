"""Ray's workers as Flower keeps them, but one that dies costs nothing but time.

In Flower's own pool a worker that is gone stays in its place, and every message that it gets is an
error. Here it leaves the pool, and its message is given to another one: a message says all that a
node has to know, so the reply is the same, whoever writes it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from logging import WARNING
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from corsage.app.ray_engine import replaced
from corsage.core.errors import NodeError
from corsage.strategies.rounds.sizes import Carrier

MOST_DEATHS = 3
"""Workers that may die of a message, until it is the message's fault."""
ACTOR_PAUSE = 0.05


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Messages outlive the workers that have them, and workers are ours, for the time of a run."""
    from flwr.server.superlink.fleet.vce.backend import raybackend

    from corsage.app.ray_worker import RayWorker

    with (
        replaced(raybackend.RayBackend, "process_message", process),
        replaced(raybackend, "ClientAppActor", RayWorker),
    ):
        yield


def process(self: Any, message: Message, context: Context) -> tuple[Message, Context]:
    """Do as `RayBackend.process_message`; again with another worker if this one dies."""
    from ray.exceptions import RayActorError

    job = self.app_fn(), message, str(context.node_config["partition-id"]), context
    for left in reversed(range(MOST_DEATHS)):
        future = submitted(self.pool, job)
        try:
            found: tuple[Message, Context] = self.pool.fetch_result_and_return_actor_to_pool(future)
            return found
        except RayActorError:
            bury(self.pool, future)
            if not left:
                raise
            log(WARNING, "a Ray worker is gone: its message is given to another one.")
        except BaseException:
            self.pool.add_actor_back_to_pool(future)
            raise
    raise AssertionError


LOCK = threading.Lock()
"""Around the pool, which several threads share."""


def submitted(pool: Any, job: tuple[Any, ...]) -> Any:
    """A message given to the next worker that is free."""
    while True:
        with LOCK:
            if pool.pool:
                return pool.submit(lambda actor, *given: actor.run.remote(*given), job)
        time.sleep(ACTOR_PAUSE)


def bury(pool: Any, future: Any) -> None:
    """A worker that is gone leaves the pool; the last one is replaced."""
    with LOCK:
        del pool._future_to_actor[future]
        pool.num_actors -= 1
        if not pool.num_actors:
            pool.add_actors_to_pool(1)


class UntilOver(ServerApp):
    """A server app that waits for nobody any more once its engine is over.

    Parameters
    ----------
    own : the app.
    over : set when the engine has ended, well or not.
    carrier : what messages go through, once Ray is there.
    """

    def __init__(
        self, own: ServerApp, over: threading.Event, carrier: Callable[[], Carrier]
    ) -> None:
        super().__init__()
        self._own, self._over, self._carrier = own, over, carrier

    def __call__(self, grid: Grid, context: Context) -> None:
        """Run the app on a grid that says so when it is over."""
        usual = grid.pull_messages

        def pull(message_ids: Iterable[str]) -> Iterable[Message]:
            if self._over.is_set():
                raise NodeError("Ray could not start its workers, or lost them all.")
            return usual(message_ids)

        grid.pull_messages = pull  # type: ignore[method-assign]
        grid.carrier = self._carrier  # type: ignore[attr-defined]
        self._own(grid, context)

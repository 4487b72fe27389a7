"""A worker of Ray's: it answers messages with the client app that comes with each.

Flower's own actor does the same, but its module loads Flower's servers and simulation in every
worker, for .7 CPU seconds and 50 MB each.
"""

from __future__ import annotations

import ray
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import ClientAppException


@ray.remote
class RayWorker:
    """What Flower's pool of actors holds, for one run.

    The run's app comes with every message, and what it prepares is kept by the first one.
    """

    def __init__(self) -> None:
        self._app: ClientApp | None = None

    def run(
        self, app: ClientApp, message: Message, cid: str, context: Context
    ) -> tuple[str, Message, Context]:
        """The reply, and the node's context after it."""
        if self._app is None:
            self._app = app
        try:
            return cid, self._app(message=message, context=context), context
        except Exception as error:
            raise ClientAppException(str(error)) from error

    def terminate(self) -> None:
        """The pool is over."""
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]

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
    """What Flower's pool of actors holds."""

    def run(
        self, app: ClientApp, message: Message, cid: str, context: Context
    ) -> tuple[str, Message, Context]:
        """The reply, and the node's context after it."""
        try:
            return cid, app(message=message, context=context), context
        except Exception as error:
            raise ClientAppException(str(error)) from error

    def terminate(self) -> None:
        """The pool is over."""
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]

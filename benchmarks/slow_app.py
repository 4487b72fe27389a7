"""A client app whose first device takes its time; `staleness` puts it into a bundle."""

from __future__ import annotations

import os
import time

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from corsage.app.client_app import make_client_app


def sleeper(message: Message, context: Context, call: ClientAppCallable) -> Message:
    """A walk takes as many seconds as the process is told, of user 0 and of the others."""
    usual, slow = map(float, os.environ.get("WALK", "0 0").split())
    if message.metadata.message_type == "train":
        time.sleep(slow if str(context.node_config.get("user")) == "0" else usual)
    return call(message, context)


client = make_client_app(mods=[sleeper])

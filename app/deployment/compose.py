"""The deployment as containers: the text of `compose.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from corsage.app.deployment.table import Device

HEAD = """\
# Made by `corsage deploy`, beside the folders server/, devices/ and state/ that it names; the data
# of a device lie in data/. Only the gate is published: the SuperLink listens on the loopback that
# it shares with the gate, so that neither the devices' network nor the machine's reaches it.
#
#   docker build -t corsage -f deploy/Dockerfile CHECKOUT
#   CORSAGE_USER=$(id -u):$(id -g) docker compose up -d
#   docker compose exec superlink /etc/corsage/corsage.sh register /etc/corsage
#   docker compose exec superlink /etc/corsage/flwr.sh run @corsage/corsage==VERSION here --stream

x-shut: &shut
  image: corsage
  user: "${CORSAGE_USER:-1000:1000}"
  restart: always
  init: true # it buries the workers of a device, which outlive the process that started them
  read_only: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  environment: {HOME: /tmp, STATE_DIRECTORY: /var/lib/corsage}

services:
  superlink:
    <<: *shut
    command: [/etc/corsage/superlink.sh]
    networks: {devices: {aliases: ["SERVER"]}}
    ports: ["PORT:PORT"]
    volumes: ["./server:/etc/corsage:ro", "./state/server:/var/lib/corsage"]
  gate:
    <<: *shut
    command: [/etc/corsage/gate.sh]
    depends_on: [superlink]
    network_mode: "service:superlink"
    volumes: ["./server:/etc/corsage:ro"]
"""
DEVICE = """\
  device-NAME:
    <<: *shut
    command: [/etc/corsage/device.sh]
    depends_on: [gate]
    networks: [devices]
    volumes:
      - "./devices/NAME:/etc/corsage:ro"
      - "./data/FILE:DATA:ro"
      - "./state/NAME:/var/lib/corsage"
"""


def compose(devices: list[Device], server: str, port: int) -> str:
    """The whole file; the data of a device lie in `data/`, by the name of its file."""
    parts = [filled(HEAD, {"PORT": str(port), "SERVER": server})]
    for device in devices:
        data = device.words["data"]
        file = PurePosixPath(data).name
        parts.append(filled(DEVICE, {"NAME": device.name, "FILE": file, "DATA": data}))
    return "".join([*parts, "\nnetworks: {devices: {}}\n"])


def filled(text: str, words: Mapping[str, str]) -> str:
    """A text with words in the places of their names, all at once: a word may hold a name."""
    return re.sub(rf"\b({'|'.join(words)})\b", lambda found: words[found[1]], text)

"""The deployment as containers: the text of `compose.yaml`."""

from __future__ import annotations

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
  read_only: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  environment: {HOME: /tmp, STATE_DIRECTORY: /var/lib/corsage, GATE_PORT: "PORT"}

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
    parts = [HEAD.replace("PORT", str(port)).replace("SERVER", server)]
    for device in devices:
        data = device.words["data"]
        text = DEVICE.replace("FILE", PurePosixPath(data).name).replace("DATA", data)
        parts.append(text.replace("NAME", device.name))
    return "".join([*parts, "\nnetworks: {devices: {}}\n"])

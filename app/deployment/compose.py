"""The deployment as containers: the text of `compose.yaml`."""

from __future__ import annotations

from pathlib import PurePosixPath

from corsage.app.deployment.table import Device

HEAD = """\
# Made by `corsage deploy` beside the folders server/ and devices/ that it names; see docs/devices.md.
# Only the gate is published. The SuperLink listens on the loopback that it shares with the gate, so
# that neither the devices' network nor the machine's reaches it; runs are started inside:
#   docker compose exec superlink /etc/corsage/flwr.sh run @corsage/corsage==VERSION here --stream

x-shut: &shut
  image: corsage
  restart: always
  read_only: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  environment: {STATE_DIRECTORY: /var/lib/corsage}

services:
  superlink:
    <<: *shut
    build: {context: ${CORSAGE:-.}, dockerfile: deploy/Dockerfile}
    command: [/etc/corsage/superlink.sh]
    networks: {devices: {aliases: [SERVER]}}
    ports: ["PORT:PORT"]
    volumes: ["./server:/etc/corsage:ro", "server:/var/lib/corsage"]
  gate:
    <<: *shut
    command: [/etc/corsage/gate.sh]
    depends_on: [superlink]
    environment: {GATE_PORT: "PORT"}
    network_mode: "service:superlink"
    volumes: ["./server:/etc/corsage:ro"]
"""
DEVICE = """\
  NAME:
    <<: *shut
    command: [/etc/corsage/device.sh]
    depends_on: [gate]
    networks: [devices]
    volumes:
      - "./devices/NAME:/etc/corsage:ro"
      - "./data/FILE:DATA:ro"
      - "NAME:/var/lib/corsage"
"""


def compose(devices: list[Device], port: int, server: str = "server") -> str:
    """The whole file; the data of a device lie in `data/`, by the name of its file."""
    parts = [HEAD.replace("PORT", str(port)).replace("SERVER", server)]
    for device in devices:
        data = device.words["data"]
        text = DEVICE.replace("FILE", PurePosixPath(data).name).replace("DATA", data)
        parts.append(text.replace("NAME", f"device-{device.name}"))
    volumes = ["server", *(f"device-{device.name}" for device in devices)]
    parts.append("\nnetworks: {devices: {}}\n\nvolumes:\n")
    parts += [f"  {name}: {{}}\n" for name in volumes]
    return "".join(parts)

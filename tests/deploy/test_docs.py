"""The commands of docs/devices.md are those that the tests of this folder run."""

import re

import pytest

from tests.support import fleet, site


def plain(text: str) -> str:
    """Text without the breaks of long lines."""
    return re.sub(r"\s+", " ", text.replace("\\\n", " "))


@pytest.mark.parametrize(
    "command",
    [
        site.EXPORT,
        site.DEPLOY,
        site.SUPERLINK,
        site.GATE,
        site.REGISTER,
        *(site.DEVICE.format(user=user) for user in site.USERS),
        site.RUN.format(keys=site.KEYS),
        site.WAIT.format(name="RUN_FOLDER"),
        site.PIPED,
        fleet.EXPORT,
        fleet.CONFIG.format(port=fleet.PORTS[0]),
        fleet.superlink(),
        *(fleet.supernode(user) for user in fleet.USERS),
        fleet.RUN.format(keys=fleet.FEDREP),
        fleet.RUN.format(keys=fleet.FEDAVG),
        fleet.RUN.format(keys=fleet.RESUME.format(name="RUN_FOLDER")),
    ],
)
def test_the_page_shows_the_tested_commands(command: str) -> None:
    assert plain(command).strip() in plain((fleet.ROOT / "docs" / "devices.md").read_text())

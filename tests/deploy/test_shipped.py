"""What `deploy/` ships: compose file, units and scripts."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from corsage.app.deployment.device_table import Device, read_table
from corsage.app.deployment.site import compose
from tests.support.pages import ROOT
from tests.support.recipe import DEPLOY


def test_the_shipped_compose_file_is_that_of_the_shipped_table() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert text == compose(read_table(DEPLOY / "devices.csv"), "server", 8443)
    services = yaml.safe_load(text)["services"]
    assert set(services) == {"superlink", "gate", "device-0", "device-1", "device-2"}
    for service in services.values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["restart"] == "always" and service["init"]
    published = {name: service.get("ports") for name, service in services.items()}
    assert {name for name, ports in published.items() if ports} == {"superlink"}
    assert published["superlink"] == ["8443:8443"]  # the gate's: it shares the SuperLink's network
    assert services["gate"]["network_mode"] == "service:superlink"


def test_the_words_of_a_table_are_not_looked_into() -> None:
    """A file may be called as a place in the template is."""
    device = Device("NAME-PORT", 0, {"data": "/srv/FILE/DATA.csv"})
    services = yaml.safe_load(compose([device], "SERVER", 8443))["services"]
    assert services["device-NAME-PORT"]["volumes"][1] == "./data/DATA.csv:/srv/FILE/DATA.csv:ro"


UNITS = sorted(DEPLOY.glob("*.service"))


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_units_are_shut(path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    service = unit["Service"]
    wanted = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "PrivateTmp": "yes"}
    wanted |= {"ProtectHome": "yes", "User": "corsage"}
    again = {"RestartForceExitStatus": "75"} if "run" in path.stem else {"Restart": "always"}
    assert {name: service[name] for name in wanted | again} == wanted | again
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"  # it tries until it is let in
    assert (DEPLOY / Path(service["ExecStart"].split()[0]).name).is_file()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_understands_the_units(path: Path) -> None:
    """But for the scripts, which are where the operator puts them."""
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    own = [line for line in done.stderr.splitlines() if path.stem.split("@")[0] in line]
    assert [line for line in own if "is not executable" not in line] == []


@pytest.mark.parametrize("name", ["superlink.sh", "device.sh"])
def test_the_scripts_hold_the_flags_that_shut(name: str) -> None:
    text = (DEPLOY / name).read_text()
    flags = {
        "superlink.sh": ["--host 127.0.0.1", "--enable-supernode-auth", "--ssl-certfile",
                         "--disable-runtime-dependency-installation"],
        "device.sh": ["--host 127.0.0.1", "--trusted-entities", "--root-certificates",
                      "--auth-supernode-private-key"],
    }  # fmt: skip
    assert all(flag in text for flag in flags[name]) and "--insecure" not in text
    assert os.access(DEPLOY / name, os.X_OK)


def test_all_that_is_installed_has_a_hash() -> None:
    """The lock file has what the package needs, but for Ray, and what builds it."""
    text = (DEPLOY / "requirements.lock").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    locked = [re.fullmatch(r"([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", x) for x in lines]
    found = {match[1]: match[2] for match in locked if match}
    assert len(found) == len(lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for word in project["project"]["dependencies"] + project["build-system"]["requires"]:
        wanted = Requirement(word)
        assert wanted.specifier.contains(found[canonicalize_name(wanted.name)]), word


def test_a_run_is_resumed_while_its_devices_are_silent(tmp_path: Path) -> None:
    """Flower's command is a stand-in, which ends the run's process as the codes say in turn."""
    for name in ("run.sh", "settings.sh"):
        shutil.copy(DEPLOY / name, tmp_path)
    (tmp_path / "daily.run").write_text("APP=@corsage/corsage==0.1.0\nKEYS=num-nodes=2\n")
    (tmp_path / "flwr").write_text(
        "#!/bin/sh\n"
        'case $1 in ls) echo \'{"runs": [{"status": "finished:completed"}]}\'; exit;; esac\n'
        f'echo "$7" >> {tmp_path}/asked; mkdir -p {tmp_path}/state/runs/daily/first\n'
        f"cp {tmp_path}/next.json {tmp_path}/state/runs/daily/first/status.json\n"
        "echo '{\"run-id\": 7}'\n"
    )
    (tmp_path / "flwr").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for code, state in ((75, "failed"), (0, "finished"), (0, "finished")):
        text = json.dumps({"state": state, "exit-code": code, "line": "no node replied"})
        (tmp_path / "next.json").write_text(text)
        done = subprocess.run(["sh", str(tmp_path / "run.sh"), "daily"], env=env, check=False)
        assert done.returncode == code
    runs = tmp_path / "state" / "runs" / "daily"
    wanted = [f"num-nodes=2 run-dir='{runs}'", f"resume='{runs}/first'"]
    assert (tmp_path / "asked").read_text().splitlines() == wanted

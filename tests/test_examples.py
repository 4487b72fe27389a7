"""The examples do what they say: quickly here, and as a user would run them (slow)."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from corsage import LocalGrid

EXAMPLES = Path(__file__).parents[1] / "examples"
APP = EXAMPLES / "own_flower_app"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return found


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_what_it_printed(notebook: Path) -> None:
    code = [cell for cell in cells(notebook) if cell["cell_type"] == "code"]
    assert code and not any(cell["outputs"] or cell["execution_count"] for cell in code)


@pytest.mark.parametrize(
    ("name", "shorter", "row"),
    [
        ("comparison", ("num_rounds=20", "num_rounds=2"), "fedavg+ft"),
        ("table", ("range(10)", "range(10)"), "mixed-model"),
    ],
)
def test_the_cells_of_a_notebook_run(
    name: str, shorter: tuple[str, str], row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {}
    for cell in cells(EXAMPLES / f"{name}.ipynb"):
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]).replace(*shorter), names)
    found = names["found"]
    assert row in found and row in str(found)
    if name == "comparison":  # the table's models are fitted to all rows
        assert found[row].evaluate() == found[row].per_user


def test_adapters_over_a_frozen_backbone(capsys: pytest.CaptureFixture[str]) -> None:
    """A user sends the A of two adapters of rank 4, and gets a whole model."""
    found = runpy.run_path(str(EXAMPLES / "adapters.py"))["main"](1, fine_tune_epochs=1)
    assert {"fedper", "fedper+own", "fedavg", "fedavg+ft", "fedavg+ft-all"} == set(found)
    said = capsys.readouterr().out
    assert "138,058 parameters, 552,232 bytes; a user sends 2,048 bytes a round." in said


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_calm(notebook: Path) -> None:
    """In a kernel of its own: a line a strategy, a table, no colours, no warnings."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(notebook, as_version=4)
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    outputs = [out for cell in book.cells for out in cell.get("outputs", [])]
    text = json.dumps(outputs)
    assert "\\u001b" not in text and "WARNING" not in text and "Traceback" not in text
    assert "local" in text
    lines = [out for out in outputs if "rounds, done" in json.dumps(out)]
    assert all(out["output_type"] == "display_data" for out in lines)
    assert sum(len(json.dumps(out)) for out in outputs if out["output_type"] == "stream") < 1000


@pytest.fixture
def own_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.syspath_prepend(str(APP))
    yield tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    for name in [name for name in sys.modules if name.split(".")[0] == "own_app"]:
        del sys.modules[name]


@pytest.mark.parametrize("method", ["fedrep", "ditto"])
def test_the_own_flower_app_with_two_strategies(
    method: str, own_app: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from own_app.client_app import app as client_app  # type: ignore[import-not-found]
    from own_app.server_app import app as server_app  # type: ignore[import-not-found]

    grid = LocalGrid(client_app, 4)
    config = {**own_app, "method": method, "num-server-rounds": 2, "save-to": f"{tmp_path}/m.pt"}
    server_app(grid, Context(grid.run.run_id, 0, {}, RecordDict(), config))
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("node ")]
    assert [line.split(":")[0] for line in shown] == [f"node {i}" for i in range(4)]
    assert (tmp_path / "m.pt").is_file()


def test_few_lines_of_the_own_app_are_corsages() -> None:
    """An import and five lines at most, server and client together."""
    own = [
        line
        for file in (APP / "own_app").glob("*.py")
        for line in file.read_text().splitlines()
        if any(
            word in line
            for word in ("make_client_app(", "FedRep", "Ditto", "METHODS[", "corsage import")
        )
    ]
    assert len([line for line in own if "import" not in line]) <= 5
    assert "corsage" not in (APP / "own_app" / "task.py").read_text()


@pytest.mark.slow
def test_the_own_flower_app_under_flwr_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its README has it, on Flower's simulation, whose nodes are other processes."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import three_devices as three  # type: ignore[import-not-found]

    (link,) = three.free_ports(1)
    environment = {**three.settings(tmp_path, link), "PYTHONPATH": str(EXAMPLES.parent)}
    at = f"--host 127.0.0.1 --port {link}"
    with (
        three.process(
            tmp_path, "link", f"flower-superlink --insecure --simulation {at}", environment
        ),
        ExitStack() as stack,
    ):
        three.wait(lambda: three.answers(link), tmp_path / "link.log")
        call = f'flwr run {APP} here --stream --run-config "num-nodes=2"'
        run = stack.enter_context(three.process(tmp_path, "run", call, environment))
        three.wait(lambda: run.poll() is not None, tmp_path / "run.log")
    log = three.plain((tmp_path / "run.log").read_text())
    assert re.findall(r"fedrep: round (\d)/3: accuracy", log) == ["1", "2", "3"], log[-3000:]
    assert re.findall(r"node (\d): ", log) == ["0", "1"]
    assert not re.search("WARNING.*fedrep", log)


@pytest.mark.slow
def test_three_devices(tmp_path: Path) -> None:
    """And nothing of it is left running."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "three_devices.py"), str(tmp_path / "here")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of it: " in done.stdout and '"fedrep"' in done.stdout
    left = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True)
    assert str(tmp_path / "here") not in left.stdout


@pytest.mark.slow
def test_the_own_flower_app_on_supernodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real SuperLink, three SuperNodes with a state-dir each, and `flwr run`."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import three_devices as three  # type: ignore[import-not-found]

    link, *ports = three.free_ports(4)
    environment = {**three.settings(tmp_path, link), "PYTHONPATH": str(EXAMPLES.parent)}
    with ExitStack() as stack:

        def spawn(name: str, command: str) -> Any:
            return stack.enter_context(three.process(tmp_path, name, command, environment))

        spawn("superlink", f"flower-superlink --insecure --host 127.0.0.1 --port {link}")
        three.wait(lambda: three.answers(link), tmp_path / "superlink.log")
        for i, port in enumerate(ports):
            own = f"partition-id={i} num-partitions=3 state-dir='{tmp_path}/state-{i}'"
            at = f"--superlink 127.0.0.1:{link} --port {port}"
            spawn(f"node-{i}", f'flower-supernode --insecure {at} --node-config "{own}"')
        keys = "method='ditto' num-server-rounds=1"
        run = spawn("run", f'flwr run {APP} here --stream --run-config "{keys}"')
        three.wait(lambda: run.poll() is not None, tmp_path / "run.log")
    log = three.plain((tmp_path / "run.log").read_text())
    assert re.findall(r"node (\d): ", log) == ["0", "1", "2"], log[-3000:]
    assert all(list((tmp_path / f"state-{i}").glob("ditto-*")) for i in range(3))

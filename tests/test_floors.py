"""The floors: imports go down, never up and never sideways."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOW = ["core"]
MAY: dict[str, list[str]] = {
    "core": LOW,
    "networks": [*LOW, "networks"],
    "datasets": [*LOW, "datasets"],
    "solvers.losses": [*LOW, "solvers.losses"],
    "solvers.known_clusters": [*LOW, "solvers.losses", "solvers.known_clusters"],
    "solvers.convex_clustering": [*LOW, "solvers.losses", "solvers.convex_clustering"],
    "strategies": [*LOW, "networks", "datasets", "solvers", "strategies"],
    "clients": [*LOW, "networks", "datasets", "solvers", "strategies", "clients"],
    "app": [*LOW, "networks", "datasets", "solvers", "strategies", "clients", "app"],
}
"""What each package may import; `from corsage import x` means nothing that is below the roof."""
ROOMS = (
    *("states", "output", "results", "report.scripts", "report", "nodes", "nodes.resident"),
    *("tracking", "run", "inference", "studies", "help", "deployment", "", "answer", "bench"),
)
"""The rooms of the app, the lowest first; the app's own files are the roof of all but the answer
and the bench, which run what is there several times."""
FAMILIES = ("fedrep", "known_clusters", "convex_clustering")


def nodes_of(tree: ast.AST, typing: bool) -> Iterator[ast.AST]:
    """All nodes; without `typing` not those that only a type checker reads."""
    for child in ast.iter_child_nodes(tree):
        if typing or not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield child
            yield from nodes_of(child, typing)


@cache
def imported(path: Path, typing: bool = True) -> list[str]:
    """The modules of Corsage that a file imports, anywhere in it, without the leading name."""
    found: list[str] = []
    for node in nodes_of(ast.parse(path.read_text(encoding="utf-8")), typing):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name.removeprefix("corsage.") for name in found if name.split(".")[0] == "corsage"]


def within(name: str, packages: list[str]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("package", list(MAY))
def test_imports_go_down_only(package: str) -> None:
    files = list((ROOT / package.replace(".", "/")).rglob("*.py"))
    wrong = [
        f"{f.relative_to(ROOT)}: {n}"
        for f in files
        for n in imported(f)
        if not within(n, MAY[package])
    ]
    assert files
    assert not wrong


def room_of(name: str) -> str:
    """The innermost folder that a module, or what is imported of it, lies in."""
    parts = name.split(".")
    while parts and not (ROOT / "/".join(parts)).is_dir():
        parts.pop()
    return ".".join(parts)


def rooms_above(floor: str) -> dict[str, set[str]]:
    """What each room of a floor imports of the floor's others as it runs, at the top or later."""
    above: dict[str, set[str]] = {}
    for file in (ROOT / floor).rglob("*.py"):
        room = room_of(".".join(file.relative_to(ROOT).parent.parts))
        names = imported(file, typing=False)
        others = {room_of(name) for name in names if within(name, [floor])}
        above.setdefault(room, set()).update(others - {room})
    return above


def test_rooms_of_the_app_are_in_order() -> None:
    order = [f"app.{room}".rstrip(".") for room in ROOMS]
    wrong = [
        f"{room} imports {other}"
        for room, others in rooms_above("app").items()
        for other in others
        if order.index(other) > order.index(room)
    ]
    assert not wrong


@pytest.mark.parametrize("floor", sorted({package.split(".")[0] for package in MAY}))
def test_no_rooms_import_each_other_in_a_circle(floor: str) -> None:
    above = rooms_above(floor)
    while free := [room for room, others in above.items() if not others & above.keys()]:
        for room in free:
            del above[room]
    assert not above


@pytest.mark.parametrize("floor", ["strategies", "clients"])
def test_algorithms_know_nothing_of_other_families(floor: str) -> None:
    """Rivals build on what all share (at the users, on each other's clients); families on that."""
    shared = [f"{floor}.rounds", f"{floor}.base", f"{floor}.convex"]
    wrong = []
    for file in (ROOT / floor).rglob("*.py"):
        house = file.relative_to(ROOT).parts[1] if file.parent != ROOT / floor else ""
        others = [f"{f}.{family}" for f in ("strategies", "clients") for family in FAMILIES]
        barred = [name for name in others if not (house and name.endswith(f".{house}"))]
        wrong += [f"{file.relative_to(ROOT)}: {n}" for n in imported(file) if within(n, barred)]
        if floor == "strategies" and house != "rounds" and file.stem != "effort":
            own = [*shared, f"{floor}.{house}" if house else f"{floor}.{file.stem}"]
            wrong += [
                f"{file}: {n}" for n in imported(file) if within(n, [floor]) and not within(n, own)
            ]
    assert not wrong


def test_several_users_trained_at_once_have_one_door() -> None:
    """Others import `networks.together` itself, and networks nothing of it: they come before it."""
    inner = [f"networks.together.{file.stem}" for file in (ROOT / "networks/together").glob("*.py")]
    wrong = []
    for floor in ("core", "networks", "strategies", "clients", "app", "experiments"):
        for file in (ROOT / floor).rglob("*.py"):
            if file.parent == ROOT / "networks/together":
                continue
            barred = ["networks.together"] if floor == "networks" else inner
            wrong += [f"{file.relative_to(ROOT)}: {n}" for n in imported(file) if within(n, barred)]
    assert len(inner) > 10
    assert not wrong


def test_array_types_are_defined_once() -> None:
    names = {"Array", "Arrays", "Floats", "Floats32", "Ints", "Bools"}
    packages = {package.split(".")[0] for package in MAY}
    again = [
        f"{file.relative_to(ROOT)}: {target.id}"
        for package in packages
        for file in (ROOT / package).rglob("*.py")
        if file != ROOT / "core/arrays.py"
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in names
    ]
    assert not again


SIMULATION = """
from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.strategies.fedavg import FedAvg
FedAvg(num_users=4, num_rounds=1).start(LocalGrid(app, 2))
"""
DEVICES = "import corsage.strategies.devices.devices"


@pytest.mark.parametrize(
    ("code", "barred"),
    [
        (SIMULATION, ("corsage.strategies.devices", "corsage.strategies.rounds.sizes")),
        (DEVICES, ("corsage.strategies.rounds",)),
    ],
)
def test_what_only_devices_need_is_a_room_below(code: str, barred: tuple[str, ...]) -> None:
    """A simulation loads nothing of it, and it loads nothing of the rounds."""
    code += f"\nimport sys; print(any(name.startswith({barred!r}) for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"

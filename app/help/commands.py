"""The subcommands: `corsage NAME ...`, or `python run_simulation.py NAME ...` in a checkout.

To add one: a module with `run(words: list[str]) -> int`, which prints its usage for `--help` and
returns an exit code, and a line in its group of the table below. It is imported only when it is
named, so whatever is heavy in it costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from corsage.app.output.usage import exit_code
from corsage.core.configuration.known_keys import defaults
from corsage.core.errors import ConfigError
from corsage.core.registry import ALGORITHMS, part


@dataclass(frozen=True)
class Command:
    """One subcommand.

    Parameters
    ----------
    module : where it is, in the package.
    meaning : what it does, in a line.
    function : its name there.
    """

    module: str
    meaning: str
    function: str = "run"

    def run(self, words: list[str]) -> int:
        """Do it; returns the exit code."""
        return exit_code(lambda: getattr(part(self.module, self.meaning), self.function)(words))


COMMAND_GROUPS: dict[str, dict[str, Command]] = {
    "Runs": {
        "run": Command("app.command", "run strategies: key=value ...", "start"),
        "fit": Command("app.answer.command", "a table's answer: compare, then fit to all rows"),
        "tour": Command("app.tour", "what it is for: three comparisons and a page, 20 seconds"),
        "sweep": Command("app.study", "a study: several seeds, several values of keys", "sweep"),
        "bench": Command("app.bench.command", "every method on every data set, tuned", "bench"),
        "verify": Command("app.bench.command", "a cell of the bench once more", "verify"),
        "compare": Command("app.study", "finished runs and studies in one table", "compare"),
        "report": Command("app.run.report_again", "a report anew, and its figures for a paper"),
        "watch": Command("app.run.report_again", "the report of what goes on, or is over", "watch"),
        "forget": Command("app.forget", "a run's model as if a user had never been there"),
        "wait": Command("app.run.wait", "until a run is over; leave with its exit code"),
        "clean": Command("app.run.clean", "remove old runs, or old states in a device's state-dir"),
    },
    "Models": {
        "predict": Command("app.inference.predict", "what a user's model says of a file's rows"),
        "export": Command("app.inference.export", "a user's model as safetensors, torch or ONNX"),
    },
    "Devices": {
        "deploy": Command("app.deployment.site", "make keys, the signed app, a folder a machine"),
        "gate": Command("app.deployment.gate", "the only door to a server that devices see"),
        "supernode": Command("app.deployment.supernode", "a SuperNode that ends if it is cut off"),
        "register": Command("app.deployment.register", "let in the known devices, and no others"),
        "deal": Command("app.device_files", "deal a data set into one file a user, for devices"),
    },
    "This checkout": {
        "keys": Command("app.keys", "print what repeats the keys: pyproject.toml, docs, keywords"),
    },
}
"""The subcommands by what they are for, in the order in which help lists them."""

COMMANDS = {name: command for group in COMMAND_GROUPS.values() for name, command in group.items()}
"""What may stand in front; anything else is a run."""
RUN_OPTIONS = ("--help", "--resume", "--version")
"""What a slip may have meant besides."""


def named(words: list[str]) -> Command | None:
    """The subcommand that the words begin with; without one they are those of a run."""
    return COMMANDS.get(words[0]) if words else None


def listing() -> str:
    """The subcommands as the usage shows them, a line each under the title of their group."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        f"{title}:\n"
        + "".join(f"  {name:<{width}}  {command.meaning}\n" for name, command in group.items())
        for title, group in COMMAND_GROUPS.items()
    )


def check_words(words: Sequence[str]) -> None:
    """Refuse words that are neither keys nor files of them, with what was meant."""
    for place, text in enumerate(words):
        if "=" in text[1:] or text.endswith(".toml"):
            continue
        meant = (not place and suggestion(text)) or as_a_key(words, place)
        raise ConfigError(f"{text}: expected key=value or a TOML file.{meant}")


def suggestion(word: str) -> str:
    """A hint for a first word that is neither a command nor a key."""
    close = get_close_matches(word, [*COMMANDS, *RUN_OPTIONS], 1)
    what = "" if close and close[0] in RUN_OPTIONS else "the command "
    return f" Did you mean {what}{close[0]}?" if close else ""


def as_a_key(words: Sequence[str], place: int) -> str:
    """A hint at the `key=value` that somebody meant by a word without `=`."""
    text, before = words[place], words[place - 1] if place else ""
    name, _, value = text.strip("-").partition(":")
    value = value or "".join(word for word in words[place + 1 : place + 3] if word != "=")
    kind = Path(text).suffix.removeprefix(".").lower()
    meant = ""
    if (key := name.replace("_", "-")) in defaults():
        meant = f"{key}={value or 'VALUE'}"
    elif text.strip(",") in ALGORITHMS:
        listed = before if before.startswith("strategy=") else "strategy="
        meant = f"{listed.rstrip(',')}{',' * (listed == before)}{text.strip(',')}"
    elif kind in ("csv", "npz"):
        meant = f"dataset={kind} data-file={text}"
    return f" Did you mean {meant}?" * bool(meant)

"""The command line: words in, exit code out; every expected error is one line."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from corsage.app.help import commands
from corsage.app.output.usage import exit_code
from corsage.app.results.known_models import check_model
from corsage.app.run.status import is_study, is_study_of
from corsage.core.clock import COMMAND_START, LOADED
from corsage.core.configuration.command_line import each_of, exampled, read_words
from corsage.core.configuration.config import AUTOMATIC, Config
from corsage.core.configuration.key_groups import RunKeys
from corsage.core.errors import ConfigError, StrategiesFailed
from corsage.core.files import guarded, write_atomically
from corsage.core.registry import attached
from corsage.core.version import VERSION

NEEDED = {"--resume": "folder", "--json": "file", "--from-round": "round"}
"""What stands after the options."""


def main() -> None:
    """The console command: without a word it says what there is."""
    run_and_leave(sys.argv[1:] or ["--help"])


def run_and_leave(words: list[str], title: str = "") -> NoReturn:
    """Run a command that the process is there for, and leave with its exit code."""
    COMMAND_START.set(LOADED)
    code = run(words, title)
    gc.freeze()  # else Python looks through all modules for garbage at its end: half a second
    sys.exit(code)


def run(words: list[str], title: str = "") -> int:
    """Do what the words say; 0, or 2 for a user's mistake, 1 for a failed run.

    `title` heads the short help, and `help` is `--help`. A subcommand in front has words of its
    own (app/help/commands.py); without one it is a run.
    """
    if command := commands.named(words):
        return command.run(words[1:])
    return perform(["--help", *words[1:]] if words[:1] == ["help"] else words, title)


def start(words: list[str]) -> int:
    """`corsage run ...`; its help is that of runs."""
    return perform(["run", *words] if {"-h", "--help"} & set(words) else words)


def helped(topics: list[str], title: str) -> int:
    """Help on what is named, or a command's own; without a name it says what there is."""
    from corsage.app.help.pages import show

    topic = topics[0] if topics else ""
    if topic in commands.COMMANDS and topic not in ("run", "keys"):
        return commands.COMMANDS[topic].run(["--help"])
    show(topic, title)
    return 0


def perform(words: list[str], title: str = "") -> int:
    """A run, or help."""

    def work() -> int:
        if {"-h", "--help"} & set(words):
            return helped([word for word in words if word not in ("-h", "--help")], title)
        if words == ["--version"]:
            print(f"corsage {VERSION}")
        else:
            run_or_study(*parse(words))
        return 0

    return exit_code(work)


def run_or_study(values: dict[str, Any], json_file: str, fits: bool = False) -> None:
    """One run, or several: where a key has several values, such as seed=0,1,2.

    One that `fits`, or whose strategies are left to the data, ends with a fit to all rows.
    """
    fits = fits or AUTOMATIC in named(values)
    values = decided(values)
    if holds_nothing_out(values) and not values.get("resume"):
        names = [str(values["strategy"])] if "strategy" in values else RunKeys.strategy
        attached("answer").check_one(",".join(names).split(","))
    if is_study_of(values):
        attached("studies").run_study(values, json_file)
    else:
        simulate_and_report(Config.parse(values), json_file, fits and not values.get("resume"))


def named(values: Mapping[str, Any]) -> list[str]:
    """The strategies as they are said."""
    return str(values.get("strategy", "")).split(",")


def decided(values: dict[str, Any]) -> dict[str, Any]:
    """The keys, with those that the strategies need and nobody set, which is said in a line.

    With strategy=auto they are those that suit the data; of a study its first run decides.
    """
    if values.get("resume") or (is_study_of(values) and AUTOMATIC not in named(values)):
        return values  # a study says it itself, from whatever door it is begun
    if AUTOMATIC in named(values):
        from corsage.app.automatic import chosen

        values = settled(values)
        found, line = chosen({key: each[0] for key, each in each_of(values).items()})
        names = str(found["strategy"])
        names = names.partition(",")[0] if holds_nothing_out(values) else names
        found = {**found, **values, "strategy": names}
    else:
        found, line = exampled(values)
    if line:
        print(line, file=sys.stderr)
    return found


def holds_nothing_out(values: Mapping[str, Any]) -> bool:
    """True if all rows are fitted, and none is left to compare strategies by."""
    said = str(values.get("test-fraction", ""))
    return said.replace(".", "", 1).isdigit() and not float(said)


def settled(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a table, with what it says where they say nothing."""
    first = {key: each[0] for key, each in each_of(values).items()}
    found: dict[str, Any] = attached("answer").settled(first)
    return {**values, **{key: value for key, value in found.items() if first.get(key) != value}}


def simulate_and_report(config: Config, json_file: str, fits: bool = False) -> None:
    """Run the simulation, then copy its summary, also of a comparison that is not whole."""
    announce(config, fits)
    from corsage.app.engines import simulate

    logging.getLogger("flwr").setLevel(logging.ERROR)  # Flower sets it when it is imported
    target = Path(json_file).expanduser() if json_file else None
    if target and not target.parent.is_dir():
        raise ConfigError(f"--json {json_file}: its folder does not exist.")
    config, at = attached("answer").begun(config) if fits else (config, None)
    try:
        folder = simulate(config, at)
    except StrategiesFailed as error:
        copy_summary(error.folder, target)
        raise
    copy_summary(folder, target)


def announce(config: Config, fits: bool = False) -> None:
    """Say at once what is about to run: what does the work takes its time to load."""
    keys, number = config.run, config.federation.num_users
    users = f"{number} users" if number > 0 else "all users"
    where = f"goes on in {keys.resume}" if keys.resume else f"to a new folder in {keys.run_dir}"
    rounds = "" if fits else f"{keys.num_rounds} round{'s' * (keys.num_rounds > 1)}, "
    line = f"{', '.join(keys.strategy)}: {config.data.dataset}, {users}, {rounds}{where}"
    print(line, file=sys.stderr, flush=True)


def copy_summary(folder: Path, target: Path | None) -> None:
    """Copy a run's summary to where the user wants it."""
    if target:
        guarded(write_atomically, target, (folder / "summary.json").read_bytes())


def parse(words: list[str]) -> tuple[dict[str, Any], str]:
    """The keys, and the file for the summary. A resumed run brings its own keys along."""
    plain, options = [], {"--resume": "", "--json": "", "--from-round": ""}
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if name in options:
            options[name] = value or next(rest, "")
            if not options[name]:
                raise ConfigError(f"{name}: needs a {NEEDED[name]}.")
        else:
            plain.append(word)
    commands.check_words(plain)
    values = read_words(plain)
    resume = options["--resume"] or values.get("resume", "")
    if resume and is_study(Path(resume).expanduser()):
        values["resume"] = resume
    elif resume:
        from corsage.app.run.resuming import read_config

        values = {**read_config(Path(resume).expanduser())["config"], **values, "resume": resume}
        check_model(str(values.get("model", "")))
    if options["--from-round"]:
        values["from-round"] = options["--from-round"]
    return values, options["--json"]


if __name__ == "__main__":
    main()

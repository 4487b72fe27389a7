"""The words that all commands share: their help, their options, and one line on what is wrong."""

from __future__ import annotations

import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from shutil import get_terminal_size

from corsage.core.errors import UNUSABLE, ConfigError, CorsageError
from corsage.core.registry import not_installed

Errors = type[Exception] | tuple[type[Exception], ...]
Work = Callable[[list[str]], int | None]
Made = Callable[[Work], Callable[[list[str]], int]]

NO_MEMORY = re.compile("MemoryError|(failed to map segment|can(no|')t allocate memory)", re.I)
STARVED = "the process has no memory left: give it more (ulimit -v), or fewer users at once"


def complain(error: object, code: int) -> int:
    """One line to the error stream, of characters that can be read; returns the exit code."""
    line = " ".join(str(error).split())
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    print(f"corsage: {shown}", file=sys.stderr)
    return code


def exit_code(work: Callable[[], int | None], mistakes: Errors = UNUSABLE) -> int:
    """The code that a command leaves with: its own, 2 for a mistake, 1 for what failed."""
    try:
        return work() or 0
    except mistakes as error:
        return complain(error, 2)
    except ModuleNotFoundError as error:  # a part of Corsage that was taken out
        if not_installed(error) is None:
            raise
        return complain(not_installed(error), 2)
    except CorsageError as error:
        return complain(error, error.code)
    except KeyboardInterrupt:
        return complain("interrupted.", 130)
    except (MemoryError, ImportError, OSError, RuntimeError) as error:
        if not NO_MEMORY.search(f"{type(error).__name__}: {error}"):
            raise
        return complain(f"{STARVED} ({in_a_line(error)}).", 1)


def command(usage: str, mistakes: Errors = UNUSABLE, needs_words: bool = False) -> Made:
    """A command made of its work: it prints its usage, or each expected error as one line.

    Parameters
    ----------
    usage : is printed for `--help`, and without a word where it `needs_words`.
    mistakes : errors with which it leaves with 2, others being failures.
    """

    def made(work: Work) -> Callable[[list[str]], int]:
        @wraps(work)
        def run(words: list[str]) -> int:
            missing = needs_words and not words
            if missing or {"-h", "--help"} & set(words):
                print(narrowed(usage, get_terminal_size((100, 24)).columns), end="")
                return 2 * missing
            return exit_code(lambda: work(words), mistakes)

        return run

    return made


def narrowed(text: str, width: int) -> str:
    """Lines of help, none wider than the terminal, and no word broken; what is said of a word
    goes on below itself, and a line that begins there goes on with it."""
    found, rest = list[str](), ""
    for line in text.split("\n"):
        goes_on = rest and line.strip() and blanks(line) == blanks(rest)
        whole = f"{rest} {line.strip()}" if goes_on else line
        found += [rest] if rest and not goes_on else []
        *first, rest = folded(whole, width).split("\n") if len(whole) > width else [whole, ""]
        found += first
    return "\n".join([*found, rest] if rest else found)


def blanks(line: str) -> int:
    """The blanks that a line begins with."""
    return len(line) - len(line.lstrip())


def folded(line: str, width: int) -> str:
    """A long line on several; what is said of a word goes on below itself."""
    match = re.match(r" *\S+(?: \S+)* {2,}|usage: corsage \w+ | *", line)
    indent = match.end() if match and match.end() < width // 2 else 4
    return textwrap.fill(
        line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def in_a_line(error: BaseException) -> str:
    """An error in one line; what nobody foresaw with its type and place."""
    text = " ".join(str(error).split())
    if isinstance(error, CorsageError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{where}"


def read_options(words: list[str], defaults: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The options, and the words that are none; at least one word must be none."""
    options, plain = dict(defaults), list[str]()
    rest = iter(words)
    for word in rest:
        name, _, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            plain.append(word)
            continue
        if name not in defaults:
            raise ConfigError(f"{word}: no such option. There are: {', '.join(defaults)}.")
        options[name] = value or next(rest, "")
        if not options[name]:
            raise ConfigError(f"{word}: needs a value.")
    if not plain:
        raise ConfigError("a folder is missing: see --help.")
    return options, plain


def number(options: Mapping[str, str], name: str, most: int = 2**16 - 1) -> int:
    """An option that is a port, or another whole number from 1 on."""
    value = options[name]
    if not re.fullmatch("[0-9]{1,9}", value) or not 0 < int(value) <= most:
        raise ConfigError(f"--{name}={value}: must be a whole number from 1 to {most}.")
    return int(value)

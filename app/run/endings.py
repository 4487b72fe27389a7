"""Endings of a run's strategies: results, or an error that says why there are none."""

from __future__ import annotations

import hashlib
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from corsage.app.output.summary import Result, human_seconds
from corsage.app.output.usage import in_a_line
from corsage.app.run.user_columns import put_together, taken_apart
from corsage.core.clock import COMMAND_START
from corsage.core.distribution import Spread
from corsage.core.errors import FOR_ALL, UNUSABLE, CorsageError, StrategiesFailed
from corsage.core.files import delete, guarded, intact, sealed, unsealed, write_atomically
from corsage.core.measures import MEASURES
from corsage.core.registry import attached

RESULT, FAILURE, MODEL = "result.json", "failure.json", "model.safetensors"
HELD_OUT = "held-out.json"
"""In a run folder, what was found before its models were fitted to all rows, if anything was."""
USER_COLUMNS = "users.safetensors"
"""What the results say of very many users, one by one."""
ROW_NAME = re.compile(r"[\w-]+(\+[\w-]+)*")
"""The name of a row of the table, which files are named by."""
NUMBER_FIELDS = (
    *("rounds", "users", "worst10", "bytes_up", "bytes_down", "messages", "seconds"),
    *("never_drawn", "gradient_steps"),
)
TABLE_FIELDS = (
    *("per_user_measures", "outcomes", "measures", "train_sizes", "test_sizes", "dropped"),
    *("clusters", "known_clusters", "traffic", "hurt", "estimates", "baseline"),
)
Json = dict[str, Any]
LIST_FIELDS = ("curve", "untested", "findings", "new_users")


def write_result(folder: Path, results: Sequence[Result], rounds: int, model: bytes) -> None:
    """A strategy's results after `rounds`, and its model; nothing stands for its failure any more.

    The results come last: they say that all is there.
    """
    if model:
        guarded(write_atomically, folder / MODEL, model, durable=True)
    plain, users = taken_apart(results)
    if users:
        guarded(write_atomically, folder / USER_COLUMNS, users, durable=True)
    content: Json = {"num-rounds": rounds, "model": digest(model), "users": digest(users)}
    content["results"] = plain
    content["models"] = {path.name: path.stat().st_size for path in sorted(models_of(folder))}
    guarded(write_atomically, folder / RESULT, sealed(content), durable=True)
    delete(folder / FAILURE)


def read_result(folder: Path, rounds: int) -> list[Result] | None:
    """A strategy's results after `rounds`; None if there are none, or they are damaged."""
    try:
        content = unsealed(folder / RESULT)
        model = (folder / MODEL).read_bytes() if content.get("model") else b""
        if content.get("num-rounds") != rounds or content.get("model") != digest(model):
            return None
        return results_in(content, folder)
    except (OSError, ValueError):
        return None


def without_result(folder: Path, rounds: int) -> str:
    """The reason why a strategy has no results after `rounds` that can be used; and what to do."""
    again, model = f"--resume {folder.parent}", folder / MODEL
    if not (folder / RESULT).is_file():
        return read_failure(folder) or f"it has no result yet; finish the run: {again}"
    try:
        content = unsealed(folder / RESULT)
    except (OSError, ValueError):
        return f"its {RESULT} is damaged; a resume makes it anew: {again}"
    if (done := content.get("num-rounds")) != rounds:
        back = f"{again}, or stay at these: {again} num-rounds={done}"
        return f"its result is of {done} rounds, not {rounds}; finish the run: {back}"
    sound = content.get("model") == digest(model.read_bytes() if model.is_file() else b"")
    return f"its {USER_COLUMNS if sound else MODEL} is damaged; a resume makes it anew: {again}"


def results_in(content: Mapping[str, Any], folder: Path) -> list[Result] | None:
    """The results that a file's content says, its users' columns put back; None if damaged."""
    results: Any = content.get("results")
    if isinstance(results, list) and content.get("users"):
        raw = (folder / USER_COLUMNS).read_bytes()
        results = put_together(results, raw) if content["users"] == digest(raw) else None
    sound = isinstance(results, list) and all(is_sound(one, folder.name) for one in results)
    before = folder.parent / HELD_OUT
    if sound and before.is_file():
        results = attached("answer").in_folder(results, before)
    return results if sound else None


def is_sound(result: Any, strategy: str) -> bool:
    """True if a row's numbers are of the kinds that a strategy's own have, whoever wrote them."""
    if not isinstance(result, dict) or not ROW_NAME.fullmatch(name := str(result.get("strategy"))):
        return False
    measure = result.get("measure", "accuracy")
    own = name.partition("+")[0] == strategy
    if not own or not isinstance(measure, str) or measure not in MEASURES:
        return False
    spread = result.get(measure)
    return (
        isinstance(spread, dict)
        and set(spread) == {field.name for field in fields(Spread)}
        and all(is_number(number) for number in spread.values())
        and all(is_number(result.get(name)) for name in (*NUMBER_FIELDS, f"{measure}_last10"))
        and isinstance(result.get("per_user"), dict)
        and all(isinstance(result.get(name), dict | None) for name in TABLE_FIELDS)
        and all(isinstance(result.get(name), list | None) for name in LIST_FIELDS)
    )


def is_number(value: object) -> bool:
    """True if a value is a number, or says that there is none."""
    return value is None or type(value) in (int, float)


def models_of(folder: Path) -> list[Path]:
    """The files of users' models in a strategy's folder."""
    return [*(folder / "models").glob("*.safetensors")]


def has_models(folder: Path) -> bool:
    """True if the models that a strategy's results are of are all there, and as they were."""
    try:
        sizes: dict[str, int] = unsealed(folder / RESULT).get("models", {})
        paths = models_of(folder)
        same = {path.name: path.stat().st_size for path in paths} == sizes
        return same and all(map(intact, paths))
    except (OSError, ValueError):
        return False


def digest(model: bytes) -> str:
    """A digest that tells one model's file from another; `` if there is none."""
    return hashlib.blake2b(model, digest_size=16).hexdigest() if model else ""


def read_failure(folder: Path) -> str:
    """Why a strategy failed when it was last tried; `` if it did not, or that cannot be read."""
    try:
        return str(unsealed(folder / FAILURE)["error"])
    except (OSError, ValueError, KeyError):
        return ""


class Attempts:
    """Strategies that are tried one after the other: one that fails does not end the others.

    What would end all of them (a full disk, nodes that are gone) ends the run.

    Parameters
    ----------
    folder : of the run.
    alone : there is one strategy only, so that its error is the run's.
    """

    def __init__(self, folder: Path, alone: bool = False) -> None:
        self.folder, self.alone = folder, alone
        self.begin = COMMAND_START.get(time.monotonic())
        self.first: float | None = None  # when the first strategy began
        self.seconds: dict[str, float] = {}
        self.errors: dict[str, Exception] = {}

    def attempt(self, name: str, play: Callable[[], float]) -> None:
        """Play a strategy, which gives its seconds; if it fails, note why and go on with others."""
        begin = time.monotonic()
        self.first = self.first or begin
        try:
            self.seconds[name] = play()
        except FOR_ALL:
            raise
        except Exception as error:
            self.seconds[name] = time.monotonic() - begin
            self.errors[name] = error
            self.write_down(name, error)

    def write_down(self, name: str, error: Exception) -> None:
        """Say why a strategy failed, for the table and for whoever looks for the cause."""
        line = in_a_line(error)
        content: dict[str, Any] = {"error": line}
        if not isinstance(error, CorsageError):
            content["traceback"] = "".join(traceback.format_exception(error))
        folder = self.folder / name
        guarded(write_atomically, folder / FAILURE, sealed(content))
        if not (self.alone and isinstance(error, UNUSABLE)):  # else it is the run's last word
            print(f"{name} failed: {line}", file=sys.stderr)

    def times(self, resumed: bool) -> Callable[[], str]:
        """A line on where the command's time went; called before the report, the line after it.

        What is no strategy's is start or report.
        """
        start = (self.first or time.monotonic()) - self.begin

        def line() -> str:
            whole = time.monotonic() - self.begin
            report = whole - start - sum(self.seconds.values())
            parts = {"start": start, **self.seconds, "report": report}
            words = ", ".join(f"{name} {human_seconds(took)}" for name, took in parts.items())
            since = " since it was resumed" if resumed else ""
            return f"Time{since}: {human_seconds(whole)}: {words}"

        return line

    @property
    def in_vain(self) -> bool:
        """True if all that failed cannot be used as it is: to go on would end so again."""
        return bool(self.errors) and all(isinstance(e, UNUSABLE) for e in self.errors.values())

    def raise_if_nothing_is_left(self, asked: int) -> None:
        """The error itself, if every strategy that was asked for failed."""
        errors = list(self.errors.values())
        if len(errors) == asked and (
            asked == 1 or all(isinstance(error, UNUSABLE) for error in errors)
        ):
            raise errors[0]

    def raise_at_the_end(self, asked: int) -> None:
        """StrategiesFailed if a strategy failed, when all there is to say of the others is said."""
        if not self.errors:
            return
        names = ", ".join(self.errors)
        name, first = next(iter(self.errors.items()))
        raise StrategiesFailed(
            f"{len(self.errors)} of {asked} strategies failed: {names}. {name}: {in_a_line(first)}",
            self.folder,
        ) from first

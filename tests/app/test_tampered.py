"""Run folders from somebody else: whatever is in them is used, or refused in one line."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corsage
from corsage.app.engines import simulate
from corsage.app.inference import export
from corsage.app.run import report_again
from corsage.app.run.endings import has_models
from corsage.core.configuration.config import Config
from corsage.core.errors import CorsageError
from corsage.core.files import sealed, unsealed

ROWS = [f"u{i % 3},{i % 7},{'xyz'[i % 3]},{i % 2}" for i in range(60)]
ONE = {"a": [1.0], "c": ["x"]}
DEEP = "[" * 100_000
Json = dict[str, Any]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "all.csv").write_text("\n".join(["user,a,c,label", *ROWS]))
    keys = {
        "dataset": "csv", "data-file": str(folder / "all.csv"), "strategy": "fedrep",
        "hidden": "4", "num-rounds": 1, "run-dir": str(folder), "cache-dir": str(folder / "cache"),
        "fine-tune-epochs": 0,
    }  # fmt: skip
    return simulate(Config.parse(keys))


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def models(run: Path) -> Path:
    return run / "fedrep" / "models" / "fedrep.safetensors"


def use(run: Path) -> None:
    """All that one does with a run of somebody else's."""
    found = corsage.load(run)
    assert found.results is not None and found.users is not None and repr(found)
    model = found["fedrep"].user("u1")
    model.predict(ONE)
    model.predict_proba(ONE)
    model.module()
    found["fedrep"].new_user().predict(ONE)
    found["fedrep"].evaluate()


def refused(run: Path) -> None:
    with pytest.raises(CorsageError) as caught:
        use(run)
    assert len(str(caught.value).splitlines()) == 1


def rewrite(path: Path, change: Callable[[Json, Json], Any]) -> None:
    """Change what a file's tensors are said to be, and its header; no checksum gives it away."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    table = json.loads(raw[8 : 8 + size])
    table["__metadata__"].pop("checksum", None)
    head = json.loads(table["__metadata__"]["corsage"])
    said = change(head, table)
    table["__metadata__"]["corsage"] = said if isinstance(said, str) else json.dumps(head)
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])


def test_what_nobody_changed_is_used(run: Path) -> None:
    use(run)
    rewrite(models(run), lambda head, table: None)
    use(run)


HEADERS: dict[str, list[Any]] = {
    "threads": ["x", 1e9, None], "inputs": ["load", "hub", 7, "float16"],
    "linear": ["load", "float64"], "shift": ["x", None, float("nan"), [1]], "scale": [float("inf")],
    "seed": ["x"],
    "num_classes": [10**12, -1, "x", None, 3], "shape": [[10**9], [-1], ["x"], [10**6] * 2, [3]],
    "users": [7, [1, 2], ["u1"] * 3, None], "classes": [["one"], [{}, {}], 7],
    "clusters": [7, {"u1": 7}], "preparation": [7, {}],
    "model": [7, {}, {"model": "mlp", "hidden": "1000000000"}, {"model": 7}],
    "kept": ["x"], "size": [None], "round": ["1"], "row": [7], "vectors": ["x"],
}  # fmt: skip


@pytest.mark.parametrize("field", HEADERS)
def test_a_header_is_not_believed(run: Path, field: str) -> None:
    before = models(run).read_bytes()
    for value in HEADERS[field]:
        models(run).write_bytes(before)
        rewrite(models(run), lambda head, table, value=value: head.update({field: value}))  # type: ignore[misc]
        refused(run)


def nan(head: Json, table: Json) -> None:
    """The first parameters are other bits."""
    name = next(name for name in table if name != "__metadata__")
    table[name]["dtype"] = "I32"


@pytest.mark.parametrize("change", [lambda h, t: DEEP, lambda h, t: "7", lambda h, t: "{}", nan])
def test_nor_is_what_it_is_in(run: Path, change: Callable[[Json, Json], Any]) -> None:
    rewrite(models(run), change)
    refused(run)


def test_parameters_that_are_not_finite_predict_nothing(run: Path) -> None:
    raw = models(run).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    body = np.full((len(raw) - 8 - size) // 4, np.nan, np.float32).tobytes()
    models(run).write_bytes(raw[: 8 + size] + body)
    refused(run)


@pytest.mark.parametrize("place", [0.02, 0.3, 0.9, 1.0])
def test_a_byte_that_is_another_is_said(run: Path, tmp_path: Path, place: float) -> None:
    """Wherever it is, and whoever reads the models."""
    raw = bytearray(models(run).read_bytes())
    raw[round(place * (len(raw) - 1))] ^= 1
    models(run).write_bytes(raw)
    refused(run)
    assert not has_models(run / "fedrep")
    out = tmp_path / "out.pt"
    for source in (run, models(run)):
        assert export.run([str(source), "strategy=fedrep", "user=u1", "--out", str(out)]) == 2
    assert not out.exists()


def test_a_file_that_is_none(run: Path) -> None:
    models(run).unlink()
    refused(run)
    os.mkfifo(models(run))
    refused(run)
    models(run).unlink()
    models(run).symlink_to("/dev/zero")
    refused(run)


RESULTS: list[Json] = [
    {"strategy": "../../x"}, {"strategy": 7}, {"strategy": "fedavg"}, {"accuracy": 7},
    {"accuracy": {"mean": 1.0}}, {"accuracy": None}, {"measure": []}, {"measure": "x"},
    {"per_user": 7}, {"train_sizes": []}, {"measures": 7}, {"untested": 7},
    {"curve": 7}, {"seconds": "<script>"}, {"outcomes": 7},
]  # fmt: skip


@pytest.mark.parametrize("change", RESULTS, ids=str)
def test_results_that_cannot_be_are_no_results(run: Path, change: Json) -> None:
    """Whoever sealed them."""
    path = run / "fedrep" / "result.json"
    content = unsealed(path)
    content["results"][0].update(change)
    path.write_text(sealed(content))
    (run / "summary.json").write_text(json.dumps({"config": {}, "results": content["results"]}))
    refused(run)
    assert report_again.run([str(run)]) == 2


@pytest.mark.parametrize("name", ["config.json", "fedrep/result.json", "summary.json"])
def test_json_without_end_is_damage(run: Path, name: str) -> None:
    for text in (DEEP, '{"a":' * 100_000, "7", ""):
        (run / name).write_text(text)
        assert report_again.run([str(run)]) in (0, 2)
        use_or_refuse(run)


def use_or_refuse(run: Path) -> None:
    """Use a run that may be made out from what is left of it."""
    try:
        use(run)
    except CorsageError as error:
        assert len(str(error).splitlines()) == 1


def test_a_resume_that_was_refused_leaves_a_way_back_to_what_was_done(run: Path) -> None:
    stored = unsealed(run / "config.json")
    stored["config"]["num-rounds"] = 3  # as such a resume leaves it
    (run / "config.json").write_text(sealed(stored))
    with pytest.raises(CorsageError, match=f"or stay at these: --resume {run} num-rounds=1"):
        use(run)

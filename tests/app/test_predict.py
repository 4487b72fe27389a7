"""Models taken home: predictions for a file's rows, and files for other programs."""

from __future__ import annotations

import csv
import io
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import corsage
from corsage.app.command import run as corsage_run
from corsage.app.engines import simulate
from corsage.app.inference import export, predict
from corsage.app.inference.predict import read_rows
from corsage.app.inference.source import OfRun
from corsage.app.results import known_models
from corsage.app.results.csv_files import plain
from corsage.app.results.header import Header
from corsage.app.results.user_model import UserModel
from corsage.core.configuration.config import Config
from corsage.core.errors import CorsageError, DataError, Refused
from corsage.networks import build

SCHOOLS = {"s1": 1.0, "s2": -1.0, "s3": 5.0}
KEYS = {
    "dataset": "csv",
    "user-column": "school",
    "label-column": "score",
    "labels": "numbers",
    "strategy": "exact-local,exact-global",
    "model": "linear",
    "num-rounds": "1",
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on three schools, score = own slope times a + b + 1, and the folder that it is in."""
    folder, data = tmp_path_factory.mktemp("table"), np.random.default_rng(1)
    lines = ["school,a,b,score"]
    for school, slope in SCHOOLS.items():
        for a, b in data.normal(size=(20, 2)).tolist():
            lines.append(f"{school},{a},{b},{slope * a + b + 1}")
    (folder / "scores.csv").write_text("\n".join(lines))
    keys = {**KEYS, "data-file": str(folder / "scores.csv"), "run-dir": str(folder)}
    return simulate(Config.parse(keys)), folder


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = predict.run(words)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_each_row_has_the_model_of_its_user(
    table: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns are found by their names; rows come back as they were written, with predictions."""
    run, folder = table
    (folder / "new.csv").write_text("b;school;a\n0;s1;2,0\n1;s3;1,0\n0;s2;3,0\n")
    code, out, _ = said([str(run), "strategy=exact-local", str(folder / "new.csv")], capsys)
    rows = list(csv.DictReader(out.splitlines(), delimiter=";"))
    assert code == 0 and list(rows[0]) == ["b", "school", "a", "prediction"]
    assert all("," in row["prediction"] for row in rows) and rows[0]["a"] == "2,0"
    found = [float(row["prediction"].replace(",", ".")) for row in rows]
    assert np.allclose(found, [3.0, 7.0, -2.0])


def test_one_user_for_all_rows_and_a_file(table: tuple[Path, Path]) -> None:
    run, folder = table
    (folder / "one.csv").write_text("a;b\n2;0\n1;1\n")
    words = [str(run), "strategy=exact-local", "user=s3", str(folder / "one.csv")]
    assert predict.run([*words, "--out", str(folder / "out.csv")]) == 0
    lines = (folder / "out.csv").read_text().splitlines()
    assert [line.split(";")[:2] for line in lines] == [["a", "b"], ["2", "0"], ["1", "1"]]
    assert np.allclose([float(line.split(";")[2]) for line in lines[1:]], [11.0, 7.0])


def test_numbers_stay_what_they_are_and_formulas_are_text(
    table: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = table
    notes = ["=1+1", "-1+A1", "\uff1d1+1", "\uff0b1", "\uff0dA1", "\uff20A1", "@A1"]
    numbers = ["-2,5;+1e-3", "-1,0;0"] * 3 + ["-1,0;0"]
    lines = (f'{row};"{note}"' for row, note in zip(numbers, notes, strict=True))
    (folder / "new.csv").write_text("\n".join(["a;b;note", *lines, ""]), newline="")
    words = [str(run), "strategy=exact-local", "user=s1", str(folder / "new.csv")]
    code, out, _ = said(words, capsys)
    rows = [line[:3] for line in csv.reader(io.StringIO(out, newline=""), delimiter=";")]
    assert code == 0 and [";".join(row[:2]) for row in rows[1:]] == numbers
    assert [row[2] for row in rows[1:]] == [f"'{note}" for note in notes]
    assert [plain(f"{sign}A1") for sign in "\t\r\n"] == ["'\tA1", "'\rA1", "'\nA1"]


HEADER = str({"descr": "<f4", "fortran_order": False, "shape": (10**11, 3)}).ljust(117) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("x.npy", b"", "no array x of samples in it"),
        ("x.npz", b"PK\x03\x04", "no array x of samples in it"),
        ("x.npy", b"pickled?" * 9, r"\(Python objects, or no arrays at all\)"),
        ("x.npy", b"\x93NUMPY\x01\x00v\x00" + HEADER.encode(), "no array x of samples in it"),
        ("x.csv", b"a,b,a\n1,2,3\n", "column 'a' is there twice"),
    ],
)
def test_a_file_of_no_rows_is_one_line(
    table: tuple[Path, Path], tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=why):
        read_rows(tmp_path / name)


BAD: dict[str, tuple[list[str], str, str]] = {
    "no strategy": (["user=s1"], "a,b\n1,2\n", "strategy=NAME: say which. There are: exact-local,"),
    "unknown strategy": (
        ["strategy=fedrep"],
        "a,b\n1,2\n",
        "fedrep: no such row. There are: exact",
    ),
    "unknown user": (["strategy=exact-local", "user=s9"], "a,b\n1,2\n", "user s9: has no model in"),
    "unknown user in a row": (["strategy=exact-local"], "a,b,school\n1,2,x\n", "user x: has no mo"),
    "no user": (["strategy=exact-local"], "a,b\n1,2\n", "user=NAME: say which. There are: s1, s2"),
    "too few columns": (["strategy=exact-local", "user=s1"], "a\n1\n", "a"),
    "words": (["strategy=exact-local", "user=s1"], "a,b\nx,2\n", "'x'"),
    "a gap": (["strategy=exact-local", "user=s1"], "a,b\nnan,2\n", "missing"),
    "no rows": (["strategy=exact-local", "user=s1"], "a,b\n", "no rows below the header"),
    "a short row": (["strategy=exact-local", "user=s1"], "a,b\n1\n", "line 2: 1 cells"),
    "an option": (["--prob", "strategy=exact-local"], "a,b\n1,2\n", "Did you mean --proba?"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_what_is_wrong_is_one_line(
    case: str, table: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (words, text, why), (run, folder) = BAD[case], table
    (folder / "bad.csv").write_text(text)
    code, out, error = said([str(run), *words, str(folder / "bad.csv")], capsys)
    assert code == 2 and not out and why in error and error.count("\n") == 1


def test_a_cell_that_is_no_number_is_named_by_its_line_in_the_file(
    table: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by its place among its user's rows, nor among those that are not blank."""
    run, folder = table
    for cell, why in (("x", "'x' is not a number"), ("", "is missing")):
        text = f"school,a,b\ns2,1,2\n\ns1,1,2\ns1,{cell},2\n"
        (folder / "bad.csv").write_text(text)
        code, _, error = said([str(run), "strategy=exact-local", str(folder / "bad.csv")], capsys)
        assert code == 2 and "line 5, column 'a'" in error and why in error


def test_a_word_that_nobody_had_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not once a user."""
    lines = [f"s{i % 3},{i % 5},{'uv'[i % 2]},{i}" for i in range(60)]
    (tmp_path / "words.csv").write_text("\n".join(["school,a,word,score", *lines]))
    keys = {**KEYS, "strategy": "exact-local", "run-dir": str(tmp_path / "runs")}
    run = simulate(Config.parse({**keys, "data-file": str(tmp_path / "words.csv")}))
    (tmp_path / "new.csv").write_text("school,a,word\ns0,1,w\ns1,1,w\ns2,1,x\n")
    assert predict.run([str(run), str(tmp_path / "new.csv")]) == 0
    told = [r.getMessage() for r in caplog.records if "not there" in r.msg]
    assert [line.split("'")[3] for line in told] == ["w", "x"]


def test_a_new_user_gets_what_all_share(
    table: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = table
    (folder / "other.csv").write_text("school,a,b\ns9,1,2\n")
    words = [str(run), "strategy=exact-global", str(folder / "other.csv"), "--new-users"]
    code, out, error = said(words, capsys)
    assert code == 0 and "user s9: is new: what all share" in error
    row = corsage.load(run)["exact-global"]
    wanted = row.user("s1").predict([[1.0, 2.0]])[0]
    assert float(out.splitlines()[1].split(",")[3]) == pytest.approx(wanted, rel=1e-6)


def test_raw_samples_in_any_form(table: tuple[Path, Path]) -> None:
    """One row, rows, a frame whose columns are in another order; else one line."""
    model = corsage.load(table[0])["exact-local"].user("s3")
    one = model.predict([2.0, 0.0])
    assert np.allclose(one, [11.0]) and np.allclose(model.predict(np.array([[2.0, 0.0]])), one)
    for wrong in ([1.0, 2.0, 3.0], [[1.0], [2.0]], [["a", "b"]], [[np.nan, 1.0]]):
        with pytest.raises(DataError):
            model.predict(wrong)


def test_exports_are_loaded_by_others(table: tuple[Path, Path]) -> None:
    run, folder = table
    words = [str(run), "strategy=exact-local", "user=s3", "--out"]
    assert export.run([*words, str(folder / "m.pt")]) == 0
    assert export.run([*words, str(folder / "m.safetensors")]) == 0
    state = torch.load(folder / "m.pt", weights_only=True)
    named = load_file(folder / "m.safetensors")
    model = corsage.load(run)["exact-local"].user("s3")
    for name, tensor in model.state_dict().items():
        assert torch.equal(state[name], tensor) and np.array_equal(named[name], tensor.numpy())
    module = model.module()
    module.load_state_dict(state, strict=True)
    x = model.inputs([[2.0, 0.0]])
    assert np.allclose(module(x).detach().numpy(), model.outputs([[2.0, 0.0]]).numpy())


def test_an_export_whose_name_ends_in_no_format_says_which_there_are(
    table: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = table
    words = [str(run), "strategy=exact-local", "user=s3", "--out", str(folder / "m.xyz")]
    assert export.run(words) == 2
    assert "m.xyz: its ending names no format; there are .safetensors" in capsys.readouterr().err


def test_an_onnx_graph_takes_raw_samples(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    keys = {"strategy": "fedrep", "num-users": 4, "num-rounds": 1, "run-dir": str(tmp_path)}
    run = simulate(Config.parse(keys))
    target = tmp_path / "m.onnx"
    assert (
        export.run(
            [str(run), "strategy=fedrep", "user=2", "--out", str(target), "--format", "onnx"]
        )
        == 0
    )
    row = corsage.load(run)["fedrep"]
    model, x = row.user(2), row.users_data()["2"].x_test
    graph = runtime.InferenceSession(str(target))
    (found,) = graph.run(None, {"samples": x.astype(np.float32)})
    assert np.allclose(found, model.of_arrays(x).numpy(), atol=1e-5)


def damaged(run: Path) -> list[Any]:
    file = run / "exact-local" / "models" / "exact-local.safetensors"
    raw = file.read_bytes()
    return [file, raw[: len(raw) // 2], raw.replace(b"corsage-models-1", b"corsage-models-9"), b""]


def test_damaged_files_and_unfinished_runs_are_one_line(
    table: tuple[Path, Path], tmp_path: Path
) -> None:
    run, _ = table
    file, *contents = damaged(run)
    whole = (one := run / "exact-local" / "result.json").read_bytes()
    one.write_bytes(whole.replace(b"exact-local", b"exact-lokal"))
    assert (
        "result.json is damaged; a resume makes it anew" in corsage.load(run).failed["exact-local"]
    )
    one.write_bytes(whole)
    before = file.read_bytes()
    try:
        for content in contents:
            file.write_bytes(content)
            with pytest.raises(CorsageError, match=r"exact-local\.safetensors"):
                corsage.load(run)["exact-local"].user("s1")
    finally:
        file.write_bytes(before)
    with pytest.raises(CorsageError, match="no such folder"):
        corsage.load(tmp_path / "none")
    with pytest.raises(CorsageError, match="not a run folder"):
        corsage.load(tmp_path)


def test_of_a_user_who_was_never_drawn_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    models = OfRun.__new__(OfRun)
    models._row = SimpleNamespace(numbers={"untrained": ["3"]}, user=str)  # type: ignore[assignment]
    models.user("3")
    assert "user 3: was never drawn in training" in capsys.readouterr().err
    models.user("4")
    assert not capsys.readouterr().err


PWN = """
import pathlib, torch
pathlib.Path("ran").write_text("")

def factory(outputs):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, outputs))
"""


def test_a_foreign_run_s_model_is_not_imported_but_where_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trained here, it is; elsewhere, its folder beside the same code says what would be run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "pwn_of_a_run.py").write_text(PWN)
    rows = "".join(f"{u},{i % 3},{i % 4},{i % 2}\n" for u in "ab" for i in range(12))
    (tmp_path / "own.csv").write_text("user,p,q,label\n" + rows)
    words = ["strategy=local", "dataset=csv", "data-file=own.csv", "model=pwn_of_a_run:factory"]
    assert corsage_run([*words, "num-rounds=1", "run-dir=runs"]) == 0
    place = str(next((tmp_path / "runs").iterdir()))
    ask = [place, "user=a", "own.csv", "--out", "out.csv"]

    def asked(*more: str) -> tuple[int, bool, str]:
        (tmp_path / "ran").unlink(missing_ok=True)
        known_models._ALLOWED.clear()
        sys.modules.pop("pwn_of_a_run", None)
        build._build.cache_clear()
        build._auto.cache_clear()
        code = predict.run([*ask, *more])
        return code, (tmp_path / "ran").exists(), capsys.readouterr().err

    assert asked()[:2] == (0, True)
    (tmp_path / "pwn_of_a_run.py").write_text(PWN + "# edited\n")
    assert asked()[:2] == (0, True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "stranger"))
    code, ran, line = asked()
    assert (code, ran) == (2, False)
    assert "allow it by models=pwn_of_a_run:factory" in line and line.count("\n") == 1
    assert corsage_run(["--resume", place]) == 2
    assert not (tmp_path / "ran").exists()
    assert asked("models=pwn_of_a_run:factory")[:2] == (0, True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir("/")
    ask[:] = [str(tmp_path / place), "user=a", str(tmp_path / "own.csv")]
    line = asked()[2]
    assert f"not found from here; it was trained as {tmp_path / 'pwn_of_a_run.py'}" in line


def test_a_copy_is_known_only_with_the_code_that_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's own file is the same each time; what it imports may be anything."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys, "pycache_prefix", None)
    model, code = "net_of_mine:Net", "import helper_of_mine\n"
    for place in ("mine", "copied", "linked"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "helper_of_mine.py").write_text("good = 1\n")
    (tmp_path / "mine" / "net_of_mine.py").write_text(code)
    monkeypatch.chdir(tmp_path / "mine")
    known_models.note_model(model)
    known_models.check_model(model)
    shutil.copy(tmp_path / "mine" / "net_of_mine.py", tmp_path / "copied")
    (tmp_path / "linked" / "net_of_mine.py").symlink_to(tmp_path / "mine" / "net_of_mine.py")
    for place in ("copied", "linked"):
        monkeypatch.chdir(folder := tmp_path / place)
        known_models.check_model(model)
        assert sys.pycache_prefix == str(tmp_path / "home" / "corsage" / "compiled")
        (folder / "helper_of_mine.py").write_text("bad = 1\n")
        with pytest.raises(Refused, match="allow it by models=net_of_mine:Net"):
            known_models.check_model(model)
        (folder / "helper_of_mine.py").write_text("good = 1\n")
        (folder / "optional").mkdir()
        (folder / "optional" / "__init__.py").write_text("bad = 1\n")
        with pytest.raises(Refused, match="not trained here"):
            known_models.check_model(model)


@pytest.mark.parametrize(
    ("answer", "runs"), [("y", True), ("YES", True), ("", False), ("n", False)]
)
def test_at_a_terminal_it_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str, runs: bool
) -> None:
    """Once: what was allowed is not asked about again. A run's rule for models is code, too."""
    model = "pwn_of_nobody:factory"
    for stream in (asked := io.StringIO(f"{answer}\n"), sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", asked)
    monkeypatch.setattr(known_models, "_ALLOWED", set())
    check = partial(known_models.check_rule, {"rule": model})
    if not runs:
        with pytest.raises(Refused, match=f"model={model}: not run"):
            check()
    else:
        check()
        known_models.check_model(model)
    said = capsys.readouterr().err
    assert said == f"The run's model is {model}, code of a module that is not found. Run it? [y/N] "


def test_a_foreign_file_s_rule_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setitem(sys.modules, "pwn_of_a_rule", None)  # to import it would say so
    said = {"rule": "pwn_of_a_rule:f", "models": 1, "settings": {}}
    head = Header("local", "local", 1, ("a",), True, 1, {"model": "linear"}, (3,), 2, 0)
    model = UserModel("a", replace(head, combination=said), {})
    for ask in (lambda: model.predict([[1, 2, 3]]), model.module, lambda: model.coefficients):
        with pytest.raises(Refused, match="allow it by models=pwn_of_a_rule:f"):
            ask()


def test_a_word_that_the_embedding_has_not_is_one_line() -> None:
    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.table(x).mean(1))
            return found

    draw = np.random.default_rng(0)
    users = {user: (draw.integers(0, 9, (12, 3)), draw.integers(0, 2, 12)) for user in "ab"}
    run = corsage.simulate("local", users, model=Words, num_rounds=1, progress=False)
    with pytest.raises(DataError, match="numbers are 8 to 9: the model's embedding has no row"):
        run["local"].user("a").predict([[8, 8, 9]])

"""The bench: its choices see no test data, killed or not it writes the same, and cells repeat."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corsage
from corsage.app.bench import mine, protocol, sets
from corsage.app.bench.audit import best_round
from corsage.app.bench.estimate import estimate, measured
from corsage.app.bench.jobs import OTHERS_SAMPLES, perform, versions
from corsage.app.bench.journal import BenchFolder, read_lines
from corsage.app.bench.protocol import best, chosen, drawn, finals, trial
from corsage.app.bench.rows import Entry, Results
from corsage.app.bench.running import Bench
from corsage.app.command import run
from corsage.app.studies.workers import Ended, Job
from corsage.core.errors import CheckpointError, ConfigError, CorsageError, OtherData
from corsage.core.registry import ALGORITHMS
from tests.support.html import Page

METHODS = "constant,local,fedavg,ditto,mixed-model"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Jobs are done in this process, the last of those that wait first."""
    names: list[str] = []

    def play(
        jobs: Iterable[Job], at_once: int, told: Callable[[Ended], Iterable[Job] | None]
    ) -> list[Ended]:
        waiting = [*jobs]
        while waiting:
            job = waiting.pop()
            names.append(job.name)
            answer = json.loads(json.dumps(perform(*job.arguments)))
            waiting += told(Ended(job, 0, 0.0, 0.1, answer)) or ()
        return []

    monkeypatch.setattr("corsage.app.bench.running.play", play)
    return names


def quick(monkeypatch: pytest.MonkeyPatch, own: dict[str, dict[str, Any]]) -> None:
    monkeypatch.setattr("corsage.app.bench.command.QUICK_SETS", own)
    monkeypatch.setattr("corsage.app.bench.command.QUICK_PROTOCOL", protocol.Protocol(2, 2))


def small() -> dict[str, dict[str, Any]]:
    own = {**sets.QUICK_SETS["moons"], "num-users": 6, "num-rounds": 2, "hidden": "8"}
    return {"moons": own, "noisy": {**own, "moons-noise": 0.4}}


def the_folder(parent: Path) -> Path:
    (found,) = parent.iterdir()
    return found


def written(folder: Path) -> Path:
    """Samples of six users, which say which of them are for testing."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(6), 40)
    x = rng.normal(size=(240, 4)).astype(np.float32)
    y = (x[:, 0] + (users % 2) * x[:, 1] > 0).astype(np.int64)
    np.savez(folder / "own.npz", x=x, y=y, user=users, test=np.arange(240) % 5 == 0)
    return folder / "own.npz"


def permuted(path: Path, seed: int) -> Path:
    """The same, with the test labels of all users in another order."""
    found = dict(np.load(path))
    test = found["test"]
    found["y"][test] = np.random.default_rng(seed).permutation(found["y"][test])
    other = path.with_name(f"other{seed}.npz")
    np.savez(other, **found)
    return other


def test_what_is_chosen_does_not_depend_on_test_labels(tmp_path: Path) -> None:
    """Lines of trials are equal to the bit; those of tests are not."""
    path = written(tmp_path)
    both: list[list[dict[str, Any]]] = []
    for file in (path, permuted(path, 1)):
        own = {**sets.COMMON_KEYS, "dataset": "npz", "data-file": str(file), "num-rounds": 2}
        own |= {"hidden": "8", "user-column": "user", "label-column": "y"}
        lines = []
        for method in METHODS.split(","):
            lines += [
                perform(asdict(trial("own", own, method, k)), "")
                for k in range(protocol.Protocol(2).trials_of(method))
            ]
        lines.append(perform(asdict(finals("own", own, "fedavg", [0], 1)[0]), ""))
        both.append(lines)
    assert not any(line["failed"] for lines in both for line in lines)
    one, other = both
    assert [without_mark(line) for line in one[:-1]] == [without_mark(li) for li in other[:-1]]
    assert one[-1]["rows"] != other[-1]["rows"]
    mean = one[1]["rows"]["local"]["per_user"]
    assert len(mean) == len(one[-1]["rows"]["fedavg"]["per_user"])


def without_mark(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "data"}


def test_trials_are_drawn_once_and_the_defaults_are_the_first() -> None:
    assert drawn("ditto", 0) == {} and drawn("ditto", 3) == drawn("ditto", 3)
    some = [drawn("ditto", k) for k in range(1, 60)]
    rates = np.log([one["lr"] for one in some])
    assert {*some[0]} == {"lr", "ditto-lambda"}
    assert rates.min() > np.log(0.003) - 0.01 and rates.max() < np.log(0.3) + 0.01
    assert abs(rates.mean() - np.log(0.03)) < 0.5  # 3 standard errors
    assert all(isinstance(drawn("fedrep", k)["head-epochs"], int) for k in range(1, 5))
    assert {*drawn("fedavg", 1)} == {"lr"}
    for method in sets.methods()[1:]:
        assert len(protocol.tuned(method)) <= 2


def test_the_best_trial_is_the_first_of_equals_and_none_that_failed() -> None:
    def line(number: int, **rows: float) -> dict[str, Any]:
        return {"trial": number, "rows": {k: {"mean": v} for k, v in rows.items()}}

    lines = [line(0), line(1, fedavg=0.5), line(2, fedavg=0.7), line(3, fedavg=0.7)]
    assert best(lines, "fedavg") == 2 and best(lines[:1], "fedavg") is None
    errors = [{"mean": 2.0, "measure": "rmse"}, {"mean": 1.0, "measure": "rmse"}]
    rmse = [{"trial": k, "rows": {"local": row}} for k, row in enumerate(errors)]
    assert chosen(rmse, "local") == {"local": 1}
    assert best([line(0, local=float("nan")), line(1, local=0.1)], "local") == 1


def test_a_bench_whole_resumed_and_verified(
    tmp_path: Path,
    here: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    quick(monkeypatch, small())
    only = "Local,FedAvg,constant,Ditto@moons"
    assert run(["bench", "--quick", "--only", only, f"run-dir={tmp_path}"]) == 0
    folder, out = the_folder(tmp_path), capsys.readouterr().out
    assert "fedavg+ft" in out and "Friedman" in out
    names = ["costs.jsonl", "results.jsonl", "table.csv", "table.tex", "report.html"]
    before = {name: (folder / name).read_bytes() for name in names}
    page = Page()
    page.feed(before["report.html"].decode())
    page.close()
    assert '"again":"corsage verify ditto@moons"' in before["report.html"].decode()
    assert rb"\textbf{" in before["table.tex"]

    # Killed within a line, and with some of the last ones gone: the same bytes.
    journal, count = folder / "journal.jsonl", len(here)
    raw = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(raw[: len(raw) // 2]) + raw[-1][:50])
    (folder / "results.jsonl").unlink()
    assert run(["bench", "--resume", str(folder)]) == 0
    assert count < len(here) < 2 * count and not (folder / "logs").exists()
    assert {name: (folder / name).read_bytes() for name in names} == before

    capsys.readouterr()
    assert run(["verify", "ditto@moons", str(folder)]) == 0
    assert capsys.readouterr().out.count("the same to the last digit") == 2
    lines = [json.loads(line) for line in before["results.jsonl"].splitlines()]
    assert run(["verify", "constant@moons", str(folder), "num-nodes=2"]) == 0
    tampered = next(li for li in lines if li["method"] == "local" and li["seed"] == 0)
    tampered["rows"]["local"]["per_user"]["0"] = 0.123
    older = next(li for li in lines if li["method"] == "constant" and li["seed"] is None)
    del older["config"]["stop-after"]  # a key that came since
    older["config_hash"] = protocol.digest(older["config"])
    failed = next(li for li in lines if li["method"] == "constant" and li["seed"] == 0)
    failed["failed"] = "too hot"
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    name = f"local@{tampered['place']}:t{tampered['trial']}:s0"
    assert run(["verify", name, str(other)]) == 1
    assert "per_user was" in capsys.readouterr().out
    assert run(["verify", protocol.name_of(older), str(other)]) == 0
    assert run(["verify", protocol.name_of(failed), str(other)]) == 1
    assert "it failed: too hot" in capsys.readouterr().out
    rows_are_those_of_the_runs(folder, lines)
    packed_it_is_the_same(folder, tmp_path / "packed")

    more = ["--only", "FedPer@noisy", f"data-dir={tmp_path}"]  # where files are now, if any
    assert run(["bench", "--resume", str(folder), *more]) == 0
    more = (folder / "results.jsonl").read_bytes().splitlines(keepends=True)
    assert b"".join(li for li in more if b'"fedper"' not in li) == before["results.jsonl"]
    assert len(more) == len(lines) + 2 + 2


def packed_it_is_the_same(folder: Path, packed: Path) -> None:
    """Compressed results and costs are a bench without its journal."""
    packed.mkdir()
    shutil.copy(folder / "bench.json", packed)
    for name in ("results.jsonl", "costs.jsonl"):
        (packed / f"{name}.xz").write_bytes(lzma.compress((folder / name).read_bytes()))
    assert run(["report", str(packed)]) == 0
    assert (packed / "report.html").read_bytes() == (folder / "report.html").read_bytes()
    bench = Bench(BenchFolder.there(packed))
    assert not [work for pair in bench.pairs for work in bench.due(*pair)]


def rows_are_those_of_the_runs(folder: Path, lines: list[dict[str, Any]]) -> None:
    """A mean of the table is that of `simulate` under the same keys."""
    results = Results.of(lines, {})
    entry = next(o.entry for o in results.sets["moons"] if o.entry.row == "ditto")
    keys = {
        **sets.COMMON_KEYS,
        **small()["moons"],
        **protocol.ADAPTED,
        **drawn("ditto", entry.trial),
    }
    own = {name.replace("-", "_"): value for name, value in keys.items()}
    for seed in (0, 1):
        line = next(li for li in lines if li["method"] == "ditto" and li["seed"] == seed)
        own["new_users"] = line["config"]["new-users"]
        found = corsage.simulate("ditto", progress=False, seed=seed, **own)
        assert found["ditto"].score.mean == entry.results[str(seed)]["mean"]
    assert entry.study.mean == np.mean([entry.results[s]["mean"] for s in "01"])


def test_a_line_has_each_users_model_on_others_data_and_each_new_user() -> None:
    """By a loop over users and samples; the constant answer's, too."""
    keys = {**sets.COMMON_KEYS, **small()["moons"], "new-users": 0.4}
    names = ("fedavg", "constant", "mixed-model")
    works = [finals("moons", keys, method, [0], 1)[0] for method in names]
    line, answers, mixed = (perform(asdict(work), "") for work in works)
    assert (
        mixed["rows"]["mixed-model"]["others"].keys()
        == mixed["rows"]["mixed-model"]["per_user"].keys()
    )
    config = protocol.config_of(works[0].keys, "fedavg")
    own = {name.replace("-", "_"): value for name, value in works[0].keys.items()}
    found = corsage.simulate("fedavg", progress=False, **own)
    for name, row in [*line["rows"].items(), ("constant", answers["rows"]["constant"])]:
        data = found["fedavg"].prepared
        users = [user for user in data.users if user in line["rows"]["fedavg"]["per_user"]]
        for user, value in row["others"].items():
            right, y = [], np.bincount(data[user].y_train.astype(int)).argmax()
            for other in users:
                x, labels = data[other].x_test, data[other].y_test
                said = y if name == "constant" else found[name].user(user).predict(x)
                right += [*(said == labels)] if other != user else []
            assert value == pytest.approx(np.mean(right)) and len(right) < OTHERS_SAMPLES
        assert [*row["others"]] == users and 1 < len(users) < config.federation.num_users
    for name, row in line["rows"].items():
        own_new = (
            f"{name}+new" if name.endswith(("exact", "gauss", "prior", "auto")) else "fedavg+new"
        )
        assert {one.score.mean for one in found[own_new].new_users} == {
            np.mean([*values.values()]) for values in row["new_users"].values()
        }, name
        assert [*row["new_users"]] == ["5", "20", "0"]


def test_a_row_whose_users_are_not_all_there_is_no_result(tmp_path: Path) -> None:
    """One user's model diverges: the others' mean would be compared with that of all."""
    found = dict(np.load(path := written(tmp_path)))
    found["y"] = found["x"][:, 0] * np.where(found["user"] == 0, 1e20, 1)
    np.savez(path, **found)
    keys = {
        **sets.COMMON_KEYS,
        "dataset": "npz",
        "data-file": str(path),
        "num-rounds": 2,
        "lr": 0.3,
        "labels": "numbers",
    }
    keys |= {"user-column": "user", "label-column": "y", "scale": "none", "new-users": 0}
    line = perform(asdict(trial("own", {**keys, "fraction-train": 1}, "local", 0)), "")
    assert line["failed"] == "local: 1 of 6 users' models diverged"
    assert not line["rows"] and not line["data"]


def test_the_estimate_has_all_that_will_run_and_why_the_rest_will_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a set of numbers FedAvg has no row of class frequencies, and FedProto none at all."""

    def play(jobs: Iterable[Job], at_once: int, told: Callable[[Ended], None]) -> None:
        for job in jobs:
            answer = json.loads(json.dumps(measured(*job.arguments)))
            told(Ended(job, 0, 0.0, 0.1, answer))

    monkeypatch.setattr("corsage.app.bench.estimate.play", play)
    own = {"dataset": "npz", "data-file": str(written(tmp_path)), "labels": "numbers"}
    own |= {"user-column": "user", "label-column": "y", "num-rounds": 2, "hidden": "8"}
    estimate({"protocol": {"trials": 3, "seeds": 2}, "sets": {"own": own}, "mine": "",
              "pairs": [["fedavg", "own"], ["fedproto", "own"]]}, 1)  # fmt: skip
    said = capsys.readouterr()
    rows = len(sets.rows_of("fedavg"))
    assert f" {3 + 2 * rows + 3} runs" in said.out
    (why,) = (line for line in said.err.splitlines() if "@own" in line)
    assert why.endswith("of classes; labels are numbers here, so take another method.")


MINE = '''"""FedAvg by another name."""
from corsage.strategies.fedavg import FedAvg
class Mine(FedAvg):
    """FedAvg."""
    name = "mine"
'''
CLIENT = '''"""FedAvg by another name."""
from corsage.clients.fedavg import FedAvgClient
class MineClient(FedAvgClient):
    """FedAvg."""
'''


def test_a_method_of_ones_own_has_its_row(
    tmp_path: Path,
    here: list[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As good as what it is; a file with a name of Corsage's is refused, and not left unread."""
    request.addfinalizer(lambda: ALGORITHMS.pop("mine", None))  # type: ignore[arg-type]
    for package, text in ((corsage.strategies, MINE), (corsage.clients, CLIENT)):
        folder = tmp_path / package.__name__.rpartition(".")[2]
        folder.mkdir()
        for name in ("mine", "fedavg", "effort"):
            (folder / f"{name}.py").write_text(text.replace("Mine(", f"{name.title()}("))
        monkeypatch.setattr(package, "__path__", [*package.__path__])
    for name in ("fedavg", "effort"):
        with pytest.raises(ConfigError, match="is a name of Corsage's"):
            mine.registered(str(tmp_path / "strategies" / f"{name}.py"))
    file = str(tmp_path / "strategies" / "mine.py")
    assert mine.registered(file) == mine.registered(file) == "mine"
    keys = {**sets.COMMON_KEYS, **small()["moons"]}
    own, other = (perform(asdict(trial("moons", keys, n, 0)), file) for n in ("mine", "fedavg"))
    assert own["rows"]["mine"]["per_user"] == other["rows"]["fedavg"]["per_user"]

    # A bench that is done takes it, and does nothing else again; once it is changed, it anew.
    quick(monkeypatch, {"moons": small()["moons"]})
    runs = tmp_path / "runs"
    assert run(["bench", "--quick", "--only", "local,constant", f"run-dir={runs}"]) == 0
    folder, before = the_folder(runs), [*here]
    results = folder / "results.jsonl"
    lines = results.read_bytes().splitlines()
    assert run(["bench", "--resume", str(folder), "--mine", file]) == 0
    assert {name.partition("@")[0] for name in here[len(before) :]} == {"mine"}
    assert {*lines} < {*results.read_bytes().splitlines()}
    (tmp_path / "clients" / "mine.py").write_text(CLIENT + "# another one")
    assert mine.mark_of(file)["mine"] != own["versions"]["mine"]
    versions.cache_clear()
    count = len(here)
    assert run(["bench", "--resume", str(folder)]) != 0
    assert f"--mine {file} runs it anew" in capsys.readouterr().err
    assert run(["bench", "--resume", str(folder), "--mine", file, "--only", "mine@moons"]) == 0
    assert sorted(here[count:]) == sorted(here[len(before) : count])
    assert mine.mark_of(file)["mine"].encode() in results.read_bytes()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--only", "fedrepp"], "Did you mean fedrep?"),
        (["--only", "fedrep@mars"], "no mars here"),
        (["--only", "fedavg+ftt"], "Did you mean fedavg+ft?"),
        (["--only", ","], "needs METHOD, @SET or METHOD@SET"),
        (["--mine", "/no/such.py"], "is not there"),
        (["--nope"], "--nope: unknown"),
        (["--only", "mixed-model@digits-s2", "--quick"], "mixed-model is not for digits-s2"),
        (["--show", "x", "--quick"], "takes a place, and nothing else"),
        (["--resume", "--quick"], "adds to it"),
        (["stop-after=1"], "of keys it takes"),
        (["--resume"], "there is no bench"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], part: str
) -> None:
    assert run(["bench", *words, f"run-dir={tmp_path}"]) == 2
    assert part in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [("[1]\n", 2, "no results"), ('{"a": 1}\n', 2, "no results"), ("", 1, "no run of it is done")],
)
def test_a_file_that_has_no_results_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, part: str
) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    assert run(["bench", "--show", str(tmp_path / "x.jsonl")]) == code
    said = capsys.readouterr()
    assert part in said.err and said.err.count("\n") == 1 and not said.out


def test_a_set_that_is_not_here_is_left_out_by_name(
    tmp_path: Path,
    here: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = {"dataset": "csv", "data-file": str(tmp_path / "no.csv"), "label-column": "y"}
    quick(monkeypatch, {"gone": gone, "moons": small()["moons"]})
    words = ["bench", "--quick", "--only", "constant", f"run-dir={tmp_path / 'runs'}"]
    assert run(words) == 0
    assert "gone is left out:" in capsys.readouterr().err
    assert [*BenchFolder.there(the_folder(tmp_path / "runs")).plan["sets"]] == ["moons"]
    quick(monkeypatch, {"gone": gone})
    with pytest.raises(ConfigError, match="no data set of it is here"):
        from corsage.app.bench.command import planned

        planned({"--quick": ""}, {})


def a_folder(parent: Path, lines: int = 3) -> BenchFolder:
    """A bench with some lines."""
    plan = {"protocol": {"trials": 8, "seeds": 5}, "sets": {"moons": small()["moons"]},
            "pairs": [["local", "moons"]], "versions": {"numpy": "1"}}  # fmt: skip
    folder = BenchFolder.begin(parent, plan)
    for number in range(lines):
        folder.add(a_line(number), 0.5)
    return folder


def a_line(number: int, data: str = "same") -> dict[str, Any]:
    row = {"mean": 0.1 * number, "per_user": {"0": 0.1 * number}}
    return {"place": "moons", "method": "local", "trial": number, "seed": None, "data": data,
            "failed": "", "rows": {"local": row}}  # fmt: skip


def test_a_journal_is_mended_only_by_who_works_on_it(tmp_path: Path) -> None:
    """Who reads a bench that runs leaves its last line alone; damage costs no line but its own."""
    folder = a_folder(tmp_path)
    journal = folder.folder / "journal.jsonl"
    raw = journal.read_bytes().splitlines(keepends=True)
    changed = raw[1].replace(b'"mean": 0.1', b'"mean": 0.9')
    assert changed != raw[1]
    text = raw[0] + changed + b"5\n[]\n" + raw[2] + raw[0][:40]
    journal.write_bytes(text)
    found = BenchFolder.there(folder.folder)
    assert [*found.lines] == ["local@moons:t0", "local@moons:t2"]
    assert journal.read_bytes() == text
    with found, pytest.raises(CheckpointError, match="is at work"):
        other = BenchFolder.there(folder.folder)
        other._lock = type(other._lock)(folder.folder)
        other.__enter__()
    assert journal.read_bytes() == raw[0] + raw[2]
    with BenchFolder.there(folder.folder) as again:
        again.add(a_line(1), 0.5)
        again.add(a_line(3) | {"rows": {"local": {"per_user": {"2": 0.1, "10": 0.2}}}}, 0.5)
        again.conclude()
    users = read_lines(again.folder / "results.jsonl")[0][-1]["rows"]["local"]["per_user"]
    assert [*users] == ["2", "10"]  # in this order their samples' sums are
    raw.append(journal.read_bytes().splitlines(keepends=True)[-1])
    assert journal.read_bytes() == raw[0] + raw[2] + raw[1] + raw[3]


def test_other_versions_and_other_data_are_refused(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    folder.check_versions({"numpy": "1"})
    with pytest.raises(CheckpointError, match="numpy 1, now 2"):
        folder.check_versions({"numpy": "2"})
    with pytest.raises(OtherData, match="moons: its data are not those"):
        folder.add(a_line(3, "other"), 0.5)
    folder.add(a_line(3, ""), 0.5)  # it failed before there were data
    (folder.folder / "bench.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="no bench"):
        BenchFolder.there(folder.folder)


def test_a_run_whose_process_is_ended_is_tried_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by a machine short of memory; others go on."""
    work = Bench(a_folder(tmp_path, 0))
    job = work.job(work.trials("local", "moons")[0])
    assert work.told(Ended(job, -9, 1.0)) == [job] and not work.lost
    assert work.told(Ended(job, -9, 1.0)) == [] and work.lost == [job.name]
    assert "left out for now" in capsys.readouterr().err
    with pytest.raises(CorsageError, match="local@moons:t0"):
        work.told(Ended(job, 1, 1.0))


def test_of_errors_the_best_round_is_the_least_one() -> None:
    row = {"measure": "rmse", "mean": 2.0, "std": 0.0, "curve": [[5, 1.5], [10, 2.0]]}
    entry = Entry("local", "a", {"0": {**row, "per_user": {"0": 2.0}}})
    assert entry.inflation == -0.5 and best_round(entry) == -1.5


@pytest.mark.slow  # real processes: 20 s of CPU
def test_killed_three_times_the_bench_writes_the_same_bytes(tmp_path: Path) -> None:
    script = str(Path(corsage.__file__).with_name("run_simulation.py"))
    words = ["bench", "--quick", "--only", "constant@moons,local@moons,fedrep@moons"]

    def started(*more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, script, *more], stderr=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, env=dict(os.environ))  # fmt: skip

    whole = started(*words, f"run-dir={tmp_path / 'whole'}")
    assert whole.wait() == 0
    process = started(*words, f"run-dir={tmp_path / 'killed'}")
    for number in (1, 3, 5):
        journals = tmp_path.glob("killed/*/journal.jsonl")
        for _ in range(6000):
            if any(len(p.read_bytes().splitlines()) >= number for p in journals):
                break
            time.sleep(0.02)
            journals = tmp_path.glob("killed/*/journal.jsonl")
        process.send_signal(signal.SIGKILL)
        process.wait()
        process = started("bench", "--resume", f"run-dir={tmp_path / 'killed'}")
    assert process.wait() == 0
    names = ("results.jsonl",)
    folders = [the_folder(tmp_path / name) for name in ("whole", "killed")]
    for name in names:
        assert folders[0].joinpath(name).read_bytes() == folders[1].joinpath(name).read_bytes()

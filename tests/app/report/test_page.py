"""The report as a page: whole, escaped, alone, small, and made again from a run's folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from corsage.app.command import run
from corsage.app.report import document as report
from corsage.app.report import shell
from corsage.app.report.words import without_tests
from corsage.core.configuration.key_groups import GROUPS
from corsage.core.configuration.known_keys import OF_SOME, known_keys
from corsage.core.keys import Value
from corsage.core.measures import MEASURES, RMSE
from tests.support.reports import EVIL, QUOTED, a_run, with_everything

VOID = ("meta", "br", "input", "use", "path", "circle")


class Tags(HTMLParser):
    """Checks that tags are balanced, and remembers them with their text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(name="flat")
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, Value]:
    """All keys, of algorithms FedRep's alone."""
    shown = [group.title for group in GROUPS.values()] + [OF_SOME, "FedRep"]
    listed = {name: key for name, key in known_keys().items() if key.title in shown}
    monkeypatch.setattr(report, "known_keys", lambda: listed)
    return {name: key.default for name, key in listed.items()}


def page_of(results: object, rows: object = (), **more: object) -> str:
    return report.page("r", {"dataset": "digits"}, results, "0", rows, **more)  # type: ignore[arg-type]


def test_it_is_whole_escaped_and_alone(tmp_path: Path, flat: dict[str, Value]) -> None:
    results, rows = with_everything(users=50)
    flat["data-file"] = EVIL
    path = report.write_report(tmp_path, flat, results, "0.1.0", rows, {"ditto": f"no {EVIL}"})
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    page = path.read_text(encoding="utf-8")
    tags = Tags(page)
    assert not tags.open
    assert tags.seen.count("script") == 2
    assert tags.seen.count("img") == 0
    assert EVIL not in page and QUOTED not in page
    assert tags.text.count(EVIL) > 8  # the table, notes, clusters, estimates, the configuration
    assert "ditto failed:" in tags.text
    assert not [name for name, _ in tags.attributes if name.startswith("on") or name == "src"]
    assert all(str(v).startswith("#m") for name, v in tags.attributes if name == "href")
    assert not re.search(r"https?:|//\w+\.|url\(|@import|fetch\(|innerHTML", page)
    assert "Never drawn: 3 of 50 (fedrep, fedavg, local)." in tags.text
    assert "1 user has no test samples and is in no number" in tags.text
    assert "no better than always answering" in tags.text
    assert MEASURES["auc"].title in tags.text and "pooled" in tags.text


@pytest.mark.parametrize(("users", "said"), [(["a"], "1 user has"), (["a", "b"], "2 users have")])
def test_users_without_tests_are_one_or_several(users: list[str], said: str) -> None:
    (line,) = without_tests([{"strategy": "fedrep", "untested": users}])
    assert line.startswith(said) and line.count(" are ") == len(users) - 1


def test_only_its_own_script_may_run() -> None:
    results, rows = a_run()
    page = page_of(results, rows)
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    assert shell.policy(script) in page
    assert "unsafe" not in shell.POLICY.partition("script-src")[2]


def test_what_its_script_reads_is_json_with_all_names_as_they_are() -> None:
    results, rows = with_everything()
    text = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page_of(results, rows)
    )
    assert text
    found = json.loads(text[1])
    users = found["users"]["columns"][0]["values"]
    assert EVIL in users and QUOTED in users
    assert shell.embedded({"a": "</script>&\u2028"}).isascii()


@pytest.mark.parametrize("names", [("fedrep",), tuple(f"method{n}" for n in range(40))])
def test_one_strategy_and_forty_have_a_page(names: tuple[str, ...]) -> None:
    for measure in (None, RMSE):
        results, rows = a_run(names, users=3, **({"measure": measure} if measure else {}))
        assert not Tags(page_of(results, rows)).open
        assert not Tags(page_of(results)).open


def test_a_run_whose_users_are_odd_has_a_page() -> None:
    results, rows = a_run(("fedrep", "local"), users=1)
    results[0]["per_user"] = {}
    results[1]["per_user"] = {"only": float("nan")}
    assert not Tags(page_of(results, rows)).open


def test_it_stays_small_for_a_hundred_thousand_users() -> None:
    results, rows = a_run(("fedrep", "local"), users=100_000)
    for result in results[:1]:
        result["clusters"] = {u: str(n % 300) for n, u in enumerate(result["per_user"])}
        result["test_sizes"] = dict.fromkeys(result["per_user"], 7)
    page = page_of(results, rows)
    assert len(page.encode()) < 3e6
    assert "Of 100,000 users this page has the" in page


def test_equal_results_are_equally_bold() -> None:
    results, _ = a_run(("fedrep", "fedavg"))
    results[1] |= {key: results[0][key] for key in ("accuracy", "per_user")}
    assert page_of(results).count('<tr class="best s-') == 2


def test_lines_of_the_users_table_are_in_reading_order_and_the_worst_are_marked() -> None:
    results, _ = a_run(("fedrep",), users=12)
    page = page_of(results)
    found = re.findall(r"<tr><td>(u\d+)</td>", page)
    assert found == [f"u{n}" for n in range(1, 12)]
    assert "<details open>" in page and '<td class="low">' in page
    results[0]["per_user"] = dict.fromkeys(results[0]["per_user"], 1.0)
    assert '<td class="low">' not in page_of(results)


def test_it_tells_how_to_run_again(flat: dict[str, Value]) -> None:
    flat |= {"head-epochs": 5, "data-file": "my data.csv", "resume": "runs/x", "seed": 0}
    command = report.command(flat)
    assert command == "python run_simulation.py 'data-file=my data.csv' head-epochs=5 seed=0"
    titles = list(report.grouped({**flat, "unheard-of": True}))
    assert titles[:2] == ["Run", "Users and nodes"] and titles[-2:] == ["FedRep", "Other"]


def folder_of(place: Path) -> Path:
    """A run folder with a summary, as an earlier version may have left it."""
    results, rows = a_run(("fedrep", "fedavg"))
    folder = place / "run"
    folder.mkdir()
    config = {"strategy": "fedrep,fedavg,ditto", "dataset": "digits", "gone-key": 3}
    content = {"corsage": "0.1", "config": config, "results": results}
    (folder / "summary.json").write_text(json.dumps(content))
    (folder / "fedrep").mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in rows if row["strategy"] == "fedrep")
    (folder / "fedrep" / "metrics.jsonl").write_text(lines)
    return folder


def test_the_command_makes_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path)
    assert run(["report", str(folder)], "") == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    page = (folder / "report.html").read_text()
    assert "gone-key" in page and "ditto failed:</strong> it has no result yet" in page
    assert "Training loss against rounds" in page
    assert run(["report", str(folder), "--png"], "") == 0
    drawn = {p.name for p in (folder / "figures").iterdir()}
    assert {"accuracy-round.png", "accuracy-bytes.png", "accuracy-worst-to-best.png"} < drawn


def test_a_folder_without_results_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path)
    (folder / "empty").mkdir()
    damaged = json.loads((folder / "summary.json").read_text())
    for result in damaged["results"]:
        result.pop("per_user"), result.pop("accuracy")
    (folder / "summary.json").write_text(json.dumps(damaged))
    for words in ([str(folder)], [str(folder / "empty")], [str(folder / "gone")], [], ["--x", "a"]):
        assert run(["report", *words], "") == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert run(["report", "--help"], "") == 0


def test_the_end_of_a_run_loads_no_drawing_library() -> None:
    code = "import sys, corsage.app.run.conclusion, corsage.app.report.document; "
    code += "assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_gradient_steps_are_beside_bytes_and_seconds() -> None:
    results, _ = with_everything()
    results[1]["gradient_steps"] = None
    table = page_of(results).split("<h2>")[0]
    assert table.count(">steps</th>") == 1 and table.count(">120</td>") == 2

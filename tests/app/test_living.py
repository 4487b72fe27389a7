"""Pages and bars of work that goes on: cheap, never in its way, and at the end the report."""

from __future__ import annotations

import itertools
import json
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corsage.app.command import run
from corsage.app.output import living
from corsage.app.output.living import PAGE_SHARE, PAUSE, WAITING_PAUSE, Bar, Far, LivingPage
from corsage.app.report.now import ENDED, rounds, so_far
from corsage.app.run import page_writer as of_runs
from corsage.app.run.status import RunLock
from tests.support.html import Page
from tests.support.reports import a_run

SMALL = [
    "strategy=fedavg,local", "num-users=6", "num-rounds=3", "hidden=8", "fine-tune-epochs=0",
    "evaluate-every=1",
]  # fmt: skip


class Clock:
    """A clock that a test moves: of work, and of the CPU."""

    def __init__(self) -> None:
        self.now = self.cpu = self.work = 0.0

    def process_time(self) -> float:
        return self.work

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.cpu


@given(
    st.lists(st.floats(0.001, 3.0), min_size=60, max_size=60),
    st.floats(0.01, 30.0),
    st.floats(0.0, 1.0),
)
def test_pages_take_a_small_share_of_the_time(costs: list[float], step: float, busy: float) -> None:
    """Whatever a page costs; but for the last one, whose cost nobody knew before.

    A process that is busy for a part of the time gives of that, or has a page in 10 seconds.
    """
    clock, cost, written = Clock(), iter(costs), []

    def write(seconds: float) -> None:
        clock.cpu += (last := next(cost))
        clock.now += last
        clock.work += last
        written.append((clock.now, last))
        assert seconds >= PAUSE

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(living, "time", clock)
        page = LivingPage(write)
        for _ in range(400):
            clock.now += step
            clock.work += busy * step
            if len(written) < len(costs):
                page.turn()
                spent = sum(one for _, one in written[:-1])
                assert spent <= PAGE_SHARE * clock.now
                assert (
                    spent <= PAGE_SHARE * clock.work
                    or len(written) - 1 <= clock.now / WAITING_PAUSE
                )
    assert written or 400 * step < WAITING_PAUSE + 1
    assert all(b - a >= PAUSE for (a, _), (b, _) in itertools.pairwise(written))


def test_what_cannot_be_written_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(seconds: float) -> None:
        raise OSError(28, "No space left on device")

    page = LivingPage(refuse)
    for _ in range(3):
        page.put()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "No space left" in said


@pytest.fixture(name="pages")
def each_round(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The page after every round of runs, however short they are."""
    found: list[str] = []
    write = of_runs.write_page

    def kept(folder: Path, seconds: float) -> None:
        write(folder, seconds)
        found.append((folder / "report.html").read_text())

    monkeypatch.setattr(of_runs, "write_page", kept)
    monkeypatch.setattr(LivingPage, "turn", LivingPage.put)
    return found


def whole(text: str) -> str:
    page = Page()
    page.feed(text.replace("<path", "<circle"))  # a void one, too
    page.close()
    return text


def the_folder(parent: Path) -> Path:
    (found,) = parent.iterdir()
    return found


def test_a_run_has_its_page_from_the_first_round_on(tmp_path: Path, pages: list[str]) -> None:
    assert run([*SMALL, f"run-dir={tmp_path}"], "") == 0
    assert len(pages) == 6  # a round each
    for number, text in enumerate(pages, 1):
        assert f"{number} of 6 rounds" in whole(text) and '"live":{' in text
        assert f"<title>{100 * number / 6:.0f}%" in text
    first, middle = pages[0], pages[3]
    assert "fedavg, round 1" in first and "local, round" not in first and "<h2>Users" not in first
    assert "local, round 1" in middle and "<h2>Users" in middle and "left" in middle
    assert "fedavg, round" not in middle
    report = the_folder(tmp_path) / "report.html"
    last = report.read_text()
    assert '"live":null' in last and "of 6 rounds" not in last and "refresh" not in last
    assert run(["report", str(report.parent)], "") == 0 and report.read_text() == last


def test_no_page_ends_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(folder: Path, seconds: float) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(of_runs, "write_page", refuse)
    monkeypatch.setattr(LivingPage, "turn", LivingPage.put)
    assert run([*SMALL, f"run-dir={tmp_path}"], "") == 0
    assert capsys.readouterr().err.count("No space left") == 1
    assert (the_folder(tmp_path) / "report.html").is_file()


def test_a_run_that_is_ended_says_so_and_goes_on(
    tmp_path: Path, pages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: Any, strategy: Any, row: Any) -> None:
        self.page.put()
        if len(pages) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(of_runs.Living, "on_round_end", stop)
    assert run([*SMALL, f"run-dir={tmp_path}"], "") == 130
    folder = the_folder(tmp_path)
    assert ENDED in whole((folder / "report.html").read_text()) and ENDED not in pages[3]
    monkeypatch.undo()
    assert run(["--resume", str(folder)], "") == 0
    assert ENDED not in (folder / "report.html").read_text()


def test_watch_opens_the_page_and_knows_who_is_gone(
    tmp_path: Path,
    pages: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*SMALL, f"run-dir={tmp_path}"], "") == 0
    folder = the_folder(tmp_path)
    page, last = folder / "report.html", (folder / "report.html").read_text()
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    capsys.readouterr()
    assert run(["watch", str(folder)], "") == 0
    assert capsys.readouterr().out == f"{page}\n" and opened == [page.resolve().as_uri()]
    assert page.read_text() == last
    page.write_text(pages[3])  # as a run leaves it that was killed
    for name in ("result.json", "failure.json"):
        (folder / "local" / name).unlink(missing_ok=True)
    (folder / "summary.json").unlink()
    assert run(["watch", str(folder)], "") == 0 and ENDED in page.read_text()
    lock = RunLock(folder)
    lock.take()
    monkeypatch.setattr(RunLock, "held", property(lambda self: True))
    assert run(["watch", str(folder)], "") == 0 and ENDED not in page.read_text()
    lock.release()
    monkeypatch.delenv("DISPLAY")
    monkeypatch.chdir(tmp_path.parent)
    assert run(["watch", str(tmp_path)], "") == 2 and run(["watch", "--x"], "") == 2
    assert run(["watch"], "") == 2 and len(opened) == 3


def test_a_round_is_worth_the_seconds_that_rounds_took() -> None:
    """Two strategies of 20 rounds; one took 2 s for them, the other .5 s for 5 of its own."""
    results, rows = a_run(("fedrep", "local"))
    half = [row for row in rows if row["strategy"] == "fedrep" or row["round"] <= 5]
    now = rounds(results[:1], half, ["fedrep", "local", "ditto"], 20, 3.0)
    assert (now.done, now.whole, now.percent) == (25, 60, "42%")
    assert now.left == pytest.approx(15 * 0.1 + 20 * 0.1)
    (one,) = so_far(half, results[:1])
    assert one["strategy"] == "local" and one["curve"] == [[5, half[-1]["accuracy"]["mean"]]]


class Tty:
    """A terminal that keeps what is written."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""


@pytest.mark.parametrize("watched", [True, False])
def test_a_bar_has_the_time_that_is_left(watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, done, out = Clock(), [2.0], Tty()
    out.isatty = lambda: watched  # type: ignore[method-assign]
    monkeypatch.setattr(living, "time", clock)
    monkeypatch.setattr("sys.stderr", out)
    bar = Bar(lambda: Far(done[0], 10, ", 7 s of CPU"))
    clock.now, done[0] = 30.0, 5.0
    bar.line("[3/8] seed=4: done, 9.0 s")
    shown = [text.strip() for text in out.text.replace("\r", "\n").splitlines()]
    if watched:
        assert shown == [
            "[3/8] seed=4: done, 9.0 s",
            "[#####.....] 5/10 runs, 30 s, some 50 s left, 7 s of CPU",
        ]
    else:
        assert shown == ["[3/8] seed=4: done, 9.0 s; some 50 s left"]


def test_the_page_of_a_study_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: list[str]
) -> None:
    """After the first run the second one is at work: its page is linked; killed: it says so."""
    from corsage.app import cell
    from corsage.app.studies import workers
    from corsage.app.studies.workers import Ended, Job

    seen: list[str] = []

    def play(jobs: Sequence[Job], at_once: int, told: Callable[[Ended], None]) -> list[Ended]:
        for job in jobs[:1]:
            cell.play(*job.arguments)
            told(Ended(job, 0, 1.0))
        bar: Any = told
        part = Path(jobs[1].arguments[0])
        monkeypatch.setattr(type(bar.folder), "at_work", lambda self: [(self.grid.cells[1], 0.25)])
        part.mkdir()
        (part / "report.html").write_text("")
        bar.now = bar.far()
        assert bar.now.done == 1.25
        bar.page.put()
        seen.append((bar.folder.folder / "report.html").read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "play", play)
    assert run([*SMALL, "seed=0,1,2", f"run-dir={tmp_path}"], "") == 130
    text = whole(seen[0])
    assert "1 of 3 runs" in text and "failed" not in text.partition("<script")[0]
    assert 'href="runs/seed%3D1/report.html">seed=1: 25%</a>' in text
    assert ENDED in (the_folder(tmp_path) / "report.html").read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    ((line,),) = ([s for s in c["series"] if s["s"] == 0] for c in data["charts"][:1])
    rows = (the_folder(tmp_path) / "runs/seed=0/fedavg/metrics.jsonl").read_text().splitlines()
    means = [100 * json.loads(row)["accuracy"]["mean"] for row in rows]
    np.testing.assert_allclose(line["y"], means, rtol=1e-4)

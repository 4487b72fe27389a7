"""The report in a real browser: what it says, what it does, and that it fits the screen.

Chromium has to be installed (`apt install chromium`), and playwright, which is in the extra `dev`.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from corsage.app.report import document as report
from corsage.app.report.now import Now, rounds
from tests.support.reports import EVIL, a_run, rmse_run, with_everything

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FOUND = next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(not FOUND, reason="no Chromium is installed")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    with playwright.sync_playwright() as tool:
        chromium = tool.chromium.launch(executable_path=FOUND, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture(name="look")
def looking(browser: Any, tmp_path: Path) -> Open:
    """Opens a report, and holds that the browser complains of nothing while it is open."""

    @contextmanager
    def look(
        results: Any, rows: Any = (), width: int = 1280, now: Now | None = None, **context: Any
    ) -> Iterator[Any]:
        path = report.write_report(tmp_path, {"dataset": "digits"}, results, "0", rows, now=now)
        made = browser.new_context(viewport={"width": width, "height": 800}, **context)
        page, said = made.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        page.on("request", lambda r: said.append(r.url) if not r.url.startswith("file:") else None)
        page.goto(path.as_uri())
        yield page
        made.close()
        assert said == []

    return look


SCROLL = "document.documentElement.scrollWidth - window.innerWidth"
BEYOND = """[...document.querySelectorAll('body *')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !e.closest('.wide') && !e.closest('svg');
}).map(e => e.outerHTML.slice(0, 80))"""
SMALL = """[...document.querySelectorAll('body *')].filter(e =>
  e.childNodes.length && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())
  && e.getClientRects().length && parseFloat(getComputedStyle(e).fontSize) < 12
).map(e => e.textContent)"""


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1280, "dark")])
def test_it_fits_and_is_legible(look: Open, width: int, scheme: str) -> None:
    with look(*with_everything(), width=width, color_scheme=scheme) as page:
        for opened in page.locator("summary").all():
            opened.click()
        assert page.evaluate(SCROLL) == 0
        assert page.evaluate(BEYOND) == []
        assert page.evaluate(SMALL) == []
        assert page.evaluate("document.title").startswith("fedrep, fedavg, local")
        for tab in page.locator(".tabs button").all():
            if tab.is_visible():
                tab.click()
                assert page.evaluate(SCROLL) == 0


def contrast(page: Any, css: str) -> float:
    """How a colour stands out from the paper, as the web's rules have it."""
    script = """css => {
      const parts = c => c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
        .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
      const light = c => { const [r, g, b] = parts(c); return .2126 * r + .7152 * g + .0722 * b; };
      const one = light(getComputedStyle(document.querySelector(css)).color);
      const other = light(getComputedStyle(document.body).backgroundColor);
      return (Math.max(one, other) + .05) / (Math.min(one, other) + .05); }"""
    return float(page.evaluate(script, css))


def test_dark_paper_has_other_colours_and_words_stand_out(look: Open) -> None:
    papers = {}
    for scheme in ("light", "dark"):
        with look(*a_run(), color_scheme=scheme) as page:
            papers[scheme] = page.evaluate(
                "[getComputedStyle(document.body).backgroundColor,"
                " getComputedStyle(document.querySelector('.line')).stroke]"
            )
            assert min(contrast(page, css) for css in ("h1", "figcaption", ".low", "th")) > 4.5
    assert papers["light"][0] != papers["dark"][0] and papers["light"][1] != papers["dark"][1]


def test_strategies_are_switched_off_and_limits_follow(look: Open) -> None:
    with look(*rmse_run()) as page:
        lines = page.locator(".view.now g:not(.off) > .line")
        assert lines.count() == 3
        ticks = page.locator(".view.now .left").first
        whole, before = page.locator(".range:visible"), ticks.inner_text()
        whole.first.click()
        assert ticks.inner_text() != before
        page.locator(".toggle", has_text="fedavg").first.click()
        assert lines.count() == 2
        assert page.locator(".range:visible").count() == 0
        assert page.locator(".toggle[aria-pressed=false]").count() == 2  # both legends
        page.locator(".every").first.click()
        assert lines.count() == 3
        page.locator(".toggle", has_text="local").first.dblclick()
        assert lines.count() == 1


def test_values_are_shown_under_the_pointer_and_at_the_keys(look: Open) -> None:
    results, rows = a_run()
    with look(results, rows) as page:
        plot = page.locator(".view.now .plot").first
        box = plot.bounding_box()
        page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 40)
        tip = page.locator(".tip")
        said = tip.inner_text()
        assert "20. round" in said
        assert f"{100 * results[0]['accuracy']['mean']:.1f}" in said
        plot.focus()
        page.keyboard.press("ArrowLeft")
        assert "15. round" in tip.inner_text()


def test_users_are_sorted_searched_and_filtered(look: Open) -> None:
    results, rows = with_everything(users=300)
    with look(results, rows) as page:
        page.locator("summary", has_text="users:").click()
        table = page.locator("#people")
        first, said = table.locator("tbody td").first, page.locator("#said")
        assert said.inner_text() == "200 of 301 shown"
        page.locator("#more").click()
        assert said.inner_text() == "301 of 301 shown"
        page.locator("#find").fill("u29")
        assert said.inner_text() == "11 of 11 shown"
        page.locator("#find").fill("fedrep < 50")
        own = results[0]["per_user"]
        assert said.inner_text().startswith(f"{sum(v < 0.5 for v in own.values())} of")
        page.locator("#find").fill("")
        page.locator("#worst").check()
        assert int(said.inner_text().split()[0]) < 300
        page.locator("#worst").uncheck()
        head = table.locator("th button", has_text="test samples")
        head.click()
        sizes = table.locator("tbody tr td:nth-child(2)").all_inner_texts()
        assert [int(n) for n in sizes] == sorted(int(n) for n in sizes)
        head.click()
        assert first.inner_text() == "u299"
        page.locator("#measure").select_option(index=1)
        last = table.locator("tbody tr", has_text="u299").locator("td").last
        assert last.inner_text() == "0.9000"


def test_hostile_names_are_words(look: Open) -> None:
    with look(*with_everything()) as page:
        page.locator("summary", has_text="users:").click()
        assert page.locator("#people td", has_text=EVIL).count() == 1
        assert page.locator("img").count() == 0
        plot = page.locator(".view.now .plot").first
        plot.hover()


def test_twenty_strategies_have_labels_that_do_not_cover_each_other(look: Open) -> None:
    with look(*a_run(tuple(f"a-long-method-name-{n}" for n in range(20)))) as page:
        page.locator(".every").first.click()
        tops = page.evaluate(
            "[...document.querySelectorAll('.view.now .names span')]"
            ".filter(e => e.offsetParent).map(e => e.getBoundingClientRect().top)"
        )
        ordered = sorted(tops)
        assert len(tops) == 20
        assert min(b - a for a, b in itertools.pairwise(ordered)) > 13


def test_without_scripts_the_essentials_are_there(look: Open) -> None:
    with look(*with_everything(), java_script_enabled=False) as page:
        assert page.locator(".line:visible").count() > 6
        assert page.locator("#people tbody tr").count() == 21
        assert page.locator(".strip:visible").count() == 3
        assert page.locator(".tabs, .find:visible, .every:visible").count() == 0


def test_ten_thousand_users_are_at_hand_and_it_can_be_printed(look: Open) -> None:
    results, rows = a_run(users=10_000)
    with look(results, rows, width=700) as page:
        page.locator("summary", has_text="10,000 users").click()
        assert page.locator("#people tbody tr").count() == 200
        page.locator("#find").fill("u9999")
        assert page.locator("#people tbody tr").count() == 1
        page.emulate_media(media="print")
        assert page.evaluate(SCROLL) == 0
        assert page.locator(".tabs:visible").count() == 0


MANY = ("fedavg", "local", *(f"method{n}{end}" for n in range(21) for end in ("", "+ft")))


def shown(page: Any, css: str) -> list[str]:
    """The first words of what is to be seen."""
    found = page.locator(f"{css} >> visible=true").all_inner_texts()
    return [text.split()[0] for text in found]


@pytest.mark.parametrize("width", [400, 1280])
def test_of_44_rows_the_best_and_the_references_are_seen_first(look: Open, width: int) -> None:
    results, rows = a_run(MANY)
    for number, result in enumerate(results):  # the second half is the better one
        result["accuracy"]["mean"] = 0.5 + 0.01 * number
    best = [*MANY[:2], *MANY[-6:]]
    with look(results, rows, width=width) as page:
        table, lines = "table.sorts >> nth=0 >> tbody tr", ".view.now g:not(.off) > .line"
        assert shown(page, table) == best and page.locator(lines).count() == 8
        assert shown(page, ".legend >> nth=0 >> .toggle") == best
        assert page.evaluate(SCROLL) == 0 and page.evaluate(SMALL) == []
        tops = page.evaluate(
            "[...document.querySelectorAll('.view.now .names span:not(.off)')]"
            ".filter(e => e.offsetParent).map(e => e.getBoundingClientRect().top)"
        )
        assert all(b - a > 13 for a, b in itertools.pairwise(sorted(tops)))
        page.locator("button", has_text="36 more").first.click()
        assert len(shown(page, ".legend >> nth=0 >> .toggle")) == 44
        page.locator(".every").first.click()
        assert len(shown(page, table)) == 44 and page.locator(lines).count() == 44
        page.locator(".find input[type=search]").first.fill("method7, local")
        assert shown(page, table) == ["local", "method7", "method7+ft"]
        page.locator(".find input[type=search]").first.fill("")
        page.locator("table.sorts >> nth=0 >> th button", has_text="mean").click()
        assert shown(page, table)[:3] == [*MANY[:-4:-1]]
        assert page.evaluate(SCROLL) == 0


def test_a_page_that_loads_itself_again_stays_as_it_was_looked_at(
    look: Open, tmp_path: Path
) -> None:
    results, rows = a_run(("fedrep", "fedavg", "local"))
    early = [row for row in rows if row["strategy"] != "local" and row["round"] <= 10]
    names = ["fedrep", "fedavg", "local"]
    with look([], early, now=rounds([], early, names, 20, 1.0)) as page:
        assert page.title().startswith("33%") and page.locator("text=20 of 60 rounds").count() == 1
        assert shown(page, "table.sorts >> nth=0 >> tbody tr") == ["fedrep,", "fedavg,"]
        page.locator(".toggle", has_text="fedavg").first.click()
        page.locator(".tabs button", has_text="test loss").first.click()
        config = {"dataset": "digits"}
        now = rounds(results[:2], rows, names, 20, 0.0)
        report.write_report(tmp_path, config, results[:2], "0", rows, now=now)
        page.locator("text=60 of 60 rounds").wait_for(timeout=9000)
        assert page.locator(".toggle[aria-pressed=false] >> visible=true").all_inner_texts() == [
            "fedavg", "fedavg",
        ]  # fmt: skip
        assert page.locator(".tabs button[aria-pressed=true]").first.inner_text() == "test loss"

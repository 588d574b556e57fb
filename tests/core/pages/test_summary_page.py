"""The summary as a file: one sheet of A4 in Chromium, with the longest texts too, and nothing but its own style."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from compared_records import repeats
from levelfield.cli.main import main
from levelfield.compare.comparison import compare
from levelfield.compare.sides import side_of
from levelfield.pages.summary_page import MOST_SIDES, summary
from levelfield.store.database import Store
from page_visits import axe, watched

MADE = datetime(2026, 11, 22, tzinfo=timezone.utc)
LONG = "a-very-long-name-of-a-chip-" * 4
ATTACK = "</style><script>alert(1)</script><img src=x onerror=alert(1)>"


def html(sides: int, runs: int = 3, **more: Any) -> str:
    """The page of sides with equally many runs; each change of the others asks for caution."""
    records = [
        repeats(*rates(i)[:runs], first=10 * i + 1, framework=f"f{i}", **(more if i else {})) for i in range(sides)
    ]
    found = [side_of(str(i), each) for i, each in enumerate(records)]
    return summary(compare(found, {}), {}).html(MADE)


def rates(place: int) -> list[float]:
    return [speed - 50.0 * place for speed in (1000, 1010, 990)]


def sheets_of(pdf: bytes) -> list[tuple[int, int]]:
    """The sheets of a PDF by their size in millimetres."""
    boxes = re.findall(rb"/Type\s*/Page\b(?!s).*?/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", pdf, re.S)
    return [(round(float(w) / 72 * 25.4), round(float(h) / 72 * 25.4)) for w, h in boxes]


LONGEST = {
    "chip": LONG, "verdict": "unchecked", "is_dirty": True, "node": "node-2", "kernel": "6.1-" * 20,
    "os": "an os " * 20, "processor": "a processor " * 20, "cores": 7, "engine": "an engine " * 20,
}  # fmt: skip


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize(("sides", "more"), [(2, {}), (MOST_SIDES, {}), (MOST_SIDES, LONGEST)])
def test_it_prints_to_one_sheet(browser: Any, tmp_path: Path, sides: int, more: dict[str, Any], runs: int) -> None:
    (tmp_path / "one.html").write_text(html(sides, runs, **more))
    with watched(browser) as page:
        page.goto(f"file://{tmp_path}/one.html")
        assert page.locator("rect").count() == page.locator("tbody tr").count() >= 2
        assert page.evaluate("getComputedStyle(document.querySelector('.verdict')).fontWeight") == "600", "its style"
        assert sheets_of(page.pdf(prefer_css_page_size=True)) == [(210, 297)]


def test_two_sheets_are_counted(browser: Any) -> None:
    with watched(browser) as page:
        page.set_content("<style>@page { size: A4 } p { break-after: page }</style><p>a</p><p>b</p>c")
        assert len(sheets_of(page.pdf(prefer_css_page_size=True))) == 3


def test_it_is_right_by_axe(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(html(3))
    context = browser.new_context(bypass_csp=True)  # for the script of axe
    page = context.new_page()
    page.goto(f"file://{tmp_path}/one.html")
    found = axe(page)
    context.close()
    assert found == []


def test_hostile_names_are_text(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(html(2, chip=ATTACK))
    with watched(browser) as page:
        page.goto(f"file://{tmp_path}/one.html")
        assert page.locator("img, script").count() == 0 and ATTACK[:30] in page.locator("main").inner_text()


def test_the_command_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEVELFIELD_RUNS", str(tmp_path / "no-runs"))
    monkeypatch.setenv("LEVELFIELD_STORE", f"sqlite:///{tmp_path / 'results.sqlite'}")
    with Store.open() as store:
        store.add([*repeats(1000, 1010, 990), *repeats(400, 404, 396, first=10, framework="paddle")])
        store.add(repeats(400, first=20, framework="jax", scale="full"))
    one = tmp_path / "one.html"
    assert main(["report", "summary", "*_torch", "*_paddle", "--output", str(one)]) == 0
    assert "X1 with torch trains 2.50 times as fast as X1 with paddle" in one.read_text()
    assert capsys.readouterr().out == f"summary  {one}\n"
    assert main(["report", "summary", "--case", "gpt", "--format", "markdown"]) == 0
    assert "trains 2.50 times as fast as" in capsys.readouterr().out
    assert main(["report", "summary", "*_torch", "*_jax", "--format", "markdown"]) == 4
    assert "Not comparable: scale must" in capsys.readouterr().out
    for words in ([], ["--case", "gpt", "*_torch"], ["*_torch"], ["--case", "gpt", "--repeats"]):
        assert main(["report", "summary", *words]) == 2
        assert "levelfield: error:" in capsys.readouterr().err

"""`compare --html`: the words and numbers of the terminal on one page, which needs no script and no other file."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from compared_records import repeats
from levelfield.cli.main import main
from levelfield.compare.comparison import compare, comparison_sheets
from levelfield.compare.sides import side_of
from levelfield.pages.page_rendering import comparison_page
from levelfield.report.sheets import Sheet
from levelfield.store.database import Store
from page_visits import DESKTOP, PHONE, axe, background, fits, watched

ATTACK = "</style></title><script>alert(1)</script><img src=x onerror=alert(1)>"
MADE = datetime(2026, 11, 22, tzinfo=timezone.utc)


def compared(**more: Any) -> list[Sheet]:
    """Sheets of three sides; each change of the second asks for caution."""
    sides = [repeats(1000, 1010, 990), repeats(400, 404, 396, first=10, framework="paddle", **more)]
    sides.append(repeats(950, 955, 945, first=20, framework="jax", joules=None))
    return list(comparison_sheets(compare([side_of("ABC"[i], runs) for i, runs in enumerate(sides)])))


class PageTexts(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.feed(html)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_has_every_heading_cell_and_note_of_the_terminal() -> None:
    texts = PageTexts(comparison_page("Comparison", compared(), MADE)).texts
    for sheet in compared():
        for text in (sheet.heading, *sheet.header, *(cell for row in sheet.rows for cell in row), *sheet.notes):
            assert not text or text in texts, text
    assert {"0.4000", "[0.3910, 0.4092]", "60.0 % lower"} <= set(texts)


def test_the_page_names_no_other_file() -> None:
    html = comparison_page("Comparison", compared(), MADE)
    assert not [part for part in ("<script", "<link", "src=", "href=", "url(", "@import", "http:") if part in html]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(DESKTOP, id="light", marks=pytest.mark.thorough),
        pytest.param({**PHONE, "color_scheme": "dark"}, id="dark phone"),
    ],
)
def test_it_fits_its_width_and_is_right_by_axe(browser: Any, tmp_path: Path, options: Any) -> None:
    (tmp_path / "one.html").write_text(comparison_page("Comparison", compared(node="node-2" * 30), MADE))
    context = browser.new_context(**options, bypass_csp=True)  # for the script of axe
    page = context.new_page()
    page.goto(f"file://{tmp_path}/one.html")
    layout = fits(page), axe(page)
    context.close()
    assert layout == (True, [])


def test_its_policy_allows_its_own_style_and_hostile_names_are_text(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(
        comparison_page(ATTACK, compared(kernel=ATTACK, software={ATTACK: ATTACK}), MADE)
    )
    with watched(browser, color_scheme="dark") as page:
        page.goto(f"file://{tmp_path}/one.html")
        assert background(page) == (20, 24, 29)
        assert page.locator("img, script").count() == 0 and page.locator("main").inner_text().count(ATTACK) == 4


def test_the_command_writes_it_beside_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEVELFIELD_RUNS", str(tmp_path / "no-runs"))
    monkeypatch.setenv("LEVELFIELD_STORE", f"sqlite:///{tmp_path / 'results.sqlite'}")
    with Store.open() as store:
        store.add([*repeats(1000, 1010, 990), *repeats(400, 404, 396, first=10, framework="paddle")])
        store.add(repeats(400, first=20, framework="jax", scale="full"))
    page = tmp_path / "one.html"
    words = ["compare", "*_torch", "*_paddle", "--html", str(page)]
    assert main([*words, "--require", "mfu>=1", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["comparable"] is True
    assert "0.4000" in page.read_text() and "mfu&gt;=1, B/A:" in page.read_text()
    assert main(["compare", "*_torch", "*_jax", "--html", str(page)]) == 4
    assert "NOT COMPARABLE" in page.read_text() and "NOT COMPARABLE" in capsys.readouterr().out
    assert main(["compare", "--matrix", "framework", "--html", str(page)]) == 0
    assert "<h1>Matrix by" in page.read_text()
    assert main([*words[:-1], str(tmp_path / "nowhere" / "one.html")]) == 2
    assert "--html " in capsys.readouterr().err

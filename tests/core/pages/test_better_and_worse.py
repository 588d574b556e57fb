"""What a reader sees of a difference: its sign in words beside the ratio, and no picture without data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from compared_records import repeats
from levelfield.catalog.registry import Registry
from levelfield.pages.case_view import round_ticks
from levelfield.pages.page_building import build_pages
from levelfield.pages.series_history import InMemoryStore
from page_visits import DESKTOP, PHONE, until, watched

RUNS = [*repeats(1000, 1010, 990), *repeats(940, 945, 935, first=10, framework="jax")]
# relative luminance of colours, and their contrast: WCAG 2.1, 1.4.3
CONTRAST = """element => {
  const light = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const [a, b] = [getComputedStyle(element).color, getComputedStyle(document.body).backgroundColor].map(light);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages") / "site"
    build_pages(InMemoryStore(RUNS), folder, Registry())
    return folder


# Each language and each scheme once.
@pytest.mark.parametrize(
    ("folder", "scheme"),
    [
        ("", "light"),
        pytest.param("", "dark", marks=pytest.mark.thorough),
        pytest.param("zh/", "light", marks=pytest.mark.thorough),
        ("zh/", "dark"),
    ],
)
def test_a_difference_has_its_sign_its_words_and_a_colour_that_can_be_read(
    browser: Any, site: Path, scheme: str, folder: str
) -> None:
    """By hand: 940 of 1000 is 6 % less."""
    with watched(browser, color_scheme=scheme) as page:
        page.goto(f"file://{site}/{folder}index.html")
        worse = page.locator(".worse").first
        assert re.match("\N{MINUS SIGN}6.0 %.*jax (slower|更慢)", worse.text_content())
        assert "0.940" in worse.locator("..").text_content()
        assert worse.evaluate(CONTRAST) >= 4.5


def test_a_phone_has_a_label_beside_each_value(browser: Any, site: Path) -> None:
    label = "element => getComputedStyle(element, '::before').content"
    with watched(browser, **PHONE) as page:
        page.goto(f"file://{site}/index.html")
        values = page.locator(".bars:visible td.value:visible").all()
        assert values and all(cell.evaluate(label).strip('"').endswith(": ") for cell in values)
    with watched(browser, **DESKTOP) as page:
        page.goto(f"file://{site}/index.html")
        assert page.locator(".bars td.value").first.evaluate(label) == "none"


def test_the_menu_names_no_empty_page(site: Path) -> None:
    menu = (site / "index.html").read_text().partition("<nav")[2].partition("</nav>")[0]
    assert "nodes.html" in menu and "nights.html" not in menu


def test_a_series_of_one_run_has_no_chart(browser: Any, tmp_path: Path) -> None:
    build_pages(InMemoryStore(RUNS[:1]), tmp_path / "site", Registry())
    with watched(browser) as page:
        page.goto(f"file://{next((tmp_path / 'site').glob('case-*.html'))}")
        page.locator("section[data-series]").first.scroll_into_view_if_needed()
        until(page, "() => document.querySelector('section[data-drawn]')")
        assert page.locator("section[data-series] canvas").count() == 0
        assert page.get_by_text("One run so far").is_visible()
        assert page.locator("table.sortable tbody tr").first.is_visible(), "its figures are in the table above"


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (2.53, 7.01, [3, 4, 5, 6, 7]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (1, 40, [10, 20, 30, 40]),
        (1, 14, [2, 4, 6, 8, 10, 12, 14]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert round_ticks(low, high) == ticks

"""The pages of bars print to one sheet of A4, however many bars there are and on whatever screen they were opened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from compared_records import repeats
from levelfield.catalog.registry import Registry
from levelfield.pages.page_building import build_pages
from levelfield.pages.series_history import InMemoryStore
from levelfield.specs.record import RunRecord
from page_visits import DESKTOP, PHONE, watched

LONG = "a-very-long-name-of-a-chip-" * 4


def sheets_of(pdf: bytes) -> list[tuple[int, int]]:
    """Return the sheets of a PDF by their size in millimetres."""
    boxes = re.findall(rb"/Type\s*/Page\b(?!s).*?/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", pdf, re.S)
    return [(round(float(w) / 72 * 25.4), round(float(h) / 72 * 25.4)) for w, h in boxes]


def runs(chips: int, cases: int = 1, name: str = "X") -> list[RunRecord]:
    """Return three runs of each chip in each case."""
    return [
        run
        for case in range(cases)
        for chip in range(chips)
        for run in repeats(
            *(1000.0 - 20 * chip + more for more in (0, 5, -5)),
            first=3 * chip + 1,
            chip=f"{name}{chip}",
            vendor="acme",
            case=f"case{case}",
            work="sha256:" + f"{case:x}" * 64,
        )
    ]


SITES = {"two bars": runs(2), "one training": runs(18), "many trainings": runs(3, 12), "long names": runs(9, 3, LONG)}
VISITS = (("index", DESKTOP), ("index", {**PHONE, "color_scheme": "dark"}), ("zh/by-mfu", DESKTOP))
NOTE, HIDDEN = "#not-printed", ".training[hidden], .training tr[hidden]"


# The most of one kind, and the only one of which nothing is left out.
FIRST = ("many trainings", "two bars")


@pytest.mark.parametrize("name", [n if n in FIRST else pytest.param(n, marks=pytest.mark.thorough) for n in SITES])
def test_it_prints_to_one_sheet_and_comes_back_whole(browser: Any, tmp_path: Path, name: str) -> None:
    build_pages(InMemoryStore(SITES[name]), tmp_path / "site", Registry())
    for page_name, options in VISITS[:1] if name == "two bars" else VISITS:  # which are much the same in each
        with watched(browser, **options) as page:
            page.goto(f"file://{tmp_path}/site/{page_name}.html")
            assert sheets_of(page.pdf(prefer_css_page_size=True)) == [(210, 297)], page_name
            assert not page.locator(NOTE).is_visible() and page.locator(HIDDEN).count() == 0
            page.evaluate("dispatchEvent(new Event('beforeprint'))")
            has_all = page.locator(HIDDEN).count() == 0
            assert has_all == (name == "two bars") == (not page.locator(NOTE).is_visible()), page_name
            assert page.locator("#answer").is_visible() and page.locator("#comparable").is_visible()
            assert page.locator("tbody tr:visible").count() >= 2
            assert page.locator(".how").is_visible() == has_all, "bars go before the text that explains them"


def test_two_sheets_are_counted(browser: Any) -> None:
    with watched(browser) as page:
        page.set_content("<style>@page { size: A4 } p { break-after: page }</style><p>a</p><p>b</p>c")
        assert len(sheets_of(page.pdf(prefer_css_page_size=True))) == 3

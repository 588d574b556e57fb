"""Visits of the pages in a real browser: errors and requests to the outside fail, and axe reads what is there."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# One with windows draws the bars of each, which no test looks at.
CHROMIUM = shutil.which(os.environ.get("LEVELFIELD_CHROMIUM", "chromium-headless-shell")) or shutil.which("chromium")
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "device_scale_factor": 2, "has_touch": True}
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
GIVEN_UP = "net::ERR_ABORTED"


@contextmanager
def watched(browser: Any, **options: Any) -> Iterator[Any]:
    """A page on which any error, any dialog and any request to the outside fails the test.

    A page that is left while an image is on the way gives the request up, which is no error.
    """
    context = browser.new_context(**({**DESKTOP, **options}))
    page = context.new_page()
    faults: list[str] = []
    page.on(
        "console",
        lambda message: (
            faults.append(message.text)
            if message.type in ("error", "warning") and "willReadFrequently" not in message.text
            else None
        ),
    )
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "requestfailed",
        lambda request: (
            faults.append(f"failed: {request.url}: {request.failure}") if request.failure != GIVEN_UP else None
        ),
    )

    def dismiss(dialog: Any) -> None:
        faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("dialog", dismiss)
    page.on("request", lambda request: faults.append(f"outside: {request.url}") if is_outside(request.url) else None)
    yield page
    context.close()
    assert faults == [], faults


def until(page: Any, expression: str, argument: object = None) -> None:
    """Wait until an expression is true. Playwright's own wait_for_function evaluates it within the page from its second
    look on, which the pages' policy forbids."""
    end = time.monotonic() + 30
    while not page.evaluate(expression, argument):
        assert time.monotonic() < end, f"not within 30 s: {expression}"
        time.sleep(0.02)


def is_outside(url: str) -> bool:
    return not url.startswith(("file:///", "http://127.0.0.1:", "blob:"))  # blob: is memory of the page


def case_page(site: Path) -> Path:
    return next(site.glob("case-gpt3*.html"))


def histories(site: Path) -> list[str]:
    return sorted(path.stem.removeprefix("history-") for path in (site / "data").glob("history-*.js"))


def first_series(site: Path) -> str:
    return next(slug for slug in histories(site) if slug.startswith("gpt3-6-7b-torch-h100"))


def run_of(page: Any, slug: str, place: int) -> str:
    """The id of a run of a series, by its place in the history."""
    columns = page.evaluate("async slug => (await levelfield.load(`history-${slug}`)).columns.run", slug)
    return str(columns[place])


def open_run(page: Any, site: Path, place: int = -1, folder: str = "") -> None:
    page.goto(f"file://{site}/index.html")
    slug = first_series(site)
    page.goto(f"file://{site}/{folder}run.html#{slug}/{run_of(page, slug, place)}")
    page.wait_for_selector("#run[data-drawn]")


def open_case(page: Any, site: Path, folder: str = "") -> None:
    page.goto(f"file://{site / folder / case_page(site).name}#{first_series(site)}")
    page.wait_for_selector(f"#{first_series(site)}[data-drawn] canvas")


def unfold(details: Any) -> None:
    """Open what is folded and wait for its rows: a browser tells the page of the opening later than of the click."""
    details.locator("summary").click()
    details.locator("tbody tr").first.wait_for()


def axe(page: Any) -> list[str]:
    """What axe finds that is serious or critical."""
    from axe_playwright_python.sync_playwright import Axe

    # Further rows of a table are like the first ones, and axe takes a second for some hundred.
    page.evaluate("for (const b of document.querySelectorAll('tbody')) [...b.rows].slice(5).forEach(r => r.remove())")
    # axe itself would fetch the style sheet again, which the policy of the pages forbids. What is right is not listed.
    violations = Axe().run(page, options={"preload": False, "resultTypes": ["violations"]}).response["violations"]
    severe = [violation for violation in violations if violation["impact"] in ("serious", "critical")]
    return [f"{violation['id']}: {violation['nodes'][0]['html'][:120]}" for violation in severe]


def fits(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def background(page: Any) -> tuple[int, ...]:
    """The colour of the page as red, green and blue."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return tuple(int(part) for part in re.findall(r"\d+", colour))


def rows(page: Any, table: int = 0) -> list[list[str]]:
    cells: list[list[str]] = page.evaluate(
        "n => [...document.querySelectorAll('table')[n].tBodies[0].rows].filter(r => !r.hidden)"
        ".map(r => [...r.cells].map(c => c.textContent.trim()))",
        table,
    )
    return cells

#!/usr/bin/env python3
"""CPU seconds to make the pages of a store, whole and again after one more night, and how large they are.

The store is SQLite and holds seeded runs: 300 series of 334 nights, 100,200 results. Aims: whole under 30 s, the first
page under 100 KB. With a Chromium here: how long the page of a case takes until its first charts are drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT / "tests" / "core")]

from levelfield.catalog.registry import Registry  # noqa: E402
from levelfield.pages.page_building import build_pages  # noqa: E402
from levelfield.store.database import Store  # noqa: E402
from seeded_nights import SeededNights  # noqa: E402

CHROMIUM = shutil.which(os.environ.get("LEVELFIELD_CHROMIUM", "chromium-headless-shell")) or shutil.which("chromium")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=300, help="series (default %(default)s)")
    parser.add_argument("--nights", type=int, default=334, help="nights of each (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plan = SeededNights(2, 4) if arguments.quick else SeededNights(arguments.series, arguments.nights)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(plan, Path(folder), with_browser=not arguments.quick and CHROMIUM is not None)
    print(json.dumps(figures, indent=2) if arguments.json else text(figures))


def measure(plan: SeededNights, folder: Path, with_browser: bool) -> dict[str, float]:
    """Figures by name. The last night is added after the first site was made."""
    site, last = folder / "site", max(filter(None, (record.night for record in plan.records())))
    figures: dict[str, float] = {"results": sum(1 for _ in plan.records()), "series": plan.series}
    with Store.open(str(folder / "results.sqlite")) as store:
        store.add(record for record in plan.records() if record.night != last)
        figures["whole_cpu_seconds"] = cpu_seconds(lambda: build_pages(store, site, Registry()))
        figures["nothing_new_cpu_seconds"] = cpu_seconds(lambda: build_pages(store, site, Registry()))
        store.add(record for record in plan.records() if record.night == last)
        figures["one_more_night_cpu_seconds"] = cpu_seconds(lambda: build_pages(store, site, Registry()))
    files = [path for path in site.rglob("*") if path.is_file()]
    figures["files"] = len(files)
    figures["megabytes"] = sum(path.stat().st_size for path in files) / 1e6
    figures["first_page_kilobytes"] = (site / "index.html").stat().st_size / 1e3
    if with_browser:
        figures["case_page_seconds"] = case_page_seconds(site)
    return figures


def cpu_seconds(action: Callable[[], Any]) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before


def case_page_seconds(site: Path) -> float:
    """From the address to the first series with its charts, of the case with the most series; the best of three."""
    from playwright.sync_api import sync_playwright

    page = max(site.glob("case-*.html"), key=lambda path: path.stat().st_size)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        seconds = min(_drawn(browser.new_page(), page) for _ in range(3))
        browser.close()
    return seconds


def _drawn(page: Any, path: Path) -> float:
    start = time.monotonic()
    first = path.read_text(encoding="utf-8").split('<section id="')[1].split('"')[0]
    page.goto(f"file://{path}#{first}")
    page.wait_for_selector("section[data-drawn] canvas")
    return time.monotonic() - start


def text(figures: dict[str, float]) -> str:
    rate = figures["results"] / figures["whole_cpu_seconds"]
    again = figures["one_more_night_cpu_seconds"] / figures["whole_cpu_seconds"]
    rows = [
        f"{figures['results']:,.0f} results in {figures['series']:,.0f} series",
        f"whole            {figures['whole_cpu_seconds']:7.2f} s CPU, {rate:,.0f} results/s",
        f"one more night   {figures['one_more_night_cpu_seconds']:7.2f} s CPU, {again:.2f} of the whole",
        f"nothing new      {figures['nothing_new_cpu_seconds']:7.2f} s CPU",
        f"files            {figures['files']:7,.0f}, {figures['megabytes']:,.1f} MB",
        f"first page       {figures['first_page_kilobytes']:7.1f} KB",
    ]
    if "case_page_seconds" in figures:
        rows.append(f"case page        {figures['case_page_seconds']:7.2f} s to its first charts")
    return "\n".join(rows)


if __name__ == "__main__":
    main()

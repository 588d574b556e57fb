"""Sites from seeded nights, one of them with a run whose every text is an attack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_texts import hostile_record
from levelfield.catalog.registry import Registry
from levelfield.pages.page_building import build_pages
from levelfield.pages.series_history import InMemoryStore
from page_visits import CHROMIUM
from seeded_nights import SeededNights


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """One for all tests of this folder: Playwright runs an event loop, in which others could not start theirs."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is here: .ci/browser installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def seeded_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight series of forty nights, with every kind of finding."""
    folder = tmp_path_factory.mktemp("site") / "site"
    build_pages(SeededNights().results(), folder, Registry())
    return folder


@pytest.fixture(scope="session")
def hostile_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one series; every text of the second is an attack."""
    folder = tmp_path_factory.mktemp("hostile") / "site"
    record = hostile_record()
    calm = record.model_copy(update={"run_id": "calm", "began": "2026-11-01T01:00:00Z", "warnings": ()})
    finding = {
        "series": InMemoryStore([record]).series()[0].digest,
        "label": ATTACK,
        "word": "regression",
        "detail": ATTACK,
    }
    results = InMemoryStore([calm, record], findings={"2026-11-02": [finding]}, expected={"2026-11-02": {ATTACK: None}})
    build_pages(results, folder, Registry())
    return folder


ATTACK = "<img src=x onerror=alert(1)>"

"""The pages: every link within the repository leads somewhere, and each page is in the site's navigation.

`make lint` builds the site; these need no mkdocs, and read README and CONTRIBUTING too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCES = re.MULTILINE | re.DOTALL


def links(page: Path) -> list[str]:
    """The page's links without those that leave the repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return [target for target in targets if "://" not in target]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as they are written in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    assert len(PAGES) > 30
    for page in PAGES:
        for link in links(page):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), (page, link)
            assert not anchor or anchor in anchors(target), (page, link)


def pages_of(entries: Any) -> Iterator[str]:
    """The pages of a part of `nav`, which nests lists and titles."""
    if isinstance(entries, str):
        yield entries
        return
    for entry in entries if isinstance(entries, list) else entries.values():
        yield from pages_of(entry)


def test_every_page_is_in_the_navigation_once() -> None:
    nav = list(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert sorted(nav) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_pages_of_docs_link_nothing_outside_of_docs() -> None:
    """The site has the files of docs/ alone. A file of the code is named in backticks."""
    outside = [
        (page.name, link)
        for page in DOCS.rglob("*.md")
        for link in links(page)
        if not (page.parent / link.partition("#")[0]).resolve().is_relative_to(DOCS)
    ]
    assert outside == []


def test_a_further_paragraph_of_an_item_has_four_spaces() -> None:
    """With fewer the site's Markdown ends the list there, and the next item is number 1 again."""
    for page in DOCS.rglob("*.md"):
        paragraphs = re.findall(
            r"\n\n {1,3}(\S.*)", re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=FENCES)
        )
        assert paragraphs == [], page


def test_the_readme_is_short_and_keeps_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 600
    for command in ("python run_benchmarks.py --case gpt3_6.7B:torch", "make test"):
        assert f"\n    {command}\n" in text

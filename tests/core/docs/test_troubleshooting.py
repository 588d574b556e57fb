"""docs/troubleshooting.md quotes messages that the code prints: each quoted message is part of a text in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| message")]
# What the code passes on from Python and pip.
FOREIGN = {"No matching distribution found"}
QUOTED = sorted({text for row in ROWS for text in re.findall(r"`([^`]+)`", row.split(" | ")[0])} - FOREIGN)
NO_MESSAGES = {"--scale full"}


def texts() -> Iterator[str]:
    """Every text of the platform, the models and the vendors but docstrings, with … for what is filled in."""
    folders = ("platform", "models", "vendors")
    sources = [ROOT / "run_benchmarks.py", *(path for folder in folders for path in (ROOT / folder).rglob("*.py"))]
    for path in sources:
        docstrings = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):  # a statement comes before its parts
            if isinstance(node, ast.Expr):
                docstrings.add(id(node.value))
            elif id(node) in docstrings:
                continue
            elif isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def is_in(message: str, source: str) -> bool:
    between = re.escape(message.rstrip("…").strip()).replace("…", "[^\0]*?")
    return re.search(between, source) is not None


def test_the_page_quotes_messages() -> None:
    assert len(ROWS) >= 40 and len(QUOTED) >= 40


def test_every_quoted_message_is_in_the_source() -> None:
    """One test for all: the texts are read from five hundred files."""
    source = "\n\0".join(texts())
    lost = [message for message in sorted(set(QUOTED) - NO_MESSAGES) if not is_in(message, source)]
    assert lost == [], "the code prints none of these: quote what it prints today"
    assert not is_in("no such message … is printed", source)

"""docs/troubleshooting.md quotes messages that the code prints: each quoted message is part of a text in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| message")]
# What the code passes on from Python and pip.
FOREIGN = {"No matching distribution found"}
QUOTED = sorted({text for row in ROWS for text in re.findall(r"`([^`]+)`", row.split(" | ")[0])} - FOREIGN)
NO_MESSAGES = {"--scale full"}


def texts() -> Iterator[str]:
    """Every text of the platform and the models but docstrings, with … for what is filled in."""
    sources = [ROOT / "run_benchmarks.py", *(ROOT / "platform").rglob("*.py"), *(ROOT / "models").rglob("*.py")]
    for path in sources:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in docstrings:
                continue
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


SOURCE = "\n\0".join(texts())


def test_the_page_quotes_messages() -> None:
    assert len(ROWS) >= 40 and len(QUOTED) >= 40


@pytest.mark.parametrize("message", sorted(set(QUOTED) - NO_MESSAGES))
def test_a_quoted_message_is_in_the_source(message: str) -> None:
    between = re.escape(message.rstrip("…").strip()).replace("…", "[^\0]*?")
    assert re.search(between, SOURCE), f"the code prints no '{message}': quote what it prints today"

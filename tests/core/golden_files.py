"""Whole outputs that somebody has read, as files under golden/. A test compares all of one at once.

`UPDATE_GOLDEN=1 pytest FILE` writes them anew; read the difference before committing.
"""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str, text: str) -> str:
    """Return the content of a golden file. text: this run's output, which replaces it with UPDATE_GOLDEN."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")

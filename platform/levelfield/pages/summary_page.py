"""A summary as a file of its own: HTML without a script that prints to one sheet of A4."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from pathlib import Path

import levelfield
from levelfield.compare.summary import Summary
from levelfield.pages.page_rendering import PageRenderer

_STYLE = Path(__file__).parent / "assets" / "summary.css"


def summary_page(summary: Summary, made: datetime) -> str:
    """Return the HTML. Its policy allows nothing but its own style, by the digest of it."""
    style = _STYLE.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return PageRenderer("en", {}).render(
        "summary",
        "summary",
        s=summary,
        style=style,
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        made=made.strftime("%Y-%m-%d %H:%M UTC"),
        version=levelfield.__version__,
    )

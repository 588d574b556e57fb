"""The tables of `compare` as one static page: a file of its own, without a script, that makes no request."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from markupsafe import Markup

import levelfield
from levelfield.pages.page_rendering import PageRenderer
from levelfield.report.sheets import Sheet

_STYLE = Path(__file__).parent / "assets" / "style.css"


def comparison_page(title: str, sheets: Iterable[Sheet], made: datetime) -> str:
    """Return the HTML of the tables. Its policy allows nothing but its own style, by the digest of it. made: in UTC."""
    style = _STYLE.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return PageRenderer("en", {}).render(
        "comparison",
        "comparison",
        title=title,
        sheets=list(sheets),
        style=Markup(style),  # the platform's own file, which the policy names by its digest
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        made=made.strftime("%Y-%m-%d %H:%M UTC"),
        version=levelfield.__version__,
    )

"""The last night as a badge: a picture for a README, and the JSON that a badge service such as shields.io reads."""

from __future__ import annotations

import json
from xml.sax.saxutils import escape

from levelfield.pages.night_view import NightView
from levelfield.series.findings import ABSENCES, COMPARED, FAILURES, WORDS

LABEL = "nightly"
_COLOURS = {"failing": "#b3261e", "missing": "#8a6100", "passing": "#1a7f37", "open": "#57606a"}  # on white text
_CHARACTER, _MARGIN, _HEIGHT = 6.6, 6, 20  # of Verdana at 11 pixels

_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" aria-label="{label}: {message}">
<title>{label}: {message}</title>
<rect width="{left}" height="{height}" fill="#24292f"/>
<rect x="{left}" width="{right}" height="{height}" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{label_x}" y="14">{label}</text>
<text x="{message_x}" y="14">{message}</text>
</g>
</svg>
"""


def badge_files(night: NightView) -> dict[str, str]:
    """Return the files of the badge by their names in the site."""
    message, state = _said(night)
    shields = {"schemaVersion": 1, "label": LABEL, "message": message, "color": _COLOURS[state]}
    if state == "failing":
        shields["isError"] = True
    return {"data/badge.svg": _picture(message, _COLOURS[state]), "data/badge.json": json.dumps(shields) + "\n"}


def _said(night: NightView) -> tuple[str, str]:
    """Return the words of the badge and the state that gives its colour."""
    if night.night is None:
        return "no night", "open"
    for words, state in ((FAILURES, "failing"), (ABSENCES, "missing")):
        if counted := [f"{night.counts[word]} {word}" for word in WORDS if word in words and night.counts[word]]:
            return ", ".join(counted), state
    is_compared = any(night.counts[word] for word in COMPARED)
    return ("passing", "passing") if is_compared else ("no level yet", "open")


def _picture(message: str, colour: str) -> str:
    left, right = (round(len(text) * _CHARACTER) + 2 * _MARGIN for text in (LABEL, message))
    return _SVG.format(
        width=left + right, height=_HEIGHT, left=left, right=right, colour=colour, label=escape(LABEL),
        message=escape(message), label_x=left / 2, message_x=left + right / 2,
    )  # fmt: skip

"""The badge of the last night: its words, its colour, a picture that is read, and the JSON of a badge service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from levelfield.pages.night_view import badge_files
from levelfield.series.findings import FINDING_WORDS


def badge(counts: Mapping[str, int], night: str | None = "2026-11-22.b") -> tuple[dict[str, Any], str]:
    words = {word: counts.get(word.replace(" ", "_"), 0) for word in FINDING_WORDS}
    overview: Any = SimpleNamespace(night=night, word_counts=words)
    files = badge_files(overview)
    return json.loads(files["data/badge.json"]), files["data/badge.svg"]


@pytest.mark.parametrize(
    ("counts", "message", "colour"),
    [
        ({"regression": 1, "missing": 3}, "1 regression", "#b3261e"),
        ({"regression": 2, "training_differs": 1}, "2 regressions, 1 training differs", "#b3261e"),
        ({"missing": 2, "no_change": 5}, "2 missing", "#8a6100"),
        ({"missing": 2}, "2 missing", "#8a6100"),
        ({"no_change": 5, "inconclusive": 1}, "passing", "#1a7f37"),
        ({"new_series": 5}, "no baseline yet", "#57606a"),
    ],
)
def test_a_badge_has_the_worst_words_of_the_night_and_its_date(
    counts: dict[str, int], message: str, colour: str
) -> None:
    shields, picture = badge(counts)
    message += ", 2026-11-22"
    assert shields == {"schemaVersion": 1, "label": "nightly", "message": message, "color": colour,
                       **({"isError": True} if colour == "#b3261e" else {})}  # fmt: skip
    root = ElementTree.fromstring(picture)
    assert root.get("aria-label") == f"nightly: {message}" and colour in picture
    left, right = (rect for rect in root if rect.tag.endswith("rect"))
    assert float(root.get("width", 0)) == float(left.get("width", 0)) + float(right.get("width", 0))
    assert float(right.get("width", 0)) >= 6 * len(message), "the words fit"


def test_without_a_night_nothing_is_green() -> None:
    assert badge({}, night=None)[0]["message"] == "no night"

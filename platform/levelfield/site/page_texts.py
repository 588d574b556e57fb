"""The texts of the pages in each language, from one table per language."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

LANGUAGES = {"en": "English", "zh": "中文"}
HTML_LANGUAGES = {"en": "en", "zh": "zh-Hans"}
_SCRIPTED = "js."  # keys of texts that scripts show begin with it
_FOLDER = Path(__file__).parent / "texts"


@cache
def texts(language: str) -> dict[str, str]:
    """Return the table of a language: key to text, in which {name} is filled in."""
    table: dict[str, str] = yaml.safe_load((_FOLDER / f"{language}.yaml").read_text(encoding="utf-8"))
    return table


def text(language: str, key: str, **values: object) -> str:
    """Return one text with its values filled in. Raises KeyError for a key or value that is not there."""
    found = texts(language)[key]
    return found.format_map(values) if values else found


def script_texts(language: str) -> dict[str, str]:
    """Return the texts that scripts show, and the words that both show, by key."""
    shared = ("word.", "figure.", "unit.", _SCRIPTED)
    return {key.removeprefix(_SCRIPTED): found for key, found in texts(language).items() if key.startswith(shared)}

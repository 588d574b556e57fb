"""Copies of documents with some keys changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from plans import PLUGINS

TINY = PLUGINS / "configs/cases/tiny.yaml"


def written(folder: Path, change: dict[str, Any], source: Path = TINY) -> Path:
    """A copy of a document with keys replaced, by dotted name; None removes."""
    content = yaml.safe_load(source.read_text())
    for name, value in change.items():
        *outer, last = name.split(".")
        place = content
        for key in outer:
            place = place.setdefault(key, {})
        place.pop(last, None)
        if value is not None:
            place[last] = value
    path = folder / "case.yaml"
    path.write_text(yaml.safe_dump(content))
    return path

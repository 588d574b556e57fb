"""Files that a node writes before its ranks start, each in one step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Mapping


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write texts below `root`, by name. Raises OSError."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        _replace(root / name, text)


def write_json(path: Path, content: Any) -> None:
    _replace(path, json.dumps(content, indent=2) + "\n")


def _replace(path: Path, text: str) -> None:
    # Two nodes may share the folder, and have the same process number in their containers.
    part = path.with_name(f"{path.name}.{os.urandom(4).hex()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)

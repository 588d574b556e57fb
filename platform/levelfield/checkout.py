"""The checkout's place on disk: everything that is not Python code is found from it."""

from __future__ import annotations

import os
from pathlib import Path


def checkout() -> Path:
    """The repository's root, which holds vendors/, models/, configs/ and docker/."""
    return Path(os.environ.get("LEVELFIELD_ROOT") or Path(__file__).resolve().parents[2])

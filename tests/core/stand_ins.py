"""Programs that only pretend: shell scripts that a test plants."""

from __future__ import annotations

from pathlib import Path


def stand_in(path: Path, body: str) -> Path:
    """Write a shell script that can be started, and return its path."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path

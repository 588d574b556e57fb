"""A folder on a file system that is read-only, also for root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """Make the folder read-only for the block, for all that is opened from now on. Skips where nobody may mount."""
    aside = place.with_name(f"{place.name}-aside")
    aside.mkdir(exist_ok=True)
    if subprocess.run(["mount", "--bind", str(place), str(aside)], capture_output=True).returncode:
        pytest.skip("a folder cannot be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(aside)], check=True)
        subprocess.run(["mount", "--bind", str(aside), str(place)], check=True)  # in one step, whoever writes there
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=True)
    finally:
        subprocess.run(["umount", "--lazy", str(aside)], check=True)

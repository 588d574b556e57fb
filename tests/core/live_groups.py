"""Control groups of the kernel itself, beside all others: with a limit on memory, or a quota of processor time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from plans import ROOT

NO_GROUP = "no control group can be made here"  # tests/conftest.py allows it
TREE = Path("/sys/fs/cgroup")


@contextmanager
def control_group(controller: str, *settings: Mapping[str, str]) -> Iterator[Path]:
    """A group for the block, with the first settings whose files it has: one set for each version. Else skip."""
    tree = TREE / controller if (TREE / controller).is_dir() else TREE
    folder = tree / f"levelfield-test-{os.getpid()}"
    try:
        folder.mkdir()
        _set(folder, settings)
    except OSError:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(NO_GROUP)
    yield folder
    folder.rmdir()


def _set(folder: Path, settings: tuple[Mapping[str, str], ...]) -> None:
    """Raises OSError where the folder has none of the settings' files."""
    present = next((files for files in settings if (folder / next(iter(files))).exists()), None)
    if present is None:
        raise OSError("the controller is not there")
    for name, text in present.items():
        if (folder / name).exists():  # limits with swap may be missing
            (folder / name).write_text(text)


def inside(folder: Path, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments within the group."""
    enter = f"import os, sys; open('{folder}/cgroup.procs', 'w').write(str(os.getpid()))"
    enter += "; os.execv(sys.argv[1], sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform"), **more}
    command = [sys.executable, "-c", enter, sys.executable, *argv]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)

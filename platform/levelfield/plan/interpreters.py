"""The Python that makes an environment: this one, or another one on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from levelfield.contracts.command import completed
from levelfield.errors import UsageError
from levelfield.specs.requirements import PythonVersion, takes_python
from levelfield.user_folders import home_folder

MINORS = range(30, 5, -1)
PATIENCE_SECONDS = 30
# Debian splits the last two from its Python, and no environment can be made without them.
PROGRAM = "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"


class Interpreter(NamedTuple):
    python: str
    version: PythonVersion


def find_interpreter(wanted: str) -> Interpreter:
    """Return this Python if it fits `wanted` (see specs), else the newest other one that fits and starts.

    Raises UsageError with the searched places and the found files when there is none.
    """
    own = sys.version_info[:2]
    if takes_python(wanted, own):
        return Interpreter(sys.executable, own)
    refused = []
    for version in ((3, minor) for minor in MINORS if takes_python(wanted, (3, minor))):
        for path in _candidates("python{}.{}".format(*version)):
            refusal = _refusal(path, "{}.{}".format(*version))
            if refusal is None:
                return Interpreter(str(path), version)
            refused.append(f"{path} {refusal}")
    raise UsageError(_explain(wanted, refused))


def _candidates(name: str) -> Iterator[Path]:
    """Return all executable files of this name on PATH, then in _stores. The first may be a shim that fails."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders += [folder for store in _stores() for folder in sorted(store.glob("*/bin"), reverse=True)]
    paths = (folder / name for folder in folders)
    return (path for path in paths if path.is_file() and os.access(path, os.X_OK))


def _stores() -> list[Path]:
    """Return the folders where pyenv and uv install Pythons."""
    home = home_folder()
    pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv")
    return [pyenv / "versions", home / ".local" / "share" / "uv" / "python"]


def _refusal(path: Path, version: str) -> str | None:
    """Return why `path` is not a Python `version` that can make environments; None if it is one.

    It runs in isolated mode, so that the user's variables do not change its output.
    """
    argv = [str(path), "-I", "-c", PROGRAM]
    try:
        done = completed(argv, PATIENCE_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not start ({type(error).__name__})"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"fails ({last})" if "Error" in last else f"fails (exit code {done.returncode})"
    said = done.stdout.strip()
    return None if said == version else f"says that it is '{said}'"


def _explain(wanted: str, refused: list[str]) -> str:
    found = f"; found, but of no use: {', '.join(refused)}" if refused else ""
    return (
        f"Python {wanted} is needed to make the environment, and this is {sys.version_info[0]}.{sys.version_info[1]}: "
        f"looked for another on PATH and below {' and '.join(map(str, _stores()))}{found}. Install one there (pyenv "
        f"install, uv python install), or give an interpreter that has the packages with --python"
    )

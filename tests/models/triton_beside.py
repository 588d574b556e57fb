"""Triton without an accelerator: its wheel in a folder of its own, for torch's build for processors, which has none.

Its interpreter runs kernels on a processor. No environment of a framework has the wheel: a training on a processor must
not find it. It is 200 MB to load, and 700 MB on disk; pip took 4 s for it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from levelfield import installer
from levelfield.checkout import checkout

VERSION = "3.7.1"  # that torch 2.13.0's build for CUDA requires
WHEEL = f"triton=={VERSION}"


class NoTriton(Exception):
    """No package index has the wheel for this machine."""


def triton_folder() -> Path:
    """The folder to put on PYTHONPATH. It is made on first use; of several processes one makes it, the others wait.

    Raises NoTriton.
    """
    folder = checkout() / ".venvs" / f"triton-{VERSION}-{sys.implementation.cache_tag}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            made = folder.with_name(f"{folder.name}.making")
            shutil.rmtree(made, ignore_errors=True)
            install(made)
            made.rename(folder)
    return folder


def install(folder: Path) -> None:
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    argv += ["--no-compile", "--only-binary=:all:", "--target", str(folder), WHEEL]
    done = subprocess.run(argv, env={**os.environ, **installer.source_variables()}, capture_output=True, text=True)
    if "(from versions: none)" in done.stderr:
        raise NoTriton(done.stderr[-300:])
    assert done.returncode == 0, done.stderr[-600:]

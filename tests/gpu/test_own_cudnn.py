"""transformer-engine gets the parts of the cuDNN that torch has, where the machine has another release of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[2] / "models" / "torch"
ASK = "import ctypes; {load}; print(ctypes.CDLL('libcudnn_graph.so.9').release())"
LOAD = "from own_cudnn import load_own_cudnn; load_own_cudnn()"


def library(folder: Path, release: int) -> Path:
    """A part of cuDNN that knows its release."""
    folder.mkdir(parents=True)
    name = "libcudnn_graph.so.9"
    argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{name}", "-o", str(folder / name)]
    subprocess.run(argv, input=f"int release(void) {{ return {release}; }}", text=True, check=True)
    return folder


@pytest.mark.parametrize(("load", "package", "found"), [(LOAD, True, 92), (LOAD, False, 91), ("0", True, 91)])
def test_the_part_that_came_with_torch_is_taken(tmp_path: Path, load: str, package: bool, found: int) -> None:
    machine = library(tmp_path / "machine", 91)
    own = tmp_path / "packages"
    library(own / "nvidia" / "cudnn" / "lib", 92)
    paths = [str(MODELS), *([str(own)] if package else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "LD_LIBRARY_PATH": str(machine)}
    argv = [sys.executable, "-c", ASK.format(load=load)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(found)

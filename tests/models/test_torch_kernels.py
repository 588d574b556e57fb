"""Kernels of accelerators without one: what they compute, in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from levelfield.checkout import checkout
from triton_beside import NoTriton, triton_folder

pytestmark = pytest.mark.torch

TESTS = Path(__file__).with_name("interpreted")


def test_kernels_compute_what_torch_does() -> None:
    """In a process of their own, as everything there finds Triton."""
    try:
        folder = triton_folder()
    except NoTriton:
        pytest.skip("no package index answers")
    own = {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join((str(checkout() / "platform"), str(folder)))}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS)]
    done = subprocess.run(argv, env={**os.environ, **own}, cwd=checkout(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]

"""The digest that recorded trainings rest on: what Python runs counts; what only readers and checkers see does not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from levelfield.catalog.code_basis import _executed_syntax, training_code_digest
from levelfield.catalog.registry import Registry
from plans import ROOT

FAKE = ROOT / "tests" / "core" / "plugins" / "models" / "fake"
CODE = """\
from dataclasses import dataclass

@dataclass
class Job:
    steps: int

def train(job, rate=0.1):
    total = 0
    for step in range(job.steps):
        total += rate * step
    return total
"""
TYPED = '''\
"""Trains."""
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from elsewhere import Rate

@dataclass
class Job:
    """A job."""
    steps: int

def train(job: Job, rate: Optional[Rate] = 0.1) -> float:
    """Return the sum."""
    total: float = 0
    for step in range(job.steps):  # from 0
        total += rate * step
    return total
'''


def test_comments_docstrings_and_types_of_functions_do_not_count() -> None:
    assert _executed_syntax(TYPED.encode()) == _executed_syntax(CODE.encode())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("steps: int", "steps: float"),  # a field's type, which the worker reads
        ("rate=0.1", "rate=0.10001"),
        ("total += ", "total -= "),
        ("total = 0\n", "total = 1\n"),
        ("return total", "return -total"),
        ("return total", 'return "total"'),
        ("@dataclass\n", ""),
        ("range(job.steps)", "range(job.steps - 1)"),
        ("def train(job, rate=0.1)", "@kernel\ndef train(job: int, rate=0.1)"),
    ],
)
def test_what_runs_counts(before: str, after: str) -> None:
    assert before in CODE
    assert _executed_syntax(CODE.replace(before, after).encode()) != _executed_syntax(CODE.encode())


def test_a_decorator_that_may_read_types_keeps_them() -> None:
    kernel = "@triton.jit\ndef kernel(x, SIZE: tl.constexpr):\n    return x\n"
    assert _executed_syntax(kernel.encode()) != _executed_syntax(kernel.replace(": tl.constexpr", "").encode())
    method = "class A:\n    @staticmethod\n    def forward(x: int):\n        return x\n"
    assert _executed_syntax(method.encode()) == _executed_syntax(method.replace(": int", "").encode())


@pytest.mark.parametrize("source", [b"print 'old'", b"\x00", b"\xff", b"x = '\\ud800'\n"])
def test_what_is_no_python_counts_by_its_bytes(source: bytes) -> None:
    assert _executed_syntax(source) != _executed_syntax(source + b"1")


def test_a_folder_s_digest_follows_from_its_code(tmp_path: Path) -> None:
    implementation, _ = Registry([FAKE.parents[1]]).implementation_of_label("fake")
    folder = tmp_path / "fake"
    shutil.copytree(FAKE, folder)
    script = folder / "train.py"
    digest = training_code_digest(implementation, folder, "cpu")
    script.write_text("# a comment\n" + script.read_text())
    assert training_code_digest(implementation, folder, "cpu") == digest
    script.write_text(script.read_text() + "\nSTEPS = 3\n")
    assert training_code_digest(implementation, folder, "cpu") != digest


def test_other_pythons_get_the_same_text(tmp_path: Path) -> None:
    pythons = [p for v in ("3.10", "3.13") for p in Path.home().glob(f".pyenv/versions/{v}.*/bin/python")]
    if not pythons:
        pytest.skip("neither Python 3.10 nor 3.13 lies in ~/.pyenv/versions")
    code = (ROOT / "platform" / "levelfield" / "catalog" / "code_basis.py").read_text()
    start, end = code.index("# Decorators that"), code.index("def training_code_digest(")
    parts = code[start:end] + code[code.index("@lru_cache") : code.index("def recorded_runs_path(")]
    program = tmp_path / "digests.py"
    program.write_text(
        "from __future__ import annotations\nimport ast, hashlib, pathlib, sys\nfrom functools import lru_cache\n"
        f"{parts}\nfor path in sorted(pathlib.Path(sys.argv[1]).rglob('*.py')):\n"
        "    print(path, hashlib.sha256(_executed_syntax(path.read_bytes())).hexdigest())\n"
    )
    texts = {
        subprocess.run([str(python), str(program), str(ROOT / "models")], capture_output=True, text=True).stdout
        for python in (sys.executable, *pythons)
    }
    assert len(texts) == 1
    assert len(texts.pop().splitlines()) > 50

"""The platform's own packages can be installed on the oldest and the newest Python that it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]


def pins(python: str) -> list[str]:
    """The packages of requirements.lock for a Python. pip would judge their markers by the one that it runs in."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    requirements = [Requirement(line.rstrip("\\ ")) for line in lines if "==" in line]
    environment = {"python_full_version": f"{python}.0"}
    return [f"{r.name}{r.specifier}" for r in requirements if not r.marker or r.marker.evaluate(environment)]


@pytest.mark.parametrize("python", ["3.10", pytest.param("3.13", marks=pytest.mark.thorough)])  # as in ci.yml
def test_every_pin_has_a_build_for_this_python(python: str, tmp_path: Path) -> None:
    if python == "3.10" and next(Path.home().glob(f".pyenv/versions/{python}.*/bin/python"), None):
        pytest.skip(f"tests/e2e/test_pythons.py installs them all for Python {python}, which is here")
    asked = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--only-binary=:all:"]
    where = ["--python-version", python, "--target", str(tmp_path), "--disable-pip-version-check"]
    done = subprocess.run([*asked, *where, *pins(python)], capture_output=True, text=True)
    if "(from versions: none)" in done.stderr:
        pytest.skip("no package index answers")
    assert done.returncode == 0, done.stderr[-600:]


def test_each_package_is_pinned_once_for_each_python() -> None:
    for python in ("3.10", "3.11", "3.12", "3.13"):
        names = [pin.partition("==")[0].lower() for pin in pins(python)]
        assert len(names) == len(set(names)) > 20

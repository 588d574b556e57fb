"""Environments of the tests, and a process that makes one."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from levelfield.run.runtimes.environments import is_ready, use_environment
from levelfield.specs.plan import EnvironmentPlan
from plans import ROOT
from stand_ins import stand_in

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
_MAKER = """
import sys
from pathlib import Path
from levelfield.run.runtimes.environments import use_environment
from levelfield.specs.plan import EnvironmentPlan
with use_environment(EnvironmentPlan.model_validate_json(Path(sys.argv[1]).read_text()), print):
    pass
"""


def plan(folder: Path, *requirements: str, name: str = "fake-cpu", **more: Any) -> EnvironmentPlan:
    target, packages = folder / ".venvs" / name, requirements or ("acme==1.0",)
    place = {"name": name, "folder": str(target), "python": str(target / "bin/python")}
    digest = hashlib.sha256("\n".join(packages).encode()).hexdigest()
    return EnvironmentPlan.model_validate({**place, "requirements": packages, "digest": digest, **more})


def use(environment: EnvironmentPlan) -> list[str]:
    """Use the environment once and return what was said."""
    sentences: list[str] = []
    with use_environment(environment, sentences.append):
        assert is_ready(environment)
    return sentences


def maker(folder: Path, installer: str) -> tuple[EnvironmentPlan, subprocess.Popen[bytes]]:
    """Start a process that makes an environment by this script in place of a Python."""
    environment = plan(folder, made_with=str(stand_in(folder / "slow", installer)))
    (folder / "plan.json").write_text(environment.to_json())
    argv = [sys.executable, "-c", _MAKER, str(folder / "plan.json")]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    return environment, subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

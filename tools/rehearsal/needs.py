"""What a rehearsal needs of this machine, checked before any work: a chip that is known, gcc, a CUDA build of torch."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from rehearsal.plans import CHECKOUT, RehearsalError, case_string, framework_of, standin_chip
from standin.build import BuildError, check_compiler, cuda_torch

# What the training of a framework imports; all of them are programmed with torch, whose CUDA the stand-in replaces.
PACKAGES = {"torch": ("torch",), "deepspeed": ("deepspeed",), "megatron": ("megatron", "transformer_engine")}
LACKING = (
    "import importlib.util, json, sys; print(json.dumps([n for n in sys.argv[1:] if not importlib.util.find_spec(n)]))"
)
STAMP = "levelfield-environment.json"  # written last by the platform
VARIABLE = "LEVELFIELD_CUDA_PYTHON"
INDEX = (
    "pip took it from an index with builds for processors: set PIP_INDEX_URL to one with CUDA builds, remove this "
    "environment and make it again"
)


def environment(framework: str) -> Path:
    return CHECKOUT / ".venvs" / f"{framework}-nvidia" / "bin" / "python"


def default_python(framework: str) -> Path:
    """The platform's environment of this framework; where it is not whole, the Python that the variable names."""
    platform_python, override = environment(framework), os.environ.get(VARIABLE)
    return Path(override) if override and not (platform_python.parents[1] / STAMP).exists() else platform_python


def check_needs(case: str, python: Path) -> None:
    """Raise RehearsalError or BuildError with what is missing and what to do. `case` has the whole name of a chip."""
    standin_chip(case_string(case).split(":")[2])
    framework = framework_of(case)
    if framework not in PACKAGES:
        raise RehearsalError(
            f"framework {framework}: the stand-in replaces CUDA for {', '.join(PACKAGES)} only; name one of these"
        )
    check_compiler()
    how = how_to_make(framework)
    if not python.exists():
        raise RehearsalError(f"found no Python with a CUDA build of {framework} ({python}): {how}")
    try:
        cuda_torch(python)
    except BuildError as error:
        lacking_torch = str(error).partition(": install")[0]
        raise BuildError(f"{lacking_torch}. {INDEX if python == environment(framework) else how}") from None
    if lacking := packages_lacking(python, PACKAGES[framework]):
        raise RehearsalError(f"{python}: found no {' and no '.join(lacking)}, expected {framework} for CUDA: {how}")


def how_to_make(framework: str) -> str:
    return (
        f"`run_benchmarks.py environment make {framework} --vendor nvidia --any-driver` makes one (about 5 GB), or set "
        f"{VARIABLE} to a Python that has it"
    )


def packages_lacking(python: Path, names: tuple[str, ...]) -> list[str]:
    done = subprocess.run([str(python), "-c", LACKING, *names], capture_output=True, text=True)
    if done.returncode:
        raise RehearsalError(f"{python}: cannot look for {', '.join(names)}: {done.stderr.strip()[-300:]}")
    lacking: list[str] = json.loads(done.stdout)
    return lacking

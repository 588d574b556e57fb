"""The Python environment of a run: made from pinned requirements, given by the user, or part of an image."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from levelfield.checkout import checkout
from levelfield.contracts.command import run_bounded
from levelfield.errors import NotHere, UsageError
from levelfield.node.regular_files import read_regular
from levelfield.plan.build_checks import import_problems, missing_need_sentences
from levelfield.specs.case import Work
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.plan import EnvironmentPlan, ImagePlan, RuntimeName
from levelfield.specs.requirements import BuildStep, EnvironmentPackages, PythonVersion, takes_python
from levelfield.specs.tuning import Tuning
from levelfield.specs.vendor import Chip
from levelfield.user_folders import home_folder

STAMP = "levelfield-environment.json"  # in an environment's folder: what it was made from

PYTHON_MINORS = range(30, 5, -1)  # of Python 3, the newest first
ANSWER_SECONDS = 30  # the time limit of a Python that prints its version
# Debian packages ensurepip and venv separately, and no environment can be made without them.
VERSION_PROGRAM = "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"


def plan_environment(
    manifest: ImplementationFile,
    kind: str,
    packages: EnvironmentPackages,
    python: str | None,
    runtime: RuntimeName,
    devices_may_be_absent: bool = False,
    offline: bool = False,
    driver: str | None = None,
    chip: Chip | None = None,
) -> EnvironmentPlan:
    """Return the Python environment: made by the platform from pinned requirements, or an existing one.

    driver: the version of the devices' driver; None without devices. chip: the run's; None: it is not known. Raises
    NotHere when the machine has no suitable Python or lacks what the packages need, when the given Python lacks a
    build that the run uses, or the implementation has no requirements for this kind of device.
    devices_may_be_absent: return the vendor's own Python or a reason instead of raising.
    """
    if runtime == "inside":
        python = python or "python3"
    if python:
        return _existing_environment(manifest, kind, packages, python, runtime, devices_may_be_absent)
    if kind not in manifest.requirements:
        if devices_may_be_absent:
            return EnvironmentPlan(name="the vendor's own", folder="", python="python3", requirements=(), digest="")
        raise NotHere(
            f"{manifest.label} on {kind}: the vendor's own Python brings the framework. Name it with --python, or use "
            "--runtime inside in the vendor's container, or --runtime docker with the vendor's image"
        )
    folder = checkout() / ".venvs" / f"{manifest.stem}-{kind}"
    interpreter, interpreter_problem = _interpreter_or_reason(manifest, kind, devices_may_be_absent)
    version = ".".join(map(str, interpreter.version)) if interpreter else manifest.requirements[kind].python
    digest = _digest((version, *packages.pip_packages, *_step_fingerprints(packages.build_steps)))
    need_problem = missing_needs(
        manifest, kind, packages, driver, stamped_digest(folder) == digest, devices_may_be_absent, chip
    )
    return EnvironmentPlan(
        name=folder.name,
        folder=str(folder),
        python=str(folder / "bin" / "python"),
        made_with=interpreter.python if interpreter else None,
        requirements=packages.pip_packages,
        digest=digest,
        lacking=interpreter_problem or need_problem,
        offline=offline,
        builds=packages.build_steps,
        index=packages.index.setting if packages.index else None,
        left_out=left_out_sentences(packages),
    )


def missing_needs(
    manifest: ImplementationFile,
    kind: str,
    packages: EnvironmentPackages,
    driver: str | None,
    is_already_made: bool,
    devices_may_be_absent: bool,
    chip: Chip | None,
) -> str | None:
    """Return what this machine lacks, in one sentence for each thing; None where it lacks nothing.

    Raises NotHere instead, unless `devices_may_be_absent`.
    """
    if not (sentences := list(missing_need_sentences(packages, driver, is_already_made, chip))):
        return None
    message = f"{manifest.label} on {kind}: " + "\n  ".join(sentences)
    if devices_may_be_absent:
        return message
    raise NotHere(message)


def left_out_sentences(packages: EnvironmentPackages) -> tuple[str, ...]:
    """Return a sentence for each package that the run does without."""
    return tuple(f"without {build.name}: {build.without}" for build in packages.left_out)


def stamped_digest(folder: Path) -> str | None:
    """Return the digest of what the environment in this folder was made from; None where there is no complete one."""
    try:
        return str(json.loads(read_regular(folder / STAMP, "stamp"))["digest"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _step_fingerprints(steps: Sequence[BuildStep]) -> tuple[str, ...]:
    return tuple(step.fingerprint() for step in steps)


def _interpreter_or_reason(
    manifest: ImplementationFile, kind: str, devices_may_be_absent: bool
) -> tuple[Interpreter | None, str | None]:
    """Return the interpreter that makes the environment, or the reason why there is none."""
    try:
        return interpreter_for(manifest, kind), None
    except NotHere as error:
        if devices_may_be_absent:
            return None, str(error)
        raise


def _existing_environment(
    manifest: ImplementationFile,
    kind: str,
    packages: EnvironmentPackages,
    python: str,
    runtime: RuntimeName,
    devices_may_be_absent: bool,
) -> EnvironmentPlan:
    """Return the environment of a Python that exists. Raises UsageError, or NotHere where it lacks a build."""
    if not shutil.which(python):
        raise UsageError(f"--python {python}: found no interpreter there; give the path of an executable Python")
    remedy = "start a container that has it" if runtime == "inside" else "leave --python out: an environment is made"
    sentences = [f"{sentence}, or {remedy}" for sentence in import_problems(python, packages.builds)]
    problem = f"{manifest.label} on {kind}: " + "\n  ".join(sentences) if sentences else None
    if problem and not devices_may_be_absent:
        raise NotHere(problem)
    return EnvironmentPlan(name="given", folder="", python=python, requirements=(), digest="", lacking=problem)


def image_environment(
    image: ImagePlan, lacking: str | None = None, packages: EnvironmentPackages | None = None
) -> EnvironmentPlan:
    """Return the Python of a container. It is part of the image; nothing is made on the host.

    lacking: what this machine lacks for the image. packages: those of the run; the plan names what is left out.
    """
    return EnvironmentPlan(
        name=f"image {image.name}",
        folder="",
        python=image.python,
        requirements=image.requirements,
        digest=_digest((image.dockerfile, *image.requirements, *_step_fingerprints(image.builds))),
        lacking=lacking,
        builds=image.builds,
        index=image.index,
        left_out=left_out_sentences(packages) if packages and image.requirements else (),
    )


def plan_requirements(manifest: ImplementationFile, kind: str, tuning: Tuning, work: Work) -> EnvironmentPackages:
    """Return the pinned requirements of this choice; none where the vendor provides the framework."""
    if kind not in manifest.requirements:
        return EnvironmentPackages()
    requirements = manifest.requirements[kind]
    uses = {"flash_attn": tuning.attention == "flash_attn", "fp8": work.training.precision == "fp8"}
    packages = requirements.environment_packages([use for use, used in uses.items() if used])
    use_by_package = {"flash-attn": uses["flash_attn"], "transformer-engine": uses["fp8"], "torchao": uses["fp8"]}
    optional = tuple(
        p for p in requirements.optional if any(used and p.startswith(name) for name, used in use_by_package.items())
    )
    return replace(packages, pip_packages=(*packages.pip_packages, *optional))


def _digest(lines: tuple[str, ...]) -> str:
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def interpreter_for(manifest: ImplementationFile, kind: str) -> Interpreter:
    """Return the interpreter that makes the framework's environment. Raises NotHere where this machine has none."""
    try:
        return find_interpreter(manifest.requirements[kind].python)
    except UsageError as error:
        raise NotHere(f"{manifest.label} on {kind}: {error}") from None


class Interpreter(NamedTuple):
    """A Python that makes an environment."""

    python: str  # its path
    version: PythonVersion


def find_interpreter(versions: str) -> Interpreter:
    """Return this Python if it fits `versions` (see `takes_python`), else the newest other one that fits and starts.

    Raises UsageError with the searched places and the found files when there is none.
    """
    own_version = sys.version_info[:2]
    if takes_python(versions, own_version):
        return Interpreter(sys.executable, own_version)
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    install_folders = _python_install_folders()
    folders += [folder for parent in install_folders for folder in sorted(parent.glob("*/bin"), reverse=True)]
    unsuitable = []
    for minor in (minor for minor in PYTHON_MINORS if takes_python(versions, (3, minor))):
        paths = (folder / f"python3.{minor}" for folder in folders)
        for path in (path for path in paths if path.is_file() and os.access(path, os.X_OK)):
            unfit_reason = _unfit_reason(path, f"3.{minor}")  # the first on PATH may be a shim that fails
            if unfit_reason is None:
                return Interpreter(str(path), (3, minor))
            unsuitable.append(f"{path} {unfit_reason}")
    unsuitable_words = f"; found, but of no use: {', '.join(unsuitable)}" if unsuitable else ""
    raise UsageError(
        f"Python {versions} is needed to make the environment, and this is {own_version[0]}.{own_version[1]}: "
        f"looked for another on PATH and below {' and '.join(map(str, install_folders))}{unsuitable_words}. Install "
        f"one there (pyenv install, uv python install), or give an interpreter that has the packages with --python"
    )


def _python_install_folders() -> list[Path]:
    """Return the folders where pyenv and uv install Pythons."""
    home = home_folder()
    pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv")
    return [pyenv / "versions", home / ".local" / "share" / "uv" / "python"]


@functools.cache
def _unfit_reason(path: Path, version: str) -> str | None:
    """Return why `path` is not a Python `version` that can make environments; None if it is one.

    It runs in isolated mode, so that the user's variables do not change its output. All entries of a suite share the
    answer.
    """
    argv = [str(path), "-I", "-c", VERSION_PROGRAM]
    try:
        completed = run_bounded(argv, ANSWER_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not start ({type(error).__name__})"
    if completed.returncode:
        last_line = (completed.stderr.strip().splitlines() or ["no message"])[-1]
        return f"fails ({last_line})" if "Error" in last_line else f"fails (exit code {completed.returncode})"
    output = completed.stdout.strip()
    return None if output == version else f"says that it is '{output}'"

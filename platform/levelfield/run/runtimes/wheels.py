"""The wheels of an image: the host's pip downloads them once, with the user's own index and certificates.

A build then needs no network, and `--offline` uses the stored wheels. With LEVELFIELD_WHEELS pip takes them from that
folder. The name of the folder here is the digest of what was requested. `wheels.json`, which is written last, lists the
files with their sha256.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from levelfield import environment_folder, installer, user_folders
from levelfield.contracts.execution import Say
from levelfield.errors import RunFailed
from levelfield.node.regular_files import open_regular, read_regular
from levelfield.plan.environment import find_interpreter
from levelfield.plan.image_recipe import PIP_REQUIREMENT
from levelfield.rundir.directory import write_atomically
from levelfield.specs.plan import ImagePlan
from levelfield.specs.requirements import BuildStep

BUILD_ENVIRONMENT = ".build"  # within a folder of wheels


@dataclass(frozen=True)
class Wheels:
    """The wheels of one image."""

    folder: Path
    files: dict[str, str]  # the sha256 by file name


def fetch_image_wheels(image: ImagePlan, offline: bool, say: Say) -> Wheels:
    """Return all wheels for the image's requirements, downloaded once. Raises RunFailed when pip cannot fetch them.

    Raises UsageError when this machine has no Python of the image's version, for which pip chooses the wheels.
    """
    if not image.requirements:
        return Wheels(Path(), {})
    step_fingerprints = (step.fingerprint() for step in image.builds)
    inputs = "\n".join(
        (image.base.python_version, platform.machine(), PIP_REQUIREMENT, *image.requirements, *step_fingerprints)
    )
    folder = user_folders.own_cache() / "wheels" / hashlib.sha256(inputs.encode()).hexdigest()[:16]
    files = _stored_digests(folder)
    if files is None:
        if offline and not installer.wheels_folder():
            raise RunFailed(
                f"--offline, and the wheels of {image.name} were never fetched (expected them in "
                f"{folder}). Fetch them once without --offline: `environment image build`; or set "
                f"{installer.WHEELS} to a folder that `environment wheels fetch` made"
            )
        with _lock_folder(folder):  # another run may have downloaded them meanwhile
            files = _stored_digests(folder)
            if not files:
                version = image.base.python_version
                say(f"fetching the wheels of {image.name} for Python {version}: {', '.join(image.requirements)}")
                python = find_interpreter(f"=={version}.*").python
                source_variables, say_nothing = installer.source_variables(image.index), lambda line: None
                _run_pip_wheel(folder, python, (PIP_REQUIREMENT, *image.requirements), say_nothing, source_variables)
                _run_build_steps(folder, python, image.requirements, image.builds, say_nothing, source_variables)
                files = {path.name: _sha256(path) for path in sorted(folder.glob("*.whl"))}
                write_atomically(folder / "wheels.json", json.dumps(files, indent=2) + "\n")
    return Wheels(folder, files)


def verify_wheels(wheels: Wheels) -> None:
    """Check every wheel. Raises RunFailed when one is missing or has another digest."""
    for name, expected in wheels.files.items():
        path = wheels.folder / name
        digest = _sha256(path) if path.is_file() else "nothing"
        if digest != expected:
            raise RunFailed(
                f"{path}: found {digest[:12]}, expected sha256 {expected[:12]}. Remove the folder "
                "and run again to fetch it anew"
            )


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Make the folder and lock it for the block. Errors of the file system in the block become RunFailed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with environment_folder.lock_file(folder / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise RunFailed(f"{folder}: {error.strerror}") from None


def fetch_wheels(
    folder: Path,
    python: str,
    arguments: Sequence[str],
    say: Say,
    builds: Sequence[BuildStep] = (),
    index: str | None = None,
) -> None:
    """Download wheels for an interpreter into a folder, and build those that `builds` names. Raises RunFailed.

    arguments: requirements as pip takes them. index: the variable that names an index beside pip's own.
    """
    with _lock_folder(folder):
        source_variables = installer.index_variables(index)
        _run_pip_wheel(folder, python, arguments, say, source_variables)
        _run_build_steps(folder, python, arguments, builds, say, source_variables)


def _run_pip_wheel(
    folder: Path, python: str, arguments: Sequence[str], say: Say, source_variables: dict[str, str] | None
) -> None:
    """Run `pip wheel`, which also builds the wheels of requirements that are published only as sources."""
    argv = [sys.executable, "-m", "pip", "--python", python, "wheel", "--disable-pip-version-check"]
    installer.end_leftover_installer(folder, say)
    try:
        installer.run(
            [*argv, "--progress-bar", "off", "--wheel-dir", str(folder), *arguments], folder, say, source_variables
        )
    except RunFailed as error:
        raise RunFailed(f"pip could not fetch the wheels: {error}") from None


def _run_build_steps(
    folder: Path,
    python: str,
    arguments: Sequence[str],
    builds: Sequence[BuildStep],
    say: Say,
    source_variables: dict[str, str],
) -> None:
    """Build wheels in a temporary environment that has the packages that their builds need."""
    if not builds:
        return
    environment = folder / BUILD_ENVIRONMENT
    environment_folder.make_empty(environment)
    offline_variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folder.as_uri()}
    create, install = installer.environment_commands(python, environment)
    try:
        installer.run(create, folder, say, source_variables)
        installer.run([*install, *arguments], folder, say, offline_variables)
        python_of_environment = str(environment / "bin" / "python")
        for step in builds:
            variables = {**source_variables, **installer.build_variables(environment, step.home, step.headers)}
            options = ("--no-build-isolation", "--find-links", str(folder))
            _run_pip_wheel(folder, python_of_environment, (*options, *arguments, *step.packages), say, variables)
    finally:
        shutil.rmtree(environment, ignore_errors=True)


def _stored_digests(folder: Path) -> dict[str, str] | None:
    try:
        return dict(json.loads(read_regular(folder / "wheels.json", "wheels")))
    except (OSError, ValueError, TypeError):
        return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()

"""A framework's Python environment: created from pinned requirements, recreated when they change, locked while in use.

A run holds a shared lock on its environment while it uses it. A run that creates the environment holds an exclusive
lock. The stamp is written last, so a killed installation does not count.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from levelfield import environment_folder, installer
from levelfield.contracts.execution import Say
from levelfield.errors import RunFailed, UsageError, write_failure_text
from levelfield.plan.environment import STAMP, stamped_digest
from levelfield.rundir.directory import write_json
from levelfield.specs.plan import EnvironmentPlan

_PYTHON_ADVICE = "give an interpreter with --python"


@contextmanager
def use_environment(plan: EnvironmentPlan, say: Say) -> Iterator[None]:
    """Make the environment if needed, and lock it against changes for the block. Raises RunFailed or UsageError."""
    if not plan.folder:
        yield
        return
    folder = Path(plan.folder)
    with _lock_file(folder, is_ready(plan)) as lock:
        while lock is not None:
            _acquire(lock, fcntl.LOCK_SH, folder, say)
            if is_ready(plan):
                break
            fcntl.flock(lock, fcntl.LOCK_UN)
            _acquire(lock, fcntl.LOCK_EX, folder, say)
            if not is_ready(plan):
                try:
                    _make_environment(plan, folder, say)
                except OSError as error:
                    if error.errno == errno.EROFS:  # the same message as where no lock can be made
                        path = error.filename or folder
                        raise UsageError(f"{path} cannot be written: {error.strerror}; {_PYTHON_ADVICE}") from None
                    raise RunFailed(f"the environment cannot be made: {write_failure_text(error, folder)}") from None
            fcntl.flock(lock, fcntl.LOCK_UN)
        yield


def is_ready(plan: EnvironmentPlan) -> bool:
    """Return whether the environment is complete and has exactly these requirements."""
    if not plan.folder:
        return shutil.which(plan.python) is not None
    return stamped_digest(Path(plan.folder)) == plan.digest and Path(plan.python).exists()


@contextmanager
def _lock_file(folder: Path, is_complete: bool) -> Iterator[int | None]:
    """Yield the descriptor of the lock; None where none can be made and the environment is complete."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        descriptor = environment_folder.opened_lock(folder.with_name(f"{folder.name}.lock"))
    except OSError as error:
        if is_complete:
            yield None
            return
        path = error.filename or folder.parent
        raise UsageError(f"{path} cannot be written: {error.strerror}; {_PYTHON_ADVICE}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _acquire(lock: int, kind: int, folder: Path, say: Say) -> None:
    if not environment_folder.is_taken(lock, kind, folder, say):
        say(f"waiting for another run that {'makes' if kind == fcntl.LOCK_SH else 'uses'} {folder.name}")
        fcntl.flock(lock, kind)


def _make_environment(plan: EnvironmentPlan, folder: Path, say: Say) -> None:
    """Create the environment from scratch. What a failed or killed attempt left is ended and removed first."""
    if plan.offline and not installer.wheels_folder():
        raise RunFailed(
            f"--offline, and {folder} is not made. Set {installer.WHEELS} to a folder of wheels (`environment wheels "
            "fetch DIR` makes one on a machine with network), or start once without --offline"
        )
    installer.end_leftover_installer(folder, say)
    environment_folder.refuse_foreign(folder, _PYTHON_ADVICE)
    reason = "the requirements changed" if (folder / STAMP).exists() else "first use"
    names = []
    # a requirement with a condition is shown by its name: another line has its version for this Python
    for requirement in plan.requirements:
        requirement_name, _, condition = requirement.partition(";")
        names.append(re.split(r"[=<>!~ ]", requirement_name, maxsplit=1)[0] if condition else requirement_name)
    say(f"making {folder.parent.name}/{folder.name} ({reason}): {', '.join(dict.fromkeys(names))}")
    environment_folder.make_empty(folder)
    started = time.monotonic()
    create, install = installer.environment_commands(plan.made_with or sys.executable, folder)
    _run_installer(create, folder, say)
    source_variables = installer.source_variables(plan.index)
    _run_installer([*install, *plan.requirements], folder, say, source_variables)
    if not plan.name.endswith("-cpu"):
        installer.refuse_processor_builds(folder)
    for step in plan.builds:
        say(f"building {', '.join(step.packages)} against what is installed; this may take long")
        argv = [*install, "--no-build-isolation", *plan.requirements, *step.packages]
        _run_installer(
            argv, folder, say, {**source_variables, **installer.build_variables(folder, step.home, step.headers)}
        )
    installed = [*plan.requirements, *(package for step in plan.builds for package in step.packages)]
    if missing := installer.lacking(folder, installed):
        raise RunFailed(f"the environment cannot be made: {installer.installed_elsewhere(folder, missing)}")
    write_json(folder / STAMP, {"digest": plan.digest, "requirements": installed})
    say(f"{folder.name} is ready after {time.monotonic() - started:.0f} s")


def _run_installer(argv: list[str], folder: Path, say: Say, source_variables: dict[str, str] | None = None) -> None:
    """Run an installer and report each package that it collects. Raises RunFailed with its last lines."""
    try:
        installer.run(argv, folder, say, source_variables)
    except RunFailed as error:
        raise RunFailed(f"the environment cannot be made: {error}") from None

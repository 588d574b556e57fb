"""Checkouts of earlier commits: a nightly starts the accepted build from one, beside tonight's.

A build has its own folder below the user's cache. A later garbage collection of the user's repository takes nothing
from it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from levelfield.checkout import checkout
from levelfield.contracts.command import run_bounded
from levelfield.contracts.execution import Say
from levelfield.errors import RunFailed
from levelfield.run.node_power import NO_NODE_POWER_ENVIRONMENT
from levelfield.run.runtimes.process_runtime import inherited_variables
from levelfield.specs.paths import RunPaths
from levelfield.user_folders import own_cache

_COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
GIT_SECONDS = 300.0  # the time limit of each git command
_FIELD_SEPARATOR = "\x1f"  # between the fields of a logged commit; no author or subject has one
NO_STORE_ENVIRONMENT = {"LEVELFIELD_STORE": "none"}  # the nightly itself records the runs of a build


class CommitBuild(NamedTuple):
    """The platform's code at one commit, and the folder of its checkout."""

    commit: str
    folder: Path

    def __str__(self) -> str:
        return self.commit[:12]


def checkout_build(commit: str, *, say: Say) -> CommitBuild:
    """Return the checkout of a commit; the first call makes it. Raises RunFailed where git cannot."""
    if not _COMMIT_PATTERN.fullmatch(commit):
        raise RunFailed(f"build '{commit[:80]}': found no full commit, expected 40 or 64 hexadecimal digits")
    folder = own_cache() / "builds" / commit[:16]
    build = CommitBuild(commit, folder)
    if (folder / "run_benchmarks.py").is_file():
        return build
    say(f"checking out the build {build}")
    unfinished = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _git("clone", "--quiet", "--no-checkout", str(checkout()), str(unfinished))
        _git("checkout", "--quiet", "--detach", commit, folder=unfinished)
        unfinished.rename(folder)  # last, so that a killed attempt does not count
    except OSError as error:
        if not (folder / "run_benchmarks.py").is_file():  # another nightly made it meanwhile
            raise RunFailed(f"the build {build} cannot be made in {folder}: {error.strerror}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return build


def commits_between(good: str, bad: str) -> list[str]:
    """Return `good` and the commits after it up to `bad`, the oldest first. Raises RunFailed where there are none."""
    hashes = []
    for revision in (good, bad):
        try:
            hashes.append(_git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"))
        except RunFailed:
            raise RunFailed(f"bisect: found '{revision[:80]}', expected a commit of this checkout") from None
    first, last = hashes
    commits = _git("rev-list", "--reverse", "--first-parent", f"{first}..{last}").split()
    if not commits or _git("merge-base", first, last) != first:
        raise RunFailed(
            f"bisect {good} {bad}: found no commits between them; expected a good commit before the bad one"
        )
    return [first, *commits]


class LoggedCommit(NamedTuple):
    commit: str
    author: str
    subject: str


def commit_log(first: str, last: str, max_commits: int) -> tuple[list[LoggedCommit], int]:
    """Return the newest commits that `last` has and `first` has not, and how many there are. Raises RunFailed."""
    for commit in (first, last):
        if not _COMMIT_PATTERN.fullmatch(commit):
            raise RunFailed(f"found '{commit[:80]}', expected a full commit")
    try:
        _git("cat-file", "-e", f"{first}^{{commit}}")
    except RunFailed:
        is_shallow = _git("rev-parse", "--is-shallow-repository") != "false"
        reason = "it is shallow" if is_shallow else "its history was changed"
        raise RunFailed(
            f"the checkout has no commit {first[:12]}: {reason}; `git fetch --unshallow` gets more"
        ) from None
    log = _git(
        "log", f"--max-count={max_commits}", f"--format=%H{_FIELD_SEPARATOR}%an{_FIELD_SEPARATOR}%s", f"{first}..{last}"
    )
    count = int(_git("rev-list", "--count", f"{first}..{last}"))
    return [LoggedCommit(*line.split(_FIELD_SEPARATOR, 2)) for line in log.splitlines()], count


def run_with_build(build: CommitBuild, arguments: Sequence[str], runs: Path, limit_seconds: float) -> RunPaths:
    """Start one run with the code of a build and return its directory in `runs`, valid or not. Raises RunFailed."""
    argv = [sys.executable, str(build.folder / "run_benchmarks.py"), *arguments, "--runs", str(runs), "--json"]
    try:
        completed = run_bounded(
            argv, limit_seconds, {**inherited_variables(), **NO_STORE_ENVIRONMENT, **NO_NODE_POWER_ENVIRONMENT}
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RunFailed(f"it could not be run: {error}") from None
    try:
        run_id = json.loads(completed.stdout)[0]["run_id"]
    except (ValueError, LookupError, TypeError):
        line = (completed.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RunFailed(f"it gave no result, exit code {completed.returncode}: {line}") from None
    return RunPaths(runs.absolute() / str(run_id))


def _git(*arguments: str, folder: Path | None = None) -> str:
    """Run git, in this checkout by default, and return its output. Raises RunFailed with its last line."""
    try:
        completed = run_bounded(["git", "-C", str(folder or checkout()), *arguments], GIT_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise RunFailed(f"git {' '.join(arguments[:3])}: {error}") from None
    if completed.returncode:
        line = (completed.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunFailed(f"git {' '.join(arguments[-2:])} ended with {completed.returncode}: {line}")
    return completed.stdout.strip()

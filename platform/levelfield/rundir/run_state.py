"""Whether a run still goes on, by its status file and the process that wrote it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from levelfield.errors import StillRunning
from levelfield.node.process_identity import ProcessIdentity, identity_from, is_alive
from levelfield.node.regular_files import read_regular
from levelfield.rundir.directory import find_run, write_status
from levelfield.rundir.seal import seal_finding
from levelfield.specs.paths import RunPaths

OVER = ("done", "ended")  # phases in which nobody writes to the run any more
LOOK_SECONDS = 2.5  # a run writes telemetry and heartbeats every second
_MOST_STATUS = 2**20  # bytes
NEWEST = 50  # runs of a folder whose status is checked when a new one starts


def finished_run(runs: Path, name: str) -> RunPaths:
    """Return a run by its name, as find_run does. Raises StillRunning for one that goes on."""
    paths = find_run(runs, name)
    refuse_running(paths)
    return paths


def refuse_running(paths: RunPaths) -> None:
    """Raises StillRunning while the run goes on: its files change, and its result is not known."""
    status = _status(paths)
    if (platform := _platform_of(status)) is None or not _goes_on(paths, platform):
        return
    raise StillRunning(
        f"{paths.root.name} is running (process {platform.process} of {platform.host}, phase {status.get('phase')}); "
        "its files are left alone. Wait for its end"
    )


def state_words(paths: RunPaths) -> str:
    """Return phase and state, as `show runs` shows them."""
    status = _status(paths)
    if "phase" not in status or "state" not in status:
        return "unreadable status.json"
    if (platform := _platform_of(status)) and is_alive(platform) is False:
        how = "--attach goes on with its job" if has_job(paths) else "`evidence collect` gives the result"
        return f"{status['phase']}: the platform was killed; {how}"
    if (status["phase"], status["state"]) == ("done", "valid") and (seal := seal_finding(paths)).word != "sealed":
        return f"done: {seal.word}"
    return f"{status['phase']}: {status['state']}"


def settle(runs: Path) -> None:
    """Correct the status of runs whose platform was killed: the file says `running` no longer."""
    found: list[Path] = []
    with suppress(OSError):  # what is wrong with the folder is said when the run's own is made
        found = sorted(runs.glob("*/status.json"))
    for path in found[-NEWEST:]:
        paths = RunPaths(path.parent)
        platform = _platform_of(_status(paths))
        if platform and is_alive(platform) is False:
            with suppress(OSError):  # another user's run, or a full disk
                _write_end(paths)


def has_job(paths: RunPaths) -> bool:
    """Return whether an engine has a job of the run, which may go on without the platform."""
    return (paths.nodes / "engine.json").exists() and not paths.outcome.exists()


@contextmanager
def ending(paths: RunPaths) -> Iterator[None]:
    """Correct the status where an error ends the block: this process lives on, and the run does not."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            _write_end(paths)
        raise


def _write_end(paths: RunPaths) -> None:
    how = "--attach goes on with its job" if has_job(paths) else "`evidence collect` computes it from the files"
    reason = f"the platform ended before it wrote a result; {how}"
    write_status(paths, "ended", "failed", reason=reason)


def _goes_on(paths: RunPaths, platform: ProcessIdentity) -> bool:
    """Return whether the platform lives. One of another machine is not visible; its run's files change every second."""
    alive = is_alive(platform)
    if alive is not None:
        return alive
    before = _times(paths)
    time.sleep(LOOK_SECONDS)
    return _times(paths) != before


def _times(paths: RunPaths) -> dict[Path, tuple[int, int]]:
    found = {}
    for path in (paths.telemetry, *paths.telemetry_folder.glob("*"), *paths.events.glob("*")):
        with suppress(OSError):
            found[path] = path.stat().st_mtime_ns, path.stat().st_size
    return found


def _platform_of(status: dict[str, Any]) -> ProcessIdentity | None:
    """Return the process that runs a run; None for one that is over, or whose status does not say."""
    return None if status.get("phase") in OVER else identity_from(status.get("platform"))


def _status(paths: RunPaths) -> dict[str, Any]:
    try:
        found = json.loads(read_regular(paths.status, _MOST_STATUS))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

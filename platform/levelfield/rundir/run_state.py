"""Whether a run goes on, was killed or is over, by its status.json and the process that wrote it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from levelfield.errors import DocumentError, StillRunning
from levelfield.node.process_identity import ProcessIdentity, identify_process, is_alive, parse_identity
from levelfield.node.regular_files import open_regular, read_regular
from levelfield.specs.paths import RunPaths

FINAL_PHASES = ("done", "ended")  # phases in which nobody writes to the run any more
CHANGE_SECONDS = 2.5  # a run writes telemetry and heartbeats every second
BEAT_SECONDS = 1.0  # between two beats of a platform


def refuse_running(paths: RunPaths) -> None:
    """Raise StillRunning while the run goes on: its files change, and its result is not known."""
    status, platform = read_status(paths)
    if platform is None:
        return
    alive = is_alive(platform)
    # a platform of another machine is not visible; its run's files change every second
    goes_on = not was_killed(paths, platform) if alive is False else alive or _files_change(paths)
    if not goes_on:
        return
    raise StillRunning(
        f"{paths.root.name} is running (process {platform.process} of {platform.host}, "
        f"phase {status.get('phase')}); try again when it has ended"
    )


def state_text(paths: RunPaths) -> str:
    """Return phase and state, as `show runs` shows them."""
    status, platform = read_status(paths)
    if "phase" not in status or "state" not in status:
        return "unreadable status.json"
    if platform and was_killed(paths, platform):
        hint = "`run attach` goes on with its job" if has_job(paths) else "`evidence collect` gives the result"
        return f"{status['phase']}: the platform was killed; {hint}"
    from levelfield.measure.other_use import displayed_status
    from levelfield.rundir.seal import seal_finding
    from levelfield.specs.base import load
    from levelfield.specs.result import Result

    if (status["phase"], status["state"]) != ("done", "valid"):
        return f"{status['phase']}: {status['state']}"
    if (seal := seal_finding(paths)).word != "sealed":
        return f"done: {seal.word}"
    try:
        return f"done: {displayed_status(load(Result, paths.result))}"
    except DocumentError:
        return "done: valid"


def has_job(paths: RunPaths) -> bool:
    """Return whether an engine has a job of the run, which may go on without the platform."""
    return (paths.nodes / "engine.json").exists() and not paths.outcome.exists()


def was_killed(paths: RunPaths, platform: ProcessIdentity) -> bool:
    """Return whether the platform is known to have ended. A machine of this one's name that was started at another time
    may be this one before, or another one, whose files change."""
    this_process = identify_process(os.getpid())
    is_same_boot = this_process is not None and this_process.boot == platform.boot
    return is_alive(platform) is False and (is_same_boot or not _files_change(paths))


def _files_change(paths: RunPaths) -> bool:
    """Return whether a file of the run changes within CHANGE_SECONDS: the status, which only its platform touches.

    Of a run of an earlier version, that is any file that changes while it trains.
    """
    previous_states: dict[Path, tuple[int, int]] | None = None
    has_beats = read_status(paths)[0].get("beats") is True
    while True:
        states = {}
        others = () if has_beats else (*paths.telemetry_folder.glob("*"), *paths.events.glob("*"))
        for path in (paths.status if has_beats else paths.telemetry, *others):
            # opened: a client of a file server then asks for the newest state, and a mere stat may be a minute old
            with suppress(OSError), open_regular(path) as file:
                states[path] = os.fstat(file.fileno()).st_mtime_ns, os.fstat(file.fileno()).st_size
        if previous_states is not None:
            return states != previous_states
        previous_states = states
        time.sleep(CHANGE_SECONDS)


@contextmanager
def beating(paths: RunPaths) -> Iterator[None]:
    """Touch the run's status every second of the block, so that other machines see that its platform lives."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            with suppress(OSError):
                os.utime(paths.status)

    thread = threading.Thread(target=beat, daemon=True, name="beats")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def read_status(paths: RunPaths) -> tuple[dict[str, Any], ProcessIdentity | None]:
    """Return the status of a run, and the process that runs it: None for a run that is over, or whose status names
    none."""
    try:
        status = json.loads(read_regular(paths.status, "status"))
    except (OSError, ValueError, RecursionError):
        return {}, None
    if not isinstance(status, dict):
        return {}, None
    return status, None if status.get("phase") in FINAL_PHASES else parse_identity(status.get("platform"))

"""What a run or a detached call does now, seen from any shell, and the signal that ends it.

A process is known by host, start of the machine and its own start, so a number that is used again is nobody's.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from levelfield.errors import LevelfieldError, UnknownName, UsageError
from levelfield.node.process_identity import ProcessIdentity, is_alive
from levelfield.node.regular_files import read_regular
from levelfield.rundir import run_state
from levelfield.rundir.detached_calls import CALLS_FOLDER, Call, find_call, list_calls, read_call
from levelfield.rundir.directory import find_run, read_plan
from levelfield.rundir.follower import Follower, StepProgress
from levelfield.specs.paths import RunPaths

# `unseen`: on another machine or in another container, of which only the files are seen
PlatformWord = Literal["alive", "killed", "unseen", "over"]
POLL_SECONDS = 0.3


@dataclass(frozen=True)
class Target:
    """What a user's name of a run means."""

    call: Call | None
    run: RunPaths | None  # of a call the run that was started last; None before its first

    @property
    def id(self) -> str:
        return self.call.id if self.call else self.run.root.name if self.run else ""

    @property
    def owned_file(self) -> Path:
        """What the platform wrote: its owner is the platform's user."""
        if self.call:
            return self.call.folder / "call.json"
        run = self.run or RunPaths(Path())
        return run.status if run.status.exists() else run.root


def find_target(runs: Path, name: str) -> Target:
    """Return a detached call or a run by its id, a unique part of it, a path, or `latest`. Raises UsageError."""
    call = None if name == "latest" or os.sep in name else find_call(runs, name)
    if call is None:
        try:
            run = find_run(runs, name)
        except UnknownName as error:
            raise UsageError(f"{error} `run status` lists what goes on") from None
        record = runs / CALLS_FOLDER / run.root.name / "call.json"
        return Target(read_call(record.parent) if record.exists() else None, run)
    return call_target(runs, call)


def call_target(runs: Path, call: Call) -> Target:
    return Target(call, next((RunPaths(runs / name) for name in reversed(call.run_ids())), None))


def unfinished_targets(runs: Path) -> list[Target]:
    """Return the detached calls that have no exit code, and the other runs that are not over."""
    targets = [call_target(runs, call) for call in list_calls(runs) if call.exit_code is None]
    call_run_ids = {run_id for target in targets if target.call for run_id in target.call.run_ids()}
    for status in sorted(runs.glob("*/status.json")):
        if status.parent.name not in call_run_ids and run_state.read_status(RunPaths(status.parent))[1]:
            targets.append(Target(None, RunPaths(status.parent)))
    return targets


def platform_state(target: Target) -> tuple[PlatformWord, ProcessIdentity | None]:
    """Return whether the platform of a run lives, and which process it is. Another one may have taken up the run."""
    call, is_call_alive = target.call, None
    if call:
        is_call_alive = call.platform and is_alive(call.platform)
        if read_call(call.folder).exit_code is not None:  # read last: a platform writes it before it ends
            return "over", call.platform
        if is_call_alive:
            return "alive", call.platform
    if target.run and (platform := run_state.read_status(target.run)[1]):
        if is_alive(platform):
            return "alive", platform
        if run_state.read_status(target.run)[1]:  # else it ended between the two looks
            return ("killed" if run_state.was_killed(target.run, platform) else "unseen"), platform
    if call is None:
        return "over", None
    return ("unseen" if call.platform and is_call_alive is None else "killed"), call.platform


def last_progress(run: RunPaths) -> StepProgress | None:
    """Return the last step that was recorded; None before the first, and where the plan cannot be read."""
    with suppress(LevelfieldError, OSError):
        return next(reversed(Follower(run.events, read_plan(run)).read()), None)
    return None


def engine_handle(run: RunPaths) -> dict[str, Any]:
    """Return by what a launcher's engine knows the run, such as a job's number; nothing for a run without an engine."""
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(read_regular(run.nodes / "engine.json", "engine"))
        return {key: value for key, value in content.items() if key != "schema" and value is not None}
    return {}


def owner_name(path: Path) -> str:
    """Return the user whose file this is, by name or else by number."""
    number = path.stat().st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def refuse_other_user(target: Target) -> None:
    """Raise UsageError for another user's run: what takes it up writes into its folder, in its user's name."""
    if target.owned_file.stat().st_uid != os.geteuid():
        owner = owner_name(target.owned_file)
        raise UsageError(
            f"{target.id}: it is a run of user {owner}, and its platform was killed; only {owner} may take it up or "
            f"end it: `sudo -u {owner} ...`"
        )


def send_interrupt(target: Target, platform: ProcessIdentity) -> None:
    """Interrupt the platform of a run, as Ctrl-C in its shell does. Raises UsageError for another user's.

    The descriptor is of one process: its number cannot be used again between the comparison and the signal.
    """
    owner = owner_name(target.owned_file)
    refusal = f"{target.id}: it is a run of user {owner}; only {owner} and root may end it: `sudo -u {owner} ...`"
    try:
        descriptor = os.pidfd_open(platform.process)
    except ProcessLookupError:
        return
    try:
        if not is_alive(platform):
            return
        process_owner = Path(f"/proc/{platform.process}").stat().st_uid
        if process_owner != target.owned_file.stat().st_uid:  # the record may be anybody's, and name any process
            raise UsageError(
                f"{target.owned_file}: found process {platform.process}, which user {process_owner} runs, expected one "
                f"of {owner}, whose file this is; nothing was ended"
            )
        # SIGINT may be ignored, as in a shell's background job; a stopped process receives it when it continues
        for number in (signal.SIGTERM, signal.SIGCONT):
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    except PermissionError:
        raise UsageError(refusal) from None
    finally:
        os.close(descriptor)


def wait_for_end(target: Callable[[], Target], seconds: float) -> bool:
    """Return whether the platform ended within the time."""
    deadline = time.monotonic() + seconds
    while platform_state(target())[0] == "alive":
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True

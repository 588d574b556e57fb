"""Detached calls: commands that go on without the shell that started them.

Each has a folder, `detached/ID` in the folder of runs: who runs it, what it prints, its runs, and its exit code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from levelfield.errors import UsageError
from levelfield.node.process_identity import ProcessIdentity, identify_process, parse_identity
from levelfield.node.regular_files import read_regular
from levelfield.rundir.directory import utc_now, write_json
from levelfield.user_folders import user_name

CALLS_FOLDER = "detached"
SCHEMA = "levelfield.call/1"
FOLDER_VARIABLE = "LEVELFIELD_CALL"  # tells a process that takes the place of a call's platform its folder
_this_call: Path | None = None  # the folder of the call that this process is the platform of


@dataclass(frozen=True)
class Call:
    """A detached call. A part of its record that is damaged or absent is None or empty."""

    folder: Path
    started: str  # UTC
    user: str  # who started it
    platform: ProcessIdentity | None
    planned_runs: tuple[str, ...]  # ids; none for a night, which plans as it goes
    plugins: tuple[Path, ...]
    exit_code: int | None  # None: it goes on, or its platform was killed
    ended: str | None  # UTC

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def stdout(self) -> Path:
        return self.folder / "stdout"

    @property
    def stderr(self) -> Path:
        return self.folder / "stderr"

    def run_ids(self) -> list[str]:
        """Return the runs that were started, in order."""
        with suppress(OSError, ValueError):
            return read_regular(self.folder / "runs", "status").decode("ascii").split()
        return []


def new_call_id(name: str) -> str:
    """Return <utc>_<name>_<id> for a call of several runs."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}_{name}_{os.urandom(3).hex()}"


def start_call(runs: Path, call_id: str, planned_runs: Sequence[str], plugins: Sequence[Path]) -> Call:
    """Write the record of a call whose platform is this process. Raises OSError.

    Its arguments are not in it: they may hold secrets.
    """
    folder = runs.absolute() / CALLS_FOLDER / call_id
    folder.mkdir(parents=True)
    platform = identify_process(os.getpid())
    content = {
        "schema": SCHEMA,
        "id": call_id,
        "started": utc_now(),
        "user": user_name(),
        "platform": asdict(platform) if platform else None,
        "planned_runs": list(planned_runs),
        "plugins": [str(plugin.absolute()) for plugin in plugins],
        "exit_code": None,
        "ended": None,
    }
    write_json(folder / "call.json", content)
    continue_call(folder)
    return read_call(folder)


def continue_call(folder: Path) -> None:
    """Let this process be the platform of a call."""
    global _this_call
    _this_call = folder


def add_run(run_id: str) -> None:
    """Add a run that starts to the call of this process, if it is one."""
    if _this_call:
        with suppress(OSError), (_this_call / "runs").open("a", encoding="ascii") as file:
            file.write(f"{run_id}\n")


def end_this_call(exit_code: int) -> None:
    """Record the exit code of the call of this process, if it is one."""
    if _this_call:
        end_call(_this_call, exit_code)


def end_call(folder: Path, exit_code: int) -> None:
    """Record the exit code of a call. A disk that is full loses it; then the call counts as killed."""
    with suppress(OSError, ValueError, TypeError):
        content = json.loads(read_regular(folder / "call.json", "status"))
        write_json(folder / "call.json", {**content, "exit_code": exit_code, "ended": utc_now()})


def read_call(folder: Path) -> Call:
    """Return a call. Raises OSError where it has no record."""
    content = {}
    with suppress(ValueError, RecursionError):
        content = json.loads(read_regular(folder / "call.json", "status"))
    content = content if isinstance(content, dict) else {}
    texts = {name: content[name] for name in ("started", "user", "ended") if isinstance(content.get(name), str)}
    lists = {name: content[name] if isinstance(content.get(name), list) else [] for name in _LIST_KEYS}
    code = content.get("exit_code")
    return Call(
        folder=folder,
        started=texts.get("started", ""),
        user=texts.get("user", ""),
        platform=parse_identity(content.get("platform")),
        planned_runs=tuple(map(str, lists["planned_runs"])),
        plugins=tuple(Path(str(plugin)) for plugin in lists["plugins"]),
        exit_code=code if isinstance(code, int) else None,
        ended=texts.get("ended"),
    )


_LIST_KEYS = ("planned_runs", "plugins")


def list_calls(runs: Path) -> list[Call]:
    """Return the calls of a folder of runs, the oldest first."""
    return [read_call(record.parent) for record in sorted((runs / CALLS_FOLDER).glob("*/call.json"))]


def find_call(runs: Path, name: str) -> Call | None:
    """Return a call by its id or a unique part of it; None where none has it. Raises UsageError for several."""
    records = sorted((runs / CALLS_FOLDER).glob("*/call.json"))
    matching = [record.parent for record in records if name and name in record.parent.name]
    exact = [folder for folder in matching if folder.name == name]
    if len(exact or matching) > 1:
        names = ", ".join(folder.name for folder in matching[:4])
        raise UsageError(f"'{name}': found {len(matching)} matching calls: {names}; give more of the id")
    return next(map(read_call, exact or matching), None)

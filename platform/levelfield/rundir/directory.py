"""Creates and finds run directories, and replaces their files atomically, such as the status of a run."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.errors import UnknownName, UsageError, free_space_note
from levelfield.node.process_identity import identify_process
from levelfield.rundir.run_state import has_job, read_status, refuse_running, was_killed
from levelfield.specs.paths import RunPaths
from levelfield.specs.readable_json import json_text
from levelfield.specs.short_names import refuse_empty_name
from levelfield.user_folders import user_name

if TYPE_CHECKING:  # documents take longer to import than all else of a short command
    from levelfield.specs.plan import Plan

PAIRS_FOLDER = "pairs"  # in the folder of runs: has the runs of pairs of builds, so that none of them is the latest
_OPEN_FILE_PREFIXES = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/self/fd/")
MAX_CHECKED_RUNS = 50  # the newest runs of a folder, whose status is checked when a new run starts


def new_run_id(case: str, framework: str, vendor: str, now: datetime | None = None) -> str:
    """Return <utc>_<case>_<framework>_<vendor>_<id>. The id separates two runs of one second."""
    stamp = (now or datetime.now(timezone.utc)).strftime("%Y%m%dT%H%M%SZ")
    name = case.replace("+", "-")  # of a derived case; a container's name has no "+"
    return f"{stamp}_{name}_{framework}_{vendor}_{os.urandom(3).hex()}"


def create_run(runs: Path, run_id: str, saves_weights: bool = False) -> RunPaths:
    """Create the directory of a new run and write its status. Raises UsageError when it cannot be written.

    saves_weights: with a folder for the weights after the last step.
    """
    paths = RunPaths(runs.absolute() / run_id)
    try:
        runs.mkdir(parents=True, exist_ok=True)
        paths.root.mkdir()
        paths.events.mkdir()
        paths.logs.mkdir()
        if saves_weights:
            paths.weights.mkdir()
        write_status(paths, "made", "not-run")
    except OSError as error:
        raise UsageError(
            f"not-run: the run directory {paths.root} cannot be written: {error.strerror}"
            f"{free_space_note(error, runs)}. Name another with --runs"
        ) from None
    return paths


def find_run(runs: Path, name: str) -> RunPaths:
    """Return a run by its path, its id, a unique part of its id, or `latest`. Raises UnknownName or UsageError.

    The latest run is the one whose plan was written last, when it began. Ids are made for a whole command at once, so
    the run of a certificate, repeats and the entries of a suite are not in the order of their ids. A plan with a date
    in the future counts only where there is no other. A run of a pair has a name, and is never the latest.
    """
    path = Path(name)
    if not name.strip():  # its path would be the current folder
        refuse_empty_name("run", name)
    with suppress(OSError, ValueError):  # of a name that is too long for a path
        if (path / "plan.json").is_file():
            return RunPaths(path.resolve())
        if os.sep in name and path.is_dir():
            raise UsageError(
                f"{path}: found a folder without a plan.json that is a file, expected a run directory; without its "
                "plan nothing of a run can be read"
            )
    refuse_empty_name("run", name)
    plans = sorted(runs.glob("*/plan.json"))
    if name == "latest" and plans:
        from levelfield.specs.record import first_future_date

        future_ns = first_future_date().timestamp() * 1e9
        written_ns = {plan: plan.stat().st_mtime_ns for plan in plans}
        return RunPaths(
            max(written_ns, key=lambda plan: (written_ns[plan] < future_ns, written_ns[plan], plan)).parent.resolve()
        )
    matching = [
        plan.parent for plan in (*plans, *sorted(runs.glob(f"{PAIRS_FOLDER}/*/plan.json"))) if name in plan.parent.name
    ]
    if len(matching) > 1:
        names = ", ".join(folder.name for folder in matching[:4])
        raise UsageError(f"run '{name}': found {len(matching)} matching runs: {names}; give more of the id")
    if not matching:
        newest = [plan.parent.name for plan in plans[-20:]]
        raise UnknownName("run", name, newest, hint=f"Runs are in {runs}; 'latest' is the newest run.")
    return RunPaths(matching[0].resolve())


def read_plan(paths: RunPaths) -> Plan:
    from levelfield.specs.base import load
    from levelfield.specs.plan import Plan

    return load(Plan, paths.plan)


def utc_now() -> str:
    """Return the present time in UTC, as documents have it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write_status(paths: RunPaths, phase: str, state: str, **fields: Any) -> None:
    """Write the status. phase: made, environment, running, collecting, done, ended; state: a status word, or `running`.

    `platform` is the process that writes it, so that others can see whether a run that is not done still goes on.
    """
    writer = identify_process(os.getpid())
    platform = asdict(writer) if writer else None
    content = {"phase": phase, "state": state, "time": utc_now(), "platform": platform, "user": user_name()}
    write_atomically(paths.status, json_text({**content, "beats": True, **fields}) + "\n")


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, json_text(content) + "\n")


def write_atomically(path: Path, text: str, through_link: bool = False) -> None:
    """Replace the content of `path` by `text` in one step. Raises OSError as `replacement_file` does."""
    with replacement_file(path, through_link=through_link) as file:
        file.write(text)


@contextmanager
def replacement_file(path: Path, kind: str = "", through_link: bool = False) -> Iterator[Any]:
    """Give a file for the new content of `path`. A reader sees the old or the new content, never a part.

    kind: "b" for a file of bytes. A character device, such as /dev/null, and an open file of this process, such as
    /dev/stdout, are written into: a file in their place would harm the machine. A link is replaced and what it leads to
    stays: in a run directory of somebody else it may lead anywhere. through_link: the user named this very file, so of
    a link to a file, the file is replaced. Raises OSError with the name of `path`, also for a pipe, a socket, a block
    device, and with through_link for a link to nothing.
    """
    # The file gets the rights that the umask gives. A byte of a path that is not UTF-8 is escaped, as in JSON.
    encoding, errors = (None, None) if kind else ("utf-8", "backslashreplace")
    try:
        is_open = str(path.absolute()).startswith(_OPEN_FILE_PREFIXES)
        is_link = path.is_symlink() and not through_link and not is_open
        if is_open or (path.is_char_device() and not is_link):
            with path.open(f"a{kind}", encoding=encoding, errors=errors) as file:
                yield file
            return
        if not is_link and path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError(errno.EINVAL, "found a pipe, a socket or a device, expected a file or nothing")
        target = path.resolve(strict=True) if through_link and path.is_symlink() else path
        if not target.name:  # `/` and `.`
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        temporary = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}")
        try:
            with temporary.open(f"x{kind}", encoding=encoding, errors=errors) as file:
                yield file
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_new_file(path: Path, content: bytes) -> None:
    """Write a file that was not there. Raises OSError; then no part of it stays, which would block the next try."""
    file = path.open("xb")
    try:
        with file:
            file.write(content)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def find_finished_run(runs: Path, name: str) -> RunPaths:
    """Return a run by its name, as find_run does. Raises StillRunning for one that goes on."""
    paths = find_run(runs, name)
    refuse_running(paths)
    return paths


def correct_stale_statuses(runs: Path) -> None:
    """Correct the status of runs whose platform was killed, so that it no longer says `running`."""
    documents: list[Path] = []
    with suppress(OSError):  # what is wrong with the folder is said when the run's own is made
        documents = sorted(runs.glob("*/status.json"))
    for path in documents[-MAX_CHECKED_RUNS:]:
        paths = RunPaths(path.parent)
        _, platform = read_status(paths)
        if platform and was_killed(paths, platform):
            with suppress(OSError):  # another user's run, or a full disk
                _write_ended_status(paths)


@contextmanager
def status_ended_on_error(paths: RunPaths) -> Iterator[None]:
    """Correct the status where an error ends the block: this process lives on, and the run does not."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            _write_ended_status(paths)
        raise


def _write_ended_status(paths: RunPaths) -> None:
    hint = "`run attach` goes on with its job" if has_job(paths) else "`evidence collect` computes it from the files"
    reason = f"the platform ended before it wrote a result; {hint}"
    write_status(paths, "ended", "failed", reason=reason)

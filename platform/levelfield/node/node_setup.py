"""Prepares a node: receives the code of a run and makes the framework's environment, each once.

It is one file and imports only the standard library.

The platform sends this file over ssh, then one JSON line with what the node needs. The answers are JSON lines:

    {"need": "code"}        the platform sends the archive's bytes, as many as announced
    {"say": "..."}          progress
    {"error": "..."}        the node cannot be prepared; exit code 1
    {"ready": {...}}        the node is prepared: the versions of its Pythons

It ends all that it started when its standard input closes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

STAMP = "levelfield-environment.json"  # as run/runtimes/environments.py writes it
PROGRESS_BYTES = 64 * 2**20
SIGN_SECONDS = 5.0  # between two signs that a node unpacks or waits
REPORT_SECONDS = 15.0  # of an installer, after which the node reports that it still works
_running: list[subprocess.Popen[str]] = []


class SetupError(Exception):
    """The node cannot be prepared. The message names the path or the command."""


def main() -> int:
    """Prepare the node that the first line of standard input describes. Return the exit code."""
    header = json.loads(sys.stdin.buffer.readline())
    try:
        folder = make_private_folder(Path(header["folder"]))
        receive_archive(folder / "code", header["code"])
        python = prepare_environment(folder, header)
        answer(ready={"hostname": socket.gethostname(), "python": sys.version.split()[0], "environment": python})
        return 0
    except SetupError as error:
        answer(error=str(error))
    except OSError as error:
        hint = "; free some space on the node, or name another folder as ssh.folder in the site's file"
        is_full = error.errno == errno.ENOSPC
        answer(error=f"{error.filename or header['folder']}: {error.strerror}{hint if is_full else ''}")
    return 1


def answer(**content: Any) -> None:
    """Print an answer to the platform."""
    sys.stdout.write(json.dumps(content) + "\n")  # in one piece: two threads answer
    sys.stdout.flush()


def make_private_folder(path: Path) -> Path:
    """Make the folder for this user alone. Raises SetupError for one that others could change."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.lstat(str(path))
    if reason := foreign_folder_reason(status.st_mode, status.st_uid, os.geteuid()):
        raise SetupError(f"{path}: {reason}; correct its rights, or name another folder in the site's file")
    return path


def foreign_folder_reason(mode: int, owner: int, user: int) -> str | None:
    """Return why a path is no folder of this user alone, by its mode and owner; None where it is one."""
    if stat.S_ISLNK(mode):
        return "found a link, expected a folder itself: others may lead it elsewhere"
    if not stat.S_ISDIR(mode):
        return "found a file, expected a folder"
    rights = stat.S_IMODE(mode)
    if owner != user:
        return f"found a folder of user {owner} with mode {rights:04o}, expected one of user {user} with mode 0700"
    return f"found mode {rights:04o}, with which others can write, expected 0700" if mode & 0o022 else None


def receive_archive(folder: Path, description: Mapping[str, Any]) -> None:
    """Receive an archive from the platform and unpack it to folder/NAME, in one step. An existing one stays.

    description: kind, name, bytes and sha256 of the archive.
    """
    target = folder / description["name"]
    folder.mkdir(exist_ok=True)
    with _lock(folder / (description["name"] + ".lock"), _report_lock(folder / description["name"])):
        if target.is_dir():
            return
        answer(need=description["kind"])
        unfinished, tar_file = folder / (description["name"] + ".part"), folder / (description["name"] + ".tar")
        shutil.rmtree(str(unfinished), ignore_errors=True)
        try:
            write_archive(tar_file, description)
            unpack(tar_file, unfinished)
        finally:
            with contextlib.suppress(OSError):
                tar_file.unlink()
        unfinished.rename(target)


def write_archive(path: Path, description: Mapping[str, Any]) -> None:
    """Write the archive that comes on standard input to a file. Raises SetupError for a damaged one."""
    digest, remaining, reported = hashlib.sha256(), description["bytes"], 0
    with path.open("wb") as file:
        while remaining:
            piece = sys.stdin.buffer.read(min(remaining, 2**20))
            if not piece:
                raise SetupError(f"the connection ended {remaining} bytes before the end of the {description['kind']}")
            file.write(piece)
            digest.update(piece)
            remaining -= len(piece)
            if description["bytes"] - remaining - reported >= PROGRESS_BYTES:
                reported = description["bytes"] - remaining
                answer(say=f"received {reported >> 20} of {description['bytes'] >> 20} MiB")
    if digest.hexdigest() != description["sha256"]:
        actual, expected = digest.hexdigest()[:12], description["sha256"][:12]
        raise SetupError(f"{path}: the archive arrived with sha256 {actual}, expected {expected}")


def unpack(tar_file: Path, target: Path) -> None:
    """Unpack an archive of plain files. Raises SetupError for an archive with anything else."""
    with tarfile.open(str(tar_file)) as archive:
        for member in archive:
            if not member.isfile() or member.name.startswith("/") or ".." in member.name.split("/"):
                raise SetupError(f"{target}: found the member {member.name!r}, expected plain files below it")
            path = target / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            source = archive.extractfile(member)
            assert source is not None
            with source, path.open("wb") as file:
                shutil.copyfileobj(source, file)


def prepare_environment(folder: Path, header: Mapping[str, Any]) -> str | None:
    """Make the framework's environment unless it exists. Return the version of its Python."""
    environment = header["environment"]
    if not environment.get("name"):
        return _python_version(environment["python"])
    target = folder / "environments" / environment["name"]
    target.parent.mkdir(exist_ok=True)
    with _lock(target.with_name(target.name + ".lock"), _report_lock(target)):
        if _stamped_digest(target) != environment["digest"]:
            wheels, index_variables = header.get("wheels"), dict(environment.get("index") or {})
            if wheels:
                receive_archive(folder / "wheels", wheels)
                index_variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": (folder / "wheels" / wheels["name"]).as_uri()}
            threading.Thread(target=_end_with_platform, daemon=True).start()
            _make_environment(target, environment, index_variables)
    return _python_version(str(target / "bin" / "python"))


def stage_environment(archive: Path, target: Path, digest: str, report: Callable[[], None]) -> bool:
    """Unpack an environment from a shared file to this node's own disk, in one step. Return whether it was not there.

    report: is called every few seconds, as a sign that the work goes on. Raises SetupError.
    """
    make_private_folder(target.parent)
    unfinished = target.with_name(target.name + ".part")
    with _lock(target.with_name(target.name + ".lock"), report):
        if _stamped_digest(target) == digest:
            return False
        for leftover in (unfinished, target):
            shutil.rmtree(str(leftover), ignore_errors=True)
        last_report = time.monotonic()
        # the archive is the user's own, and an environment's Python is a link to the system's
        trusted: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        try:
            with tarfile.open(str(archive)) as content:
                for member in content:
                    content.extract(member, str(unfinished), **trusted)
                    if time.monotonic() - last_report > SIGN_SECONDS:
                        last_report = time.monotonic()
                        report()
            if _stamped_digest(unfinished) != digest:
                raise SetupError(f"{archive}: it ends before its stamp, or has another one; remove it")
            unfinished.rename(target)
        except tarfile.TarError as error:
            raise SetupError(f"{archive}: {error}; remove it") from None
        except OSError as error:
            raise SetupError(f"{error.filename or f'{archive} to {target}'}: {error.strerror or error}") from None
        finally:
            shutil.rmtree(str(unfinished), ignore_errors=True)
        return True


def _make_environment(target: Path, environment: Mapping[str, Any], index_variables: Mapping[str, str]) -> None:
    answer(say=f"making {target} with Python {sys.version.split()[0]}: {', '.join(environment['requirements'])}")
    _run_installer([sys.executable, "-m", "venv", "--clear", str(target)], {})
    pip = [str(target / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    installed = list(environment["requirements"])
    if installed:
        _run_installer([*pip, *installed], index_variables)
    for step in environment.get("builds", ()):
        argv = [*pip, "--no-build-isolation", *environment["requirements"], *step["packages"]]
        _run_installer(argv, {**index_variables, **_build_variables(target, step)})
        installed += step["packages"]
    unfinished = target / (STAMP + ".part")
    unfinished.write_text(json.dumps({"digest": environment["digest"], "requirements": installed}) + "\n")
    unfinished.replace(target / STAMP)


def _build_variables(environment_folder: Path, step: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a build against an environment's packages, as installer.build_variables does."""
    site_packages = next(environment_folder.glob("lib/python3*/site-packages"), environment_folder)
    variables = {"PATH": os.pathsep.join((str(environment_folder / "bin"), os.environ.get("PATH", os.defpath)))}
    variables.update({name: str(site_packages / below) for name, below in step["home"].items()})
    if step["headers"]:
        headers = [str(path) for path in sorted(site_packages.glob(step["headers"]))]
        variables["CPATH"] = os.pathsep.join([*headers, *filter(None, [os.environ.get("CPATH")])])
    return variables


def _stamped_digest(environment_folder: Path) -> str | None:
    try:
        return str(json.loads((environment_folder / STAMP).read_text())["digest"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _python_version(python: str) -> str:
    """Return the version of an interpreter. Raises SetupError where it cannot be started."""
    try:
        code = "import sys; print(sys.version.split()[0])"
        completed = subprocess.run([python, "-I", "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise SetupError(f"the interpreter {python} cannot be started: {error.strerror}") from None
    if completed.returncode != 0:
        raise SetupError(f"the interpreter {python} ended with exit code {completed.returncode}")
    return completed.stdout.strip()


def _run_installer(argv: Sequence[str], variables: Mapping[str, str]) -> None:
    """Run an installer and report each package. Raises SetupError with its last lines."""
    process = subprocess.Popen(
        list(argv),
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        errors="replace",
        start_new_session=True,
    )
    _running.append(process)
    threading.Thread(target=_report_while_running, args=(process, " ".join(argv[1:4])), daemon=True).start()
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith(("Collecting", "Installing", "Building")):
            answer(say=textwrap.shorten(line.partition(" (from ")[0], 120, placeholder=" ..."))
    if process.wait() != 0:
        last_lines = "; ".join(text for text in lines if text)[-600:] if lines else "no output"
        raise SetupError(f"{' '.join(argv[1:4])} ended with exit code {process.returncode}: {last_lines}")


def _report_while_running(process: subprocess.Popen[str], command: str) -> None:
    """Report that an installer still works, less and less often: it may be silent for minutes."""
    start, pause_seconds = time.monotonic(), REPORT_SECONDS
    while True:
        try:
            process.wait(pause_seconds)
            return
        except subprocess.TimeoutExpired:
            answer(say=f"{command}: {time.monotonic() - start:.0f} s so far")
            pause_seconds *= 2


def _end_with_platform() -> None:
    """End all installers and this process when the platform closes standard input."""
    while sys.stdin.buffer.read(4096):
        pass
    for process in _running:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    os._exit(1)


@contextlib.contextmanager
def _lock(path: Path, report: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock during a block. report: is called every few seconds while another process has it."""
    with path.open("w") as file:
        last_report, is_locked = time.monotonic(), False
        while not is_locked:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_locked = True
            except BlockingIOError:
                time.sleep(0.1)
                if time.monotonic() - last_report > SIGN_SECONDS:
                    last_report = time.monotonic()
                    report()
        yield


def _report_lock(target: Path) -> Callable[[], None]:
    """Return what reports a wait for another run of this user, which makes the same folder."""
    start = time.monotonic()
    return lambda: answer(say=f"another run makes {target}: waiting for {time.monotonic() - start:.0f} s")


if __name__ in ("__main__", "node_setup"):
    with contextlib.suppress(BrokenPipeError):
        code = main()
    os._exit(code)

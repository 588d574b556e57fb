"""Runs venv and pip for every environment: the platform's own, each framework's, and the wheels of images.

It uses the standard library only, because run_benchmarks.py needs it before the platform's packages are there. Every
process of an installer carries a mark, so that what a killed platform left can be found and ended.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from levelfield.errors import RunFailed, UsageError

WHEELS = "LEVELFIELD_WHEELS"  # a folder of wheels, in place of a package index
MARK = "LEVELFIELD_INSTALLS"  # in each process of an installer: the folder that it writes
STAMP = "levelfield-requirements.sha256"  # in the platform's own environment
END_SECONDS = 10.0  # the longest wait for a killed installer
EVIDENCE_LINES = 5
_UNREACHABLE = re.compile(
    r"connection broken by|Could not fetch URL|Max retries exceeded|NewConnectionError|ConnectTimeoutError|"
    r"NameResolutionError|ProxyError|SSLError"
)
_LACKING = re.compile(r"No matching distribution found for (.+)")
_CAUSE = re.compile(r"\[Errno -?\d+\] [^'\")]+|CERTIFICATE_VERIFY_FAILED|timed out|Tunnel connection failed: [^'\")]+")

_PIP_FOR_OTHERS = (22, 3)  # the first pip with --python

Say = Callable[[str], None]


def serves_others() -> bool:
    """Return whether the running Python's pip can install into another environment, which then needs no pip."""
    from importlib import metadata  # only where something is installed

    try:
        found = re.match(r"(\d+)\.(\d+)", metadata.version("pip"))
    except metadata.PackageNotFoundError:
        return False
    return found is not None and (int(found[1]), int(found[2])) >= _PIP_FOR_OTHERS


def making(python: str, folder: Path) -> tuple[list[str], list[str]]:
    """Return the commands that make a virtual environment of `python`, and that install into it what is appended.

    Where the running Python's pip can, it installs there itself: an environment's own pip takes seconds to make.
    """
    create, inside = [python, "-m", "venv", "--clear"], str(folder / "bin" / "python")
    options = ["install", "--disable-pip-version-check", "--progress-bar", "off"]
    if serves_others():
        return [*create, "--without-pip", str(folder)], [sys.executable, "-m", "pip", "--python", inside, *options]
    return [*create, str(folder)], [inside, "-m", "pip", *options]


def wheels_folder() -> Path | None:
    """Return the folder of LEVELFIELD_WHEELS, None without one. Raises UsageError when it is none."""
    given = os.environ.get(WHEELS)
    if not given:
        return None
    folder = Path(given).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(
            f"{WHEELS}={given}: found no folder there, expected one with wheels. Make it with network: `wheels fetch "
            f"{given}`"
        )
    return folder


def source_variables() -> dict[str, str]:
    """Return the variables that make pip install from the folder of LEVELFIELD_WHEELS alone; none without one."""
    folder = wheels_folder()
    return {} if folder is None else {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folder.as_uri()}


def sources(index: str | None) -> dict[str, str]:
    """Return the variables of pip's sources: the folder of LEVELFIELD_WHEELS, else pip's index and a named one.

    index: the variable that names an index beside pip's own.
    """
    return source_variables() or index_variables(index)


def index_variables(index: str | None) -> dict[str, str]:
    """Return the variables by which pip takes the index that the user's variable `index` names beside its own."""
    named = os.environ.get(index or "", "")
    return {"PIP_EXTRA_INDEX_URL": f"{os.environ.get('PIP_EXTRA_INDEX_URL', '')} {named}".strip()} if named else {}


def build_variables(folder: Path, home: Mapping[str, str], headers: str | None) -> dict[str, str]:
    """Return the variables of a build against the packages of the environment in `folder`.

    Its programs come first on PATH. home: variables that name folders of its packages. headers: a pattern of folders
    there, in which compilers look for headers.
    """
    packages = next(folder.glob("lib/python3*/site-packages"), folder)
    found = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    found |= {name: str(packages / place) for name, place in home.items()}
    if headers:
        places = [*map(str, sorted(packages.glob(headers))), *filter(None, [os.environ.get("CPATH")])]
        found["CPATH"] = os.pathsep.join(places)
    return found


def run(argv: Sequence[str], folder: Path, say: Say, source: dict[str, str] | None = None) -> None:
    """Run an installer that writes to `folder`, and report each package. Raises RunFailed with what to do.

    source: the variables of pip's source; by default those of source_variables. All processes of the installer are
    ended when an error or an interrupt leaves this function.
    """
    variables = {**os.environ, **(source_variables() if source is None else source), MARK: str(folder)}
    process = subprocess.Popen(
        argv,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        lines = _followed(process, say)
    except BaseException:
        end_left(folder)
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
        raise
    if process.wait():
        raise RunFailed(failure(argv, process.returncode, lines, variables))


def end_left(folder: Path, say: Say | None = None) -> None:
    """End what a killed platform left of an installer of this folder. Raises RunFailed for one that does not end."""
    deadline = time.monotonic() + END_SECONDS
    told = False
    while found := _marked(folder):
        if say and not told:
            say(f"ending the installer of {folder.name} that a killed start left: process {', '.join(map(str, found))}")
            told = True
        if time.monotonic() > deadline:
            raise RunFailed(
                f"{folder}: another installer still writes there and cannot be ended: process "
                f"{', '.join(map(str, found))}. Wait for its end, then start again"
            )
        for process in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)


def lost(package: str | None) -> str:
    """Return how the running Python gets back a package that it lacks."""
    is_made = (Path(sys.prefix) / STAMP).exists()
    how = f"remove {sys.prefix}: the next start makes it again" if is_made else "install requirements.lock into it"
    return f"{sys.prefix} lacks the package '{package}'; {how}"


def failure(argv: Sequence[str], code: int, lines: Sequence[str], variables: dict[str, str]) -> str:
    """Return what failed, with the last lines, and what to do where a package source is the cause."""
    evidence = "\n  ".join([line for line in lines if line and not line.startswith("WARNING")][-EVIDENCE_LINES:])
    said = f"{' '.join(argv[:4])} ... ended with {code}\n  {evidence}"
    if advice := _advice(lines, variables):
        said += f"\n  {advice}"
    return said


def _advice(lines: Sequence[str], variables: dict[str, str]) -> str | None:
    lacking = next((match[1] for match in map(_LACKING.search, lines) if match), None)
    if folder := variables.get(WHEELS) if "PIP_NO_INDEX" in variables else None:
        return lacking and (
            f"{folder} ({WHEELS}) has no wheel of {lacking} for this system and Python; make it again with network: "
            f"`wheels fetch {folder}`"
        )
    unreachable = [line for line in lines if _UNREACHABLE.search(line)]
    if not unreachable and lacking is None:
        return None
    cause = next((match[0].strip() for match in map(_CAUSE.search, unreachable) if match), None)
    what = "cannot be reached" if unreachable else f"gives no {lacking} for this system and Python"
    return (
        f"the package index {what}: {_index(variables)}{f' ({cause})' if cause else ''}. Set PIP_INDEX_URL to one that "
        f"this machine reaches, behind a proxy HTTPS_PROXY, or without network {WHEELS} to a folder of wheels that "
        "`wheels fetch DIR` made on a machine with network"
    )


def _index(variables: dict[str, str]) -> str:
    """Return the index that pip is told to use, without a password."""
    given = variables.get("PIP_INDEX_URL")
    if given is None:
        return "the one of `pip config list`, or else the one that pip has built in"
    return re.sub(r"//[^/@]*@", "//", given) + " (PIP_INDEX_URL)"


def _followed(process: subprocess.Popen[str], say: Say) -> list[str]:
    assert process.stdout is not None
    lines = []
    with process.stdout:
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith(("Collecting", "Installing", "Building")):
                say(line.partition(" (from ")[0].rstrip()[:120])
    return lines


def _marked(folder: Path) -> list[int]:
    """Return the processes of this machine that install into the folder, except those that have ended."""
    wanted = f"{MARK}={folder}".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it ended meanwhile, or belongs to another user
            if wanted in place.read_bytes().split(b"\0") and int(place.parent.name) != os.getpid():
                found.append(int(place.parent.name))
    return found

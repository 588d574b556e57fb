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
import textwrap
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from levelfield.environment_folder import Say
from levelfield.errors import RunFailed, UsageError
from levelfield.node.rank_processes import kill_processes, marked_processes
from levelfield.user_folders import config_folder, expanded, home_folder

if TYPE_CHECKING:
    from importlib.metadata import Distribution

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
# Also of an index that hangs or breaks off, and with PIP_RETRIES=0 of every failure.
_NO_VERSIONS = "(from versions: none)"
_CAUSE = re.compile(r"\[Errno -?\d+\] [^'\")]+|CERTIFICATE_VERIFY_FAILED|timed out|Tunnel connection failed: [^'\")]+")

_PIP_FOR_OTHERS = (22, 3)  # the first pip with --python

# Settings of pip by which it installs elsewhere, something else, or nothing. As variables they are left out.
_PLACES = ("target", "prefix", "root", "python")
_OFF = ("user", "dry-run", "no-deps", "require-virtualenv")  # switches, which also a pip.conf may turn on
_OTHERS = ("requirement", "editable", "group", "only-deps", "report", "platform", "abi", "implementation")
_ANSWERS = ("python-version", "version", "help")  # with the last two pip prints something and does nothing
_LEFT_OUT = {f"PIP_{name.upper().replace('-', '_')}" for name in (*_PLACES, *_OFF, *_OTHERS, *_ANSWERS)}
# They give an installer other modules: pip takes a package there for installed.
_OF_PYTHON = {"PYTHONPATH", "PYTHONHOME", "PYTHONEXECUTABLE", "PYTHONPLATLIBDIR", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV"}
_NAME = re.compile(r"([\w.-]+)(\[[^]]*\])?\s*==")


def serves_others() -> bool:
    """Return whether the running Python's pip can install into another environment, which then needs no pip."""
    from importlib import metadata  # only where something is installed

    try:
        match = re.match(r"(\d+)\.(\d+)", metadata.version("pip"))
    except metadata.PackageNotFoundError:
        return False
    return match is not None and (int(match[1]), int(match[2])) >= _PIP_FOR_OTHERS


def environment_commands(python: str, folder: Path) -> tuple[list[str], list[str]]:
    """Return the commands that make a virtual environment of `python`, and that install into it what is appended.

    Where the running Python's pip can, it installs there itself: an environment's own pip takes seconds to make.
    """
    create, inside = [python, "-m", "venv"], str(folder / "bin" / "python")
    options = ["install", "--disable-pip-version-check", "--progress-bar", "off"]
    if serves_others():
        return [*create, "--without-pip", str(folder)], [sys.executable, "-m", "pip", "--python", inside, *options]
    return [*create, str(folder)], [inside, "-m", "pip", *options]


def wheels_folder() -> Path | None:
    """Return the folder of LEVELFIELD_WHEELS, None without one. Raises UsageError when it is none."""
    value = os.environ.get(WHEELS)
    if not value:
        return None
    folder = expanded(value).absolute()
    if not folder.is_dir():
        raise UsageError(
            f"{WHEELS}={value}: found no folder there, expected one with wheels. Make it with network: "
            f"`environment wheels fetch {value}`"
        )
    return folder


def source_variables(index: str | None = None) -> dict[str, str]:
    """Return the variables of pip's sources: the folder of LEVELFIELD_WHEELS alone, else pip's index and a named one.

    index: the variable that names an index beside pip's own.
    """
    folder = wheels_folder()
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folder.as_uri()} if folder else index_variables(index)


def index_variables(index: str | None) -> dict[str, str]:
    """Return the variables by which pip takes the index that the user's variable `index` names beside its own."""
    extra = os.environ.get(index or "", "")
    return {"PIP_EXTRA_INDEX_URL": f"{os.environ.get('PIP_EXTRA_INDEX_URL', '')} {extra}".strip()} if extra else {}


def build_variables(folder: Path, home: Mapping[str, str], headers: str | None) -> dict[str, str]:
    """Return the variables of a build against the packages of the environment in `folder`.

    Its programs come first on PATH. home: variables that name folders of its packages. headers: a pattern of folders
    there, in which compilers look for headers.
    """
    packages = next(folder.glob("lib/python3*/site-packages"), folder)
    variables = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    variables |= {name: str(packages / place) for name, place in home.items()}
    if headers:
        places = [*map(str, sorted(packages.glob(headers))), *filter(None, [os.environ.get("CPATH")])]
        variables["CPATH"] = os.pathsep.join(places)
    return variables


def run(argv: Sequence[str], folder: Path, say: Say, source: dict[str, str] | None = None) -> None:
    """Run an installer that writes to `folder`, and report each package. Raises RunFailed with what to do.

    source: the variables of pip's source; by default those of `sources`. All processes of the installer are
    ended when an error or an interrupt leaves this function.
    """
    left_out = {*_LEFT_OUT, *_OF_PYTHON}  # an installer would write elsewhere, or have other modules
    variables = {key: value for key, value in os.environ.items() if key not in left_out}
    variables |= {f"PIP_{name.upper().replace('-', '_')}": "0" for name in _OFF}
    variables |= {**(source_variables() if source is None else source), MARK: str(folder)}
    if "pip" in argv:
        refuse_redirection(variables)
    process = None
    with _interrupted_by_signals():
        try:
            process = subprocess.Popen(
                argv,
                env=variables,
                cwd=_folder(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            lines = _followed(process, say)
            process.wait()
        except BaseException:
            end_leftover_installer(folder)
            if process:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1)
            raise
    if process.returncode:
        raise RunFailed(failure(argv, process.returncode, lines, variables))


def refuse_redirection(variables: Mapping[str, str]) -> None:
    """Raises UsageError for a pip.conf that names another place to install to: no option takes it back."""
    from configparser import Error, RawConfigParser  # only where something is installed

    for file in _settings_files(variables):
        settings = RawConfigParser()
        with suppress(Error, OSError, ValueError):  # pip itself says what is wrong with it
            settings.read(file, encoding="utf-8")
        for section in filter(settings.has_section, ("global", "install")):  # for every command, and for `install`
            keys = (name.lstrip("-").replace("_", "-") for name, value in settings.items(section) if value)
            if key := next((key for key in keys if key in _PLACES), None):
                raise UsageError(
                    f"{file}: found `{key}` in [{section}], with which pip would not install into the environment. "
                    "Remove it there, or set PIP_CONFIG_FILE=/dev/null for this start"
                )


def _settings_files(variables: Mapping[str, str]) -> Iterator[Path]:
    """Yield the places of pip.conf, as pip reads them."""
    if variables.get("PIP_CONFIG_FILE") == os.devnull:
        return
    for folder in (variables.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep):
        yield Path(folder) / "pip" / "pip.conf"
    yield Path("/etc/pip.conf")
    with suppress(UsageError):
        yield home_folder() / ".pip" / "pip.conf"
        yield config_folder() / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if file := variables.get("PIP_CONFIG_FILE"):
        yield Path(file)


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first signal that would end this process and leave an installer's processes.

    Later ones are ignored until they are ended. A handler that somebody else has set stays, and so does one that
    ignores the signal, as in a shell's background job.
    """
    ending = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        if not ending:
            ending = True
            raise KeyboardInterrupt

    ends = (signal.SIG_DFL, signal.default_int_handler)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    is_main = threading.current_thread() is threading.main_thread()
    before = {n: signal.signal(n, interrupt) for n in numbers if is_main and signal.getsignal(n) in ends}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _folder() -> str:
    """Return the folder in which installers run: this process's own, which may have been removed, and pip needs one."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "/"


def lacking(folder: Path, requirements: Sequence[str], with_files: bool = False) -> list[str]:
    """Return the pinned packages that are not in an environment, whatever pip has said.

    with_files: also those of which a file is missing.
    """
    installed = _installed(folder)
    if with_files:
        for name, package in [*installed.items()]:
            files = (file for file in package.files or () if file.suffix != ".pyc")
            if not all(Path(str(file.locate())).exists() for file in files):
                del installed[name]
    names = (match[1] for match in map(_NAME.match, requirements) if match)
    return [name for name in names if _normal(name) not in installed]


def refuse_processor_builds(folder: Path) -> None:
    """Refuse an environment of an accelerator with a package that is built for processors only. Raises RunFailed."""
    builds = [
        f"{name} {package.version}" for name, package in _installed(folder).items() if package.version.endswith("+cpu")
    ]
    if builds:
        raise RunFailed(
            f"the environment cannot be made: found {', '.join(builds)}, expected a build for accelerators, and pip's "
            "index gave one for processors. Set PIP_INDEX_URL to an index that has it, such as the public one, or name "
            "a Python that has it with --python"
        )


def _installed(folder: Path) -> dict[str, Distribution]:
    from importlib.metadata import distributions

    paths = [str(path) for path in folder.glob("lib/python3*/site-packages")]
    return {_normal(package.metadata["Name"] or ""): package for package in distributions(path=paths)} if paths else {}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_elsewhere(folder: Path, packages: Sequence[str]) -> str:
    """Return what to do about packages that pip says it has installed, and that are not there."""
    return (
        f"pip ended without an error, and {folder} lacks {', '.join(packages)}. A setting of pip sends packages "
        "elsewhere: look at `pip config list` and at the variables that begin with PIP_"
    )


def end_leftover_installer(folder: Path, say: Say | None = None) -> None:
    """End what a killed platform left of an installer of this folder. Raises RunFailed for one that does not end."""
    if say and (processes := _marked(folder)):
        say(f"ending the installer of {folder.name} that a killed start left: process {', '.join(map(str, processes))}")
    if left := kill_processes(lambda: _marked(folder), END_SECONDS):
        raise RunFailed(
            f"{folder}: another installer still writes there and cannot be ended: process "
            f"{', '.join(map(str, left))}. Wait for its end, then start again"
        )


def lost(package: str | None) -> str:
    """Return how the running Python gets back a package that it lacks."""
    return f"{sys.prefix} lacks the package '{package}'; {renewed()}"


def renewed() -> str:
    """Return how the running Python gets the packages that the platform needs."""
    if os.statvfs(sys.prefix).f_flag & os.ST_NOEXEC:
        return f"{sys.prefix} lies on a file system that is mounted noexec: put the checkout on another one"
    is_made = (Path(sys.prefix) / STAMP).exists()
    return f"remove {sys.prefix}: the next start makes it again" if is_made else "install requirements.lock into it"


def failure(argv: Sequence[str], code: int, lines: Sequence[str], variables: dict[str, str]) -> str:
    """Return what failed, with the last lines, and what to do where a package source is the cause."""
    texts = [line.strip() for line in lines if line.strip() and not line.startswith("WARNING")]
    # what a package's build printed says why; pip's own lines behind it do not
    ends = [number for number, line in enumerate(texts) if line.endswith("[end of output]")]
    last = texts[: ends[-1] if ends else None][-EVIDENCE_LINES:]
    first = next((line for line in texts if line.startswith("ERROR")), None)  # pip's advice may hide its cause
    evidence = "\n  ".join(last if first is None or first in last else [first, *last])
    message = f"{' '.join(argv[:4])} ... ended with {code}\n  {evidence}"
    if advice := _advice(lines, variables):
        message += f"\n  {advice}"
    return message


def _advice(lines: Sequence[str], variables: dict[str, str]) -> str | None:
    lacking = next((match[1] for match in map(_LACKING.search, lines) if match), None)
    if folder := variables.get(WHEELS) if "PIP_NO_INDEX" in variables else None:
        return lacking and (
            f"{folder} ({WHEELS}) has no wheel of {lacking} for this system and Python; make it again with network: "
            f"`environment wheels fetch {folder}`"
        )
    unreachable = [line for line in lines if _UNREACHABLE.search(line)]
    if not unreachable and lacking is None:
        return None
    cause = next((match[0].strip() for match in map(_CAUSE.search, unreachable) if match), None)
    what = "cannot be reached" if unreachable else f"gives no {lacking} for this system and Python"
    if not unreachable and any(_NO_VERSIONS in line for line in lines):
        what = f"does not answer, or has no version of {lacking} (pip prints the same for both)"
    index = "the one of `pip config list`, or else the one that pip has built in"
    if (address := variables.get("PIP_INDEX_URL")) is not None:
        index = re.sub(r"//[^/@]*@", "//", address) + " (PIP_INDEX_URL)"  # without a password
    return (
        f"the package index {what}: {index}{f' ({cause})' if cause else ''}. Set PIP_INDEX_URL to one that "
        f"this machine reaches, behind a proxy HTTPS_PROXY, or without network {WHEELS} to a folder of wheels that "
        "`environment wheels fetch DIR` made on a machine with network"
    )


def _followed(process: subprocess.Popen[str], say: Say) -> list[str]:
    assert process.stdout is not None
    lines = []
    with process.stdout:
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith(("Collecting", "Installing", "Building")):
                say(textwrap.shorten(line.partition(" (from ")[0], 120, placeholder=" ..."))
    return lines


def _marked(folder: Path) -> list[int]:
    """Return the processes of this machine that install into the folder, except those that have ended."""
    return [process for process in marked_processes(f"{folder}\0", MARK) if process != os.getpid()]

"""The platform's own environment: made once for each requirements.lock, complete, and never changed while it is used.

An environment is made at its final place, `.venvs/levelfield-DIGEST`, beside the one that others may use: a virtual
environment cannot be moved. `.venv` is a link that is switched in one step when the new one is complete. It uses the
standard library only, because run_benchmarks.py needs it before the platform's packages are there.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from levelfield import environment_folder, installer
from levelfield.environment_folder import WITHOUT, Say
from levelfield.errors import RunFailed, UsageError

STARTED = "LEVELFIELD_BOOTSTRAPPED"  # in the process that was started in the environment: its folder
_PROBE = "import sys; print('%d.%d' % sys.version_info[:2], sys.prefix)"
_PROBE_SECONDS = 10
_COMPARISON = re.compile(r"python_full_version (<|>=) '(\d+)\.(\d+)'")
_NAME = re.compile(r"levelfield-([0-9a-f]{12}|before-[0-9a-f]{8})")


@dataclass(frozen=True)
class Places:
    """What a checkout has, and where its environment is."""

    root: Path
    packages: tuple[str, ...]  # for the running Python, such as `a==1.0`
    digest: str  # of requirements.lock

    link: Path
    folder: Path  # of the environment
    is_shared: bool  # several checkouts have their environments in one folder: a user has made `.venvs` a link


def places_of(root: Path) -> Places:
    """Return the places of a checkout. Raises UsageError where its requirements.lock cannot be read."""
    path = root / "requirements.lock"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}; the checkout is not complete. Get the file back: git checkout -- {path.name}"
        ) from None
    packages, digest = tuple(_pinned(content.decode(errors="replace"))), hashlib.sha256(content).hexdigest()
    folder = root / ".venvs" / f"levelfield-{digest[:12]}"
    return Places(root, packages, digest, root / ".venv", folder, folder.parent.is_symlink())


def _pinned(text: str) -> Iterator[str]:
    """Yield the packages of the lock file for the running Python. Lines with their hashes are pip's to check."""
    for line in text.splitlines():
        requirement, _, marker = line.partition("#")[0].rstrip("\\ ").partition(";")
        if "==" in requirement and _holds(marker):
            yield requirement.strip()


def _holds(marker: str) -> bool:
    """Return whether a marker of the lock file holds. All of them compare the Python, and are joined by `and`."""
    return all(
        (sys.version_info >= (int(major), int(minor))) == (sign == ">=")
        for sign, major, minor in _COMPARISON.findall(marker)
    )


def python_to_start(root: Path, say: Say) -> Path | None:
    """Return the Python that has to run the platform, in an environment that is ready. None: the running one may.

    Raises LevelfieldError where there is none and none can be made.
    """
    places = places_of(root)
    if is_suitable(places):
        environment_folder.hold(Path(sys.prefix))
        return None
    folder = ready(places) or _made(places, say)
    if os.environ.get(STARTED) == str(folder):
        raise UsageError(
            f"{folder}/bin/python was started, and Python says that it is another environment: {sys.prefix}. Remove "
            f"{places.link} and {folder}, then start again; or {WITHOUT}"
        )
    os.environ[STARTED] = str(folder)
    return folder / "bin" / "python"


def is_suitable(places: Places) -> bool:
    """Return whether the running Python has exactly the packages of requirements.lock."""
    prefix = Path(sys.prefix)
    if environment_folder.is_own(prefix):
        return _stamp(prefix) == places.digest
    from importlib.metadata import PackageNotFoundError, version

    try:
        return all(version(name) == required for name, _, required in (pin.partition("==") for pin in places.packages))
    except PackageNotFoundError:
        return False


def ready(places: Places) -> Path | None:
    """Return the folder of a complete environment whose Python starts; None without one. Nothing is written."""
    if not os.path.lexists(places.link):  # users remove `.venv` to have it made again
        return None
    for folder in (places.link, places.folder):
        if _stamp(folder) == places.digest and _why_not_started(folder) is None:
            return Path(os.path.realpath(folder))
    return None


def _stamp(folder: Path) -> str | None:
    try:
        return (folder / installer.STAMP).read_text().strip()
    except (OSError, ValueError):
        return None


def _why_not_started(folder: Path) -> str | None:
    """Return why the environment's Python cannot be its own, in words; None when it is. No process in most cases."""
    python, settings = folder / "bin" / "python", _settings(folder)
    if not os.access(python, os.X_OK) or not python.is_file():
        return f"{python} leads to {os.path.realpath(python)}, which this user cannot start"
    base = settings.get("executable") or f"{settings.get('home', '')}/python{_minor(settings)}"
    if os.path.realpath(python) == os.path.realpath(base):
        return None
    try:
        argv = [str(python), "-I", "-c", _PROBE]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_SECONDS)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"{python} does not start: {getattr(error, 'strerror', None) or type(error).__name__}"
    version, _, prefix = done.stdout.strip().partition(" ")
    if version == _minor(settings) and os.path.realpath(prefix) == os.path.realpath(folder):
        return None
    return f"{python} is not the Python that made {folder}"


def _settings(folder: Path) -> dict[str, str]:
    """Return what pyvenv.cfg says."""
    with suppress(OSError, ValueError):
        lines = (folder / "pyvenv.cfg").read_text().splitlines()
        return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
    return {}


def _minor(settings: dict[str, str]) -> str:
    return ".".join(settings.get("version", settings.get("version_info", "")).split(".")[:2])


def _made(places: Places, say: Say) -> Path:
    """Make the environment, or wait for another start that makes it. Return its folder."""
    link = places.link
    is_removed = link.is_symlink() and not link.exists() and _NAME.fullmatch(link.readlink().name) is not None
    if not is_removed:  # the link of an environment of ours that a user has removed is replaced
        environment_folder.refuse_foreign(link)
    environment_folder.refuse_foreign(places.folder)
    lock = places.folder.with_name("levelfield.lock") if places.is_shared else places.root / ".venv.lock"
    try:
        descriptor = environment_folder.opened_lock(lock)
    except OSError as error:
        raise UsageError(_not_writable(places, error)) from None
    try:
        environment_folder.wait_for_lock(descriptor, lock, f"makes {link.name}", say)
        return ready(places) or _complete(places, say)
    except RunFailed as error:
        raise UsageError(f"the environment cannot be made: {error}") from None
    except OSError as error:
        raise UsageError(_not_writable(places, error)) from None
    finally:
        os.close(descriptor)


def _not_writable(places: Places, error: OSError) -> str:
    """Return what cannot be written, why, and why something has to be."""
    message = f"cannot write {error.filename or places.root}: {error.strerror}"
    stamped = next((f for f in (places.link, places.folder) if _stamp(f) == places.digest), None)
    if stamped and (reason := _why_not_started(stamped)):
        message += f". {places.link.name} has to be made again: {reason}"
    return f"{message}. Start from a checkout of your own, or {WITHOUT}"


def _complete(places: Places, say: Say) -> Path:
    """Make the environment and switch the link. The caller holds the lock."""
    installer.end_leftover_installer(places.folder, say)
    installer.end_leftover_installer(places.link, say)  # earlier versions made it there
    if not places.link.is_symlink():
        _refuse_used(places.link)
    is_whole = _stamp(places.folder) == places.digest and not _why_not_started(places.folder)
    if not is_whole or installer.lacking(places.folder, places.packages, with_files=True):
        _refuse_used(places.folder)
        _install(places, say)
    _switch(places)
    _remove_unused(places)
    say(".venv is ready")
    return places.folder


def _refuse_used(folder: Path) -> None:
    """Raises UsageError for an environment that has to be replaced and that a process runs from.

    Of one that this user cannot write the process is not the cause: the next write says what is.
    """
    if folder.is_dir() and os.access(folder, os.W_OK) and (user := environment_folder.user_of(folder)):
        raise UsageError(
            f"{folder} has to be made again, and {user} uses it: its packages would change under it. Wait for its "
            f"end, then start again; or {WITHOUT}"
        )


def _install(places: Places, say: Say) -> None:
    folder = places.folder
    environment_folder.make_empty(folder)  # before a word: where nothing can be written, nothing is made
    say("first start: making .venv with the platform's own packages (requirements.lock)")
    quiet: Say = lambda line: None  # noqa: E731
    installer.run([sys.executable, "-m", "venv", str(folder)], folder, quiet)
    python, lock = str(folder / "bin" / "python"), str(places.root / "requirements.lock")
    argv = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", lock]
    installer.run(argv, folder, quiet)
    if lost := installer.lacking(folder, places.packages):
        raise UsageError(installer.installed_elsewhere(folder, lost))
    (folder / installer.STAMP).write_text(places.digest)


def _switch(places: Places) -> None:
    """Let `.venv` lead to the environment, in one step. A folder of an earlier version goes to a name of its own."""
    link, target = places.link, places.folder
    if link.is_dir() and not link.is_symlink():
        if any(link.iterdir()):
            link.rename(target.with_name(f"levelfield-before-{os.urandom(4).hex()}"))
        else:
            link.rmdir()
    part = link.with_name(f".venv.{os.urandom(4).hex()}")
    try:
        part.symlink_to(os.path.relpath(target, places.root) if target.is_relative_to(places.root) else target)
        part.replace(link)
    finally:
        part.unlink(missing_ok=True)


def _remove_unused(places: Places) -> None:
    """Remove this checkout's earlier environments, except those that a process still runs from."""
    if places.is_shared:  # another checkout may need them
        return
    for folder in places.folder.parent.glob("levelfield-*"):
        if _NAME.fullmatch(folder.name) and folder != places.folder and environment_folder.is_own(folder):
            with suppress(OSError, UsageError):
                if environment_folder.user_of(folder) is None:
                    environment_folder.make_empty(folder)
                    (folder / environment_folder.MARK).unlink()
                    folder.rmdir()

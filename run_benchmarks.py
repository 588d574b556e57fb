#!/usr/bin/env python3
"""Levelfield's entry point: prepares the platform's own environment, then calls `levelfield.cli`.

This file uses the standard library only, and the syntax of Python 3.6. So an old Python prints a sentence instead of
a syntax error. LEVELFIELD_NO_BOOTSTRAP=1 uses the Python that runs this file, without changes.
"""

import gc
import hashlib
import os
import sys
from pathlib import Path

ROOT = os.path.dirname(os.path.abspath(__file__))
LOCK_FILE = os.path.join(ROOT, "requirements.lock")
ENVIRONMENT = os.path.join(ROOT, ".venv")
STAMP = os.path.join(ENVIRONMENT, "levelfield-requirements.sha256")
PYTHON = os.path.join(ENVIRONMENT, "bin", "python")
OLDEST = (3, 10)


def main():
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        return fail(
            "found Python %s, expected %d.%d or newer; start this file with a newer python3" % ((found,) + OLDEST)
        )
    # In place of the repository's root, whose `docker` would shadow the SDK.
    sys.path[0] = os.path.join(ROOT, "platform")
    if os.environ.get("LEVELFIELD_NO_BOOTSTRAP") != "1" and not is_suitable():
        make_environment()
        if not os.environ.get("LEVELFIELD_BOOTSTRAPPED"):
            os.environ["LEVELFIELD_BOOTSTRAPPED"] = "1"
            os.execv(PYTHON, [PYTHON, *sys.argv])
    os.environ.pop("LEVELFIELD_BOOTSTRAPPED", None)
    gc.disable()  # imports leave no garbage: a search for it takes a tenth of a short command's processor time
    try:
        from levelfield.cli.main import started
    except ImportError as error:
        from levelfield import installer

        return fail(installer.lost(error.name))
    gc.enable()
    return started(sys.argv[1:])


def is_suitable():
    """Return whether this Python has exactly the packages of requirements.lock."""
    if os.path.realpath(sys.prefix) == os.path.realpath(ENVIRONMENT):
        return read(STAMP) == wanted_stamp()
    from importlib.metadata import PackageNotFoundError, version

    for name, wanted, marker in locked_packages():
        try:
            if holds(marker) and version(name) != wanted:
                return False
        except PackageNotFoundError:
            return False
    return True


def locked_packages():
    with open(LOCK_FILE) as file:
        for line in file:
            requirement, _, marker = line.partition("#")[0].partition(";")
            if requirement.strip():
                name, _, version = requirement.strip().partition("==")
                yield name, version, marker.strip()


def holds(marker):
    """Return whether a marker of the lock file holds. All of them are: python_version >= or < "3.11"."""
    if not marker:
        return True
    newer = sys.version_info >= (3, 11)
    return newer if ">=" in marker else not newer


def wanted_stamp():
    with open(LOCK_FILE, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def read(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None


def make_environment():
    """Make .venv once. A second start waits for the first; an incomplete .venv is made again.

    What a killed start left of the installer is ended first: it would write into the same folder.
    """
    import fcntl

    from levelfield import installer

    try:
        lock = open(os.path.join(ROOT, ".venv.lock"), "w")
    except OSError as error:
        sys.exit(
            fail("cannot write in %s: %s; set LEVELFIELD_NO_BOOTSTRAP=1 to use this Python" % (ROOT, error.strerror))
        )
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if read(STAMP) == wanted_stamp() and os.path.exists(PYTHON):
            return
        reported(lambda: installer.end_left(Path(ENVIRONMENT), say))
        say("first start: making .venv with the platform's own packages (%s)" % os.path.basename(LOCK_FILE))
        command([sys.executable, "-m", "venv", "--clear", ENVIRONMENT])
        command(
            [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", LOCK_FILE]
        )
        with open(STAMP, "w") as file:
            file.write(wanted_stamp())
        say(".venv is ready")


def command(argv):
    from levelfield import installer

    reported(lambda: installer.run(argv, Path(ENVIRONMENT), lambda line: None))


def reported(action):
    """Run the action, and end this process with a sentence where it fails."""
    from levelfield.errors import LevelfieldError

    try:
        action()
    except LevelfieldError as error:
        sys.exit(fail("this failed: %s" % error))


def say(text):
    """Print a sentence. A control character, as an installer may print, becomes an escape such as \\x1b."""
    shown = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
    print("levelfield: " + shown, file=sys.stderr, flush=True)


def fail(text):
    say("error: " + text)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

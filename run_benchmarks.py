#!/usr/bin/env python3
"""Levelfield's entry point: prepares the platform's own environment, then calls `levelfield.cli`.

This file uses the standard library only, and syntax that Python 2.7 reads too. So an old Python prints a sentence
instead of an error. LEVELFIELD_NO_BOOTSTRAP=1 uses the Python that runs this file, without changes.
"""

import gc
import os
import sys

FILE = os.path.realpath(__file__)  # it may be started through a link
ROOT = os.path.dirname(FILE)
PLATFORM = os.path.join(ROOT, "platform")
OLDEST = (3, 10)
OF_PYTHON = ("PYTHONHOME", "__PYVENV_LAUNCHER__")  # they would lead an environment's Python to other packages


def main():
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        return fail(
            "found Python %s, expected %d.%d or newer; start this file with a newer python3" % ((found,) + OLDEST)
        )
    from pathlib import Path  # not in Python 2

    occupy_standard_streams()
    order_modules()
    try:
        from levelfield import first_start, installer, user_folders
        from levelfield.errors import LevelfieldError
    except (ImportError, OSError) as error:
        return fail("%s: %s; the checkout is not complete. Get it back: git checkout -- platform" % (PLATFORM, error))
    user_folders.forget_empty_home()
    sys.executable = sys.executable or os.path.realpath("/proc/self/exe")
    if os.environ.get("LEVELFIELD_NO_BOOTSTRAP") != "1":
        try:
            python = first_start.python_to_start(Path(ROOT), say)
        except LevelfieldError as error:
            return fail(str(error))
        if python:
            return start_again(str(python))
    os.environ.pop("LEVELFIELD_BOOTSTRAPPED", None)
    gc.disable()  # imports leave no garbage: a search for it takes a tenth of a short command's processor time
    try:
        from levelfield.cli.main import run_as_process
    except ImportError as error:
        return fail(installer.lost(error.name))
    gc.enable()
    return run_as_process(sys.argv[1:])


def occupy_standard_streams():
    """Open the null device in place of a closed standard stream, whose number the next opened file would get."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def order_modules():
    """Let this checkout's platform come first, in place of the repository's root, whose `docker` would shadow the SDK.

    The environment's packages come before those of PYTHONPATH. They are named by the environment's own folder: the
    link `.venv` may lead to another one while this process runs.
    """
    if os.environ.get("LEVELFIELD_NO_BOOTSTRAP") == "1":  # the user's Python stays as it is
        sys.path[:] = [PLATFORM] + [p for p in sys.path if os.path.realpath(p) != ROOT]
        return
    given = [os.path.realpath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isdir(p)]
    found = [os.path.realpath(p) for p in sys.path if p]
    own = [p for p in found if p not in given and p != ROOT]
    sys.path[:] = [PLATFORM] + own + [p for p in found if p in given]


def start_again(python):
    """Replace this process by one of the environment's Python."""
    for name in OF_PYTHON:
        os.environ.pop(name, None)
    try:
        os.execv(python, [python, FILE] + sys.argv[1:])
    except OSError as error:
        return fail("%s cannot be started: %s; remove %s/.venv to have it made again" % (python, error.strerror, ROOT))


def say(text):
    """Print a sentence. A control character, as an installer may print, becomes an escape such as \\x1b.

    A sentence that cannot be written is dropped: nobody reads it, or the disk is full. It ends no start.
    """
    if sys.version_info >= OLDEST:  # Python 2 has no `isprintable`, and its sentence no other character
        text = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
    try:  # noqa: SIM105 (Python 2 has no `suppress`)
        os.write(2, ("levelfield: " + text + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def fail(text):
    say("error: " + text)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("error: interrupted")
        sys.exit(130)

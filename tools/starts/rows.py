"""The rows of tools/first_starts.py: states of a checkout, surroundings of a start, and what is expected of both."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from starts.stage import DIGEST, ORDINARY, STAMP, Box, Stage

Prepare = Callable[[Stage, Box], None]
Beside = Callable[[Stage, Box], "subprocess.Popen[bytes]"]

LOCK = "check out/.venv.lock"
MADE = ("check out/.venv", "check out/.venvs", LOCK, "home/.cache")
START = 'exec "$1" "$2" --version'
READY, NOT_OURS = ".venv is ready", "that Levelfield did not make"


def nothing(box: Box) -> list[str]:
    return []


@dataclass(frozen=True)
class Row:
    """A start and its outcome. hears: whether stderr is kept. writes: places that may change. owner: of the folder."""

    name: str
    code: int = 0
    says: str = ""
    user: str = "root"
    owner: str = "root"
    prepare: tuple[Prepare, ...] = ()
    beside: tuple[Beside, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    command: str = START
    hears: bool = True
    writes: tuple[str, ...] = ()
    check: Callable[[Box], list[str]] = nothing

    @property
    def limit_seconds(self) -> int:
        """Nothing lasts ten seconds, except that an environment is made beside other tests."""
        return 60 if self.writes else 10

    def by(self, user: str, owner: str | None = None) -> Row:
        return replace(self, user=user, owner=owner or user)

    def within(self, name: str, around: Row) -> Row:
        """This row in the surroundings of another one, which says how it is started."""
        return replace(
            self,
            name=f"{self.name}, {name}",
            prepare=(*self.prepare, *around.prepare),
            variables={**self.variables, **around.variables},
            command=around.command,
            hears=around.hears,
        )


# -- states of a checkout


def ready(stage: Stage, box: Box) -> None:
    shutil.copytree(stage.ready, box.venv, symlinks=True)


def linked(stage: Stage, box: Box) -> None:
    shutil.copytree(stage.ready, box.environment, symlinks=True)
    box.venv.symlink_to(f".venvs/{box.environment.name}")


def outdated(stage: Stage, box: Box) -> None:
    ready(stage, box)
    (box.venv / STAMP).write_text("0" * 64)


def outdated_link(stage: Stage, box: Box) -> None:
    old = box.environment.with_name("levelfield-000000000000")
    shutil.copytree(stage.ready, old, symlinks=True)
    (old / STAMP).write_text("0" * 64)
    box.venv.symlink_to(f".venvs/{old.name}")


def interrupted(stage: Stage, box: Box) -> None:
    box.environment.mkdir(parents=True)
    (box.environment / "levelfield-made-this").touch()
    (box.environment / "pyvenv.cfg").touch()


def link_to_removed(stage: Stage, box: Box) -> None:
    box.venv.symlink_to(f".venvs/{box.environment.name}")


def empty(stage: Stage, box: Box) -> None:
    box.venv.mkdir()


def with_python(change: Callable[[Stage, Box], object]) -> Prepare:
    """A ready environment whose bin/python is another one."""

    def prepare(stage: Stage, box: Box) -> None:
        ready(stage, box)
        (box.venv / "bin/python").unlink()
        change(stage, box)

    return prepare


def a_script(stage: Stage, box: Box) -> None:
    (box.venv / "bin/python").write_text("#!/bin/sh\nexit 0\n")
    (box.venv / "bin/python").chmod(0o755)


def foreign_environment(stage: Stage, box: Box) -> None:
    ready(stage, box)
    (box.venv / STAMP).unlink()


def foreign_folder(stage: Stage, box: Box) -> None:
    box.venv.mkdir()
    (box.venv / "thesis.tex").write_text("the only copy")


def foreign_link(stage: Stage, box: Box) -> None:
    (box.root / "elsewhere/thesis.tex").write_text("the only copy")
    box.venv.symlink_to(box.root / "elsewhere")


def link_to(path: str) -> Prepare:
    return lambda stage, box: box.venv.symlink_to(path)


def a_file(stage: Stage, box: Box) -> None:
    box.venv.write_text("a file")


def python_to(target: str) -> Prepare:
    return with_python(lambda stage, box: (box.venv / "bin/python").symlink_to(target))


TO_MAKE: dict[str, tuple[Prepare, ...]] = {
    "nothing": (),
    "an empty .venv": (empty,),
    "an outdated environment": (outdated,),
    "an outdated link": (outdated_link,),
    "an interrupted start": (interrupted,),
    "a link whose environment was removed": (link_to_removed,),
    "bin/python is gone": (python_to("/no/such/python"),),
    "bin/python is another program": (python_to("/bin/true"),),
    "bin/python is a script": (with_python(a_script),),
    "bin/python is text": (with_python(lambda stage, box: (box.venv / "bin/python").write_text("x")),),
}
FOREIGN: dict[str, Prepare] = {
    "a foreign environment": foreign_environment,
    "a foreign folder": foreign_folder,
    "a link to a foreign folder": foreign_link,
    "a link to nothing": link_to("/mnt/not/mounted"),
    "a file in its place": a_file,
}


# -- surroundings


def other_packages(stage: Stage, box: Box) -> None:
    """PYTHONPATH of a user who has other modules there, with names that the start and its installers import."""
    for name in ("yaml", "levelfield", "venv", "ensurepip", "pip"):
        (box.root / f"elsewhere/{name}.py").write_text(f"raise ImportError('another {name}')\n")


def pip_conf(text: str) -> Prepare:
    def prepare(stage: Stage, box: Box) -> None:
        (box.root / "home/.config/pip").mkdir(parents=True)
        place = box.root / "elsewhere"
        (box.root / "home/.config/pip/pip.conf").write_text(text.replace("PLACE", f"{place}/x"))

    return prepare


def a_link(stage: Stage, box: Box) -> None:
    (box.root / "elsewhere/levelfield").symlink_to(box.checkout / "run_benchmarks.py")


PIPED = '"$1" "$2" --version 2>&1 >/dev/null | {}; exit ${{PIPESTATUS[0]}}'
QUIET: dict[str, Row] = {
    "2>&1 | head -1": Row("", command='"$1" "$2" --version 2>&1 | head -1; exit ${PIPESTATUS[0]}', hears=False),
    "2>&1 | true": Row("", command=PIPED.format("true"), hears=False),
    "2>/dev/full": Row("", command=f"{START} 2>/dev/full", hears=False),
    "2>&-": Row("", command=f"{START} 2>&-", hears=False),
    "<&- >&- 2>&-": Row("", command=f"{START} <&- >&- 2>&-", hears=False),
}
HOMES: dict[str, Row] = {
    "HOME=": Row("", variables={"HOME": ""}),
    "HOME is not set": Row("", variables={"HOME": "UNSET"}),
    "HOME is not there": Row("", variables={"HOME": "/no/such/home"}),
    "relative XDG folders": Row("", variables={"XDG_CACHE_HOME": "x", "XDG_DATA_HOME": "x", "XDG_CONFIG_HOME": "x"}),
}
PIP: dict[str, Row] = {
    f"{name}={value}": Row("", variables={name: value})
    for name, value in (
        ("PIP_TARGET", "BOX/elsewhere/x"),
        ("PIP_PREFIX", "BOX/elsewhere/x"),
        ("PIP_ROOT", "BOX/elsewhere/x"),
        ("PIP_DRY_RUN", "1"),
        ("PIP_USER", "1"),
        ("PIP_NO_DEPS", "1"),
        ("PIP_REQUIRE_VIRTUALENV", "1"),
        ("PIP_REPORT", "BOX/elsewhere/x"),
        ("PIP_PYTHON", "/usr/bin/python3"),
        ("PIP_VERSION", "1"),
        ("PIP_HELP", "1"),
        ("PIP_REQUIREMENT", "/no/such/file"),
    )
}
PYTHONS: dict[str, Row] = {
    "PYTHONPATH with other packages": Row("", prepare=(other_packages,), variables={"PYTHONPATH": "BOX/elsewhere"}),
    "PYTHONHOME": Row("", variables={"PYTHONHOME": "/usr"}),
    "VIRTUAL_ENV": Row("", variables={"VIRTUAL_ENV": "/no/such/environment"}),
    "PYTHONSAFEPATH": Row("", variables={"PYTHONSAFEPATH": "1"}),
    "python -I": Row("", command='exec "$1" -I "$2" --version'),
    "python -E -s": Row("", command='exec "$1" -E -s "$2" --version'),
    "no sys.executable": Row("", variables={"STAGE_NO_EXECUTABLE": "1"}),
    "a leaked LEVELFIELD_BOOTSTRAPPED": Row("", variables={"LEVELFIELD_BOOTSTRAPPED": "1"}),
}
PLACES: dict[str, Row] = {
    "through a link": Row("", prepare=(a_link,), command='exec "$1" "${2%/*}/../elsewhere/levelfield" --version'),
    "by a relative path": Row("", command='cd "$(dirname "$2")"; exec "$1" run_benchmarks.py --version'),
    "as a module": Row("", command='cd "$(dirname "$2")"; exec "$1" -B -m run_benchmarks --version'),
    "from a folder that was removed": Row("", command=f'mkdir "$TMPDIR/x"; cd "$TMPDIR/x"; rmdir "$TMPDIR/x"; {START}'),
    "without PATH": Row("", variables={"PATH": "UNSET"}, command='export PATH=; exec "$1" "$2" --version'),
    "LC_ALL=C": Row("", variables={"LC_ALL": "C", "PYTHONUTF8": "0"}),
    "umask 077": Row("", command=f"umask 077; {START}"),
    "few files": Row("", command=f"ulimit -n 24; {START}"),
    "a file system without locks": Row("", variables={"STAGE_NO_FLOCK": "1"}),
    "TMPDIR is not there": Row("", variables={"TMPDIR": "/no/such/folder"}),
}
PLAIN = {"plain": Row("")}
ALL = {**PLAIN, **QUIET, **HOMES, **PYTHONS, **PLACES, **PIP}
SOME = {**PLAIN, "2>&-": QUIET["2>&-"], "2>/dev/full": QUIET["2>/dev/full"], "HOME=": HOMES["HOME="]}
SOME |= {"through a link": PLACES["through a link"], "PIP_TARGET": PIP["PIP_TARGET=BOX/elsewhere/x"]}
USERS = ("root", ORDINARY)
# Where nothing is made, pip does not run: `make test` sets one of its variables.
WITHOUT_PIP = {name: around for name, around in ALL.items() if name not in PIP or name == "PIP_TARGET=BOX/elsewhere/x"}


def rows(stage: Stage, every: bool) -> Iterator[Row]:
    """The table. every: all combinations, and not only those that fit into half a minute."""
    for row in (*_without_writing(every), *_refused(every), *_made(every), *_single(), *_beside()):
        if stage.ordinary or row.user == row.owner == "root":  # without root: only this user's own rows
            yield row


def _without_writing(every: bool) -> Iterator[Row]:
    surroundings = ALL if every else WITHOUT_PIP
    for user in USERS:
        for name, around in (surroundings if every or user == "root" else SOME).items():
            yield Row("ready", prepare=(ready,)).by(user).within(name, around)
        for name, around in SOME.items():
            yield Row("ready by a link", prepare=(linked,)).by(user).within(name, around)
    for name, around in (surroundings if every else SOME).items():
        if "removed" not in name:
            yield Row("another user's, ready", prepare=(ready,)).by(ORDINARY, "root").within(name, around)


def _refused(every: bool) -> Iterator[Row]:
    for number, (state, prepare) in enumerate(FOREIGN.items()):
        for turn, (name, around) in enumerate(SOME.items()):
            if every or name == "plain" or turn % len(FOREIGN) == number:
                for user in USERS if every or name == "plain" else (USERS[number % 2],):
                    yield Row(state, 2, NOT_OURS, prepare=(prepare,)).by(user).within(name, around)


def made(box: Box) -> list[str]:
    installed = list(box.venv.glob("lib/python3*/site-packages/acme.py"))
    return [] if installed and (box.venv / STAMP).read_text() == DIGEST else [".venv is not complete"]


def _made(every: bool) -> Iterator[Row]:
    base = Row("", 0, READY, writes=MADE, check=made)
    for number, (state, prepare) in enumerate(TO_MAKE.items()):
        for user in USERS if every else (USERS[number % 2],):
            yield replace(base, name=state, prepare=prepare).by(user)
    for number, (name, around) in enumerate(ALL.items()):
        if every or name in MAKING:
            for user in USERS if every else (USERS[number % 2],):
                yield replace(base, name="nothing").by(user).within(name, around)
    for key in ("user", "dry-run", "require-virtualenv", "no-deps") if every else ("user",):
        conf = pip_conf(f"[global]\n{key} = true\n")
        yield replace(base, name=f"pip.conf with {key}", prepare=(conf,))


# Surroundings in which something is made in `make test`; the others wait for `make thorough`.
MAKING = (
    *("<&- >&- 2>&-", "HOME=", "PYTHONPATH with other packages", "through a link"),
    *("from a folder that was removed", "a file system without locks", "PIP_TARGET=BOX/elsewhere/x", "PIP_USER=1"),
)


# -- rows that stand alone


def lacks(*names: str) -> Prepare:
    def prepare(stage: Stage, box: Box) -> None:
        for name in names:
            (box.checkout / name).unlink()

    return prepare


def folder_for_file(name: str) -> Prepare:
    def prepare(stage: Stage, box: Box) -> None:
        (box.checkout / name).unlink(missing_ok=True)
        (box.checkout / name).mkdir()

    return prepare


def lock_is_a_link(stage: Stage, box: Box) -> None:
    (box.root / "elsewhere/thesis.tex").write_text("the only copy")
    (box.checkout / ".venv.lock").symlink_to(box.root / "elsewhere/thesis.tex")


def lock_is_a_pipe(stage: Stage, box: Box) -> None:
    os.mkfifo(box.checkout / ".venv.lock")


def unreadable(stage: Stage, box: Box) -> None:
    (box.checkout / "requirements.lock").chmod(0o600)


def platform_without(name: str) -> Prepare:
    def prepare(stage: Stage, box: Box) -> None:
        (box.checkout / "platform").unlink()
        shutil.copytree(stage.code / "platform", box.checkout / "platform")
        (box.checkout / "platform/levelfield" / name).unlink()

    return prepare


def _single() -> Iterator[Row]:
    missing = "the checkout is not complete"
    for user in USERS:
        for state, before in (("ready", (ready,)), ("nothing", ())):
            first = f"{state}, "
            yield Row(f"{first}no requirements.lock", 2, missing, prepare=(*before, lacks("requirements.lock"))).by(
                user
            )
            folder = folder_for_file("requirements.lock")
            yield Row(f"{first}a folder requirements.lock", 2, missing, prepare=(*before, folder)).by(user)
            yield Row(f"{first}no platform", 2, missing, prepare=(*before, lacks("platform"))).by(user)
            half = platform_without("errors.py")
            yield Row(f"{first}half a platform", 2, missing, prepare=(*before, half)).by(user)
        yield Row("ready, the lock is a link", prepare=(ready, lock_is_a_link)).by(user)
        yield Row("nothing, the lock is a link", 2, "found a link", prepare=(lock_is_a_link,)).by(user)
        yield Row("nothing, the lock is a pipe", 2, "found no plain file", prepare=(lock_is_a_pipe,)).by(user)
        yield Row("nothing, the lock is a folder", 2, "cannot write", prepare=(folder_for_file(".venv.lock"),)).by(user)
        for name in ("target", "prefix", "root"):
            conf = pip_conf(f"[install]\n{name} = PLACE\n")
            yield Row(f"nothing, pip.conf with {name}", 2, "pip.conf", prepare=(conf,), writes=MADE).by(user)
        bad = {"LEVELFIELD_WHEELS": "/no/such/wheels"}
        yield Row("nothing, no folder of wheels", 2, "found no folder there", variables=bad, writes=MADE).by(user)
    for name, around in SOME.items():
        yield Row("another user's, nothing", 2, "checkout of your own").by(ORDINARY, "root").within(name, around)
    python_is_gone = python_to("/no/such/python")
    yield Row("another user's, bin/python is gone", 2, "has to be made again", prepare=(python_is_gone,)).by(
        ORDINARY, "root"
    )
    yield Row("another user's, outdated", 2, "cannot write", prepare=(outdated,)).by(ORDINARY, "root")
    yield Row("unreadable requirements.lock", 2, missing, prepare=(ready, unreadable)).by(ORDINARY, "root")
    with_own_python = 'exec "$(dirname "$2")/.venv/bin/python" "$2" --version'
    for user in USERS:
        for name, prepare in (("ready", ready), ("ready by a link", linked), ("foreign", foreign_environment)):
            yield Row(f"by the environment's own Python, {name}", prepare=(prepare,), command=with_own_python).by(user)


# -- rows with something beside them

HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1])
fcntl.flock(file, int(sys.argv[2]))
print(flush=True)
time.sleep({})
"""


def holds(place: str, kind: int, seconds: float) -> Beside:
    """A process that keeps a lock."""

    def beside(stage: Stage, box: Box) -> subprocess.Popen[bytes]:
        path = box.checkout / place
        path.touch()
        if stage.ordinary:
            path.chmod(0o666)
        argv = [sys.executable, "-c", HOLDER.format(seconds), str(path), str(kind)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline()
        return process

    return beside


def runs_from(stage: Stage, box: Box) -> subprocess.Popen[bytes]:
    """A process of the environment's Python, of an earlier version that holds no lock."""
    argv = [str(box.venv / "bin/python"), "-c", "print(flush=True); import time; time.sleep(30)"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    return process


def named_from(stage: Stage, box: Box) -> subprocess.Popen[bytes]:
    """A process that another user started by the environment's Python, which only that user can start."""
    argv = [str(box.venv / "bin/python"), "-c", "print(flush=True); import time; time.sleep(30)"]
    process = subprocess.Popen(argv, executable=sys.executable, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    return process


def lock_is_there(stage: Stage, box: Box) -> None:
    (box.checkout / ".venv.lock").touch()


def old_is_left(box: Box) -> list[str]:
    old = box.environment.with_name("levelfield-000000000000")
    return made(box) if (old / "bin/python").exists() else ["an environment in use was removed"]


def old_is_removed(box: Box) -> list[str]:
    return (
        ["an unused environment was left"]
        if box.environment.with_name("levelfield-000000000000").exists()
        else made(box)
    )


def no_installer(box: Box) -> list[str]:
    """No process of an installer is left that writes into this box."""
    left = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if b"LEVELFIELD_INSTALLS=" + os.fsencode(box.checkout) in place.read_bytes():
                left.append(place.parent.name)
                os.kill(int(place.parent.name), signal.SIGKILL)
    return [f"left processes {', '.join(left)}"] if left else []


def _beside() -> Iterator[Row]:
    uses = "uses it"
    for user in USERS:
        in_use = Row("outdated, and a command runs from it", 2, uses, prepare=(outdated,))
        yield replace(in_use, beside=(holds(".venv/pyvenv.cfg", 1, 30),)).by(user)
    yield replace(in_use, name="outdated, and an earlier version runs", beside=(runs_from,))
    others = Row("another user's, bin/python is gone, and a command runs from it", 2, "has to be made again: ")
    python_is_gone = (python_to("/no/such/python"), lock_is_there)
    yield replace(others, prepare=python_is_gone, beside=(named_from,)).by(ORDINARY, "root")
    old = holds(".venvs/levelfield-000000000000/pyvenv.cfg", 1, 30)
    yield Row("outdated link in use", 0, READY, prepare=(outdated_link,), beside=(old,), writes=MADE, check=old_is_left)
    yield Row("outdated link not in use", 0, READY, prepare=(outdated_link,), writes=MADE, check=old_is_removed)
    waits = holds(".venv.lock", 2, 2)
    yield Row("another start", 0, "waiting for another start (process ", beside=(waits,), writes=MADE, check=made)
    yield Row("another start, ready", prepare=(ready,), beside=(holds(".venv.lock", 2, 20),))
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        for user in USERS:
            yield Row(
                f"{number.name} while it is made",
                130,
                "interrupted",
                variables={"STAGE_SLOW": "BOX/tmp/slow"},
                command=f'set -m; "$1" "$2" --version & p=$!; until [ -e "$TMPDIR/slow" ]; do sleep 0.05; done; '
                f"kill -{int(number)} $p; wait $p",
                writes=(*MADE, "tmp/slow"),
                check=no_installer,
            ).by(user)

"""A PostgreSQL server of the tests' own: a fresh cluster in a folder, on a socket alone, ended with the tests."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

USER = "postgres"  # initdb refuses to run as root
START_SECONDS = 60.0
# Without them the server would write its pages to the disk at once, and keep memory that no test needs.
SETTINGS = {"listen_addresses": "", "fsync": "off", "shared_buffers": "32MB", "max_connections": "60", "jit": "off"}


def programs() -> Path:
    """The folder of initdb and postgres, of the newest version. Skips the test where there is none."""
    initdbs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: float(p.parts[-3]))
    on_path = shutil.which("initdb")
    if not initdbs and not on_path:
        pytest.skip("PostgreSQL is not installed: no initdb in /usr/lib/postgresql/*/bin")
    return initdbs[-1].parent if initdbs else Path(str(on_path)).parent


@contextmanager
def server(template: Path, **settings: str) -> Iterator[str]:
    """The URL of a running server's database. template: where one cluster is made for all servers, and then copied."""
    folder = Path(tempfile.mkdtemp(prefix="lf-pg-"))  # a socket's path has 107 characters at most
    try:
        data = shutil.copytree(_cluster(template), folder / "data", symlinks=True)
        _give_to_user(folder)
        options = [f"-c{name}={value}" for name, value in {**SETTINGS, **settings}.items()]
        log = (folder / "log").open("wb")
        argv = [str(programs() / "postgres"), "-D", str(data), "-k", str(folder), *options]
        process = subprocess.Popen(argv, stdout=log, stderr=log, preexec_fn=_end_with_the_tests, **_as_user())
        try:
            _wait(folder, process)
            yield f"postgresql://{USER}@/postgres?host={folder}"
        finally:
            process.send_signal(signal.SIGQUIT)  # at once, without a last checkpoint
            process.wait(30)
            log.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cluster(template: Path) -> Path:
    """The template's cluster; of several processes the first makes it, where the server's user may write."""
    template.mkdir(parents=True, exist_ok=True)
    with (template / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (template / "data").exists():
            folder = Path(tempfile.mkdtemp(prefix="lf-pg-"))
            _give_to_user(folder)
            argv = [str(programs() / "initdb"), "-D", str(folder / "data"), "-U", USER, "--auth=trust", "--no-sync"]
            made = subprocess.run([*argv, "-E", "UTF8"], capture_output=True, text=True, cwd="/", **_as_user())
            assert made.returncode == 0, made.stderr
            shutil.move(folder / "data", template / "data")
            folder.rmdir()
    return template / "data"


def _end_with_the_tests() -> None:
    """Tests that are killed leave no server: the kernel ends it with the process that started it."""
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG, after the change of the user


def _as_user() -> dict[str, Any]:
    return {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}


def _give_to_user(folder: Path) -> None:
    if os.geteuid() == 0:
        user = pwd.getpwnam(USER)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)


def _wait(folder: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not (folder / ".s.PGSQL.5432").exists() or "ready to accept" not in (folder / "log").read_text():
        assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.02)

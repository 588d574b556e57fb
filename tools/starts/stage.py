"""The stage of tools/first_starts.py: folders with a checkout, a home and an environment, and starts in them.

The newcomer's Python is an environment whose `venv` gives a new one this Python's pip by a path, in place of a copy
that takes seconds. Everything else is real: run_benchmarks.py, venv, pip and a wheel.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from starts.planted_wheels import write

if TYPE_CHECKING:
    from starts.rows import Row

LOCK = "acme==1.0\n"
DIGEST = hashlib.sha256(LOCK.encode()).hexdigest()
ORDINARY = "nobody"
STAMP = "levelfield-requirements.sha256"
# In each process of the newcomer's Python.
HOOK = """
import os, sys
words = sys.orig_argv
if "venv" in words:
    import venv
    def by_path(self, context):
        folder = os.path.join(context.env_dir, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
        with open(os.path.join(folder, "pip_of_the_stage.pth"), "w") as file:
            file.write(PIP + "\\n")
    venv.EnvBuilder._setup_pip = by_path
    if os.environ.get("STAGE_SLOW"):
        import subprocess, time
        subprocess.Popen(["sleep", "60"])
        open(os.environ["STAGE_SLOW"], "w").close()
        time.sleep(60)
elif any(word.endswith("run_benchmarks.py") for word in words):
    if os.environ.get("STAGE_NO_FLOCK"):
        import fcntl
        def flock(*_):
            raise OSError(37, "No locks available")
        fcntl.flock = flock
    if os.environ.get("STAGE_NO_EXECUTABLE"):
        sys.executable = ""
"""


@dataclass(frozen=True)
class Started:
    """How a start ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float


@dataclass
class Box:
    """One row's folder. helpers: processes that the row needs beside the start."""

    root: Path
    helpers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def checkout(self) -> Path:
        return self.root / "check out"

    @property
    def venv(self) -> Path:
        return self.checkout / ".venv"

    @property
    def environment(self) -> Path:
        return self.checkout / ".venvs" / f"levelfield-{DIGEST[:12]}"


class Stage:
    """What the rows share: a copy of the code, the newcomer's Python, wheels, and a ready environment."""

    def __init__(self, root: Path, code: Path) -> None:
        self.root, self._count = root, 0
        self.ordinary = pwd.getpwnam(ORDINARY) if os.geteuid() == 0 else None
        self.base = _python_of_everybody() if self.ordinary else Path(sys.base_prefix) / "bin" / "python3"
        self.code = root / "code"
        shutil.copytree(code / "platform", self.code / "platform", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(code / "run_benchmarks.py", self.code)
        self.wheels = root / "wheels"
        self.wheels.mkdir()
        write(self.wheels, "acme", "VALUE = 42\n")
        self.newcomer = self._newcomer()
        self.ready = root / "ready"
        self._make_ready()
        compiled = [str(self.python), "-m", "compileall", "-q", str(self.code / "platform/levelfield")]
        subprocess.run(compiled, check=True)

    @property
    def python(self) -> Path:
        return self.newcomer / "bin" / "python"

    def _newcomer(self) -> Path:
        folder = self.root / "newcomer"
        subprocess.run([str(self.base), "-m", "venv", str(folder)], check=True)
        (packages,) = folder.glob("lib/python3*/site-packages")
        pip = self.root / "pip"
        pip.mkdir()
        for path in packages.glob("pip*"):
            path.rename(pip / path.name)
        (packages / "stage.pth").write_text(f"{pip}\nimport stage_hook\n")
        (packages / "stage_hook.py").write_text(HOOK.replace("PIP +", f"{str(pip)!r} +"))
        return folder

    def _make_ready(self) -> None:
        """A small environment as an earlier version made it: a stamp and no mark."""
        subprocess.run([str(self.base), "-m", "venv", "--without-pip", str(self.ready)], check=True)
        (packages,) = self.ready.glob("lib/python3*/site-packages")
        shutil.unpack_archive(self.wheels / "acme-1.0-py3-none-any.whl", packages, "zip")
        (self.ready / STAMP).write_text(DIGEST)

    def box(self, row: Row) -> Box:
        """The folder of a row, prepared and given to its owner."""
        self._count += 1
        box = Box(self.root / f"box {self._count} {row.user}")
        for name in ("check out", "home", "tmp", "cwd", "elsewhere"):
            (box.root / name).mkdir(parents=True)
        shutil.copy(self.code / "run_benchmarks.py", box.checkout)
        (box.checkout / "platform").symlink_to(self.code / "platform")
        (box.checkout / "requirements.lock").write_text(LOCK)
        for prepare in row.prepare:
            prepare(self, box)
        if self.ordinary and row.owner == ORDINARY:
            for path in (box.root, *box.root.rglob("*")):
                os.lchown(path, self.ordinary.pw_uid, self.ordinary.pw_gid)
        for other in row.beside:
            box.helpers.append(other(self, box))
        return box

    def start(self, box: Box, row: Row) -> Started:
        """Start as the row says, and wait for the end of the start and of all that it has written."""
        begun, account = time.monotonic(), self.ordinary if row.user == ORDINARY else None
        argv = ["bash", "-c", row.command, "start", str(self.python), str(box.checkout / "run_benchmarks.py")]
        process = subprocess.Popen(
            argv,
            cwd=box.root / "cwd",
            env=self._variables(box, row),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
        try:
            out, err = process.communicate(timeout=row.limit_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        return Started(process.returncode, out, err, time.monotonic() - begun)

    def _variables(self, box: Box, row: Row) -> dict[str, str]:
        defaults = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(box.root / "home"),
            "TMPDIR": str(box.root / "tmp"),
            "LEVELFIELD_WHEELS": str(self.wheels),
            "LEVELFIELD_STORE": "none",
        }
        changes = {name: value.replace("BOX", str(box.root)) for name, value in row.variables.items()}
        return {name: value for name, value in {**defaults, **changes}.items() if value != "UNSET"}

    def remove(self, box: Box) -> None:
        for process in box.helpers:
            process.kill()
            process.wait()
        shutil.rmtree(box.root, ignore_errors=True)  # a wrong row may have left a process that writes


def _python_of_everybody() -> Path:
    """A Python that every user of this machine can start and make environments with."""
    for path in (Path(sys.base_prefix) / "bin" / "python3", *map(Path, ("/usr/local/bin/python3", "/usr/bin/python3"))):
        real = path.resolve()
        if real.is_file() and all(parent.stat().st_mode & 0o001 for parent in (real, *real.parents)):
            probe = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))"
            if subprocess.run([str(path), "-c", probe]).returncode == 0:
                return path
    sys.exit("no Python 3.10 or newer that an ordinary user can start; expected /usr/bin/python3 with venv")

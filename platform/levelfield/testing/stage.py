"""The stage of the suite: a temporary folder, fake tools as the only PATH, and a mark on started processes."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from levelfield.checkout import checkout

MARK = "LEVELFIELD_CHECK"
END_SECONDS = 5
Outputs = Mapping[tuple[str, ...], bytes]


class Stage:
    """The surroundings of all checks. bin: the only folder on PATH. temporary, here: the temporary folder and the
    current folder, which stay empty. asked: a file that exists after a replayed tool has run."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="levelfield-check-")
        self.root = Path(self._folder.name)
        self.bin, self.runs = self.root / "bin", self.root / "runs"
        self.temporary, self.here = self.root / "tmp", self.root / "here"
        self.asked = self.root / "asked"
        for folder in (self.bin, self.runs, self.temporary, self.here):
            folder.mkdir()

    @contextmanager
    def entered(self, without: str | None, **variables: str) -> Iterator[None]:
        """Enter the surroundings of a check. without: the variable with the user's own choice of devices."""
        before, directory, folder = dict(os.environ), tempfile.tempdir, Path.cwd()
        mine = {"PATH": str(self.bin), "TMPDIR": str(self.temporary), MARK: str(self.root)}
        mine |= {"XDG_CACHE_HOME": str(self.root / "cache"), "LEVELFIELD_LOCKS": str(self.root / "locks")}
        mine |= {"LEVELFIELD_ROOT": str(checkout().absolute())}
        os.environ.update({**mine, **variables})
        if without and without not in variables:
            os.environ.pop(without, None)
        tempfile.tempdir = str(self.temporary)
        os.chdir(self.here)
        try:
            yield
        finally:
            os.chdir(folder)
            tempfile.tempdir = directory
            os.environ.clear()
            os.environ.update(before)

    def replay(self, outputs: Outputs) -> None:
        """Put fake tools on PATH that print these outputs. A command of one word accepts any arguments."""
        self.clear()
        for name in {argv[0] for argv in outputs}:
            own = {argv: content for argv, content in outputs.items() if argv[0] == name}
            self.tool(name, "\n".join([f": > {shlex.quote(str(self.asked))}", *_answers(self.root, own)]))

    def tool(self, name: str, body: str) -> None:
        path = self.bin / Path(name).name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def clear(self) -> None:
        for path in self.bin.iterdir():
            path.unlink()

    def processes(self, patience_seconds: float = 2.0) -> list[psutil.Process]:
        """Return all marked processes that still run after a short wait for killed ones."""
        deadline = time.monotonic() + patience_seconds
        while True:
            found = [process for process in psutil.process_iter() if _is_ours(process, str(self.root))]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def end_all(self) -> None:
        """End all marked processes, and those that they started meanwhile."""
        deadline = time.monotonic() + END_SECONDS
        while (found := self.processes(patience_seconds=0)) and time.monotonic() < deadline:
            for process in found:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.02)


def _answers(root: Path, outputs: Outputs) -> Iterator[str]:
    """Return shell lines that print the output for their arguments. Exact arguments come before any arguments."""
    cat = shutil.which("cat", path="/bin:/usr/bin") or "/bin/cat"
    for argv, content in sorted(outputs.items(), key=lambda item: -len(item[0])):
        file = root / f"output-{hashlib.sha256(shlex.join(argv).encode()).hexdigest()[:16]}"
        file.write_bytes(content)
        show = f"exec {shlex.join([cat, str(file)])}"
        yield show if len(argv) == 1 else f'[ "$*" = {shlex.quote(" ".join(argv[1:]))} ] && {show}'
    yield 'echo "these arguments were not recorded: $*" >&2; exit 64'


def _is_ours(process: psutil.Process, mark: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark
    except psutil.Error:
        return False


def fake_nodes(root: Path, pattern: str, indices: Sequence[int]) -> Path:
    """Create a folder whose /dev has one node for each index that the glob `pattern` matches."""
    literal = pattern.lstrip("/")
    cut = min((at for at in map(literal.find, "*?[") if at >= 0), default=len(literal))
    for index in indices:
        path = root / f"{literal[:cut]}{index}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root

"""Where the suite acts: a folder of its own, with fake tools that alone are on PATH, and a mark on what it starts."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

MARK = "LEVELFIELD_CHECK"
Outputs = Mapping[tuple[str, ...], bytes]


class Stage:
    """bin: the only folder on PATH. temporary: what adapters and tools are given for temporary files."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="levelfield-check-")
        self.root = Path(self._folder.name)
        self.bin, self.temporary, self.runs = self.root / "bin", self.root / "tmp", self.root / "runs"
        for folder in (self.bin, self.temporary, self.runs):
            folder.mkdir()

    @contextmanager
    def entered(self, without: str | None, **variables: str) -> Iterator[None]:
        """The surroundings of every check. without: a variable that the user's own choice of devices is in."""
        before, directory = dict(os.environ), tempfile.tempdir
        mine = {"PATH": str(self.bin), "TMPDIR": str(self.temporary), MARK: str(self.root)}
        mine |= {"XDG_CACHE_HOME": str(self.root / "cache"), "LEVELFIELD_LOCKS": str(self.root / "locks")}
        os.environ.update({**mine, **variables})
        if without and without not in variables:
            os.environ.pop(without, None)
        tempfile.tempdir = str(self.temporary)
        try:
            yield
        finally:
            tempfile.tempdir = directory
            os.environ.clear()
            os.environ.update(before)

    def replay(self, outputs: Outputs) -> None:
        """Put fake tools on PATH that print these outputs. A command of one word answers to any arguments."""
        self.clear()
        for name in {argv[0] for argv in outputs}:
            own = {argv: content for argv, content in outputs.items() if argv[0] == name}
            self.tool(name, "\n".join(_answers(self.root, own)))

    def tool(self, name: str, body: str) -> None:
        path = self.bin / Path(name).name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def clear(self) -> None:
        for path in self.bin.iterdir():
            path.unlink()

    def processes(self) -> list[psutil.Process]:
        """What was started from here, directly or not, and still runs."""
        return [process for process in psutil.process_iter() if _is_ours(process, str(self.root))]

    def end_all(self) -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()


def _answers(root: Path, outputs: Outputs) -> Iterator[str]:
    """Shell that prints the file of its arguments; exact ones before a name that stands for any."""
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
    """A folder in whose /dev the glob `pattern` finds one node for each index."""
    literal = pattern.lstrip("/")
    cut = min((at for at in map(literal.find, "*?[") if at >= 0), default=len(literal))
    for index in indices:
        path = root / f"{literal[:cut]}{index}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root

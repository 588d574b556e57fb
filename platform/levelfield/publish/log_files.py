"""Files and archives with logs of trainings: plain files, tar files, and dgxc-benchmarking's `llmb-archive-*.tar.zst`.

Nothing is extracted. An archive is read as a stream, and its members' content alone goes to the reader of logs. In an
archive of dgxc-benchmarking `llmb-config_<job>.yaml` states a job's devices and precision; its logs have the job's
number in their names.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, cast

from levelfield.errors import DocumentError, UsageError
from levelfield.node.file_sizes import MAX_BYTES_BY_KIND, size_problem
from levelfield.node.regular_files import open_regular
from levelfield.publish.foreign_logs import MAX_LINE_LENGTH, TOOLS, ForeignLog, parse_log, parse_trainer_state
from levelfield.specs.case import Precision

_MAX_UNPACKED_BYTES = 2**34  # of an archive, with the members that are skipped
_TAR_HEADER_BYTES = 512  # of tar, before each member
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_TAR_MAGIC_OFFSET = 257
_OPENERS: dict[bytes, Callable[[Any], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_CONFIG_NAME = re.compile(r"llmb-config_(\d{1,12})\.yaml")
_CONFIG_LINE = re.compile(r"^ {1,4}(scale|gpu_type|dtype|framework): *[\"']?([\w.+-]{1,40})", re.MULTILINE)
_CONFIG_FACTS = {"scale": "devices", "gpu_type": "device_name", "framework": "framework"}


@dataclass(frozen=True)
class LogFile:
    """A log, its name and the digest of its bytes."""

    name: str
    sha256: str
    log: ForeignLog


def read_log_file(path: Path) -> list[LogFile]:
    """Return the log of a file, or every log with steps in an archive. Raises DocumentError that names the file."""
    try:
        with open_regular(path) as file:
            head = file.peek(_TAR_MAGIC_OFFSET + 5)
            if head.startswith((_ZSTD_MAGIC, *_OPENERS)) or head[_TAR_MAGIC_OFFSET : _TAR_MAGIC_OFFSET + 5] == b"ustar":
                with _unpacked(file, path, head) as unpacked:
                    return _archived_logs(unpacked)
            if problem := size_problem("log", os.fstat(file.fileno()).st_size):
                raise ValueError(problem)
            state = _read_trainer_state(path.name, file) if head.lstrip().startswith(b"{") else None
            return [state or _read_log(path.name, file)]
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, ArithmeticError, LookupError, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DocumentError(f"{path}: {error}") from None


def _read_log(name: str, file: IO[bytes]) -> LogFile:
    digest = hashlib.sha256()
    if (log := parse_log(_read_lines(file, digest.update))) is None:
        raise ValueError(f"found no line of a step, expected a log of {TOOLS}")
    return LogFile(name, digest.hexdigest(), log)


def _read_trainer_state(name: str, file: BufferedReader) -> LogFile | None:
    """Return the log of a `trainer_state.json`. None for another file, which can be read again from its beginning."""
    data = file.read(MAX_BYTES_BY_KIND["curve"])
    file.seek(0)
    log = parse_trainer_state(data.decode("utf-8", "replace"))
    return LogFile(name, hashlib.sha256(data).hexdigest(), log) if log else None


def _read_lines(file: IO[bytes], consume: Callable[[bytes], None]) -> Iterator[str]:
    """Yield the lines of a file with their ends; of a line that is too long the beginning. A carriage return ends one.

    consume: called with all bytes.
    """
    line = b""
    while piece := file.readline(MAX_LINE_LENGTH + 1):
        consume(piece)
        for part in piece.splitlines(keepends=True):
            line = (line + part)[: MAX_LINE_LENGTH + 1]
            if part.endswith((b"\n", b"\r")):
                yield from _decoded(line)
                line = b""
    yield from _decoded(line)


def _decoded(line: bytes) -> io.StringIO:
    return io.StringIO(line.decode("utf-8", "replace"), newline=None)


@contextmanager
def _unpacked(file: BufferedReader, path: Path, head: bytes) -> Iterator[IO[bytes]]:
    """Yield the bytes of a tar file. The program `zstd` unpacks zstd, which no Python before 3.14 reads."""
    opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
    if opener is not None:
        with opener(file) as unpacked:
            yield unpacked
    elif not head.startswith(_ZSTD_MAGIC):
        yield file
    elif not (program := shutil.which("zstd")):
        raise UsageError(f"{path}: found a zstd archive, expected the program `zstd` on PATH; install it, or unpack it")
    else:
        os.lseek(file.fileno(), 0, os.SEEK_SET)  # behind what was peeked
        argv = [program, "-dcq"]
        with subprocess.Popen(argv, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            try:
                yield cast("IO[bytes]", process.stdout)
                if process.wait():
                    raise ValueError("found a cut or damaged archive, expected one that zstd unpacks whole")
            finally:
                process.kill()


def _archived_logs(file: IO[bytes]) -> list[LogFile]:
    logs: list[LogFile] = []
    settings: dict[str, dict[str, str]] = {}
    skipped_count = 0
    for name, content in _members(file):
        if config_name := _CONFIG_NAME.fullmatch(name):
            settings[config_name[1]] = dict(_CONFIG_LINE.findall(content.read(2**16).decode("utf-8", "replace")))
        elif name.endswith((".out", ".log", ".txt")):
            try:
                logs.append(_read_log(name, content))
            except ValueError:  # no training's log: of a scheduler, or of a run that never began
                skipped_count += 1
    if not logs:
        raise ValueError(
            f"found no training's log among {skipped_count} files, expected *.out, *.log or *.txt with steps"
        )
    completed = []
    for file_log in logs:  # with what its job's configuration states; the log's own words win
        jobs = [job for job in settings if re.search(rf"(?<!\d){job}(?!\d)", file_log.name)]
        job_settings = settings[jobs[0]] if len(jobs) == 1 else {}
        facts = {_CONFIG_FACTS[name]: value for name, value in job_settings.items() if name in _CONFIG_FACTS}
        if (precision := job_settings.get("dtype")) in Precision.__args__:  # type: ignore[attr-defined]
            facts["precision"] = str(precision)
        stated = {**facts, **file_log.log.stated}
        completed.append(replace(file_log, log=replace(file_log.log, stated=stated)))
    return completed


def _members(file: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the regular files of a tar stream with their last names, and read it to its end."""
    size = 0
    with tarfile.open(fileobj=file, mode="r|") as archive:
        for member in archive:
            size += _TAR_HEADER_BYTES + member.size
            content = archive.extractfile(member) if member.isreg() else None
            if size > _MAX_UNPACKED_BYTES or (content and member.size > MAX_BYTES_BY_KIND["log"]):
                raise ValueError(f"found {member.size:,} bytes of {member.name[:80]}, more than is read")
            if content is not None:
                yield member.name.rsplit("/", 1)[-1], content
    while rest := file.read(2**20):  # a packed file has its checksum at the end
        size += len(rest)
        if size > _MAX_UNPACKED_BYTES:
            raise ValueError(f"found more than {_MAX_UNPACKED_BYTES:,} bytes behind the archive, more than is read")

"""The error tree. Every error a user can cause has a class here, and its exit code.

LevelfieldError
 ├─ UsageError            2  a wrong command line, file, key or value; nothing was run
 │   ├─ DocumentError     2  a document does not say what its schema asks for
 │   ├─ UnknownName       2  no such case, framework, vendor, chip, suite or run
 │   ├─ LayoutError       2  a parallel layout that cannot be
 │   ├─ CorpusError       2  a corpus that is damaged or does not fit the case
 │   ├─ NotHere           2  what is asked for is right, and this machine or framework cannot do it
 │   ├─ StillRunning      2  a result that is asked for while its run goes on
 │   └─ DoesNotFit        2  full scale was asked for where its memory or its hardware is missing
 ├─ RunFailed             3  a run was started and did not end valid
 └─ GateFailed            4  a check found a regression, a misalignment, or evidence that does not hold

Every other exception is a fault of the platform: exit code PLATFORM_FAULT.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path

PLATFORM_FAULT = 5
_MAX_LISTED = 12  # names of a message; of more only the nearest
INTERRUPTED = 130


_MAX_LINES, _MAX_CHARACTERS, _MAX_LINE_CHARACTERS = 60, 16_000, 4_000  # of a message
_END_CHARACTERS = 1_000  # of a line whose middle is left out


def bounded_message(text: str) -> str:
    """Return an error's text as it is printed: without the middle of a very long line, and the end of very many."""
    lines, size = list[str](), 0
    all_lines = text.split("\n")
    for line in all_lines[:_MAX_LINES]:
        if (cut := len(line) - _MAX_LINE_CHARACTERS) > 0:  # what was expected stands at its end
            line = f"{line[:-cut][:-_END_CHARACTERS]} ... {cut:,} more characters ... {line[-_END_CHARACTERS:]}"
        lines.append(line)
        size += len(lines[-1])
        if size > _MAX_CHARACTERS:
            break
    rest = len(all_lines) - len(lines)
    return "\n".join([*lines, *([f"... and {rest:,} more lines"] if rest else [])])


class LevelfieldError(Exception):
    """Base of all; `exit_code` is what the process ends with."""

    exit_code = PLATFORM_FAULT


class UsageError(LevelfieldError):
    exit_code = 2


class DocumentError(UsageError):
    """Names file, key, what was found and what was expected."""


class UnknownName(UsageError):
    """Built from the kind of thing, the name asked for and the names there are."""

    def __init__(self, kind: str, name: str, alternatives: Iterable[str], hint: str = "") -> None:
        names = sorted(alternatives)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4 if len(names) <= _MAX_LISTED else 0.0)
        suggestions = ", ".join(near) if near else ", ".join(names) or "none"
        word = "nearest" if near else "known"
        super().__init__(f"unknown {kind} '{name}'; {word}: {suggestions}.{' ' + hint if hint else ''}")


class LayoutError(UsageError):
    pass


class CorpusError(UsageError):
    pass


class NotHere(UsageError):
    """The request is right, and this machine, environment or framework cannot do it.

    It is also raised where the framework lacks something, such as a step profile or a kind of parallelism. In a suite
    it becomes a result, `unsupported`, and the other entries run.
    """


class StillRunning(UsageError):
    pass


class DoesNotFit(UsageError):
    """Full scale was asked for, and does not fit in memory, or its hardware is not here."""


class RunFailed(LevelfieldError):
    exit_code = 3


class GateFailed(LevelfieldError):
    """A check of results or evidence failed.

    It found a regression or a misalignment, a tampered run or bundle, a missing or wrong signature, a result that its
    raw files do not give, or a run that certifies nothing.
    """

    exit_code = 4


# What a library's errors of a connection mean, the most telling first.
_CONNECTION = {
    "its name does not resolve": ("NameResolutionError", "gaierror"),
    "its certificate is not accepted": ("SSLError", "SSLCertVerificationError", "CertificateError"),
    "the proxy does not let the request through": ("ProxyError",),
    "there was no connection in time": ("ConnectTimeoutError", "ConnectTimeout"),
    "there was no answer in time": ("ReadTimeoutError", "ReadTimeout", "TimeoutError", "timeout"),
    "the connection broke before the answer was whole": (
        "RemoteDisconnected", "IncompleteRead", "ConnectionResetError", "BrokenPipeError", "ProtocolError",
    ),
}  # fmt: skip
_OBJECTS = re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>[:,]? ?|HTTPS?Connection(Pool)?\([^)]*\)[:,]? ?")


def connection_failure_text(error: BaseException) -> str:
    """Return the reason why a request got no answer, in words of the network and not of the library that sent it."""
    chain = [error]
    for link in chain:  # each library keeps the cause of an error in another place
        candidates = (getattr(link, "reason", None), *link.args, link.__cause__, link.__context__)
        causes = (c for c in candidates if isinstance(c, BaseException) and c not in chain)
        chain += [cause] if (cause := next(causes, None)) else []
    names = {type(link).__name__ for link in chain}
    for meaning, types in _CONNECTION.items():
        if names & {*types}:
            detail = next((str(v) for link in chain if (v := getattr(link, "verify_message", None))), None)
            return f"{meaning}: {detail}" if detail else meaning
    system = next((link.strerror for link in chain if isinstance(link, OSError) and link.strerror), None)
    text = system or " ".join(_OBJECTS.sub("", str(error)).split())[:300]
    return text[:1].lower() + text[1:] if text else type(error).__name__


_FULL = (errno.ENOSPC, errno.EDQUOT)
_WRITABLE = "Mount it for writing (`dmesg` says why it is not)"


def write_failure_text(error: OSError, place: Path) -> str:
    """Return path and reason of a failed write, with the space that is left where the disk is full."""
    return f"{error.filename or place}: {error.strerror}{free_space_note(error, place)}"


def write_failure_remedy(error: OSError) -> str:
    """Return what to do about a failed write, as the beginning of a sentence that the caller ends.

    For a message that already has the text of `write_failure_text`.
    """
    if error.errno in _FULL:
        return "Free some space"
    return _WRITABLE if error.errno == errno.EROFS else "Mend that"


def write_failure_ending(error: OSError, place: Path) -> str:
    """Return the ending of a message that already names the file and the reason of a failed write.

    It is the space that is left on a full disk, or what to do about a read-only one; else empty.
    """
    return f". {_WRITABLE}, or name another place" if error.errno == errno.EROFS else free_space_note(error, place)


def free_space_note(error: OSError, place: Path) -> str:
    """Return the space that is left, in parentheses, where the disk is full; else an empty text."""
    if error.errno not in _FULL:
        return ""
    disk = os.statvfs(next(path for path in (place, *place.parents) if path.exists()))
    return f" ({disk.f_bavail * disk.f_frsize:,} bytes and {disk.f_favail:,} files free)"

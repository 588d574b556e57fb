"""The form of a bundle: a zip archive of raw files under a manifest, with bounds for its readers.

runs/<run id>/<file> for each file, manifest.json with the digest of each, and manifest.json.sig if it is signed.
"""

from __future__ import annotations

import re
import struct
import zipfile
from typing import ClassVar

from pydantic import Field

from levelfield.specs.base import Document, Value
from levelfield.specs.result import SealFinding

MANIFEST, SIGNATURE = "manifest.json", "manifest.json.sig"
MOST_BYTES = 64 * 2**20  # of the archive, and of all members together
MOST_MEMBERS = 2000
MOST_RATIO = 200  # of a member to its compressed bytes
MADE = (1980, 1, 1, 0, 0, 0)  # the date of every member: the earliest that the format knows
MODE = 0o100644 << 16  # a regular file
_FILE = (
    r"(?:plan|job|request|provenance|outcome|reference|certificate|result)\.json|telemetry\.jsonl"
    r"|events/[A-Za-z0-9][\w.-]{0,99}\.jsonl|(?:logs|nodes|image)/[A-Za-z0-9][\w.-]{0,99}"
)
FILE_NAME = re.compile(_FILE, re.ASCII)
RUN_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)
MEMBER_NAME = re.compile(rf"{re.escape(MANIFEST)}|{re.escape(SIGNATURE)}|runs/{RUN_NAME.pattern}/(?:{_FILE})", re.ASCII)


_HEADER = struct.Struct("<4s2B4H3L2H")  # the three records of a zip archive, by PKWARE's APPNOTE.TXT
_ENTRY = struct.Struct("<4s4B4H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_LONGEST_ENTRY = 400  # bytes of a member in the list; a name has at most 321
_VERSION, _UNIX, _DATE = 20, 3, 33  # deflate; whose rights a member has; the first of January 1980


def header_of(info: zipfile.ZipInfo) -> bytes:
    """Return the header before a member, in which every field has its only value."""
    name = info.filename.encode()
    sizes = (info.CRC, info.compress_size, info.file_size, len(name), 0)
    return _HEADER.pack(b"PK\3\4", _VERSION, 0, 0, info.compress_type, 0, _DATE, *sizes) + name


def entry_of(info: zipfile.ZipInfo) -> bytes:
    """Return the entry of a member in the archive's list, without extra fields and comment."""
    name = info.filename.encode()
    sizes = (info.CRC, info.compress_size, info.file_size, len(name), 0, 0, 0, 0)
    start = (b"PK\1\2", _VERSION, _UNIX, _VERSION, 0, 0, info.compress_type, 0, _DATE)
    return _ENTRY.pack(*start, *sizes, MODE, info.header_offset) + name


def end_of(count: int, size: int, place: int) -> bytes:
    """Return the end of an archive: so many members, whose list has a size and a place."""
    return _END.pack(b"PK\5\6", 0, 0, count, count, size, place, 0)


def is_ended(content: bytes) -> bool:
    """Return whether an archive ends as a bundle does, with a list of members that is short enough to be read."""
    if len(content) < _END.size or content[-_END.size - 20 :].startswith(b"PK\6\7"):  # the locator of a larger archive
        return False
    mark, *_, size, place, comment = _END.unpack_from(content, len(content) - _END.size)
    is_at_the_end = mark == b"PK\5\6" and comment == 0 and place + size + _END.size == len(content)
    return bool(is_at_the_end and size <= MOST_MEMBERS * _LONGEST_ENTRY)


class BundledFile(Value):
    """A file of a run. original: its digest in the run directory; of outcome.json the one that the seal holds.

    stored: the digest of the member; None where the file is left out. replaced: texts replaced by placeholders. cut:
    bytes left out at the beginning of a long log.
    """

    original: str
    stored: str | None
    replaced: int = Field(default=0, ge=0)
    cut: int = Field(default=0, ge=0)

    @property
    def is_whole(self) -> bool:
        """Whether the member is the file as the run left it."""
        return self.stored is not None and not self.replaced and not self.cut


class BundledRun(Value):
    """A run of a bundle. seal: the finding on its files before any was redacted.

    software: the digest of its packages and of the vendor's software, for its certificate.
    """

    seal: SealFinding
    software: str | None
    files: dict[str, BundledFile]


class Replacement(Value):
    """What was replaced: its kind (`secret`, `path`, `folder`, `host`, `user`, `device`), by what, and how often."""

    kind: str
    placeholder: str
    times: int = Field(ge=1)


class Manifest(Document):
    """manifest.json. kept: names of users or hosts that are also words of a run and were not replaced: how many.

    digest: of all other keys.
    """

    KIND: ClassVar[str] = "bundle"

    platform_version: str
    runs: dict[str, BundledRun]
    replacements: tuple[Replacement, ...]
    kept: int = 0
    digest: str

    @property
    def content_digest(self) -> str:
        """The digest that the manifest has to have."""
        return self.model_copy(update={"digest": ""}).fingerprint()

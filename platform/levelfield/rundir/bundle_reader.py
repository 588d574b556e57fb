"""Reads a bundle in memory, without trust: a closed list of names, bounds, and no byte that is not of a member.

No library extracts anything. A member is written by `written` alone, under its checked name, into a private folder.
DocumentError: the file is no bundle. GateFailed: it is one, and something about it is not right.
"""

from __future__ import annotations

import hashlib
import io
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelfield.errors import DocumentError, GateFailed
from levelfield.rundir import bundle_format
from levelfield.rundir.bundle_format import MANIFEST, MEMBER_NAME, SIGNATURE, BundledRun, Manifest
from levelfield.rundir.event_lines import Event, event_or_none
from levelfield.rundir.seal import FACTS, OUTCOME, document_of, finding_of, stored_seal, tampered
from levelfield.rundir.strict_json import strict_json, strict_lines
from levelfield.specs.base import parse
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import SealFinding

RESULT = "result.json"  # what the bundle states; every other file of a run is raw
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
    OSError,
)


@dataclass(frozen=True)
class RunInBundle:
    """A run of a bundle. files: by path in its run directory."""

    name: str
    files: dict[str, bytes]
    listed: BundledRun

    @property
    def seal(self) -> SealFinding:
        """Whether the files that the bundle lists are those that the run sealed.

        Of a redacted file the manifest keeps the digest before, which nobody can compute again from the bundle.
        """
        entries = {name: entry for name, entry in self.listed.files.items() if name != RESULT}
        if changed := sorted(n for n, e in entries.items() if n != OUTCOME and e.is_whole and e.stored != e.original):
            return tampered(f"changed and not listed as redacted: {', '.join(changed[:3])}", {})
        originals: dict[str, str | None] = {name: entry.original for name, entry in entries.items() if name != OUTCOME}
        own = entries.get(OUTCOME)
        before = own.original if own and not own.is_whole else None
        return finding_of(self._outcome, originals, self._without_names(), before)

    @property
    def redacted(self) -> list[str]:
        """The names of the files that are not as the run left them."""
        return sorted(name for name, entry in self.listed.files.items() if not entry.is_whole)

    @property
    def unbound(self) -> list[str]:
        """The redacted files of which nothing is held against the seal.

        Of every other redacted file the seal holds a digest of what names no place, person or device.
        """
        seal = stored_seal(self._outcome or {})
        return [name for name in self.redacted if seal is None or f"{name}{FACTS}" not in seal.files]

    @property
    def _outcome(self) -> Event | None:
        return event_or_none(self.files.get(OUTCOME, b""))

    def _without_names(self) -> dict[str, Any]:
        """Return the JSON of the files that are not as the run left them."""
        named = [name for name in self.redacted if name.endswith((".json", ".jsonl")) and name in self.files]
        found = {name: document_of(name, self.files[name]) for name in named}
        return {name: document for name, document in found.items() if document is not None}


@dataclass(frozen=True)
class Bundle:
    """A bundle whose members are those of its manifest. signed: the bytes of the manifest, which a signature is of."""

    manifest: Manifest
    signed: bytes
    signature: bytes | None
    runs: tuple[RunInBundle, ...]


def read_bundle(path: Path) -> Bundle:
    """Return a bundle. Raises DocumentError for a file that is none, GateFailed for a bundle that breaks a rule."""
    return bundle_of(_content(path), str(path))


def bundle_of(content: bytes, origin: str) -> Bundle:
    """Return the bundle that an archive holds. origin: its name in errors."""
    members = _members(content, origin)
    manifest = _manifest(members[MANIFEST], origin)
    files = {name: member for name, member in members.items() if name not in (MANIFEST, SIGNATURE)}
    listed = {
        f"runs/{run}/{name}": entry.stored
        for run, found in manifest.runs.items()
        for name, entry in found.files.items()
        if entry.stored is not None
    }
    _check_members(files, listed, origin)
    return Bundle(manifest, members[MANIFEST], members.get(SIGNATURE), tuple(_runs(files, manifest)))


@contextmanager
def written(run: RunInBundle) -> Iterator[RunPaths]:
    """Write the files of a run into a private folder for the block. Every name was checked when the bundle was read."""
    with tempfile.TemporaryDirectory(prefix="levelfield-bundle-") as folder:
        root = Path(folder) / run.name
        for name, content in run.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)
        yield RunPaths(root)


def _content(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise DocumentError(f"{path}: found no file, expected a bundle, which `bundle RUN --output FILE` writes")
        if (size := path.stat().st_size) > bundle_format.MOST_BYTES:
            raise DocumentError(f"{path}: found {size:,} bytes, expected at most {bundle_format.MOST_BYTES:,}")
        return path.read_bytes()
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from None


def _members(content: bytes, origin: str) -> dict[str, bytes]:
    """Return the members of an archive. The library reads its list only; what is between is read here."""
    try:
        if not bundle_format.is_ended(content):
            raise ValueError("its last bytes are not the end of an archive of `bundle`")
        with zipfile.ZipFile(io.BytesIO(content)) as listed:
            infos = listed.infolist()
    except _BROKEN as error:
        raise DocumentError(f"{origin}: not a bundle, or a truncated one: {error}") from None
    if MANIFEST not in {info.filename for info in infos}:
        raise DocumentError(f"{origin}: not a bundle: found no {MANIFEST} in the archive")
    if why := _why_refused(infos) or next(filter(None, map(_why_not, infos)), None) or _why_not_dense(infos, content):
        raise GateFailed(f"{origin}: refused: {why}")
    return {info.filename: _read(info, content, origin) for info in infos}


def _why_refused(infos: list[zipfile.ZipInfo]) -> str | None:
    """Return what is wrong with the list of members as a whole; None for nothing."""
    names = [info.filename for info in infos]
    if len(infos) > bundle_format.MOST_MEMBERS:
        return f"found {len(infos):,} members, expected at most {bundle_format.MOST_MEMBERS:,}"
    if twice := sorted({name for name in names if names.count(name) > 1}):
        return f"found member '{twice[0]}' twice"
    if len({name.casefold() for name in names}) < len(names):
        return "found two members whose names differ in capitals only"
    if (size := sum(info.file_size for info in infos)) > bundle_format.MOST_BYTES:
        return f"found members of {size:,} bytes, expected at most {bundle_format.MOST_BYTES:,}"
    return None


def _why_not(info: zipfile.ZipInfo) -> str | None:
    """Return what is wrong with a member; None for nothing."""
    name = info.filename
    if not MEMBER_NAME.fullmatch(name) or info.orig_filename != name:
        return f"found a member '{name[:120]}', which no bundle has"
    if info.external_attr != bundle_format.MODE:
        return f"member '{name}': found a link or another kind of file, expected a regular file"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"member '{name}': found compression {info.compress_type}, expected none or deflate"
    if info.file_size > bundle_format.MOST_RATIO * max(1, info.compress_size):
        ratio = info.file_size / max(1, info.compress_size)
        return f"member '{name}': found {ratio:,.0f} times its compressed size, expected {bundle_format.MOST_RATIO}"
    return None


def _why_not_dense(infos: list[zipfile.ZipInfo], content: bytes) -> str | None:
    """Return where the archive has other bytes than its members and the headers that `bundle` writes; None: nowhere.

    The members follow each other, then comes the list of them, then the end, and each field has its one right value.
    """
    place, listed = 0, b""
    for info in infos:
        header = bundle_format.header_of(info)
        if info.header_offset != place or content[place : place + len(header)] != header:
            return (
                f"the header of member '{info.filename}' differs from the archive's list, or other bytes are before it"
            )
        place += len(header) + info.compress_size
        listed += bundle_format.entry_of(info)
    if content[place:] != listed + bundle_format.end_of(len(infos), len(listed), place):
        return "found bytes that belong to no member"
    return None


def _read(info: zipfile.ZipInfo, content: bytes, origin: str) -> bytes:
    """Return a member, whose header was checked. It cannot become longer than the list says."""
    begin = info.header_offset + len(bundle_format.header_of(info))
    packed = found = content[begin : begin + info.compress_size]
    is_whole = True
    if info.compress_type == zipfile.ZIP_DEFLATED:
        inflating = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            found = inflating.decompress(packed, info.file_size + 1)
        except zlib.error:
            is_whole = False
        is_whole = is_whole and inflating.eof and not inflating.unused_data
    if not is_whole or len(found) != info.file_size or zlib.crc32(found) != info.CRC:
        raise GateFailed(f"{origin}: refused: member '{info.filename}' is damaged, or has another size than listed")
    return found


def _manifest(content: bytes, origin: str) -> Manifest:
    where = f"{origin}: {MANIFEST}"
    try:
        found = parse(Manifest, strict_json(content), where)
    except ValueError as error:
        raise DocumentError(f"{where}: {error}") from None
    if found.digest != found.content_digest:
        raise GateFailed(f"{where}: found digest {found.digest}, expected {found.content_digest}: it was changed")
    return found


def _check_members(files: dict[str, bytes], listed: dict[str, str], origin: str) -> None:
    """Check that the members are those of the manifest, and that their JSON is strict. Raises GateFailed."""
    for name in sorted(files.keys() | listed.keys()):
        if name not in listed:
            raise GateFailed(f"{origin}: refused: member '{name}' is not in the manifest: it was added")
        if name not in files:
            raise GateFailed(f"{origin}: refused: member '{name}' of the manifest is missing")
        if f"sha256:{hashlib.sha256(files[name]).hexdigest()}" != listed[name]:
            raise GateFailed(f"{origin}: refused: member '{name}' differs from its digest in the manifest")
        try:
            _check_json(name, files[name])
        except ValueError as error:
            raise GateFailed(f"{origin}: refused: member '{name}': {error}") from None


def _check_json(name: str, content: bytes) -> None:
    if name.endswith(".jsonl"):
        strict_lines(content)
    elif name.endswith(".json"):
        strict_json(content)


def _runs(files: dict[str, bytes], manifest: Manifest) -> Iterator[RunInBundle]:
    for run, listed in manifest.runs.items():
        before = f"runs/{run}/"
        yield RunInBundle(run, {n.removeprefix(before): c for n, c in files.items() if n.startswith(before)}, listed)

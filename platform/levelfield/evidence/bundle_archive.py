"""The archive of a bundle: a zip file in which every byte has one right value, written and read in memory.

runs/<run id>/<file> for each file, manifest.json with the digest of each, and manifest.json.sig if it is signed: by
OpenSSH, with a key that the user has already, and checked against a file of allowed signers.

The library reads the list at the end only. Members are inflated here, up to the size that the list states.
"""

from __future__ import annotations

import io
import re
import struct
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from levelfield.errors import DocumentError, GateFailed, UsageError
from levelfield.node.file_sizes import size_problem
from levelfield.specs.base import repeated_names
from levelfield.specs.bundle import MANIFEST, SIGNATURE

_MEMBER_DATE = (1980, 1, 1, 0, 0, 0)  # the date of every member: the earliest that the format knows
_FILE_ATTRIBUTES = 0o100644 << 16  # a regular file
_MEMBER_HEADER = struct.Struct("<4s2B4H3L2H")  # the three records of a zip archive, by PKWARE's APPNOTE.TXT
_LIST_ENTRY = struct.Struct("<4s4B4H3L5H2L")
_ARCHIVE_END = struct.Struct("<4s4H2LH")
_MAX_ENTRY_BYTES = 400  # of a member in the list, in bytes; a name has at most 321
# Fields of a member's header: the format's version with deflate, the system of its rights, 1 January 1980.
_VERSION, _UNIX, _DATE = 20, 3, 33
# What the library raises for a damaged archive.
_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, EOFError, ValueError, OSError)

SIGNATURE_NAMESPACE = "levelfield"  # of signatures
_SSH_SECONDS = 120  # a key may need its passphrase

MAX_BUNDLE_BYTES = 64 * 2**20  # of all members together, inflated
MAX_MEMBERS = 2000
MAX_COMPRESSION_RATIO = 200  # of a member's bytes to its compressed bytes
_FILE_PATTERN = (
    r"(?:plan|job|request|preflight|provenance|outcome|reference|certificate|result)\.json"
    r"|(?:telemetry|node_power)\.jsonl|telemetry/node[0-9]{1,6}(?:\.raw)?\.jsonl|events/[A-Za-z0-9][\w.-]{0,99}\.jsonl"
    r"|(?:logs|nodes|image)/[A-Za-z0-9][\w.-]{0,99}"
)
FILE_NAME = re.compile(_FILE_PATTERN, re.ASCII)
RUN_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)
MEMBER_NAME = re.compile(
    rf"{re.escape(MANIFEST)}|{re.escape(SIGNATURE)}|runs/{RUN_NAME.pattern}/(?:{_FILE_PATTERN})", re.ASCII
)


def make_archive(members: Mapping[str, bytes]) -> bytes:
    """Return a zip archive: sorted, with one date, and without anything but the members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive_file:
        for name, content in sorted(members.items()):
            info = zipfile.ZipInfo(name, _MEMBER_DATE)
            info.external_attr, info.create_system = _FILE_ATTRIBUTES, _UNIX
            # Compressed, except where a reader would take the ratio for a trap.
            is_dense = len(content) <= MAX_COMPRESSION_RATIO / 2 * len(zlib.compress(content))
            info.compress_type = zipfile.ZIP_DEFLATED if is_dense else zipfile.ZIP_STORED
            archive_file.writestr(info, content)
    return buffer.getvalue()


def read_members(content: bytes, origin: str) -> dict[str, bytes]:
    """Return the members of an archive by name. origin: the name of the archive in errors.

    Raises DocumentError for a file that is no bundle, GateFailed for a bundle that breaks a rule.
    """
    end, has_end = len(content) - _ARCHIVE_END.size, False
    if end >= 0 and not content[max(0, end - 20) :].startswith(b"PK\6\7"):  # the locator of a larger archive
        magic, *_, size, offset, comment = _ARCHIVE_END.unpack_from(content, end)
        is_last = magic == b"PK\5\6" and comment == 0 and offset + size == end
        has_end = is_last and size <= MAX_MEMBERS * _MAX_ENTRY_BYTES  # short enough to be read
    try:
        if not has_end:
            raise ValueError("its last bytes are not the end of an archive of `evidence bundle`")
        with zipfile.ZipFile(io.BytesIO(content)) as archived:
            infos = archived.infolist()
    except _ARCHIVE_ERRORS as error:
        raise DocumentError(f"{origin}: not a bundle, or a truncated one: {error}") from None
    if MANIFEST not in {info.filename for info in infos}:
        raise DocumentError(f"{origin}: not a bundle: found no {MANIFEST} in the archive")
    fault = next(filter(None, map(_member_fault, infos)), None) or _list_fault(infos) or _stray_bytes(infos, content)
    if fault:
        raise GateFailed(f"{origin}: refused: {fault}")
    return {info.filename: _read_member(info, content, origin) for info in infos}


def _list_fault(infos: list[zipfile.ZipInfo]) -> str | None:
    """Return what is wrong with the list of members as a whole; None for nothing."""
    names = [info.filename for info in infos]
    if len(infos) > MAX_MEMBERS:
        return f"found {len(infos):,} members, expected at most {MAX_MEMBERS:,}"
    if duplicates := repeated_names(names):
        return f"found member '{duplicates[0]}' twice"
    if len({name.casefold() for name in names}) < len(names):
        return "found two members whose names differ in capitals only"
    if (size := sum(info.file_size for info in infos)) > MAX_BUNDLE_BYTES:
        return f"found members of {size:,} bytes, expected at most {MAX_BUNDLE_BYTES:,}"
    return None


def _member_fault(info: zipfile.ZipInfo) -> str | None:
    name, ratio = info.filename, info.file_size / max(1, info.compress_size)
    if not MEMBER_NAME.fullmatch(name) or info.orig_filename != name:
        return f"found a member {name[:120]!r}, which no bundle has"
    if info.external_attr != _FILE_ATTRIBUTES:
        attributes, expected = (
            f"{mode >> 16:o}, {mode & 0xFFFF:#x}" for mode in (info.external_attr, _FILE_ATTRIBUTES)
        )
        return (
            f"member '{name}': found attributes {attributes}, expected {expected} of a regular file: it is a link or "
            "another kind of file, or another program than `evidence bundle` wrote the archive"
        )
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"member '{name}': found compression {info.compress_type}, expected none or deflate"
    if info.file_size > MAX_COMPRESSION_RATIO * max(1, info.compress_size):
        return f"member '{name}': found {ratio:,.0f} times its compressed size, expected {MAX_COMPRESSION_RATIO}"
    return None


def _stray_bytes(infos: list[zipfile.ZipInfo], content: bytes) -> str | None:
    """Return where the archive has bytes that `evidence bundle` does not write; None: nowhere.

    The members follow each other, then comes the list of them, then the end, and each field has its one right value.
    """
    offset, entries = 0, b""
    for info in infos:
        header = _member_header(info)
        if info.header_offset != offset or content[offset : offset + len(header)] != header:
            return (
                f"the header of member '{info.filename}' differs from the archive's list, or other bytes are before it"
            )
        offset += len(header) + info.compress_size
        # the member's entry in the archive's list, without extra fields and comment
        name = info.filename.encode()
        sizes = (info.CRC, info.compress_size, info.file_size, len(name), 0, 0, 0, 0)
        start = (b"PK\1\2", _VERSION, _UNIX, _VERSION, 0, 0, info.compress_type, 0, _DATE)
        entries += _LIST_ENTRY.pack(*start, *sizes, _FILE_ATTRIBUTES, info.header_offset) + name
    if content[offset:] != entries + _ARCHIVE_END.pack(
        b"PK\5\6", 0, 0, len(infos), len(infos), len(entries), offset, 0
    ):
        return "found bytes that belong to no member"
    return None


def _read_member(info: zipfile.ZipInfo, content: bytes, origin: str) -> bytes:
    """Return a member, whose header was checked. It cannot become longer than the list says."""
    begin = info.header_offset + len(_member_header(info))
    member, is_whole = content[begin : begin + info.compress_size], True
    if info.compress_type == zipfile.ZIP_DEFLATED:
        decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            member = decompressor.decompress(member, info.file_size + 1)
            is_whole = decompressor.eof and not decompressor.unused_data
        except zlib.error:
            is_whole = False
    if not is_whole or len(member) != info.file_size or zlib.crc32(member) != info.CRC:
        raise GateFailed(f"{origin}: refused: member '{info.filename}' is damaged, or has another size than listed")
    return member


def _member_header(info: zipfile.ZipInfo) -> bytes:
    """Return the header before a member, in which every field has its only value."""
    name = info.filename.encode()
    sizes = (info.CRC, info.compress_size, info.file_size, len(name), 0)
    return _MEMBER_HEADER.pack(b"PK\3\4", _VERSION, 0, 0, info.compress_type, 0, _DATE, *sizes) + name


class Signer(NamedTuple):
    """Who signed."""

    name: str  # as the file of allowed signers has it
    key: str  # in the words of ssh-keygen


def make_signature(content: bytes, key: Path) -> bytes:
    """Return the signature of `content`. Raises UsageError for a key that does not sign."""
    if not key.is_file():
        raise UsageError(f"--sign {key}: found no file, expected a private key of ssh (or the public one of an agent)")
    _refuse_oversized("--sign", key, "key")  # ssh-keygen would search all of it for a key
    completed = _ssh_keygen(["-Y", "sign", "-n", SIGNATURE_NAMESPACE, "-f", str(key)], content)
    if completed.returncode or not completed.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        raise UsageError(f"--sign {key}: ssh-keygen made no signature: {_message(completed)}")
    return completed.stdout


def verify_signature(content: bytes, signature: bytes, allowed_signers: Path, name: str | None) -> Signer:
    """Return who signed `content`. allowed_signers: a file. name: the only signer that counts; None: any.

    Raises GateFailed for a signature that does not hold, UsageError for a missing file.
    """
    if not allowed_signers.is_file():
        raise UsageError(f"--allowed-signers {allowed_signers}: found no file, expected one as in `man ssh-keygen`")
    _refuse_oversized("--allowed-signers", allowed_signers, "signers")
    with tempfile.TemporaryDirectory(prefix="levelfield-signature-") as folder:
        path = Path(folder) / "signature"
        path.write_bytes(signature)
        signers = [name] if name else []
        if not name:
            principals = _ssh_keygen(["-Y", "find-principals", "-f", str(allowed_signers), "-s", str(path)], b"")
            lines = principals.stdout.decode(errors="replace").splitlines() if principals.returncode == 0 else []
            signers = [signer for line in lines for signer in line.split(",") if signer]
        for signer in signers:
            arguments = [
                "-Y",
                "verify",
                "-n",
                SIGNATURE_NAMESPACE,
                "-f",
                str(allowed_signers),
                "-I",
                signer,
                "-s",
                str(path),
            ]
            completed = _ssh_keygen(arguments, content)
            if completed.returncode == 0:
                return Signer(signer, _message(completed))
    signer_words = f"'{name}'" if name else "a signer whom the file allows"
    raise GateFailed(f"the signature is not of {signer_words}, or the manifest was changed after it was signed")


def _refuse_oversized(option: str, path: Path, kind: str) -> None:
    if problem := size_problem(kind, path.stat().st_size):
        raise UsageError(f"{option} {path}: {problem}")


def _ssh_keygen(arguments: Sequence[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments], input=content, capture_output=True, timeout=_SSH_SECONDS, check=False
        )
    except FileNotFoundError:
        raise UsageError("ssh-keygen is not on PATH; install OpenSSH 8.2 or later to sign and to check") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"ssh-keygen did not answer: {error}") from None


def _message(completed: subprocess.CompletedProcess[bytes]) -> str:
    return " ".join((completed.stderr or completed.stdout).decode(errors="replace").split())[:200] or "no words"

"""The raw files of a run directory that a seal covers: which they are, opened without following links, and digested."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from levelfield.node.regular_files import MOST_BYTES, MOST_DOCUMENT_BYTES, read_regular
from levelfield.rundir.event_lines import Event, event_or_none
from levelfield.specs.paths import RunPaths

OUTCOME = "outcome.json"  # holds the seal, and is sealed besides it
FILES = (
    "certificate.json", "job.json", "plan.json", "preflight.json", "provenance.json", "reference.json",
    "request.json", "telemetry.jsonl",
)  # fmt: skip
FOLDERS = {
    "events": ".jsonl",
    "image": "",
    "logs": "",
    "nodes": "",
    "telemetry": "",
}  # with the ending of their sealed files
# What no figure rests on: tensors that are large, and what is computed from the sealed files.
LEFT_OUT = ("capture", "weights", "status.json", "result.json", "report.md")
_PART_BYTES = 2**20
MOST_SEALED_BYTES = 2**32  # of a file that is sealed: its digest takes seconds


def raw_paths(root: Path) -> Iterator[tuple[str, Path]]:
    """Return every raw file of a run directory but outcome.json, by its path, in order. Links are not followed."""
    for name in FILES:
        if os.path.lexists(root / name):
            yield name, root / name
    for folder, ending in sorted(FOLDERS.items()):
        if (root / folder).is_symlink():
            yield folder, root / folder
        elif (root / folder).is_dir():
            yield from _below(root, folder, ending)


def opened(path: Path) -> int | None:
    """Return a descriptor of a regular file; None for a link, a pipe, a device, and what cannot be read."""
    try:
        found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(found).st_mode):
        return found
    os.close(found)
    return None


def _below(root: Path, folder: str, ending: str) -> Iterator[tuple[str, Path]]:
    """Return the files below a folder, and the links to folders, which nothing else may hide behind."""
    found = []
    for place, folders, names in os.walk(root / folder):
        found += [Path(place, name) for name in names if name.endswith(ending)]
        found += [Path(place, name) for name in folders if Path(place, name).is_symlink()]
    yield from ((_shown(path.relative_to(root)), path) for path in sorted(found))


def _shown(path: Path) -> str:
    """Return the name as JSON can hold it: bytes that are not UTF-8 are written out."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def digests(paths: RunPaths) -> dict[str, str | None]:
    """Return the digest of each raw file but outcome.json, by name; None for what cannot be sealed."""
    return {name: _file_digest(path) for name, path in raw_paths(paths.root)}


def _file_digest(path: Path) -> str | None:
    """Return the digest of a file, which is read once and in parts; None as `opened` does, and for a larger file."""
    descriptor = opened(path)
    if descriptor is None:
        return None
    digest, size = hashlib.sha256(), os.fstat(descriptor).st_size
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while size <= MOST_SEALED_BYTES and (part := file.read(_PART_BYTES)):
            digest.update(part)
            size = max(size, file.tell())
    return None if size > MOST_SEALED_BYTES else f"sha256:{digest.hexdigest()}"


def sha256_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def documents(paths: RunPaths, found: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the content of every regular file that is JSON, by its name."""
    named = {
        name: path for name, path in raw_paths(paths.root) if found.get(name) and name.endswith((".json", ".jsonl"))
    }
    contents = {name: _content(name, path) for name, path in named.items()}
    return {name: content for name, content in contents.items() if content is not None}


def document_of(name: str, content: bytes) -> Any:
    """Return the object of a .json file, and the objects of the lines of a .jsonl file; None for what is no JSON.

    A line that is no JSON is null: it makes a run invalid anyway.
    """
    if name.endswith(".jsonl"):
        return [event_or_none(line) for line in content.split(b"\n") if line]
    return event_or_none(content)


def document(path: Path) -> Event | None:
    """Return the JSON object of a file; None for anything else."""
    found = _content("", path)
    return found if isinstance(found, dict) else None


def _content(name: str, path: Path) -> Any:
    """Return what a file holds, as `document_of` does; None for one that cannot be read."""
    largest = MOST_BYTES if name.endswith(".jsonl") else MOST_DOCUMENT_BYTES
    try:
        return document_of(name, read_regular(path, largest=largest))
    except OSError:
        return None

"""What recorded runs rest on: files with their digests, each once, and sets of files, which runs share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from pydantic import model_validator

from levelfield.specs.base import Value

KEY_LENGTH = 12
FileDigests = Mapping[str, str]  # path to sha256


class Basis(Value):
    """The files and the sets of files that runs rest on.

    files: by key, "DIGEST  PATH" as sha256sum prints it. A path begins with models/, platform/ or tests/gpu/. That of a
    manifest ends with #KIND, and its digest is of the parts that a training on this kind of device follows from.
    sets: by key, the keys of files, with a space between. Each key is the begin of a digest of what it stands for, so
    that a digest edited by hand is an error.
    """

    files: dict[str, str]
    sets: dict[str, str]

    @model_validator(mode="after")
    def _keys_are_those_of_their_content(self) -> Basis:
        for key, line in self.files.items():
            digest, separator, path = line.partition("  ")
            if not separator or key != file_key(path, digest):
                raise ValueError(f"files.{key}: its content has another key; it was edited. Train the runs again")
        for key, names in self.sets.items():
            lost = [name for name in names.split() if name not in self.files]
            if lost or key != set_key(names.split()):
                why = f"found no file {lost[0]}" if lost else "its content has another key; it was edited"
                raise ValueError(f"sets.{key}: {why}. Train the runs again")
        return self

    def of(self, key: str) -> dict[str, str]:
        """Return the digests of a set, by path."""
        pairs = (self.files[name].split("  ", 1) for name in self.sets[key].split())
        return {path: digest for digest, path in pairs}


def file_key(path: str, digest: str) -> str:
    return _short(f"{digest}  {path}")


def set_key(files: Iterable[str]) -> str:
    return _short(" ".join(files))


def key_of(digests: FileDigests) -> str:
    """Return the key of the set of these files."""
    return set_key(file_key(path, digests[path]) for path in sorted(digests))


def basis_of(sets: Iterable[FileDigests]) -> Basis:
    """Return the basis that has these sets."""
    files: dict[str, str] = {}
    found: dict[str, str] = {}
    for digests in sets:
        own = {file_key(path, digests[path]): f"{digests[path]}  {path}" for path in sorted(digests)}
        files |= own
        found[set_key(own)] = " ".join(own)
    return Basis(files=dict(sorted(files.items(), key=lambda item: item[1].split("  ", 1)[1])), sets=found)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]

"""What a site consists of: its files, and which series they came from. `report serve` gives out these files alone."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any, ClassVar

from pydantic_core import to_json

from levelfield.errors import DocumentError, UsageError
from levelfield.rundir.directory import room_left, write_atomically
from levelfield.specs.base import Document, dump, load

NAME = "site.json"
# A page, or a file of assets/ or data/. No other file is ever written, served or removed.
PLACES = re.compile(r"(zh/)?[a-z0-9-]+\.html|(assets|assets/uplot|data)/[A-Za-z0-9][A-Za-z0-9._-]*")

# A page that was opened from a file may not fetch. It may load a script. So each data file calls one function with a
# text of JSON. A text is parsed and not executed: a key such as `__proto__` stays a key.
DIGITS = 10  # of a name's digest: 40 bits, enough for a million names
_UNSAFE = re.compile(r"[^a-z0-9]+")
_READABLE = 40


class PagesManifest(Document):
    """site.json of a site. files: by name a digest of what they were made from, empty for those made each time.

    private: whether runs stand in it that are not to be published.
    """

    KIND: ClassVar[str] = "site"

    files: dict[str, str]
    private: bool = False


def manifest_of(folder: Path) -> PagesManifest:
    """Return the manifest of a site. Raises UsageError for a folder that is no site."""
    try:
        found = load(PagesManifest, folder / NAME)
    except DocumentError as error:
        raise UsageError(
            f"{folder}: this is no folder of pages; make one with `report pages {folder}`. {error}"
        ) from None
    if foreign := [name for name in found.files if not PLACES.fullmatch(name)]:
        raise UsageError(f"{folder / NAME}: key 'files': found '{foreign[0]}', expected pages, assets/ and data/")
    return found


def opened(folder: Path, private: bool = False) -> PagesManifest:
    """Make the folder, and return the manifest of the site that it holds, an empty one for a new folder.

    A new folder gets it at once: what a full disk or Ctrl-C leaves of a site is then known as one at the next try. A
    private one is closed to other users, and git ignores it. Raises UsageError for a folder with other files, which
    could be overwritten, and for public pages in the place of private ones, or reverse.
    """
    found = _opened(folder, private)
    if found.private != private:
        kinds = ("private", "public") if found.private else ("public", "private")
        raise UsageError(f"{folder}: has {kinds[0]} pages, expected a folder for {kinds[1]} ones; name another")
    return found


def _opened(folder: Path, private: bool) -> PagesManifest:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            if private:
                folder.chmod(0o700)
                write_atomically(folder / ".gitignore", "*\n")
            empty = PagesManifest(files={}, private=private)
            write_atomically(folder / NAME, dump(empty))
            return empty
    except OSError as error:
        raise UsageError(f"--html {folder}: cannot be made: {error.strerror}{room_left(error, folder)}") from None
    try:
        return manifest_of(folder)
    except UsageError:
        if not (folder / NAME).exists():
            raise UsageError(f"--html {folder}: has other files; name a new folder or one with pages") from None
        raise


class PagesWriter:
    """Writes the files of a site. It keeps those that were made from the same content before."""

    def __init__(self, folder: Path, private: bool = False) -> None:
        self._folder, self._before = folder, opened(folder, private)
        self.private = private
        self.stamps: dict[str, str] = {}

    def keeps(self, name: str, stamp: str) -> bool:
        """Return whether the file was made from what this stamp stands for. It is then part of the site again."""
        is_same = self._before.files.get(name) == stamp and (self._folder / name).is_file()
        if is_same:
            self.stamps[name] = stamp
        return is_same

    def write(self, name: str, content: str, stamp: str = "") -> None:
        """Write one file whole or not at all."""
        if not PLACES.fullmatch(name):
            raise ValueError(f"{name}: no place for a file of a site")
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.encode("utf-8", "replace").decode())
        self.stamps[name] = stamp

    def finish(self) -> None:
        """Write the manifest, then remove files that only the site before had."""
        files = dict(sorted(self.stamps.items()))
        write_atomically(self._folder / NAME, dump(PagesManifest(files=files, private=self.private)))
        for name in set(self._before.files) - set(self.stamps):
            (self._folder / name).unlink(missing_ok=True)


def slug(name: str) -> str:
    """Return a name of a file: readable, the same on systems that ignore capitals, and of no foreign character."""
    readable = _UNSAFE.sub("-", name.lower())[:_READABLE].strip("-")
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]
    return f"{readable}-{digest}" if readable else digest


def data_script(name: str, value: Any) -> str:
    """Return the script that gives `value` to the pages under this name. NaN and infinity become null."""
    content = _json(value)
    quoted = content.replace("\\", "\\\\").replace("'", "\\'").replace("<", "\\u003c")
    return f"levelfield.data('{name}','{quoted}');\n"


def _json(value: Any) -> str:
    """Return JSON of ASCII alone, so that U+2028 is escaped, too."""
    try:
        content = to_json(value, inf_nan_mode="null").decode()  # in a fifth of the time of json's
    except ValueError:  # of half a pair of characters
        content = ""
    if content and content.isascii():
        return content
    return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""What a site consists of: its files, and which series they came from."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

from pydantic_core import to_json

from levelfield.errors import DocumentError, UsageError, room_left
from levelfield.rundir.folder_descriptor import FolderDescriptor
from levelfield.specs.base import Document, dump, parse, sha256_of
from levelfield.specs.bounded_reading import MOST_BYTES, mapping_of

NAME = "site.json"
# A page, or a file of assets/ or data/. No other file is ever written or removed.
PLACES = re.compile(r"(zh/)?[a-z0-9-]+\.html|(assets|assets/uplot|data)/[A-Za-z0-9][A-Za-z0-9._-]*")
FOLDERS = ("zh", "assets", "assets/uplot", "data")  # one that holds another stands before it

# A page that was opened from a file may not fetch. It may load a script. So each data file calls one function with a
# text of JSON. A text is parsed and not executed: a key such as `__proto__` stays a key.
# New files wait in a folder of this name until all are there; one without a process is what a killed command left.
_STAGING = re.compile(r"\.levelfield-new-[0-9a-f]{8}")
_STAGED = re.compile(r"[0-9]+")
_MOST_FILE = 2**30  # bytes


class PagesManifest(Document):
    """site.json of a site."""

    KIND: ClassVar[str] = "site"

    files: dict[str, str]  # by name a digest of what they were made from, empty for those made each time
    private: bool = False  # whether runs stand in it that are not to be published
    # By name the digests of what was written, two while a file is being replaced. A file with another content is not
    # the site's: somebody else wrote it.
    contents: dict[str, tuple[str, ...]]


def _manifest(root: FolderDescriptor) -> PagesManifest:
    path, folder = root.path / NAME, root.path
    no_pages = f"{folder}: this is no folder of pages; make one with `report pages {folder}`"
    try:
        manifest = parse(PagesManifest, mapping_of(path, root.read(NAME, MOST_BYTES).decode()), str(path))
    except (DocumentError, UnicodeDecodeError) as error:
        raise UsageError(f"{no_pages}. {error}") from None
    except OSError as error:
        raise UsageError(f"{no_pages}. {path}: cannot be read: {error.strerror}") from None
    if foreign := [name for name in (*manifest.files, *manifest.contents) if not PLACES.fullmatch(name)]:
        raise UsageError(f"{path}: key 'files': found '{foreign[0]}', expected pages, assets/ and data/")
    return manifest


class PagesWriter(ExitStack):
    """Writes the files of a site, all at the end. It keeps those that were made from the same content before.

    Until `finish` the folder stays as it is, but for a hidden folder with the new files.
    """

    def __init__(self, folder: Path, private: bool = False) -> None:
        """Make the folder, or open the site that it holds. A new folder gets its manifest at once, so that what a full
        disk or Ctrl-C leaves is known as a site. A private one is closed to other users, and git ignores it.

        Raises UsageError for a folder with other files, for a link or a file in the place of one of its folders, and
        for public pages in the place of private ones, or reverse.
        """
        super().__init__()
        self.private = private
        self.stamps: dict[str, str] = {}
        self._staged: dict[str, tuple[str, str]] = {}  # by name: the file with its content, and that content's digest
        with ExitStack() as undone:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                root = undone.enter_context(FolderDescriptor(folder))
                self._before = _opened_manifest(root, private)
                self._folders = _opened_folders(root, undone)
                for name in filter(_STAGING.fullmatch, root.names()):  # those of a command that goes on are locked
                    with suppress(OSError), root.below(name) as left:
                        if left.locked():
                            _remove_staging(root, left)
                self._staging = undone.enter_context(root.below(f".levelfield-new-{os.urandom(4).hex()}", make=True))
                undone.callback(_remove_staging, root, self._staging)
                self._staging.locked()
            except OSError as error:
                reason = f"{error.strerror}{room_left(error, folder)}"
                raise UsageError(f"--html {error.filename or folder}: cannot be made: {reason}") from None
            self.callback(undone.pop_all().close)

    def keeps(self, name: str, stamp: str) -> bool:
        """Return whether the file was made from what this stamp stands for. It is then part of the site again."""
        folder, last = self._place(name)
        is_known = self._before.files.get(name) == stamp and name in self._before.contents
        if is_known and folder.kind(last) == "a file":
            self.stamps[name] = stamp
            return True
        return False

    def write(self, name: str, content: str, stamp: str = "") -> None:
        """Write one file, which gets its place by `finish`."""
        if not PLACES.fullmatch(name):
            raise ValueError(f"{name}: no place for a file of a site")
        part, written = str(len(self._staged)), content.encode("utf-8", "replace")
        self._staging.write_new(part, written)
        self._staged[name] = part, sha256_of(written)
        self.stamps[name] = stamp

    def finish(self) -> None:
        """Give the files their places, the manifest last, and remove files that only the site before had.

        Raises UsageError for a file that Levelfield did not write, before anything is changed.
        """
        before = _manifest(self._folders[""])  # as another command may have left it since
        removed = (before.files.keys() | before.contents.keys()) - self.stamps.keys()
        self._refuse_foreign((*self._staged, *sorted(removed)), before)
        new = {name: digest for name, (_, digest) in self._staged.items()}
        either = {name: (*before.contents.get(name, ()), digest) for name, digest in new.items()}
        # What is interrupted from here on is known at the next try by either of its digests, and is then made again.
        self._write_manifest({**before.files, **dict.fromkeys(new, "")}, {**before.contents, **either})
        for name, (part, _) in self._staged.items():
            self._staging.move(part, *self._place(name))
        unchanged = {name: before.contents.get(name, ()) for name in self.stamps}
        self._write_manifest(self.stamps, {**unchanged, **{name: (digest,) for name, digest in new.items()}})
        for name in removed:
            folder, last = self._place(name)
            folder.remove(last)

    def _write_manifest(self, files: dict[str, str], contents: dict[str, tuple[str, ...]]) -> None:
        manifest = PagesManifest(
            files=dict(sorted(files.items())), private=self.private, contents=dict(sorted(contents.items()))
        )
        self._staging.write_new(NAME, dump(manifest).encode())
        self._staging.move(NAME, self._folders[""], NAME)

    def _place(self, name: str) -> tuple[FolderDescriptor, str]:
        """Return the folder of a file, and its name there."""
        above, _, last = name.rpartition("/")
        return self._folders[above], last

    def _refuse_foreign(self, names: Iterable[str], before: PagesManifest) -> None:
        """Raises UsageError for the first of the files that has a content which no manifest records."""
        for name in names:
            folder, last = self._place(name)
            kind = folder.kind(last)
            if kind == "a file":
                digest = sha256_of(folder.read(last, _MOST_FILE))
                is_ours = digest in before.contents.get(name, ()) or digest == self._staged.get(name, ("", ""))[1]
                kind = None if is_ours else f"a file that is not as `report pages` wrote it, by {NAME}"
            if kind:
                raise UsageError(
                    f"{folder.path / last}: found {kind}, expected a file of these pages or none. Nothing was changed: "
                    "move it away, or write the pages into a new folder"
                )


def _opened_manifest(root: FolderDescriptor, private: bool) -> PagesManifest:
    """Return the manifest of a site, a new one of an empty folder. Raises UsageError for another folder."""
    if not root.names():
        if private:
            os.fchmod(root.descriptor, 0o700)
            root.write_new(".gitignore", b"*\n")
        empty = PagesManifest(files={}, private=private, contents={})
        root.write_new(NAME, dump(empty).encode())
        return empty
    if root.kind(NAME) is None:
        raise UsageError(f"--html {root.path}: has other files; name a new folder or one with pages")
    manifest = _manifest(root)
    if manifest.private != private:
        kinds = ("private", "public") if manifest.private else ("public", "private")
        raise UsageError(f"{root.path}: has {kinds[0]} pages, expected a folder for {kinds[1]} ones; name another")
    return manifest


def _opened_folders(root: FolderDescriptor, undone: ExitStack) -> dict[str, FolderDescriptor]:
    """Return the folders of a site by name. Raises UsageError for one that is something else, before one is made."""
    opened: dict[str, FolderDescriptor] = {"": root}
    for is_made in (False, True):
        for name in FOLDERS:
            above, _, last = name.rpartition("/")
            if name in opened or above not in opened:
                continue
            kind = opened[above].kind(last)
            if kind not in (None, "a folder"):
                raise UsageError(
                    f"{root.path / name}: found {kind}, expected a folder of these pages or none. Nothing was changed: "
                    "move it away, or write the pages into a new folder"
                )
            if kind or is_made:
                opened[name] = undone.enter_context(opened[above].below(last, make=True))
    return opened


def _remove_staging(root: FolderDescriptor, staging: FolderDescriptor) -> None:
    with suppress(OSError):  # something else is in it, or the disk went away: the folder stays
        for name in staging.names():
            if _STAGED.fullmatch(name) or name == NAME:
                staging.remove(name)
        os.rmdir(staging.path.name, dir_fd=root.descriptor)


def data_script(name: str, value: Any) -> str:
    """Return the script that gives `value` to the pages under this name. NaN and infinity become null.

    Its JSON is of ASCII alone, so that U+2028 is escaped, too.
    """
    try:
        content = to_json(value, inf_nan_mode="null").decode()  # in a fifth of the time of json's
    except ValueError:  # of half a pair of characters
        content = ""
    if not content or not content.isascii():
        content = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    quoted = content.replace("\\", "\\\\").replace("'", "\\'").replace("<", "\\u003c")
    return f"levelfield.data('{name}','{quoted}');\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

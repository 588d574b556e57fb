"""The files of a site of pages: written all at once, and reused where their content is the same."""

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

from levelfield.errors import DocumentError, UsageError, write_failure_ending
from levelfield.node.file_sizes import MAX_BYTES_BY_KIND
from levelfield.rundir.folder_descriptor import FolderDescriptor
from levelfield.specs.base import Document, dump, parse, sha256_of
from levelfield.specs.bounded_reading import parse_mapping

MANIFEST_NAME = "site.json"
# A page, or a file of assets/ or data/. No other file is ever written or removed.
SITE_FILES = re.compile(r"(zh/)?[a-z0-9-]+\.html|(assets|assets/uplot|data)/[A-Za-z0-9][A-Za-z0-9._-]*")
SITE_FOLDERS = ("zh", "assets", "assets/uplot", "data")  # a folder comes before those below it

# New files wait in a folder of this name until all are written. A folder without a lock is left from a killed command.
_STAGING_FOLDER = re.compile(r"\.levelfield-new-[0-9a-f]{8}")
_STAGED_FILE = re.compile(r"[0-9]+")
_MAX_FILE_BYTES = 2**30


class PagesManifest(Document):
    """site.json of a site."""

    KIND: ClassVar[str] = "site"

    files: dict[str, str]  # by name the stamp, a digest of what the file was made from; empty for those made each time
    private: bool = False  # whether the site has runs that are not to be published
    # By name the digests of what was written, two while a file is being replaced. A file with another content is not
    # the site's: somebody else wrote it.
    contents: dict[str, tuple[str, ...]]


def _read_manifest(root: FolderDescriptor) -> PagesManifest:
    path, folder = root.path / MANIFEST_NAME, root.path
    not_a_site = f"{folder}: this is no folder of pages; make one with `report pages {folder}`"
    try:
        text = root.read(MANIFEST_NAME, MAX_BYTES_BY_KIND["pages"]).decode()
        manifest = parse(PagesManifest, parse_mapping(path, text), str(path))
    except (DocumentError, UnicodeDecodeError) as error:
        raise UsageError(f"{not_a_site}. {error}") from None
    except OSError as error:
        raise UsageError(f"{not_a_site}. {path}: cannot be read: {error.strerror}") from None
    if foreign := [name for name in (*manifest.files, *manifest.contents) if not SITE_FILES.fullmatch(name)]:
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
        for public pages in a folder of private ones, or the reverse.
        """
        super().__init__()
        self.private = private
        self.stamps: dict[str, str] = {}
        self._staged: dict[str, tuple[str, str]] = {}  # by name: the file with its content, and that content's digest
        with ExitStack() as cleanup:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                root = cleanup.enter_context(FolderDescriptor(folder))
                self._before = _open_manifest(root, private)
                self._folders = _open_folders(root, cleanup)
                for name in filter(_STAGING_FOLDER.fullmatch, root.names()):  # a running command's is locked
                    with suppress(OSError), root.subfolder(name) as abandoned:
                        if abandoned.try_lock():
                            _remove_staging(root, abandoned)
                self._staging = cleanup.enter_context(
                    root.subfolder(f".levelfield-new-{os.urandom(4).hex()}", make=True)
                )
                cleanup.callback(_remove_staging, root, self._staging)
                self._staging.try_lock()
            except OSError as error:
                reason = f"{error.strerror}{write_failure_ending(error, folder)}"
                raise UsageError(f"{error.filename or folder}: cannot be made: {reason}") from None
            self.callback(cleanup.pop_all().close)

    def reuse(self, name: str, stamp: str) -> bool:
        """Return whether the file exists and was made with this stamp. It then stays part of the site."""
        folder, file_name = self._folder_and_name(name)
        is_known = self._before.files.get(name) == stamp and name in self._before.contents
        if is_known and folder.kind(file_name) == "a file":
            self.stamps[name] = stamp
            return True
        return False

    def write(self, name: str, content: str, stamp: str = "") -> None:
        """Write one file, which gets its place by `finish`."""
        if not SITE_FILES.fullmatch(name):
            raise ValueError(f"{name}: no place for a file of a site")
        staged_name, written = str(len(self._staged)), content.encode("utf-8", "replace")
        self._staging.write_new(staged_name, written)
        self._staged[name] = staged_name, sha256_of(written)
        self.stamps[name] = stamp

    def finish(self) -> None:
        """Move the files to their places, the manifest last, and remove those that only the earlier site had.

        Raises UsageError for a file that Levelfield did not write, before anything is changed.
        """
        before = _read_manifest(self._folders[""])  # again: another command may have changed it
        removed = (before.files.keys() | before.contents.keys()) - self.stamps.keys()
        self._refuse_foreign((*self._staged, *sorted(removed)), before)
        new_digests = {name: digest for name, (_, digest) in self._staged.items()}
        old_or_new = {name: (*before.contents.get(name, ()), digest) for name, digest in new_digests.items()}
        # After an interruption from here on, the next try accepts either digest and makes the file again.
        self._write_manifest({**before.files, **dict.fromkeys(new_digests, "")}, {**before.contents, **old_or_new})
        for name, (staged_name, _) in self._staged.items():
            self._staging.move_to(staged_name, *self._folder_and_name(name))
        unchanged = {name: before.contents.get(name, ()) for name in self.stamps}
        self._write_manifest(self.stamps, {**unchanged, **{name: (digest,) for name, digest in new_digests.items()}})
        for name in removed:
            folder, file_name = self._folder_and_name(name)
            folder.remove(file_name)

    def _write_manifest(self, files: dict[str, str], contents: dict[str, tuple[str, ...]]) -> None:
        manifest = PagesManifest(
            files=dict(sorted(files.items())), private=self.private, contents=dict(sorted(contents.items()))
        )
        self._staging.write_new(MANIFEST_NAME, dump(manifest).encode())
        self._staging.move_to(MANIFEST_NAME, self._folders[""], MANIFEST_NAME)

    def _folder_and_name(self, name: str) -> tuple[FolderDescriptor, str]:
        """Return the folder of a file, and its name there."""
        parent, _, file_name = name.rpartition("/")
        return self._folders[parent], file_name

    def _refuse_foreign(self, names: Iterable[str], before: PagesManifest) -> None:
        """Raise UsageError for the first file whose content the manifest does not record."""
        for name in names:
            folder, file_name = self._folder_and_name(name)
            kind = folder.kind(file_name)
            if kind == "a file":
                digest = sha256_of(folder.read(file_name, _MAX_FILE_BYTES))
                is_ours = digest in before.contents.get(name, ()) or digest == self._staged.get(name, ("", ""))[1]
                kind = None if is_ours else f"a file that is not as `report pages` wrote it, by {MANIFEST_NAME}"
            if kind:
                raise UsageError(
                    f"{folder.path / file_name}: found {kind}, expected a file of these pages or none. Nothing was "
                    "changed: move it away, or write the pages into a new folder"
                )


def _open_manifest(root: FolderDescriptor, private: bool) -> PagesManifest:
    """Return the manifest of a site, or a new one for an empty folder. Raises UsageError for another folder."""
    if not root.names():
        if private:
            os.fchmod(root.descriptor, 0o700)
            root.write_new(".gitignore", b"*\n")
        empty = PagesManifest(files={}, private=private, contents={})
        root.write_new(MANIFEST_NAME, dump(empty).encode())
        return empty
    if root.kind(MANIFEST_NAME) is None:
        raise UsageError(f"{root.path}: has other files; name a new folder or one with pages")
    manifest = _read_manifest(root)
    if manifest.private != private:
        kinds = ("private", "public") if manifest.private else ("public", "private")
        raise UsageError(f"{root.path}: has {kinds[0]} pages, expected a folder for {kinds[1]} ones; name another")
    return manifest


def _open_folders(root: FolderDescriptor, cleanup: ExitStack) -> dict[str, FolderDescriptor]:
    """Return the folders of a site by name. Raises UsageError, before any is made, for a name that is no folder."""
    folders: dict[str, FolderDescriptor] = {"": root}
    for makes_missing in (False, True):
        for name in SITE_FOLDERS:
            parent, _, file_name = name.rpartition("/")
            if name in folders or parent not in folders:
                continue
            kind = folders[parent].kind(file_name)
            if kind not in (None, "a folder"):
                raise UsageError(
                    f"{root.path / name}: found {kind}, expected a folder of these pages or none. Nothing was changed: "
                    "move it away, or write the pages into a new folder"
                )
            if kind or makes_missing:
                folders[name] = cleanup.enter_context(folders[parent].subfolder(file_name, make=True))
    return folders


def _remove_staging(root: FolderDescriptor, staging: FolderDescriptor) -> None:
    with suppress(OSError):  # something else is in it, or the disk went away: the folder stays
        for name in staging.names():
            if _STAGED_FILE.fullmatch(name) or name == MANIFEST_NAME:
                staging.remove(name)
        os.rmdir(staging.path.name, dir_fd=root.descriptor)


def data_script(name: str, value: Any) -> str:
    """Return the script that gives `value` to the pages under this name. NaN and infinity become null.

    A page that is opened from a file may not fetch, but it may load a script, so each data file calls one function with
    a text of JSON. The text is parsed and not executed: a key such as `__proto__` stays a key. The JSON is of ASCII
    alone, so that U+2028 is escaped, too.
    """
    try:
        content = to_json(value, inf_nan_mode="null").decode()  # in a fifth of the time of json's
    except ValueError:  # of half a pair of characters
        content = ""
    if not content or not content.isascii():
        content = json.dumps(_replace_non_finite(value), separators=(",", ":"), allow_nan=False)
    quoted = content.replace("\\", "\\\\").replace("'", "\\'").replace("<", "\\u003c")
    return f"levelfield.data('{name}','{quoted}');\n"


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_non_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

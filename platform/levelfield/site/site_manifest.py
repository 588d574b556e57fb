"""What a site consists of: its files, and which series they were made from. `serve` gives out these files alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from levelfield.errors import DocumentError, UsageError
from levelfield.rundir.directory import write_atomically
from levelfield.site.series_summary import SeriesSummary
from levelfield.specs.base import Document, Value, dump, load

NAME = "site.json"
# A page, or a file of assets/ or data/. No other file is ever written, served or removed.
PLACES = re.compile(r"(zh/)?[a-z0-9-]+\.html|(assets|assets/uplot|data)/[A-Za-z0-9][A-Za-z0-9._-]*")


class SeriesFiles(Value):
    """The files of a series. stamp: digest of what they were made from."""

    stamp: str
    files: tuple[str, ...]
    summary: SeriesSummary


class SiteManifest(Document):
    """site.json of a site. series: by the name of their files."""

    KIND: ClassVar[str] = "site"

    files: tuple[str, ...]
    series: dict[str, SeriesFiles] = Field(default_factory=dict)


def manifest_of(folder: Path) -> SiteManifest:
    """Return the manifest of a site. Raises UsageError for a folder that is no site."""
    try:
        found = load(SiteManifest, folder / NAME)
    except DocumentError as error:
        raise UsageError(f"{folder}: this is no site; make one with report --html {folder}. {error}") from None
    if foreign := [name for name in found.files if not PLACES.fullmatch(name)]:
        raise UsageError(f"{folder / NAME}: key 'files': found '{foreign[0]}', expected pages, assets/ and data/")
    return found


def opened(folder: Path) -> SiteManifest:
    """Make the folder, and return the manifest of the site that it holds, an empty one for a new folder.

    Raises UsageError for a folder with other files: they could be overwritten.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"--html {folder}: cannot be made: {error.strerror}") from None
    if is_empty:
        return SiteManifest(files=())
    try:
        return manifest_of(folder)
    except UsageError:
        if not (folder / NAME).exists():
            raise UsageError(f"--html {folder}: has other files; name a new folder or one with a site") from None
        raise


class SiteWriter:
    """Writes the files of a site and keeps their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names: list[str] = []

    def write(self, name: str, content: str) -> str:
        """Write one file whole or not at all. Return its name."""
        if not PLACES.fullmatch(name):
            raise ValueError(f"{name}: no place for a file of a site")
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.encode("utf-8", "replace").decode())
        self.names.append(name)
        return name

    def keep(self, names: tuple[str, ...]) -> None:
        """Take over files of the site as it was."""
        self.names += names

    def finish(self, before: SiteManifest, series: dict[str, SeriesFiles]) -> None:
        """Write the manifest, then remove files that only the site before had."""
        names = tuple(sorted(set(self.names)))
        write_atomically(self._folder / NAME, dump(SiteManifest(files=names, series=series)))
        for name in set(before.files) - set(names):
            (self._folder / name).unlink(missing_ok=True)

"""Levelfield's code as one archive for a machine that has none: what a rank and a node's own part need."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.node.code_digest import shared_folders, sources


@cache
def carried_code(implementation: Path) -> bytes:
    """Return the archive: platform/levelfield with worker/ and node/, and the framework's folder below models/.

    The same sources give the same bytes: no time, owner or order of a file system is in it.
    """
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, path in sorted(_files(implementation)):
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(held.getvalue(), compresslevel=9, mtime=0)


def _files(implementation: Path) -> Iterator[tuple[str, Path]]:
    platform = checkout() / "platform"
    package = platform / "levelfield"
    yield "platform/levelfield/__init__.py", package / "__init__.py"
    for folder in (package / "worker", package / "node"):
        yield from ((f"platform/{path.relative_to(platform).as_posix()}", path) for path in sources(folder))
    for folder in (implementation, *shared_folders(implementation)):
        yield from ((f"models/{path.relative_to(folder.parent).as_posix()}", path) for path in sources(folder))

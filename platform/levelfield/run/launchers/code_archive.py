"""What is brought to nodes, as archives: the code, the same for the same code, and wheels."""

from __future__ import annotations

import io
import mmap
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import levelfield
from levelfield.node.code_digest import shared_folders, sources


def code_archive(implementation: Path) -> bytes:
    """Return platform/levelfield/{worker,node}, and models/ with the implementation and the folders that it imports.

    It has no times, owners or modes of this machine.
    """
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, path in sorted(_members(implementation)):
            content = path.read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return output.getvalue()


def wheels_archive(folder: Path) -> memoryview:
    """Return the wheels of a folder. They may be gigabytes: they lie in a file without a name."""
    with tempfile.TemporaryFile() as output:
        with tarfile.open(fileobj=output, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for path in sorted(each for each in folder.iterdir() if each.suffix in (".whl", ".gz") and each.is_file()):
                member = tarfile.TarInfo(path.name)
                member.size, member.mode = path.stat().st_size, 0o644
                with path.open("rb") as file:
                    archive.addfile(member, file)
        output.flush()
        return memoryview(mmap.mmap(output.fileno(), 0, access=mmap.ACCESS_READ))


def _members(implementation: Path) -> Iterator[tuple[str, Path]]:
    package = Path(levelfield.__file__).parent
    yield "platform/levelfield/__init__.py", package / "__init__.py"
    for room in ("worker", "node"):
        yield from _below(f"platform/levelfield/{room}", package / room)
    for folder in (implementation, *shared_folders(implementation)):
        yield from _below(f"models/{folder.name}", folder)


def _below(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    return ((f"{name}/{path.relative_to(folder).as_posix()}", path) for path in sources(folder))

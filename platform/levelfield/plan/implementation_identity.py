"""The identity of an implementation: its version, and a digest of its sources."""

from __future__ import annotations

import hashlib
from pathlib import Path

from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.plan import ImplementationUsed
from levelfield.specs.selector import Selector


def implementation_used(file: ImplementationFile, folder: Path) -> ImplementationUsed:
    return ImplementationUsed(
        framework=file.framework,
        version=file.version,
        folder=str(folder),
        digest=folder_digest(folder),
        argv=file.launch.argv,
        environment=file.launch.environment,
        peak_probe=file.launch.peak_probe,
    )


def folder_digest(folder: Path) -> str:
    """Return the sha256 of all source files below `folder`, with their names, without measured results."""
    digest = hashlib.sha256()
    sources = (p for p in folder.rglob("*") if p.is_file() and p.suffix in (".py", ".yaml", ".json"))
    for path in sorted(p for p in sources if p.name != "tested.json"):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return "sha256:" + digest.hexdigest()


def version_deviations(selector: Selector, implementation: ImplementationFile) -> tuple[str, ...]:
    """Return sentences about a version in the case string that differs from the pinned one."""
    if selector.version in (None, implementation.version):
        return ()
    name, asked, used = implementation.framework, selector.version, implementation.version
    return (f"{name} {asked} was asked for; the implementation is pinned to {used}",)

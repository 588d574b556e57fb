"""The identity of an implementation: its version, and a digest of its sources."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

from levelfield import worker
from levelfield.node import rank_processes
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.plan import ImplementationUsed
from levelfield.specs.selector import Selector

_BESIDE = re.compile(r"parents\[1\] / [\"'](\w+)[\"']")


def implementation_used(file: ImplementationFile, folder: Path) -> ImplementationUsed:
    return ImplementationUsed(
        framework=file.framework,
        version=file.version,
        folder=str(folder),
        digest=folder_digest(folder),
        argv=file.launch.argv,
        environment=file.launch.environment,
        peak_probe=file.launch.peak_probe,
        rests_on=code_digest(folder),
    )


def code_digest(folder: Path) -> str:
    """Return the digest of all code that a training in this folder runs, besides its framework.

    It is the folder itself, the folders beside it whose code it imports, the worker, and a node's first process. The
    folder's own digest stays what certificates and tested.json have.
    """
    parts = [f"{each.name} {folder_digest(each)}" for each in (folder, *shared_folders(folder))]
    return "sha256:" + hashlib.sha256("\n".join([*parts, _platform_code()]).encode()).hexdigest()


def shared_folders(folder: Path) -> list[Path]:
    """Return the folders beside this one that its sources put on the path, as models/megatron does with torch."""
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.rglob("*.py")))
    names = {name for text in texts for name in _BESIDE.findall(text)} - {folder.name}
    return [folder.parent / name for name in sorted(names) if (folder.parent / name).is_dir()]


@cache
def _platform_code() -> str:
    """Return the digest of the platform's code within a training: it does not change while a command runs."""
    own = Path(rank_processes.__file__).read_bytes()
    return f"worker {folder_digest(Path(worker.__file__).parent)}\nnode {hashlib.sha256(own).hexdigest()}"


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

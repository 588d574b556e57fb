"""The identity of an implementation: its version, and a digest of its sources."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from levelfield.node import code_digest as node_code
from levelfield.node.code_digest import folder_digest, shared_folders
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.plan import ImplementationUsed

__all__ = ["code_digest", "folder_digest", "implementation_used", "shared_folders"]


def implementation_used(file: ImplementationFile, folder: Path, kind: str) -> ImplementationUsed:
    return ImplementationUsed(
        framework=file.framework,
        version=file.version,
        folder=str(folder),
        digest=folder_digest(folder),
        argv=file.launch.argv,
        environment=file.environment(kind),
        peak_probe=file.launch.peak_probe,
        rests_on=code_digest(folder),
        is_further=file.is_further,
    )


def code_digest(folder: Path) -> str:
    """Return the digest of all code that a training in this folder runs, besides its framework.

    The folder's own digest stays what certificates and tested.json have.
    """
    return node_code.code_digest(folder, _platform_code())


@cache
def _platform_code() -> str:
    """Return the digest of the platform's code within a training: it does not change while a command runs."""
    return node_code.platform_digest()

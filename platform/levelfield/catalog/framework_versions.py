"""One version of a framework of its manifest, and where the runs of that version are recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from levelfield.errors import DocumentError, UsageError
from levelfield.node.code_digest import training_digest
from levelfield.specs.implementation import ImplementationFile


def chosen(file: ImplementationFile, version: str | None, path: Path, frameworks: Iterable[str]) -> ImplementationFile:
    """Return the manifest with `version` and its requirements in the default's place. None: the default version.

    path: of the manifest. frameworks: all that there are. Raises UsageError for a version that it does not have, and
    DocumentError where a framework's name is that of the version's environment.
    """
    if version in (None, file.version):
        return file
    if version not in file.versions:
        known = ", ".join((f"{file.version} (the default)", *file.versions))
        raise UsageError(
            f"framework {file.framework}: found version {version}, expected one of: {known}. Name one of them, or "
            f"`{file.framework}` alone for the default; or pin it below `versions` in {path}"
        )
    found = file.model_copy(update={"version": version, "requirements": file.versions[version].requirements})
    if taken := [name for name in frameworks if name == found.stem or name.startswith(f"{found.stem}-")]:
        raise DocumentError(
            f"{path}: key 'versions.{version}': its environments are named {found.stem}-..., and so are those of the "
            f"framework {taken[0]}; rename that framework"
        )
    return found


def runs_path(file: ImplementationFile, folder: Path) -> Path:
    """Return the file of the recorded runs of this version: tested.json, or tested-VERSION.json of a further one."""
    return folder / (f"tested-{file.version}.json" if file.is_further else "tested.json")


def rests_on(file: ImplementationFile, folder: Path) -> str:
    """Return the digest of what the recorded runs of this version rest on.

    It is the code with the manifest. `versions` of the manifest is no part of it: each further version adds its own.
    """
    code = training_digest(folder)
    if not file.is_further:
        return code
    pins = file.versions[file.version].fingerprint()
    return "sha256:" + hashlib.sha256(f"{code}\n{file.version}\n{pins}".encode()).hexdigest()

"""The code at hand as recorded trainings rest on it, and the version of a framework that is chosen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.errors import DocumentError, UsageError
from levelfield.node.code_digest import MANIFEST, shared_folders, sources
from levelfield.specs.implementation import ImplementationFile


def training_code(file: ImplementationFile, folder: Path, kind: str, *further: Path) -> str:
    """Return the digest of what the figures of a training on this kind of device follow from.

    It is the framework's folder, the folders beside it that its sources name, the worker and the folders of `further`,
    without measured files, and the parts of the manifest that a training has: the start of a process, its variables,
    its way to the device, and the pins and the Python of the kind. Titles, refusals, words about where pins ran, other
    kinds and other versions are no part of it.
    """
    needs, reach = file.requirements.get(kind), file.reaches.get(kind)
    parts = {
        "version": file.version,
        "argv": file.launch.argv,
        "environment": file.environment(kind),
        "reach": None if reach is None else reach.access.model_dump(mode="json"),
        "packages": None if needs is None else needs.packages,
        "python": None if needs is None else needs.python,
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    worker = checkout() / "platform" / "levelfield" / "worker"
    for root in (folder, *shared_folders(folder), worker, *further):
        for path in (path for path in sources(root) if path.name != MANIFEST):
            content = path.read_bytes()
            name = f"{root.name}/{path.relative_to(root).as_posix()}\0{len(content)}\0"
            digest.update(name.encode(errors="surrogateescape") + content)
    return f"sha256:{digest.hexdigest()}"


def select_version(
    file: ImplementationFile, version: str | None, path: Path, frameworks: Iterable[str]
) -> ImplementationFile:
    """Return the manifest with `version` and its requirements in the default's place. None: the default version.

    path: of the manifest. frameworks: all that there are. Raises UsageError for a version that it does not have, and
    DocumentError where a framework's name is that of the version's environment.
    """
    if version in (None, file.version):
        return file
    if version not in file.versions:
        versions = ", ".join((f"{file.version} (the default)", *file.versions))
        raise UsageError(
            f"framework {file.framework}: found version {version}, expected one of: {versions}. Name one of them, or "
            f"`{file.framework}` alone for the default; or pin it below `versions` in {path}"
        )
    manifest = file.model_copy(update={"version": version, "requirements": file.versions[version].requirements})
    stem = manifest.stem
    if clash := next((name for name in frameworks if name == stem or name.startswith(f"{stem}-")), None):
        raise DocumentError(
            f"{path}: key 'versions.{version}': its environments are named {stem}-..., and so are those of the "
            f"framework {clash}; rename that framework"
        )
    return manifest


def runs_path(file: ImplementationFile, folder: Path) -> Path:
    """Return the file of the recorded runs of this version: tested.json, or tested-VERSION.json of a further one."""
    return folder / (f"tested-{file.version}.json" if file.is_further else "tested.json")

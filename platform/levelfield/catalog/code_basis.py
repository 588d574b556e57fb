"""The code at hand, as recorded trainings rest on it: by file, and by the parts of a manifest that a training has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.errors import DocumentError, UsageError
from levelfield.node.code_digest import MANIFEST, shared_folders, sources, training_digest
from levelfield.specs.implementation import ImplementationFile

MODELS = "models"  # beside the folder, so also that of a plugin; the others are folders of the checkout
ROOTS = (MODELS, "platform", "tests/gpu")  # tests/gpu: what a rehearsal puts in the place of a device
SEPARATOR = "#"  # between a manifest and a kind of device


class CodeBasis:
    """The digests of files at hand, each computed once.

    implementation: the version whose trainings are judged; its manifest counts by the parts that they follow from.
    folder: of the implementation. Its neighbours are found beside it, the platform's code in the checkout.
    """

    def __init__(self, implementation: ImplementationFile, folder: Path) -> None:
        self.implementation, self.folder = implementation, folder.resolve()
        self._digests: dict[str, str | None] = {}

    def digest(self, path: str) -> str | None:
        """Return the digest of a file, or of the parts of the manifest; None where it is missing."""
        if path not in self._digests:
            self._digests[path] = self._manifest(path) if SEPARATOR in path else self._file(path)
        return self._digests[path]

    def changed(self, recorded: dict[str, str]) -> list[str]:
        """Return the paths whose digest is another one now, or that are gone."""
        return [path for path, digest in recorded.items() if self.digest(path) != digest]

    def of_all(self, kind: str) -> dict[str, str]:
        """Return all that a training on this kind of device may import, by path: for one whose imports are unknown."""
        worker = checkout() / "platform" / "levelfield" / "worker"
        folders = (self.folder, *shared_folders(self.folder), worker)
        code = (str(path) for folder in folders for path in sources(folder) if path.name != MANIFEST)
        return self.of_training(code, kind)

    def of_training(self, imported: Iterable[str], kind: str) -> dict[str, str]:
        """Return what a training on this kind of device rests on, by path, from the files that its ranks imported.

        It is these files, other sources of the folder than Python (which a program reads without an import), and the
        parts of the manifest.
        """
        read = (str(path) for path in sources(self.folder) if path.suffix != ".py" and path.name != MANIFEST)
        labels = {label for path in (*imported, *read) if (label := self._label(Path(path).resolve())) is not None}
        labels.add(f"{MODELS}/{self.folder.name}/{MANIFEST}{SEPARATOR}{kind}")
        return {label: digest for label in sorted(labels) if (digest := self.digest(label)) is not None}

    def _label(self, path: Path) -> str | None:
        """Return the name of a file of the project; None of another file."""
        for name in ROOTS:
            root = self._root(name)
            if path.is_relative_to(root):
                return f"{name}/{path.relative_to(root).as_posix()}"
        return None

    def _file(self, label: str) -> str | None:
        name = next((name for name in ROOTS if label.startswith(f"{name}/")), None)
        path = self._root(name) / label[len(name) + 1 :] if name else None
        return hashlib.sha256(path.read_bytes()).hexdigest() if path and path.is_file() else None

    def _root(self, name: str) -> Path:
        return self.folder.parent if name == MODELS else checkout().resolve() / name

    def _manifest(self, label: str) -> str | None:
        path, _, kind = label.partition(SEPARATOR)
        if path != f"{MODELS}/{self.folder.name}/{MANIFEST}":
            return None
        return manifest_digest(self.implementation, kind)


def manifest_digest(file: ImplementationFile, kind: str) -> str:
    """Return the digest of what a training on this kind of device follows from in a manifest.

    It is the start of a process, its variables, its way to the device, and the pins and the Python of the kind: no
    titles, no refusals, no words about where pins ran, and nothing of other kinds or versions.
    """
    needs = file.requirements.get(kind)
    reach = file.reaches.get(kind)
    parts = {
        "version": file.version,
        "argv": file.launch.argv,
        "environment": file.environment(kind),
        "reach": None if reach is None else reach.access.model_dump(mode="json"),
        "packages": None if needs is None else needs.packages,
        "python": None if needs is None else needs.python,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


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

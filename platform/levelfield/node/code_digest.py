"""The digest of the code that a training runs, besides its framework. The platform and a node compute it alike."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

SOURCES = (".py", ".yaml", ".json")
MANIFEST = "implementation.yaml"
_MEASURED = re.compile(r"tested(-.+)?\.json")  # what was measured is no source
_VERSIONS = re.compile(rb"^versions:[ \t]*\n(?:(?:[ \t].*)?\n)*(?:[ \t].*\Z)?", re.MULTILINE)
_BESIDE = re.compile(r"parents\[1\] / [\"'](\w+)[\"']")


def code_digest(folder: Path, platform_code: str | None = None) -> str:
    """Return the digest of all code that a training in this folder runs, besides its framework.

    It is the folder itself, the folders beside it whose code it imports, the worker, and a node's own part.
    platform_code: the digest of the last two, where the caller has it.
    """
    parts = [f"{each.name} {folder_digest(each)}" for each in (folder, *shared_folders(folder))]
    return "sha256:" + hashlib.sha256("\n".join([*parts, platform_code or platform_digest()]).encode()).hexdigest()


def training_digest(folder: Path) -> str:
    """Return the digest of all code that the figures of a training follow from: what tested.json rests on.

    It is `code_digest` without a node's own part, which starts and watches a training and changes no figure of it.
    """
    worker = Path(__file__).resolve().parents[1] / "worker"
    return code_digest(folder, f"worker {folder_digest(worker)}")


def platform_digest() -> str:
    """Return the digests of the platform's code within a training: the worker's and the node's."""
    node = Path(__file__).resolve().parent
    return f"worker {folder_digest(node.parent / 'worker')}\nnode {folder_digest(node)}"


def shared_folders(folder: Path) -> list[Path]:
    """Return the folders beside this one that its sources put on the path, as models/megatron does with torch."""
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.rglob("*.py")))
    names = {name for text in texts for name in _BESIDE.findall(text)} - {folder.name}
    return [folder.parent / name for name in sorted(names) if (folder.parent / name).is_dir()]


def folder_digest(folder: Path) -> str:
    """Return the sha256 of all source files below `folder`, with their names, without measured results.

    Nor does it have `versions` of the manifest: the pins of one version change nothing of another. A run has those of
    its own in the environment's digest.
    """
    digest = hashlib.sha256()
    for path in sources(folder):
        content = without_versions(path.read_bytes()) if path.name == MANIFEST else path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return "sha256:" + digest.hexdigest()


def without_versions(manifest: bytes) -> bytes:
    """Return the text of a manifest without its further versions: the key and the indented lines below it."""
    return _VERSIONS.sub(b"", manifest)


def sources(folder: Path) -> list[Path]:
    """Return the source files below a folder, in order."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix in SOURCES)
    return sorted(path for path in found if not _MEASURED.fullmatch(path.name))

"""The digest of the code that a training runs, without its framework. The platform and a node compute it alike."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import re
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Iterator

MANIFEST_FILE = "implementation.yaml"
_MEASURED_FILE = re.compile(r"tested(-.+)?\.json")  # recorded measurements are no source
# The further versions in a manifest: the key and the indented lines below it.
_VERSIONS_KEY = re.compile(rb"^versions:[ \t]*\n(?:(?:[ \t].*)?\n)*(?:[ \t].*\Z)?", re.MULTILINE)
# The name of a folder beside: `parents[1] / "name"`, `.parent.parent / "name"`, `"..", "name"`, `"../name"`.
_SIBLING_FOLDER = re.compile(
    r"(?:parents\[1\]|\.parent\.parent|[\"']\.\.[\"'])\s*[/,]\s*[\"'](\w+)[\"']|[\"'/]\.\./(\w+)[\"'/]"
)
_CACHE_FILE = re.compile(r"([^.]+)\.[^.]+(?:\.opt-\w+)?\.pyc(?:\.\d+)?")  # ends in a number while Python writes it
_UNCHECKED_HASH = 0b01  # flags of PEP 552: the cache has a hash of its source, which Python does not compare
_PIECE_BYTES = 1 << 20

# These have libraries of the system and of vendors, whose versions the provenance has.
_SYSTEM_FOLDERS = ("/usr/", "/lib/", "/lib64/", "/opt/", "/etc/", "/dev/", "/proc/", "/sys/")


def code_digest(folder: Path, platform_code_digest: str | None = None) -> str:
    """Return the digest of all code that a training in this folder runs, without its framework.

    It covers the folder itself, the folders beside it whose code it imports, the worker, and the node's agent.
    platform_code_digest: the digest of the last two, where the caller has it.
    """
    parts = [f"{path.name} {folder_digest(path)}" for path in (folder, *shared_folders(folder))]
    return (
        "sha256:" + hashlib.sha256("\n".join([*parts, platform_code_digest or platform_digest()]).encode()).hexdigest()
    )


def platform_digest() -> str:
    """Return the digests of the platform's code within a training: those of worker/ and node/."""
    node_folder = Path(__file__).resolve().parent
    return f"worker {folder_digest(node_folder.parent / 'worker')}\nnode {folder_digest(node_folder)}"


def shared_folders(folder: Path) -> list[Path]:
    """Return the folders beside this one that its sources name, as models/megatron names torch.

    The folders that their sources name are included. A name that is put together while the code runs is not found.
    """
    shared: dict[str, Path] = {}
    pending = [folder]
    while pending:
        scripts = (path for path in source_files(pending.pop()) if path.suffix == ".py")
        texts = (path.read_text(encoding="utf-8", errors="replace") for path in scripts)
        for name in sorted(
            {name for text in texts for match in _SIBLING_FOLDER.findall(text) for name in match if name}
        ):
            path = folder.parent / name
            if name != folder.name and name not in shared and path.is_dir():
                shared[name] = path
                pending.append(path)
    return [shared[name] for name in sorted(shared)]


def folder_digest(folder: Path) -> str:
    """Return the sha256 of all files below `folder` with their names, without recorded measurements.

    The manifest's `versions` are left out: the pins of one version change nothing of another. The digest of a run's
    environment has its own pins.
    """
    digest = hashlib.sha256()
    for path in source_files(folder):
        name = path.relative_to(folder).as_posix().encode(errors="surrogateescape")
        if path.name == MANIFEST_FILE:
            content = _VERSIONS_KEY.sub(b"", path.read_bytes())
            digest.update(name + f"\0{len(content)}\0".encode() + content)
        else:
            with path.open("rb") as file:
                digest.update(name + f"\0{os.fstat(file.fileno()).st_size}\0".encode())
                while piece := file.read(_PIECE_BYTES):  # weights may be gigabytes
                    digest.update(piece)
    return "sha256:" + digest.hexdigest()


def source_files(folder: Path) -> list[Path]:
    """Return all files below a folder that a training can read or load, in order, also behind links.

    A library, a table or weights change a training as its code does. The platform's own folders may have caches of
    tools, in folders whose names begin with a dot; those of a framework count.
    """
    paths = (path for path in _walk_files(folder) if not _is_checked_cache(path))
    # the platform's record of what was measured, beside a manifest, is no source
    paths = (p for p in paths if not (_MEASURED_FILE.fullmatch(p.name) and (p.parent / MANIFEST_FILE).is_file()))
    if folder.resolve().parent == Path(__file__).resolve().parents[1]:
        paths = (path for path in paths if not path.relative_to(folder).parts[0].startswith("."))
    return sorted(paths)


def _walk_files(folder: Path, parents: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """Yield the regular files below a folder. A link to one of its parents is not entered again."""
    status = folder.stat()
    identity = (status.st_dev, status.st_ino)
    if identity in parents:
        return
    for entry in os.scandir(folder):
        if entry.is_dir():
            yield from _walk_files(Path(entry.path), parents | {identity})
        elif entry.is_file():
            yield Path(entry.path)


def _is_checked_cache(path: Path) -> bool:
    """Return whether a file is Python's cache of an existing source, and Python compares the two.

    A cache with an unchecked hash is loaded in place of its source, whatever that holds, so it is a source itself.
    """
    cache = _CACHE_FILE.fullmatch(path.name) if path.parent.name == "__pycache__" else None
    if cache is None or not (path.parent.parent / f"{cache[1]}.py").is_file():
        return False
    try:
        with path.open("rb") as file:
            flags = int.from_bytes(file.read(8)[4:], "little")
    except OSError:  # Python writes beside it and renames: it is gone
        return True
    return flags & 0b11 != _UNCHECKED_HASH


def report_imports_at_end(file: str) -> None:
    """Have this process write `file` when it ends, also by os._exit. Processes that it forks write none."""
    process, original_exit = os.getpid(), os._exit

    def report() -> None:
        if os.getpid() == process:
            with contextlib.suppress(OSError):  # a full disk: the platform reports that the imports are unknown
                Path(file).write_text(json.dumps({"files": uncovered_files()}) + "\n", encoding="utf-8")

    def report_and_leave(status: int) -> Any:
        report()
        original_exit(status)

    atexit.register(report)
    os._exit = report_and_leave


def uncovered_files() -> list[dict[str, str]]:
    """Return path and sha256 of the loaded modules and libraries that no other digest covers.

    A rank writes them at its end. The platform then leaves out what the code's digest covers (run/input_watch.py).
    """
    # the folders of Python, of its packages and of the platform
    folders = [*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, sys.exec_prefix]
    folders.append(str(Path(__file__).resolve().parents[2]))
    # where compilers of frameworks cache what they made of code that is digested already
    with contextlib.suppress(RuntimeError):  # a user without a home has no such folder
        home = Path.home()
        if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
            folders.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        folders.append(os.environ.get("TRITON_CACHE_DIR") or str(home / ".triton"))
        folders.append(os.environ.get("TORCH_EXTENSIONS_DIR") or str(home / ".cache" / "torch_extensions"))
    covered_prefixes = tuple(os.path.realpath(folder) + os.sep for folder in folders)
    covered_prefixes += (os.path.realpath(tempfile.gettempdir()) + "/torchinductor_",)  # with the user's name behind it
    files = []
    for path in sorted({os.path.realpath(path) for path in _loaded_files()}):
        if path.startswith(covered_prefixes):
            continue
        digest = hashlib.sha256()
        try:
            with Path(path).open("rb") as file:
                while block := file.read(_PIECE_BYTES):
                    digest.update(block)
            files.append({"path": path, "sha256": digest.hexdigest()})
        except OSError as error:
            files.append({"path": path, "sha256": f"unreadable: {error.strerror}"})
    return files


def _loaded_files() -> Iterator[str]:
    """Yield the files of modules, and the libraries of this process that lie outside of the system's folders.

    A link in the folder of Python's own library is Python's: Debian has one to /etc.
    """
    library = sysconfig.get_paths()["stdlib"]
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if isinstance(name, str) and Path(name).is_file() and str(Path(name).parent) != library:
            yield name
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            path = line[line.find("/") :] if "/" in line else ""
            if ".so" in Path(path).name and not path.startswith(_SYSTEM_FOLDERS) and Path(path).is_file():
                yield path

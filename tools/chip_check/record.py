"""What `make gpu-check` has done, in done.json of its folder, with digests of the code and of the machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

SCHEMA = "levelfield.gpu-check/1"
CODE = ("run_benchmarks.py", "platform", "models", "configs", "vendors", "benchmarks")
LEFT_OUT = ("__pycache__", "recorded")  # recordings are written by an entry of the plan
Records = dict[str, dict[str, Any]]


def code_digest(root: Path) -> str:
    """Return the SHA-256 of every file that a run may read: names and contents."""
    digest = hashlib.sha256()
    for name in CODE:
        for path in sorted([root / name] if (root / name).is_file() else (root / name).rglob("*")):
            if path.is_file() and not set(path.parts) & set(LEFT_OUT):
                digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def machine_digest(vendor: str, here: str, python: str, packages: dict[str, str | None]) -> str:
    """Return the SHA-256 of host, kernel, devices, training's Python and versions of its frameworks."""
    facts = [platform.node(), platform.release(), vendor, here, python, sorted(packages.items())]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def read_records(folder: Path) -> Records:
    """Return the records by the entries' names; none where nothing was done. Raises ValueError."""
    path = folder / "done.json"
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"found schema {content['schema']!r}")
        return dict(content["entries"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}; expected {SCHEMA}; move the file away to begin anew") from None


def write_records(folder: Path, records: Records) -> None:
    """Replace done.json as a whole, so that a killed call leaves the old one or the new one."""
    write_whole(folder / "done.json", json.dumps({"schema": SCHEMA, "entries": records}, indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    new = path.with_suffix(path.suffix + ".new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def is_done(record: dict[str, Any] | None, digests: dict[str, str]) -> bool:
    """Return whether the record is of this code on this machine."""
    return record is not None and all(record.get(key) == value for key, value in digests.items())

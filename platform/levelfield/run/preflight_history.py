"""Earlier preflights of each node: their rates, in a small file of the user's data folder."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from levelfield.node.regular_files import read_regular
from levelfield.rundir.directory import write_atomically
from levelfield.user_folders import data_folder

MOST_KEPT = 50
MOST_BYTES = 2**20


def history_folder() -> Path:
    """Return the folder of the files, one for each node."""
    return data_folder() / "levelfield" / "preflights"


def history_file(node: str, kind: str) -> Path:
    """Return the file of a node. kind: what must be the same for rates to be compared, such as the framework."""
    digest = hashlib.sha256("\0".join((node, kind)).encode()).hexdigest()
    return history_folder() / f"{digest[:24]}.jsonl"


def earlier_rates(node: str, kind: str) -> list[dict[str, float]]:
    """Return the rates of earlier preflights, the oldest first. Damaged lines count for nothing."""
    try:
        lines = read_regular(history_file(node, kind), MOST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
    return [rates for rates in map(_rates, lines[-MOST_KEPT:]) if rates]


def keep_rates(node: str, kind: str, rates: Mapping[str, float]) -> None:
    """Add a preflight's rates. Without a place to keep them the next preflight has one value less."""
    path = history_file(node, kind)
    kept = [json.dumps(found) for found in (*earlier_rates(node, kind), dict(rates))][-MOST_KEPT:]
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "\n".join(kept) + "\n")


def _rates(line: str) -> dict[str, float]:
    """Return the rates of a line; none where one of them is no finite number above zero."""
    try:
        found = {str(name): float(rate) for name, rate in json.loads(line).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return found if all(0 < rate < math.inf for rate in found.values()) else {}

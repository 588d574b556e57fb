"""The ends of a node's ranks, as the first process of its container writes them."""

from __future__ import annotations

import json
from pathlib import Path

from levelfield.contracts.execution import NodeWork, ProcessEnd
from levelfield.node.regular_files import read_regular
from levelfield.run.launchers.launched_ranks import ends_of


def written_ends(node: NodeWork) -> tuple[ProcessEnd, ...]:
    """Return how each rank of a node ended. A running or lost rank has no values."""
    try:
        known = {end.rank: end for end in ends_of(json.loads(read_regular(Path(str(node.ends)))))}
    except (OSError, ValueError, TypeError):
        known = {}
    return tuple(known.get(p.rank, ProcessEnd(p.rank, None, None, False)) for p in node.processes)


def running_ranks(node: NodeWork) -> list[int]:
    """Return the node's ranks that have not ended."""
    return [end.rank for end in written_ends(node) if (end.exit_code, end.signal) == (None, None)]

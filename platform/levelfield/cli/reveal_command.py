"""`reveal check`: compares revealed values with their commitments."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from levelfield.errors import GateFailed
from levelfield.report.words import wrapped
from levelfield.specs.base import load
from levelfield.specs.withheld import Commitments, Reveal

MATCHES, CLOSED = "matches", "not revealed"
MISMATCH, UNKNOWN = "does not match", "was never committed to"


def execute(options: argparse.Namespace) -> int:
    """Return 0 when every revealed cell matches its commitment. Raises GateFailed otherwise."""
    cells = list(_checked(load(Commitments, options.commitments), load(Reveal, options.revealed)))
    if options.json:
        print(json.dumps(cells, indent=2, ensure_ascii=False))
    else:
        print("\n".join(line for cell in cells for line in _lines(cell)))
    wrong = [cell for cell in cells if cell["says"] in (MISMATCH, UNKNOWN)]
    if wrong:
        raise GateFailed(f"{options.revealed}: {len(wrong)} of {len(cells)} cells do not match a commitment")
    return 0


def _checked(public: Commitments, reveal: Reveal) -> Iterator[dict[str, Any]]:
    """Return every cell of both documents, with its value if the value matches the commitment."""
    revealed = {(cell.run_id, cell.field): cell for cell in reveal.cells}
    for promised in public.cells:
        found = revealed.pop((promised.run_id, promised.field), None)
        right = found is not None and found.digest() == promised.digest
        says = CLOSED if found is None else MATCHES if right else MISMATCH
        row = {"run_id": promised.run_id, "field": promised.field, "says": says}
        yield {**row, "value": found.value} if found and right else row
    for run_id, field in revealed:
        yield {"run_id": run_id, "field": field, "says": UNKNOWN}


def _lines(cell: dict[str, Any]) -> Iterator[str]:
    yield wrapped(f"{cell['says']:<15}{cell['field']} of {cell['run_id']}", 15)
    if "value" in cell:
        yield wrapped(f"{'':<15}{json.dumps(cell['value'], ensure_ascii=False)}", 15)

"""`show frameworks`: versions, families of models, and which layouts train what torch trains"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.options import add_json_option, registry_of
from levelfield.cli.show_command import framework_lines, framework_rows
from levelfield.report.sheets import pad_row
from levelfield.report.words import wrapped
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from levelfield.catalog.support import SupportRow

_HELP = """\
List the frameworks with their versions and families of models, and a table of
what works where: family x precision x layout, by the runs that are recorded.

examples:
  run_benchmarks.py show frameworks
  run_benchmarks.py show frameworks --json
"""


def execute(options: argparse.Namespace) -> int:
    """Print the frameworks and the table. Return 0."""
    from levelfield.catalog.support import support_rows

    registry = registry_of(options)
    entries, support = framework_rows(registry), list(support_rows(registry))
    if options.json:
        rows_by_framework = {
            name: [asdict(row) for row in support if row.framework == name] for name in registry.framework_labels()
        }
        print(json_text({"frameworks": [{**entry, "layouts": rows_by_framework[entry["name"]]} for entry in entries]}))
    else:
        print("\n".join(["frameworks", *framework_lines(entries), "", *support_lines(support)]))
    return 0


def support_lines(support: Sequence[SupportRow]) -> list[str]:
    """Return the support table and, below it, what its words and columns mean, in lines of at most 80 columns."""
    from levelfield.catalog.support import CELL_WORDS, LAYOUTS, SHORT_HEADINGS, STATES

    widths = (10, 8, 5, *[4] * len(LAYOUTS))
    lines = [pad_row(("framework", "family", "prec", *(SHORT_HEADINGS.get(key, key) for key in LAYOUTS)), widths, "")]
    previous_framework = ""
    for row in support:
        is_too_long = len(row.framework) >= widths[0]
        lines += [row.framework] if is_too_long and row.framework != previous_framework else []  # on its own line
        previous_framework = row.framework
        cells = (CELL_WORDS[state] for state in row.cells.values())
        lines.append(pad_row(("" if is_too_long else row.framework, row.family, row.precision, *cells), widths, ""))
    lines += ["", *(pad_row((f"  {CELL_WORDS[state]}", meaning), (8,), "") for state, meaning in STATES.items())]
    lines += ["  Z1 to Z3: ZeRO stages 1 to 3; SP: tensor with sequence parallel; CP: context;"]
    lines += ["  EP: experts; D, T and P: data, tensor and pipeline"]
    notes = [wrapped(f"  {note}", 4) for note in dict.fromkeys(row.note for row in support if row.note)]
    return [*lines, *([""] if notes else []), *notes]


COMMANDS = {"show frameworks": Command(_HELP, add_json_option, execute)}

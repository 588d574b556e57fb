"""A layout as a published report prints it, which leaves out what ran: into the layout of the report's row."""

from __future__ import annotations

import re

from levelfield.catalog.lookup import Selection
from levelfield.catalog.registry import Registry

# FlagPerf prints the pipeline first, and neither sharded states nor sequence parallelism. DP4TP2PP1 means what it says.
_INCOMPLETE = re.compile(r"PP\d+DP\d+TP\d+", re.IGNORECASE)


def layout_that_ran(registry: Registry, found: Selection, text: str | None) -> tuple[str, str] | None:
    """Return the layout of the published rows that print this text for the framework, and a sentence that says so.

    None where no row prints it, where rows disagree, and on a host, which takes the text as it is.
    """
    if text is None or found.vendor.is_host or not _INCOMPLETE.fullmatch(text):
        return None
    rows = [row for name in sorted(registry.published) for row in registry.figures(name).rows]
    printed = [
        row
        for row in rows
        if row.setting.layout_printed == text.upper() and row.setting.framework == found.implementation.framework
    ]
    layouts = {row.setting.layout for row in printed}
    if len(layouts) != 1 or layouts == {text}:
        return None
    (ran,) = layouts
    said = f"layout {text}: FlagPerf prints so what its row '{printed[0].name}' ran as {ran}, which is planned"
    return ran, f"{said}; write {ran.partition('SH')[0].partition('+')[0]} for that alone"

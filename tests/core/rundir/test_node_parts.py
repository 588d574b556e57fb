"""A machine's part of a run: its window on its own clock."""

from __future__ import annotations

import pytest
from levelfield.rundir.node_parts import NodePart
from levelfield.rundir.telemetry_files import NodeTelemetry
from levelfield.specs.case import Window


def part(first_rank_end_ns: dict[int, int]) -> NodePart:
    return NodePart(None, range(1), (), first_rank_end_ns, NodeTelemetry(), ("0",))


@pytest.mark.parametrize(
    ("first_rank_end_ns", "expected"),
    [
        ({1: 100, 2: 200, 3: 300}, (100, 300)),
        ({2: 200, 3: 300}, None),  # from any other time on it would have the warm-up
        ({1: 100, 2: 200}, None),
        ({1: 300, 3: 300}, None),
    ],
)
def test_a_window_begins_where_the_step_before_it_ended(
    first_rank_end_ns: dict[int, int], expected: tuple[int, int] | None
) -> None:
    assert part(first_rank_end_ns).window_ns(Window(first_step=2, last_step=3)) == expected

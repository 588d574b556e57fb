"""How an adapter runs a vendor's tool, and what it may read of the host's control groups.

The code is in node/, because a node's own part runs the same tools and reads the same groups.
"""

from __future__ import annotations

from levelfield.node.bounded_command import (
    Ask,
    CommandOutput,
    ask,
    assign_tools_to,
    encoding_problem,
    end_tools,
    run_bounded,
)
from levelfield.node.control_groups import control_groups, core_quota, file_text

__all__ = [
    "Ask", "CommandOutput", "ask", "assign_tools_to", "control_groups", "core_quota", "encoding_problem", "end_tools",
    "file_text", "run_bounded",
]  # fmt: skip

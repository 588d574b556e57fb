"""How an adapter runs a vendor's tool, and what it may read of the host's control groups.

The code is in node/, because a node's own part runs the same tools and reads the same groups.
"""

from __future__ import annotations

from levelfield.node.bounded_command import Ask, CommandOutput, ask, ask_for, completed, end_tools, no_text
from levelfield.node.control_groups import control_groups, core_quota, file_text

__all__ = [
    "Ask", "CommandOutput", "ask", "ask_for", "completed", "control_groups", "core_quota", "end_tools", "file_text",
    "no_text",
]  # fmt: skip

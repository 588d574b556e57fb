"""How an adapter runs a vendor's tool. The code is in node/, because a node's own part runs the same tools."""

from __future__ import annotations

from levelfield.node.bounded_command import Ask, CommandOutput, ask, ask_for, completed, end_tools

__all__ = ["Ask", "CommandOutput", "ask", "ask_for", "completed", "end_tools"]

"""What an adapter may read of the host's control groups. The code is in node/, because a node's own part reads them."""

from __future__ import annotations

from levelfield.node.control_groups import control_groups, core_quota, file_text

__all__ = ["control_groups", "core_quota", "file_text"]

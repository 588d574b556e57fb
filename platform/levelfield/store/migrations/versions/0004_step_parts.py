"""The traces of a run may have the parts of its step. No table changes; code of before cannot read such a run."""

from __future__ import annotations

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Change nothing but the number."""

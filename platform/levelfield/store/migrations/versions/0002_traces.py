"""The documents of a run may have a third part, its traces. No table changes; code of before cannot read such a run."""

from __future__ import annotations

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Change nothing but the number."""

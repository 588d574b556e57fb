"""Random numbers that depend on the place only: computing a block again draws the same ones."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import oneflow as flow

if TYPE_CHECKING:
    from stages import Stage


def seed_stage(stage: Stage, seed: int) -> None:
    """Start the random numbers from `seed`: equal on the ranks of a tensor-parallel group, but for its heads."""
    flow.manual_seed(seed)
    if stage.private_generator is not None:
        stage.private_generator.manual_seed(seed_number(f"{seed} {stage.rank}"))


def seed_number(text: str) -> int:
    """Return a seed below 2**31 that follows from the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

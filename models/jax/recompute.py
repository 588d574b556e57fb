"""Recomputation of activations (Chen et al., 2016): what of a block is kept for its backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from sharding import GATHERED

if TYPE_CHECKING:
    from collections.abc import Callable

    from levelfield.worker.job import Job

POLICIES = {
    "none": jax.checkpoint_policies.save_anything_except_these_names(GATHERED),
    # products with weights are kept; the inside of attention, norms and activations are computed again
    "selective": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def add_recomputation(job: Job, block: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return `block` with the tuning's recomputation. ZeRO 3 gathers a layer's weights again in every case."""
    if job.tuning.recompute == "none" and job.layout.sharding_stage != 3:
        return block
    policy = POLICIES[job.tuning.recompute]
    recomputed_block: Callable[..., jax.Array] = jax.checkpoint(
        block, policy=policy, prevent_cse=False
    )  # lax.scan prevents it
    return recomputed_block

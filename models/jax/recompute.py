"""Recomputation of activations (Chen et al., 2016): what of a block is kept for its backward pass."""

import jax
from sharding import GATHERED

POLICIES = {
    "none": jax.checkpoint_policies.save_anything_except_these_names(GATHERED),
    # products with weights are kept; the inside of attention, norms and activations are computed again
    "selective": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def recomputed(job, block):
    """`block` with the tuning's recomputation. ZeRO 3 gathers a layer's weights again in every case."""
    if job.tuning.recompute == "none" and job.layout.sharding_stage != 3:
        return block
    return jax.checkpoint(block, policy=POLICIES[job.tuning.recompute], prevent_cse=False)  # lax.scan prevents it

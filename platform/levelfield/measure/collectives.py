"""Times and bandwidths of collectives.

Bandwidths are as nccl-tests defines them (doc/PERFORMANCE.md of NVIDIA/nccl-tests). Algorithm bandwidth is the size of
the whole message over its time. Bus bandwidth multiplies it by the part of the message that each link carries, so that
figures of different numbers of ranks can be compared with one link's rate.
"""

from __future__ import annotations


def bus_factor(operation: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth. Raises KeyError for an unknown operation."""
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "broadcast": 1.0}[operation]

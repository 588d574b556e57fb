"""The time of collectives: a latency alpha for each hop, and bytes over a rate beta (Hockney, 1994).

Ring and tree costs follow Thakur, Rabenseifner and Gropp, 2005, sections 3 and 4. The faster one counts, because
libraries choose it. Bytes are those of the whole tensor on one rank; seconds are those of one call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """The link between the ranks of a group: seconds of a hop, and bytes per second from one rank to the next."""

    hop_seconds: float
    bytes_per_second: float


def all_reduce_seconds(size: float, ranks: int, link: Link) -> float:
    """Return the faster of ring, 2 (n-1)/n of the bytes in 2 (n-1) hops, and tree, 2 x the bytes in 2 log2 n hops."""
    if ranks == 1:
        return 0.0
    ring = 2 * gather_seconds(size, ranks, link)
    tree = 2 * math.ceil(math.log2(ranks)) * link.hop_seconds + 2 * size / link.bytes_per_second
    return min(ring, tree)


def gather_seconds(size: float, ranks: int, link: Link) -> float:
    """Return the time of an all-gather or reduce-scatter of `size` bytes in all: (n-1)/n of them in n-1 hops."""
    return (ranks - 1) * (link.hop_seconds + size / ranks / link.bytes_per_second)


def send_seconds(size: float, link: Link) -> float:
    """Return the time of a message from one rank to another."""
    return link.hop_seconds + size / link.bytes_per_second

"""What the process group of a preflight reached, for comparison with earlier preflights of the same nodes."""

from __future__ import annotations

from levelfield.rundir.preflight_events import PreflightFacts

GROUP = "all nodes together"


def group_rates(facts: PreflightFacts) -> dict[str, float]:
    """Return the bus bandwidth of each collective at its largest size, and of the fastest pair.

    Smaller messages show the latency of busy processors more than the network.
    """
    largest = {row.operation: row for row in sorted(facts.collectives, key=lambda row: row.bytes)}
    rates = {f"{name} of {row.bytes} bytes": row.bus_bytes_per_second for name, row in largest.items()}
    size = max((pair.bytes for pair in facts.pairs), default=0)
    pairs = [pair.bytes_per_second for pair in facts.pairs if pair.bytes == size]
    return rates | ({f"messages of {size} bytes in pairs": max(pairs)} if pairs else {})

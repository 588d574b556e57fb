"""What a rehearsal found to be wrong: its books against what its plan needs. An empty list is a good rehearsal.

The last step is judged. Of collectives all kinds are compared that move gradients, parameters or activations: with what
they need at least, and where nothing may come on top, at most.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from rehearsal.rank_work import FLOAT32, Need, RankWork

TOLERANCE = 0.005
SMALL = 64 * 2**10  # bytes: of norms, losses and counts, which no need names
GROWTH = 2**21
FIRST_GROWTH = 1.02  # DDP's buckets, and what a thread of torch still holds of the collectives before
BEYOND_PLAN = 1.1
GIB = 2**30


def findings(entry: dict[str, Any], reports: list[dict[str, Any]]) -> list[str]:
    """What is wrong with each rank's report, in sentences. A rank that failed has its own lines and is left out."""
    framework = entry["plan"]["implementation"]["framework"]
    faults = []
    for report in reports:
        if report.get("error") or report["exit_code"] or not report["steps"]:
            continue
        work = RankWork(entry["job"], framework, report["rank"])
        faults += [f"rank {report['rank']}: {fault}" for fault in rank_findings(entry, work, report)]
    return faults


def rank_findings(entry: dict[str, Any], work: RankWork, report: dict[str, Any]) -> Iterator[str]:
    last = report["steps"][-1]
    failed = sum(step["failed_allocations"] for step in report["steps"])
    if failed:
        yield f"{failed} allocations failed"
    if last["allocator_retries"]:
        yield f"the allocator flushed {last['allocator_retries']} times in step {last['step']}"
    yield from memory(entry, work, report["steps"])
    yield from products(work, last, set(report["attention_choices"].values()))
    yield from collectives(work.needs(), last["collectives"])
    waits = sum(many for name, many in last["synchronisations"].items() if name != "event")  # DDP times its buckets
    if work.framework == "torch" and waits > work.most_waits():
        yield f"the host waits {waits} times for the device in a step, expected at most {work.most_waits()}"


def memory(entry: dict[str, Any], work: RankWork, steps: list[dict[str, Any]]) -> Iterator[str]:
    """Growth from a step to the next, of which there is none after the second; and the peak against all that the plan
    expects, its reserve too."""
    for before, after in itertools.pairwise(steps):
        grown = after["allocated_peak_bytes"] - before["allocated_peak_bytes"]
        allowed = work.made_in_first_step() if before["step"] == 1 else 0
        if grown > allowed * FIRST_GROWTH + GROWTH:
            yield (
                f"allocated memory grows by {grown / GIB:.3f} GiB from step {before['step']} to {after['step']}, "
                f"expected at most {allowed / GIB:.3f}"
            )
    expected = (entry["plan"].get("expected_memory") or {}).get("parts")
    most = max(step["allocated_peak_bytes"] for step in steps)
    planned = sum(expected.values()) if expected else most
    if most > BEYOND_PLAN * planned:
        yield f"{most / GIB:.2f} GiB are allocated, and the plan expects {planned / GIB:.2f} with its reserve"


def products(work: RankWork, step: dict[str, Any], attention: set[str]) -> Iterator[str]:
    """Not compared: kernels of attention beside products of it; experts that have no room for all tokens, or are
    products one after another, as in float32."""
    experts, core = work.model.experts, attention == {"math"}
    if not core and attention & {"math", "error"}:
        return
    if experts is not None and (experts.capacity_factor is not None or work.width == FLOAT32):
        return
    expected, flops = work.product_flops(core), step["product_flops"]
    if abs(flops - expected) > TOLERANCE * expected:
        yield f"matrix products of {flops:.6g} FLOPs, expected {expected:.6g} ({flops / expected - 1:+.2%})"


def collectives(needs: list[Need], sent: dict[str, dict[str, int]]) -> Iterator[str]:
    """Needs of the same kind over as many ranks cannot be told apart, so they are compared together."""
    together: dict[tuple[tuple[str, ...], int], list[Need]] = defaultdict(list)
    for need in needs:
        together[need.kinds, need.ranks].append(need)
    for (kinds, ranks), several in together.items():
        sent_bytes = sum(sent.get(f"{kind} over {ranks}", {"bytes": 0})["bytes"] for kind in kinds)
        least, what = sum(need.least for need in several), ", ".join(dict.fromkeys(need.what for need in several))
        words = f"{' and '.join(kinds)} over {ranks} ranks ({what}): {sent_bytes:,} bytes"
        if sent_bytes < least * (1 - TOLERANCE):
            yield f"{words}, expected at least {least:,.0f}"
        elif all(need.exact for need in several) and sent_bytes > least * (1 + TOLERANCE) + SMALL:
            yield f"{words}, expected at most {least:,.0f}"

"""docs/verified/rehearsed.md, from docs/verified/rehearsed.json and the code at hand."""

from __future__ import annotations

from layouts import ROOT
from levelfield.catalog.registry import Registry
from levelfield.catalog.rehearsals import Rehearsals
from levelfield.specs.rehearsed import RehearsedRow

REHEARSED = ROOT / "docs" / "verified" / "rehearsed.md"
GIB = 2**30

INTRODUCTION = """# Rehearsed: the real code on devices that only keep books

A rehearsal runs the unmodified training at full scale, with the framework's own allocator, streams and collectives.
In the place of the device is a library that counts: kernels compute nothing, and memory is only booked. So it shows
what the code asks of a device, and nothing about speed or about numbers. No row here is a result.

`rehearsed.json` (schema `levelfield.rehearsed/1`) is its evidence. Each row rests on the files that its ranks
imported, as a recorded run of the processor does. `list frameworks` and `list vendors` say when a framework or a
vendor's chip was rehearsed last, as long as that code has not changed and no allocation failed. GiB of the fullest
device: planned without the planner's margin, the allocator's peaks beside it. Waits: how often the host waited for the
device in the last step. Ranks: how many ran; all of them with their messages delivered, or each alone. `make rehearse`
repeats all of it (tests/gpu/standin/README.md says what the stand-in is and is not). `plan CASE --rehearse` does the
same for rows of a plan of yours, and records nothing ([planner](../planner.md#rehearsals)).
"""

# The same plans by the code of 63c16f4, on a first stand-in; the rows below are of the code beside this page.
BEFORE = """## What rehearsals changed

By the code before, on 8 H100 of 79.1 GiB:

| plan | allocated, reserved GiB before | why | since |
|---|---|---|---|
| llama3_8b DP8 SH3 micro 2 selective, the default | 74.98, 79.76 (on 96 GB; on an H100 62 allocations failed in a step) | embedding and head were reduced at once; blocks could not grow | each is exchanged by itself; segments that grow |
| gpt3_6.7B DP8 SH1 micro 4 selective, the default | 69.87, 74.27 | blocks could not grow | segments that grow |
| gpt3_6.7B DP2 PP4 micro 1, first stage | 55.19, 58.29 | every micro-batch in flight had its own cast of the weights; DDP held gradients twice | one cast a step; gradients are DDP's buckets, and the first ones go before the second step |
| gpt3_6.7B by megatron, the default (DP4 PP2 SH1, interleaved) | 48.50, 61.57 | blocks could not grow | segments that grow |
| llama3_70b by megatron on 64, the default | 60.55, 74.75 | blocks could not grow | segments that grow |
| llama3_8b by deepspeed, ZeRO 3 and selective recomputation | none: its first backward pass failed, on any device | the engine gathers inside of what is computed again | gathers are not seen by the recomputation |

A step of torch waited 4 times for the device, and waits once now. ZeRO 3 gathered embedding and head in every
micro-batch; now once a step: 834 GiB a step in place of 895 for llama3_8b, and 0.3 GiB more memory.

The planner did not know that torch.distributed.pipelining has receive buffers for every micro-batch of a step (8 to 16
GiB for gpt3_6.7B in four stages), that DTensor keeps gathered inputs of products, that torch's allocator gives no
stream's memory to another (as much as all gradients in float32 without ZeRO), and that deepspeed reduces whole
gradients in ZeRO 1 and 2.

megatron copied all gradients at once in steps that record their norms; its fused cross-entropy rounded gradients of
logits to bf16 in fp32 and fp16 too; a step of llama3_70b waited 2,054 times for the device, in Megatron's exchange
between stages, and waits 3 times now.
"""  # noqa: E501

EMPTY = "No rehearsal is recorded yet."
HEAD = "| case | framework | chip | nodes x devices | layout | micro-batch | recompute | planned | allocated | reserved | failed allocations, flushes | waits | kernels a layer | attention | ranks | date | counts |"  # noqa: E501


def rehearsed_page(registry: Registry) -> str:
    """The page, whole. registry: of the frameworks, whose code is compared."""
    faults = Rehearsals(registry).faults
    rows = [_row(row, fault) for row, fault in faults.items()]
    table = [HEAD, "|---" * HEAD.count(" | ") + "|---|", *rows] if rows else [EMPTY]
    return "\n".join([*INTRODUCTION.splitlines(), "", *BEFORE.splitlines(), "", "## All rows", "", *table]) + "\n"


def _row(row: RehearsedRow, fault: str | None) -> str:
    planned = "-" if row.planned_bytes is None else _gib(row.planned_bytes)
    framework = f"{row.framework}, layers of {row.layers}" if row.layers else row.framework
    cells = (
        row.case, framework, row.chip, f"{row.nodes} x {row.devices}", row.layout, row.micro_batch, row.recompute,
        planned, _gib(row.allocated_bytes), _gib(row.reserved_bytes), f"{row.failed_allocations}, {row.flushes}",
        row.waits, f"{row.kernels_a_layer:,.0f}", row.attention or "-",
        f"all {row.ranks}" if row.delivered else f"{row.ranks} alone", row.date, fault or "yes",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _gib(count: int) -> str:
    return f"{count / GIB:.2f}"

"""The runs that measure the noise of a case: the same work with other arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from levelfield.catalog.registry import Registry
from levelfield.plan.request import Entry, UserRequest
from levelfield.specs.plan import Plan
from levelfield.specs.tuning import TuningChoice

# The parallelism that an implementation must offer, and a layout with it over two processes.
LAYOUTS = {"data": "DP2", "tensor": "TP2", "pipeline": "PP2", "zero1": "DP2SH1SP2"}


def variations(registry: Registry, plan: Plan) -> list[Entry]:
    """Return entries of the same work: one thread, other micro-batches, each layout over two processes."""
    framework, vendor = plan.implementation.label, plan.hardware.vendor
    offered = registry.labelled(framework)[0].parallelism.get(plan.hardware.device_kind, ())
    one, two = (f"{plan.case}:{framework}:{vendor}:1:{devices}" for devices in (1, 2))
    choices = [(one, TuningChoice(threads=1))]
    choices += [(one, TuningChoice(micro_batch=size)) for size in _micro_batches(plan)]
    choices += [(two, TuningChoice(layout=layout, threads=1)) for key, layout in LAYOUTS.items() if key in offered]
    return [Entry(text, UserRequest(plan.scale, choice)) for text, choice in choices]


def _micro_batches(plan: Plan) -> Iterator[int]:
    """Return half the micro-batch, and a larger one, as far as the same global batch divides into them.

    At smoke scale the larger one is all sequences of a step at once: in 16 bits the difference grows with the factor,
    so it covers the sizes between. At full scale it is twice the micro-batch, for which memory more often has room.
    """
    if plan.tuning.micro_batch % 2 == 0:
        yield plan.tuning.micro_batch // 2
    if plan.accumulation % 2 == 0:
        yield plan.tuning.micro_batch * (plan.accumulation if plan.scale == "smoke" else 2)

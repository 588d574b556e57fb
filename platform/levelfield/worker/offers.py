"""Refusals of what an implementation does not have, called before any rank joins the others.

The platform applies the manifest to a plan. These checks refuse a job that did not come from the platform, so that no
training leaves out a part of what it says.
"""

from __future__ import annotations

from .architecture import UNUSED, part
from .faults import Unsupported
from .job import Job


def check_layout(job: Job, *offered: str) -> None:
    """Raise Unsupported for a kind of parallelism that is not `offered`, by its name in implementation.yaml.

    `uneven` is no part of a layout: `check_pipeline` has the rule for layers.
    """
    lacking = [name for name, used in _kinds(job).items() if used and name not in offered]
    if lacking:
        has = f"it has {', '.join(offered)}" if offered else "it trains in one process"
        raise Unsupported(f"parallelism {', '.join(lacking)}: this implementation does not have it; {has}")


def _kinds(job: Job) -> dict[str, bool]:
    layout = job.layout
    return {
        "data": layout.data > 1,
        "tensor": layout.tensor > 1,
        "sequence": layout.sequence_parallel,
        "pipeline": layout.pipeline > 1,
        "interleaved": job.tuning.virtual_pipeline > 1,
        "context": layout.context > 1,
        "expert": layout.expert > 1,
        f"zero{layout.sharding_stage}": layout.sharding_stage > 0,
    }


def check_recomputed_layers(job: Job) -> None:
    """Raise Unsupported for recomputation of the first layers only, where an implementation has it of all or none."""
    if job.tuning.recompute_layers is not None:
        raise Unsupported(
            f"recompute of the first {job.tuning.recompute_layers} layers: this implementation has it of all layers"
        )


def check_no_graph(job: Job) -> None:
    """Raise Unsupported for a step that is replayed as a CUDA graph, where an implementation has none."""
    if job.tuning.graph:
        raise Unsupported("graph: this implementation does not capture its steps")


def check_parts(job: Job, *offered: str) -> None:
    """Raise Unsupported for a later part of the model that is not `offered`, by its name in specs/case.py:Model.

    The parts that every model says (positions, norm, activation, bias) are not checked here.
    """
    lacking = [name for name, unused in UNUSED.items() if part(job.model, name) != unused and name not in offered]
    if lacking:
        raise Unsupported(f"model parts {', '.join(lacking)}: this implementation does not have them")

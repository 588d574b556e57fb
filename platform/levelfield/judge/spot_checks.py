"""The layers of a verdict that need no reference: what one sampled step computed, and how it changed the weights.

The formulas and limits are in measure/spot_check.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from levelfield.measure.spot_check import (
    SampledStep,
    SampleError,
    chain_errors,
    has_bf16_gradients,
    output_errors,
    precision_word,
    update_errors,
)
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.case import Work
from levelfield.specs.plan import Plan
from levelfield.specs.result import Alignment, AlignmentLayer

OUTPUTS, UPDATE = "products", "update"
# Verdicts that compare nothing, or already name a difference.
_DECIDED = ("not comparable", "different", "diverged")


def add_spot_checks(alignment: Alignment, plan: Plan, raw: RawRecords) -> Alignment:
    """Return the verdict with the layers of the sampled step.

    A layer that fails makes the run different, also where it has no reference. Below fp32 a run that sampled nothing
    is consistent at best.
    """
    if not plan.spot_check:
        return alignment
    layers = spot_check_layers(raw, plan.work, plan.accumulation * plan.tuning.layout.data)
    verdict = alignment.model_copy(update={"layers": (*alignment.layers, *layers)})
    failed = next((layer for layer in layers if layer.passed is False), None)
    if failed is not None and alignment.verdict not in _DECIDED:
        return verdict.model_copy(update={"verdict": "different", "reason": f"{failed.name}: {failed.detail}"})
    precision = plan.work.training.precision
    if alignment.verdict == "aligned" and precision != "fp32" and not any(layer.name == OUTPUTS for layer in layers):
        reason = f"no layer differs, and none shows that it computes in {precision}: no step was sampled"
        return verdict.model_copy(update={"verdict": "consistent", "reason": reason})
    return verdict


def spot_check_layers(raw: RawRecords, work: Work, summands: int) -> list[AlignmentLayer]:
    """Return the layers that the run's samples give: none without samples.

    summands: how many gradients are added up to each that is recorded, of micro-batches and data-parallel ranks.
    """
    precision = work.training.precision
    outputs = [(s, error) for s in raw.sampled for error in output_errors(s, work.model, precision)]
    chain = [(s, error) for s in raw.sampled for error in chain_errors(s, work.model, precision)]
    updates = [(s, error) for s in raw.sampled for error in _updates(s, work, raw)]
    layers = []
    if outputs:
        sampled, worst = _worst(outputs)
        detail = f"{worst.name} at step {sampled.step}: error {worst.value:.1e}"
        if not worst.is_within:
            expected = f"below {worst.limit:.1e}" if worst.value > worst.limit else f"above {worst.least:.1e}"
            detail += f", expected {expected}: it is that of {precision_word(worst)}, planned is {precision}"
        layer = _layer(OUTPUTS, worst, f"{detail}; {len(outputs)} outputs computed again")
        if layer.passed and chain and not (broken := _worst(chain))[1].is_within:
            sampled, worst = broken
            off = f"{worst.value:.1e} off what the operations before it gave, limit {worst.limit:.1e}"
            layer = _layer(OUTPUTS, worst, f"{worst.name} at step {sampled.step}: {off}")
        missing = next(filter(None, map(_missing_output, raw.sampled)), None) if work.model.experts is None else None
        if layer.passed and missing is not None:
            layer = layer.model_copy(update={"passed": False, "detail": missing})
        layers.append(layer)
    if updates:
        sampled, worst = _worst(updates)
        detail = f"{worst.name} at step {sampled.step}: {worst.value:.1e} off AdamW's formula, limit {worst.limit:.1e}"
        layer = _layer(UPDATE, worst, detail)
        in_bf16 = next((s for s in raw.sampled if has_bf16_gradients(s)), None) if summands > 1 else None
        if layer.passed and in_bf16 is not None:
            detail = f"every gradient sampled at step {in_bf16.step} is a bf16 number: sums in float32 are not"
            layer = layer.model_copy(update={"passed": False, "detail": detail})
        layers.append(layer)
    return layers


def _missing_output(sampled: SampledStep) -> str | None:
    """Return which operation a sampled layer lacks that others have; None without one. All layers are alike."""
    parts = dict[str, set[str]]()
    for operation in sampled.operations:
        if operation.kind != "update" and operation.name.startswith("layers."):
            _, layer, name = operation.name.split(".", 2)
            parts.setdefault(layer, set()).add(name)
    for layer, names in sorted(parts.items()):
        if missing := sorted(set.union(*parts.values()) - names):
            return f"layers.{layer}.{missing[0]} was not computed at step {sampled.step}, and other layers' was"
    return None


def _updates(sampled: SampledStep, work: Work, raw: RawRecords) -> Iterator[SampleError]:
    """Yield the errors of the update; none for a step that the loss scale skipped, or whose gradient has no norm."""
    norms = {r.step: r.grad_norm for r in raw.steps if r.rank == sampled.rank and not r.skipped}
    norm = norms.get(sampled.step)
    if norm is not None and math.isfinite(norm):
        updates = sum(step <= sampled.step for step in norms)
        yield from update_errors(sampled, work.training, norm, updates)


def _worst(errors: Sequence[tuple[SampledStep, SampleError]]) -> tuple[SampledStep, SampleError]:
    """Return the error that is farthest out of its limits, or nearest to them."""
    return max(errors, key=lambda pair: max(pair[1].value / pair[1].limit, pair[1].least / max(pair[1].value, 1e-300)))


def _layer(name: str, error: SampleError, detail: str) -> AlignmentLayer:
    value = error.value if math.isfinite(error.value) else None
    return AlignmentLayer(name=name, passed=error.is_within, value=value, limit=error.limit, detail=detail)

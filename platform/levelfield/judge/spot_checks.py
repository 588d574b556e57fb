"""The layers of a verdict that need no reference: what sampled steps read, computed, and changed of the weights.

The formulas and limits are in measure/spot_check.py, sampled_tokens.py and sampled_updates.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from levelfield.measure.sampled_gradients import gradient_errors
from levelfield.measure.sampled_operations import SampledStep, SampleError, precision_word
from levelfield.measure.sampled_tokens import loss_errors, mean_loss_error
from levelfield.measure.sampled_updates import has_bf16_gradients, idle_change_errors, sum_errors, update_errors
from levelfield.measure.spot_check import chain_errors, exact_sum_errors, norm_scale_errors, output_errors
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.case import Work
from levelfield.specs.plan import Plan
from levelfield.specs.result import Alignment, AlignmentLayer

# The layers' names. `products` is of every output that is computed again: products, norms, attention, gradients.
OUTPUTS, TOKENS, UPDATE = "products", "tokens", "update"
# Verdicts that compare nothing, or already name a difference.
_DECIDED = ("not comparable", "different", "diverged")


def add_spot_checks(alignment: Alignment, plan: Plan, raw: RawRecords) -> Alignment:
    """Return the verdict with the layers of the sampled step.

    A layer that fails makes the run different, also where it has no reference. Below fp32 a run that sampled nothing
    is consistent at best.
    """
    if not plan.spot_check:
        return alignment
    layers = spot_check_layers(raw, plan.work, plan.accumulation, plan.tuning.layout.data)
    verdict = alignment.model_copy(update={"layers": (*alignment.layers, *layers)})
    failed = next((layer for layer in layers if layer.passed is False), None)
    if failed is not None and alignment.verdict not in _DECIDED:
        return verdict.model_copy(update={"verdict": "different", "reason": f"{failed.name}: {failed.detail}"})
    precision = plan.work.training.precision
    if alignment.verdict == "aligned" and precision != "fp32" and not any(layer.name == OUTPUTS for layer in layers):
        reason = f"no layer differs, and none shows that it computes in {precision}: no step was sampled"
        return verdict.model_copy(update={"verdict": "consistent", "reason": reason})
    return verdict


def spot_check_layers(raw: RawRecords, work: Work, accumulation: int, data_ranks: int) -> list[AlignmentLayer]:
    """Return the layers that the run's samples give: none without samples."""
    skipped = {(record.rank, record.step) for record in raw.steps if record.skipped}  # their gradients are not finite
    raw = replace(raw, sampled=tuple(step for step in raw.sampled if (step.rank, step.step) not in skipped))
    layers = (
        _output_layer(raw, work),
        _token_layer(raw, work, accumulation, data_ranks),
        _update_layer(raw, work, accumulation, data_ranks),
    )
    return [layer for layer in layers if layer is not None]


Errors = list[tuple[SampledStep, SampleError]]


def _output_layer(raw: RawRecords, work: Work) -> AlignmentLayer | None:
    precision = work.training.precision
    outputs = [(s, error) for s in raw.sampled for error in output_errors(s, work.model, precision)]
    chain_and_gradient_errors, sum_errors_in_8_bits = (
        [(s, error) for find in kinds for s in raw.sampled for error in find(s, work.model, precision)]
        for kinds in ((chain_errors, norm_scale_errors, gradient_errors), (exact_sum_errors,))
    )
    if not outputs:
        return None
    sampled, worst = _worst(outputs)
    detail = f"{worst.name} at step {sampled.step}: error {worst.value:.1e}"
    if not worst.is_within:
        expected = f"below {worst.limit:.1e}" if worst.value > worst.limit else f"above {worst.least:.1e}"
        detail += f", expected {expected}: it is that of {precision_word(worst)}, planned is {precision}"
    layer = _layer(OUTPUTS, worst, f"{detail}; {len(outputs)} outputs computed again")
    for errors, expected in (
        (chain_and_gradient_errors, "what the operations before it gave"),
        (sum_errors_in_8_bits, "the sum of its terms in E4M3"),
    ):
        if layer.passed and errors and not (worst_pair := _worst(errors))[1].is_within:
            layer = _layer(OUTPUTS, worst_pair[1], _difference(worst_pair, expected))
    missing = next(filter(None, map(_missing_output, raw.sampled)), None) if work.model.experts is None else None
    if layer.passed and missing is not None:
        layer = layer.model_copy(update={"passed": False, "detail": missing})
    return layer


def _token_layer(raw: RawRecords, work: Work, accumulation: int, data_ranks: int) -> AlignmentLayer | None:
    errors = [(s, error) for s in raw.sampled for error in loss_errors(s, work.training.precision, accumulation)]
    losses = {(record.rank, record.step): record.loss for record in raw.steps}
    for step in raw.sampled:
        loss = losses.get((step.rank, step.step))
        if step.micro_batch_losses and loss is not None and data_ranks == 1:  # else it is the mean of several ranks'
            errors.append((step, mean_loss_error(step, loss)))
    if not errors:
        return None
    sampled, worst = worst_pair = _worst(errors)
    if worst.kind == "tokens" and not worst.is_within:
        count, token_kind = int(worst.value), worst.name
        return _layer(TOKENS, worst, f"{token_kind} of {count} micro-batches at step {sampled.step} are not the case's")
    return _layer(TOKENS, worst, _difference(worst_pair, "what the logits give"))


def _update_layer(raw: RawRecords, work: Work, accumulation: int, data_ranks: int) -> AlignmentLayer | None:
    formula = [(s, error) for s in raw.sampled for error in _formula_errors(s, work, raw)]
    sums = [(s, error) for s in raw.sampled for error in sum_errors(s, accumulation)]
    changes = list(idle_change_errors(raw.sampled))
    for errors, expected in (
        (formula, "AdamW's formula"),
        (sums, "the sum of its micro-batches'"),
        (changes, "what the step before left"),
    ):
        if errors and not (worst_pair := _worst(errors))[1].is_within:
            return _layer(UPDATE, worst_pair[1], _difference(worst_pair, expected))
    if not formula:
        return None
    bf16_step = next((s for s in raw.sampled if has_bf16_gradients(s)), None) if accumulation * data_ranks > 1 else None
    layer = _layer(UPDATE, (worst_pair := _worst(formula))[1], _difference(worst_pair, "AdamW's formula"))
    if bf16_step is None:
        return layer
    detail = f"every gradient sampled at step {bf16_step.step} is a bf16 number: sums in float32 are not"
    return layer.model_copy(update={"passed": False, "detail": detail})


def _difference(error_pair: tuple[SampledStep, SampleError], expected: str) -> str:
    sampled, worst = error_pair
    return f"{worst.name} at step {sampled.step}: {worst.value:.1e} off {expected}, limit {worst.limit:.1e}"


def _missing_output(sampled: SampledStep) -> str | None:
    """Return which operation a sampled layer lacks that others have; None without one.

    All layers are alike, but that a pipeline's stage does not sample the gradient of its first norm.
    """
    parts = dict[str, set[str]]()
    for operation in sampled.operations:
        if operation.kind not in ("update", "norm gradient") and operation.name.startswith("layers."):
            _, layer, name = operation.name.split(".", 2)
            parts.setdefault(layer, set()).add(name)
    for layer, names in sorted(parts.items()):
        if missing := sorted(set.union(*parts.values()) - names):
            return f"layers.{layer}.{missing[0]} was not computed at step {sampled.step}, and other layers' was"
    return None


def _formula_errors(sampled: SampledStep, work: Work, raw: RawRecords) -> Iterator[SampleError]:
    """Yield the errors of the update; none where the gradient has no norm."""
    norms = {r.step: r.grad_norm for r in raw.steps if r.rank == sampled.rank and not r.skipped}
    norm = norms.get(sampled.step)
    if norm is not None and math.isfinite(norm):
        optimizer_steps = sum(step <= sampled.step for step in norms)
        yield from update_errors(sampled, work.training, norm, optimizer_steps)


def _worst(errors: Errors) -> tuple[SampledStep, SampleError]:
    """Return the error that is farthest out of its limits, or nearest to them."""
    return max(errors, key=lambda pair: max(pair[1].value / pair[1].limit, pair[1].least / max(pair[1].value, 1e-300)))


def _layer(name: str, error: SampleError, detail: str) -> AlignmentLayer:
    value = error.value if math.isfinite(error.value) else None
    return AlignmentLayer(name=name, passed=error.is_within, value=value, limit=error.limit, detail=detail)

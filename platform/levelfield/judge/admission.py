"""Which runs may become noise: else a faulty run would widen the limits until it holds itself.

A run must hold against the limits that the reference has. While the reference has fewer than FEW rows, these limits
say too little. Then the run must be of the reference's own framework, and within PLAUSIBLE: ceilings for rounding.
"""

from __future__ import annotations

from dataclasses import replace

from levelfield.errors import GateFailed, UsageError
from levelfield.judge.noise import choice_limits, limits_from, rows_that_count
from levelfield.judge.verdict import training_of_reference
from levelfield.measure.alignment import AlignmentLimits, Place, TrainingCurve, align
from levelfield.specs.case import Precision
from levelfield.specs.reference import Reference
from levelfield.specs.result import Result

FEW = 5  # rows

# What rounding alone can reach, from above (docs/alignment.md has the largest differences that were measured): first
# step, gradients, curve, and the norms and projections of final weights. 1e300: no ceiling. A key's bias has no
# gradient but rounding, and Adam makes steps of full size from it.
_FREE: dict[Place, float] = {("attention.key.bias", "norm"): 1e300, ("attention.key.bias", "projection"): 1e300}
# bf16, gradients and final weights: torch's LayerNorm on a processor sums a bias's gradient in bf16. Its norm with one
# thread is 0.19 from that with two, and the bias ends 0.36 away (gpt3_6.7B at smoke scale).
PLAUSIBLE: dict[Precision, tuple[float, float, float, float]] = {
    "fp32": (2e-6, 2e-4, 1e-4, 1e-2),
    "bf16": (2e-3, 0.5, 1e-2, 0.5),
    "fp16": (1e-3, 0.1, 1e-2, 0.1),
    "fp8": (1e-2, 0.3, 3e-2, 0.3),
}


def check_admissible(reference: Reference, run: TrainingCurve, result: Result) -> None:
    """Raise GateFailed, with run, layer, number, limit and what to do, when the run may not become noise.

    Raises UsageError for the reference's own run, which has no difference from itself.
    """
    if result.run_id == reference.run_id:
        raise UsageError(f"{result.run_id} is the run that {reference.name} was made from; give another one")
    count = len(rows_that_count(reference))
    if count < FEW and result.framework != reference.framework:
        raise GateFailed(
            f"{result.run_id} was trained with {result.framework}, and {reference.name} with {reference.framework}. "
            f"The first {FEW} rows of noise must be of the reference's own framework (found {count}): without them "
            f"nothing shows whether another framework is right. Record them first: "
            f"`align calibrate {reference.case}:{reference.framework}`. {OVERRIDE}"
        )
    limits = _limits(reference)
    finding = align(run, training_of_reference(reference), limits)
    if finding.verdict not in ("aligned", "inconclusive"):
        failed = next(layer for layer in finding.layers if layer.passed is False)
        raise GateFailed(
            f"{result.run_id} is {finding.verdict} from {reference.name}: {failed.name} {failed.detail} "
            f"({limits.source}). Its noise would widen the limits until it holds. Find the cause: "
            f"`align diagnose {result.run_id}`. {OVERRIDE}"
        )


OVERRIDE = 'If the difference is right, give the reason: --replace --why "...", which the reference stores.'


def _limits(reference: Reference) -> AlignmentLimits:
    """Return the reference's limits with the ceilings where it has none; the ceilings while it has few rows."""
    first, gradient, curve, weights = PLAUSIBLE[reference.precision]
    ceilings = AlignmentLimits(first, gradient, curve, "", {**_FREE, None: weights}, choice_limits(reference))
    if len(rows_that_count(reference)) < FEW:
        source = f"what rounding in {reference.precision} reaches at most; fewer than {FEW} rows of noise"
        return replace(ceilings, source=source)
    known = limits_from(reference)
    return replace(known, weights=ceilings.weights if known.weights is None else known.weights)

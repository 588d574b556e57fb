"""The verdict on a run's training against a reference, and how the seal and the status change it.

The rules are in measure/alignment.py.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from levelfield.judge.noise import limits_from
from levelfield.judge.spot_checks import add_spot_checks
from levelfield.measure import alignment as rules
from levelfield.measure.routing import sum_expert_shares, summarise_own_choices
from levelfield.measure.validity import loss_curve
from levelfield.measure.weights import final_weights, gradient_norms, window_norms
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.bundle import SealFinding
from levelfield.specs.case import Work
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Identity, Reference
from levelfield.specs.result import Alignment, AlignmentLayer, Status
from levelfield.worker.choices import digest_of

# Verdicts whose reason also names a bad status. `not comparable` and `unchecked` have compared nothing.
_COMPARISON_VERDICTS = ("diverged", "different", "inconclusive")
# Of the way from bf16's gradients to those of the fp8 reference: honest runs in bf16 are at -0.01 to 0.01, in fp8 at
# 0.73 to 1.
MIN_FP8_SHARE = 0.5


def training_verdict(plan: Plan, raw: RawRecords, identity: Identity, reference: Reference | None) -> Alignment:
    """Return the verdict on a run of the plan."""
    return add_spot_checks(_reference_verdict(plan, raw, identity, reference), plan, raw)


def _reference_verdict(plan: Plan, raw: RawRecords, identity: Identity, reference: Reference | None) -> Alignment:
    if reference is None:
        return Alignment(verdict="unchecked", reason="this case has no reference at this scale")
    if reference.identity.corpus != identity.corpus:
        return Alignment(verdict="unchecked", reason="another corpus than the reference's", reference=reference.name)
    if reference.identity.work != identity.work:
        reason = f"the reference of {reference.promoted[:10]} is stale: its case has changed since"
        return Alignment(verdict="not comparable", reason=reason, reference=reference.name)
    training = run_curve(plan.work, raw, identity)
    verdict = compare_with_reference(training, reference_curve(reference), reference)
    unproven_reason = unproven_precision(plan, training, reference) if verdict.verdict == "aligned" else None
    return (
        verdict.model_copy(update={"verdict": "consistent", "reason": unproven_reason}) if unproven_reason else verdict
    )


def unproven_precision(plan: Plan, training: rules.TrainingCurve, reference: Reference) -> str | None:
    """Return why no layer shows that the run computed in its precision; None where one does.

    A run in fp32 shows it by its losses, one in fp8 by its first gradients. Runs of older versions did not record
    these.
    """
    if not plan.window_gradients:
        return None
    precision = plan.work.training.precision
    start = f"no layer differs, and none shows that it computes in {precision}"
    if precision != "fp8":
        reason = "its reference has no gradient norms of the window; promote it again"
        return None if reference.window else f"{start}: {reason}"
    step = min(reference.gradients)
    if not reference.in_bf16:
        return f"{start}: its reference has no gradients of the same training in bf16 to differ from"
    share = rules.interpolation_position(training.gradients.get(step, {}), reference.in_bf16, reference.gradients[step])
    if share >= MIN_FP8_SHARE:
        return None
    distance_text = f"lie {share:.0%} of the way from bf16's to the reference's, expected at least half"
    return f"{start}: its gradients of step {step} {distance_text}"


def first_step_beyond_noise(raw: RawRecords, reference: Reference) -> int | None:
    """Return the first step whose loss differs from the reference's by more than its noise; None without one."""
    expected = dict(enumerate(reference.losses, start=1))
    return rules.first_step_beyond(loss_curve(raw.steps), expected, limits_from(reference).curve)


def compare_with_reference(run: rules.TrainingCurve, other: rules.TrainingCurve, reference: Reference) -> Alignment:
    limits = limits_from(reference)
    finding = rules.align(run, other, limits)
    figure = rules.flagperf_difference(run, other)
    return Alignment(
        verdict=finding.verdict,
        reason=finding.reason,
        reference=f"{reference.name} ({reference.run_id})",
        limits=limits.source,
        layers=tuple(_finite_layer(layer) for layer in finding.layers),
        flagperf_mean_error=figure if figure is not None and math.isfinite(figure) else None,
    )


def run_curve(work: Work, raw: RawRecords, identity: Identity) -> rules.TrainingCurve:
    norms = {r.step: r.grad_norm for r in raw.steps if r.rank == 0 and r.grad_norm is not None and not r.skipped}
    by_parameter, first = gradient_norms(raw.gradients), work.window.first_step
    in_16_bits = work.training.precision in ("bf16", "fp16")  # in 8 bits honest trainings drift too far apart
    return rules.TrainingCurve(
        work.training.steps,
        loss_curve(raw.steps),
        norms,
        {step: parameters for step, parameters in by_parameter.items() if step < first},
        identity.model_dump(),
        final_weights(raw.final),
        sum_expert_shares(raw.experts),
        raw.choices_digests.get(0),
        summarise_own_choices(raw.compared_choices, work.model.experts),
        frozenset(r.step for r in raw.steps if r.skipped),
        window_norms(by_parameter, norms, work.window) if in_16_bits else {},
    )


def reference_curve(reference: Reference) -> rules.TrainingCurve:
    norms = {step: norm for step, norm in enumerate(reference.grad_norms, start=1) if norm is not None}
    losses = dict(enumerate(reference.losses, start=1))
    return rules.TrainingCurve(
        len(losses),
        losses,
        norms,
        reference.gradients,
        reference.identity.model_dump(),
        reference.weights,
        reference.routing,
        None if reference.choices is None else digest_of(reference.choices),
        window_norms=reference.window,
    )


def _finite_layer(layer: rules.Layer) -> AlignmentLayer:
    """Return the layer for JSON. A value that is not finite becomes None; the layer's detail names it."""
    fields = asdict(layer)
    for key in ("value", "limit"):
        fields[key] = fields[key] if fields[key] is not None and math.isfinite(fields[key]) else None
    return AlignmentLayer(**fields)


@dataclass(frozen=True)
class Redaction:
    """What a bundle stores about the original files, as its own are redacted."""

    seal: SealFinding  # of the files before redaction
    software: str | None  # the digest of the packages and of the vendor's software


def sealed_status(status: Status, seal: SealFinding) -> Status:
    """Return the status with the seal's word in place of `valid`. Every other word stays: it has its own reasons."""
    if status.word != "valid" or seal.word == "sealed":
        return status
    return Status(word=seal.word, reasons=(seal.reason or seal.word,))


def withhold_if_tampered(verdict: Alignment, seal: SealFinding | None) -> Alignment:
    """Return the verdict on the training; no verdict where the files were changed."""
    if seal is None or seal.word != "tampered":
        return verdict
    return Alignment(verdict="unchecked", reason=f"the run is tampered: {seal.reason}", reference=verdict.reference)


def verdict_under_status(verdict: Alignment, status: Status) -> Alignment:
    """Return the verdict on the training; `unchecked` in place of `aligned` and `consistent` for a run without figures.

    The layers stay: they say what was compared. A verdict that finds a difference stays too, and its reason names the
    status.
    """
    if status.has_figures:
        return verdict
    if verdict.verdict in ("aligned", "consistent"):
        reason = f"the run is {status.word}, so no verdict on it counts (by its layers alone: {verdict.verdict})"
        return verdict.model_copy(update={"verdict": "unchecked", "reason": reason})
    if verdict.verdict in _COMPARISON_VERDICTS:
        return verdict.model_copy(update={"reason": f"{verdict.reason}; the run is {status.word}"})
    return verdict

"""Makes references from valid runs, and adds the noise of runs that differ in arithmetic only."""

from __future__ import annotations

from collections.abc import Iterable

from levelfield.errors import GateFailed, UsageError
from levelfield.judge.admission import OVERRIDE_HINT, check_admissible, check_ceiling, check_recorded_row
from levelfield.judge.collector import collect
from levelfield.judge.noise import choice_limits, noise_row
from levelfield.judge.verdict import reference_curve, run_curve
from levelfield.measure.calibration import noise_between
from levelfield.measure.routing import mixture_layers, routing_difference
from levelfield.rundir.directory import read_plan, utc_now
from levelfield.rundir.raw_files import RawRecords, read_raw
from levelfield.specs.base import load
from levelfield.specs.free_fields import FREE_FIELDS
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference
from levelfield.specs.result import Result
from levelfield.user_folders import user_name
from levelfield.worker.choices import digest_of, joined


def make_reference(paths: RunPaths, reason: str) -> Reference:
    """Return a reference made from a run, with the reason for it. Raises UsageError for a run that is not valid."""
    plan, result = read_plan(paths), collect(paths)
    _require_valid(result)
    raw = read_raw(paths)
    training = run_curve(plan.work, raw, result.identity)
    steps = range(1, training.steps + 1)
    return Reference(
        case=plan.case,
        scale=plan.scale,
        precision=plan.work.training.precision,
        identity=result.identity,
        losses=tuple(training.losses[step] for step in steps),
        grad_norms=tuple(training.grad_norms.get(step) for step in steps),
        gradients={step: dict(norms) for step, norms in training.gradients.items()},
        weights={name: tuple(figures) for name, figures in training.weights.items()},
        window={step: dict(groups) for step, groups in training.window_norms.items()},
        routing={step: dict(layers) for step, layers in training.routing.items()},
        choices=_expert_choices(paths, plan, raw),
        run_id=plan.run_id,
        framework=result.framework,
        framework_version=result.framework_version,
        hardware=f"{plan.world_size} x {hardware_of(plan, result)}",
        layout=str(result.layout),
        settings=settings_text(plan, result),
        promoted=utc_now(),
        by=user_name(),
        why=reason,
    )


def promoted_reference(paths: RunPaths, reason: str, current: Reference | None, is_forced: bool) -> Reference:
    """Return the new reference. Raises GateFailed for a run that fails against the current one, unless `is_forced`.

    Recorded noise of the same work stays: it belongs to the case, not to one run. A row of the promoted run
    itself is removed.
    """
    reference, plan = make_reference(paths, reason), read_plan(paths)
    if plan.work.model.experts is not None and reference.choices is None:
        raise UsageError(
            f"{plan.run_id} has not all choices of its experts, which runs of a mixture are compared by. A run of one "
            f"process at smoke scale records them: --case {plan.case}:{plan.implementation.label}"
            f":{plan.hardware.vendor}:1:1"
        )
    if current is None or current.identity.work != reference.identity.work:
        return reference
    verdict = collect(paths).alignment
    if verdict.verdict in ("diverged", "different", "not comparable") and not is_forced:
        raise GateFailed(
            f"{paths.root.name} is {verdict.verdict} against the present reference ({verdict.reason}); "
            "use --replace to promote it anyway"
        )
    noise = tuple(row for row in current.noise if row.run_id != reference.run_id)
    return reference.model_copy(update={"noise": noise})


def add_bf16_gradients(reference: Reference, plan: Plan, others: Iterable[Reference]) -> Reference:
    """Return a reference in fp8 with the gradients of the same training in bf16.

    It stays as it is in another precision, without gradients, or where `others` have no such training.
    """
    if reference.precision != "fp8" or not reference.gradients:
        return reference
    training = plan.work.training.model_copy(update={"precision": "bf16"})
    bf16_identity = reference.identity.model_copy(
        update={"work": plan.work.model_copy(update={"training": training}).fingerprint()}
    )
    bf16_reference = next((other for other in others if other.identity == bf16_identity), None)
    if bf16_reference is None:
        return reference
    return reference.model_copy(update={"in_bf16": bf16_reference.gradients[min(reference.gradients)]})


def add_noise(
    reference: Reference, paths: RunPaths, reason: str | None = None, result: Result | None = None
) -> Reference:
    """Return the reference with one more row of noise, in place of the same run's earlier row.

    reason: why a run beyond the limits is accepted; the row stores it. result: the run's; None: it is collected.
    Raises UsageError for an invalid run or other work, GateFailed for a run that is beyond the limits.
    """
    plan = read_plan(paths)
    result = result or collect(paths)
    _require_valid(result)
    identity = result.identity.model_dump()
    if differing := [key for key, value in identity.items() if getattr(reference.identity, key) != value]:
        raise UsageError(
            f"{result.run_id} did other work than {reference.name}: {', '.join(differing)} differ; "
            "give a run of the same work"
        )
    training = run_curve(plan.work, read_raw(paths), result.identity)
    if reason is None:
        check_admissible(reference, training, result)
    expected = reference_curve(reference)
    noise, changed_choices = (
        noise_between(training, expected),
        routing_difference(training.routing, expected.routing).changed,
    )
    if any(changed_choices.values()) and choice_limits(reference) and reason is None:
        raise GateFailed(
            f"{result.run_id} chose other experts than {reference.name} and did not follow its choices: its "
            f"differences are no noise. Train it again with this checkout, which follows them. {OVERRIDE_HINT}"
        )
    row = noise_row(noise, settings_text(plan, result), plan.run_id, hardware_of(plan, result), reason, changed_choices)
    current = next((r for r in reference.noise if r.run_id == row.run_id), None)
    if current is not None and reason is None:
        row = row.model_copy(update={"recorded": current.recorded})  # the first calibration is found by this time
    rows = [r for r in reference.noise if r.run_id != row.run_id] + [row]
    updated = reference.model_copy(update={"noise": tuple(sorted(rows, key=lambda r: (r.changed, r.run_id)))})
    if reason is None:
        check_recorded_row(current, row, reference)
        check_ceiling(reference, updated, row.run_id)
    return updated


def hardware_of(plan: Plan, result: Result) -> str:
    return f"{result.chip}: {plan.hardware.description}"


def settings_text(plan: Plan, result: Result) -> str:
    """Return framework, layout and micro-batch of the run, and each other free field that is not at its default."""
    values, names = plan.tuning.values, {"layout", "micro_batch", *plan.tuning.non_default_fields}
    words = [FREE_FIELDS[name].phrase.format(value) for name, value in values.items() if name in names]
    return ", ".join((f"{result.framework} {result.framework_version}", *words))


def _expert_choices(paths: RunPaths, plan: Plan, raw: RawRecords) -> str | None:
    """Return the choices of experts of a mixture's run: its own, or those that it followed; None without them."""
    experts, training = plan.work.model.experts, plan.work.training
    if experts is None:
        return None
    if followed_digest := raw.choices_digests.get(0):
        choices = load(Reference, paths.reference).choices if paths.reference.exists() else None
        return choices if choices is not None and digest_of(choices) == followed_digest else None
    parts = {(layer.step, layer.layer): layer.packed_experts for layer in raw.chosen}
    layers = mixture_layers(plan.work.model)
    expected = [(step, layer) for step in range(1, training.steps + 1) for layer in layers]
    if sorted(parts) != expected or len(raw.chosen) != len(expected):
        return None
    shape = (training.global_batch, training.sequence_length, experts.chosen)
    return joined([parts[place] for place in expected], shape, experts.count)


def _require_valid(result: Result) -> None:
    if result.status.word != "valid":
        reasons = f" ({'; '.join(result.status.reasons)})" if result.status.is_unproven else ""
        raise UsageError(
            f"{result.run_id} is {result.status.word}{reasons}; a reference and its noise need a valid run"
        )

"""The training in every layout, precision and recomputation that the manifest offers, compared with torch's curve."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from levelfield.catalog.code_basis import training_code_digest
from levelfield.checkout import checkout
from levelfield.run.provenance import checkout_commit
from levelfield.specs.architecture import Model
from levelfield.specs.case import Precision
from levelfield.specs.layout import Layout
from levelfield.specs.recorded_runs import Difference, DifferenceLimits, MatrixRun
from levelfield.testing.findings import Fails, Missing, NotApplicable, Warns
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject, torch_curve, torch_curve_of_job
from levelfield.testing.framework_kit.small_jobs import (
    LONG_STEPS,
    PART_MODELS,
    SINGLE,
    Variant,
    enlarge_vocabulary,
    enlarge_weights,
    has_parts,
    offered_variants,
    refusable_choices,
    small_job,
)
from levelfield.testing.framework_kit.training_curves import Curve, compare, compare_routing
from levelfield.worker.architecture import Model as WorkerModel
from levelfield.worker.architecture import is_mixture
from levelfield.worker.choices import packed
from levelfield.worker.job import parse

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW_STEPS = 10
LARGE_STEPS = 2  # of the embedding of a million elements
# Of the routers' losses, at any step. In 16 bits rounding gives tokens to other experts, and they were 1.4e-3 apart.
ROUTING_LIMITS: dict[Precision, float] = {"fp32": 1e-4, "bf16": 1e-2, "fp16": 1e-2}
# Of one process with large weights. Measured: rounding is up to 1e-7 in the loss and 2e-7 in the gradient norm; GELU's
# other form is 6e-6 and 6e-5, and its cubic constant 1 % off 1.6e-6 and 4e-5.
SHARP_LIMITS = DifferenceLimits(first_loss=1e-6, loss=1e-6, grad_norm=1e-5)
COMPARED_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")  # fp8 has no limits of its own here


@dataclass(frozen=True)
class OfferedRun:
    """One training of the check: a small model, a precision and a layout."""

    family: str
    precision: Precision
    variant: Variant

    def __str__(self) -> str:
        return f"{self.family} {self.precision} {self.variant.name}"


def offered_runs(subject: FrameworkSubject) -> Iterator[OfferedRun]:
    """Return every training that the manifest offers on the devices here, one process first."""
    precisions = [name for name in COMPARED_PRECISIONS if name in subject.manifest.precisions.get(subject.kind, ())]
    for precision in precisions:
        devices = subject.registry.machine.devices(subject.vendor.name)
        most = math.inf if subject.vendor.is_host else len(devices)  # a host is divided into any number of shares
        for family, model in subject.models.items():
            for variant in offered_variants(subject.manifest, subject.kind, model, precision):
                if variant.ranks <= most:
                    yield OfferedRun(family, precision, variant)


def check_training(subject: FrameworkSubject, only_one_process: bool = False) -> str:
    """Check all trainings. The finding names those that do not pass."""
    runs = []
    for offer in offered_runs(subject):
        if only_one_process and offer.variant.ranks > 1:
            continue
        runs.append((offer, train_offered_run(subject, offer)))
        subject.report_progress(f"{offer}: {_run_summary(runs[-1][1])}")
    subject.shared["runs"] = tuple(run for _, run in runs)
    failed_runs = [(offer, run) for offer, run in runs if not run.passed]
    if failed_runs:
        offer, run = failed_runs[0]
        section = 5 if all(failed.layout.world_size > 1 for _, failed in failed_runs) else 4
        hint = f"see section {section} of docs/writing-a-framework.md"
        if choices := refusable_choices(small_job(subject.models[offer.family], offer.variant)):
            hint += f"; what is not written belongs under `refuses` of implementation.yaml: {', '.join(choices)}"
        first = f"{offer}: {_run_summary(run)}"
        raise Fails(f"{len(failed_runs)} of {len(runs)} trainings differ from torch's; {first}", hint)
    source = torch_curve(subject, next(iter(subject.models))).source
    return f"{len(runs)} trainings as torch's; compared with {source}"


def train_offered_run(subject: FrameworkSubject, offer: OfferedRun) -> MatrixRun:
    """Train once and return the difference from torch's curve, or the failure."""
    difference, failure = None, None
    model = subject.models[offer.family]
    basis = (subject.manifest, subject.folder, subject.kind)
    row = row_provenance(training_code_digest(*basis))
    try:
        curve = subject.train(small_job(model, offer.variant, precision=offer.precision))
        reference = torch_curve(subject, offer.family)
        if len(curve.losses) != len(reference.curve.losses):
            raise Fails(f"it recorded {len(curve.losses)} steps, expected {len(reference.curve.losses)}")
        difference = compare(curve, reference.curve)
        failure = (
            precision_fault(subject, offer, curve)
            or routing_fault(model, offer.precision, curve, reference.curve)
            or changed_code_fault(row["code"], training_code_digest(*basis))
        )
    except Fails as error:
        failure = error.says[-200:]
    difference = None if failure else difference
    return MatrixRun(
        name=offer.variant.name,
        family=offer.family,
        precision=offer.precision,
        layout=Layout.model_validate(offer.variant.layout),
        steps=LONG_STEPS,
        difference=difference,
        failure=failure,
        **row,
    )


def row_provenance(code: str) -> dict[str, Any]:
    """Return what a row that is measured now, by the code of this digest, says of itself."""
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {"date": date, "commit": checkout_commit(checkout()), "code": code}


def changed_code_fault(before: str, after: str) -> str | None:
    """Return a sentence where the code's digest changed while it trained: nothing says which text the ranks ran."""
    return None if before == after else "its code was changed while it trained; train again"


def precision_fault(subject: FrameworkSubject, offer: OfferedRun, curve: Curve) -> str | None:
    """Return what shows that a run in 16 bits was computed in another precision: it has the bits of the fp32 run.

    That of the same model and layout, which is trained before. Rounding to 16 bits moves the losses by 1e-5 at least.
    """
    fp32_curves = subject.shared.setdefault("fp32 curves", {})
    if offer.precision == "fp32":
        fp32_curves[offer.family, offer.variant.name] = curve
        return None
    other = fp32_curves.get((offer.family, offer.variant.name)) or torch_curve(subject, offer.family).curve
    equal_series = [name for name in ("losses", "grad_norms") if getattr(curve, name) == getattr(other, name)]
    if not equal_series:
        return None
    words = " and ".join({"losses": "losses", "grad_norms": "gradient norms"}[name] for name in equal_series)
    return f"its {words} have the bits of the fp32 run, so it was not computed in {offer.precision}"


def routing_fault(model: dict[str, Any], precision: Precision, curve: Curve, reference: Curve) -> str | None:
    """Return what is wrong with the routing of a mixture: its routers' losses, which the loss leaves out."""
    if not model.get("experts"):
        return None
    (difference, moved_choices), limit = compare_routing(curve, reference), ROUTING_LIMITS[precision]
    if difference <= limit:
        return None
    sentence = f"the routers' losses differ by {difference:.1e}, expected {limit:g} at most"
    return f"{sentence}; {moved_choices} choices of experts differ"


def _run_summary(run: MatrixRun) -> str:
    """Return `passed`, the failure, or the figures that are beyond their limits."""
    if run.passed:
        return "passed"
    if run.difference is None:
        return run.failure or "no difference"
    exceeded = run.difference.exceeded_limits(run.precision, run.noise)
    parts = [f"{name} {_figure_text(value)} (limit {limit:g})" for name, (value, limit) in exceeded.items()]
    parts += [] if run.difference.same_weights else ["other initial weights"]
    return ", ".join(parts + ([] if run.difference.same_tokens else ["other tokens"]))


def _figure_text(value: float | None) -> str:
    return "none" if value is None else f"{value:.1e}"


def check_large_weights(subject: FrameworkSubject) -> str:
    """Check each small model with larger weights, in few steps: a wrong constant of a function shows only there."""
    differences = {}
    for family, model in subject.models.items():
        job = small_job(enlarge_weights(model), SINGLE, FEW_STEPS)
        reference = torch_curve_of_job(subject, job)
        differences[family] = difference = compare(subject.train(job), reference.curve)
        if not is_within_sharp_limits(difference):
            figures = f"loss {_figure_text(difference.loss)}, gradient norm {_figure_text(difference.grad_norm)}"
            limits = f"{SHARP_LIMITS.loss:g} and {SHARP_LIMITS.grad_norm:g}"
            message = f"{family} with larger weights differs from torch's: {figures}, expected {limits} at most"
            raise Fails(message, "compare the constants of activation, norms and positions with section 4")
    losses = ", ".join(f"{family} {_figure_text(difference.loss)}" for family, difference in differences.items())
    return f"losses with larger weights within {SHARP_LIMITS.loss:g} of torch's: {losses}"


def check_parts(subject: FrameworkSubject) -> str:
    """Check each declared part that the small models lack, in few steps with large weights, and list the others."""
    declared = set(subject.manifest.architecture)
    known_parts = {name for model in subject.models.values() for name in Model.model_validate(model).parts}
    trained, faults = [], []
    for part in sorted(declared - known_parts - {"dropout"}):
        model = PART_MODELS.get(part)
        if model is None or not has_parts(subject.manifest, model):
            continue
        job = small_job(enlarge_weights(model), SINGLE, FEW_STEPS)
        try:
            difference = compare(subject.train(job), torch_curve_of_job(subject, job).curve)
        except Missing:
            continue  # it is listed
        except Fails as failed:
            faults.append(f"{part}: {failed.says}")
            continue
        trained.append(part)
        if not is_within_sharp_limits(difference):
            faults.append(
                f"{part}: loss {_figure_text(difference.loss)}, gradient norm {_figure_text(difference.grad_norm)}"
            )
    if faults:
        limits = f"expected {SHARP_LIMITS.loss:g} and {SHARP_LIMITS.grad_norm:g} at most"
        hint = "compute the part, or remove it from `architecture`; levelfield/specs/architecture.py defines it"
        raise Fails(f"{len(faults)} declared parts differ from torch's, {limits}: {'; '.join(faults)}", hint)
    summary = f"trained as torch's: {', '.join(trained)}" if trained else "the small models have them all"
    if untrained := sorted(declared - known_parts - {"dropout", *trained}):
        raise Warns(
            f"declared, and trained by no check: {', '.join(untrained)}; {summary}", "compare these parts yourself"
        )
    return summary


def check_large_tensors(subject: FrameworkSubject) -> str:
    """Check gradient norms with an embedding of a million elements, in few steps. Clipping divides by the norm."""
    family, model = next(iter(subject.models.items()))
    job = small_job(enlarge_vocabulary(model), SINGLE, LARGE_STEPS)
    difference = compare(subject.train(job), torch_curve_of_job(subject, job).curve)
    what = f"{family} with {job['model']['vocab_size']:,} words"
    norms = {"the gradient norm": difference.grad_norm, "a parameter's gradient norm": difference.parameter_norm}
    for name, value in norms.items():
        if value is None or value > SHARP_LIMITS.grad_norm:
            expected = f"expected {SHARP_LIMITS.grad_norm:g} at most"
            message = f"{what}: {name} differs from torch's by {_figure_text(value)}, {expected}"
            raise Fails(message, "add up the squares in float64")
    return f"gradient norm of {what}: {_figure_text(difference.grad_norm)} from torch's"


def is_within_sharp_limits(difference: Difference) -> bool:
    """Return whether a run with large weights, in one process, is as near as rounding."""
    pairs = ((getattr(difference, name), limit) for name, limit in SHARP_LIMITS)
    near = all(value is not None and value <= limit for value, limit in pairs)
    return near and difference.same_weights and difference.same_tokens


def check_repeats(subject: FrameworkSubject) -> str:
    """Check that the same job gives the same curve again: bit for bit on a processor."""
    family, model = next(iter(subject.models.items()))
    job = small_job(model, SINGLE, 5)
    first, second = subject.train(job), subject.train(job)
    if subject.vendor.is_host and first != second:
        raise Fails(f"{family} in one process gives another curve the second time", "seed and order what is random")
    if not compare(second, first).is_within_limits():
        raise Fails(f"{family} differs from itself by {_figure_text(compare(second, first).loss)}", "see section 4")
    return f"{family} twice: {'the same bits' if first == second else 'within the limits'}"


def check_expert_choices(subject: FrameworkSubject) -> str:
    """Check that a mixture follows the choices of experts that its job holds: here other ones than its own."""
    family, model = next((pair for pair in subject.models.items() if pair[1].get("experts")), (None, None))
    if model is None:
        raise NotApplicable("the manifest has no experts")
    job = small_job(model, SINGLE, LARGE_STEPS)
    experts = random_expert_choices(job)
    curve = subject.train({**job, "choices": {"known": packed(experts, model["experts"]["count"])}})
    layers = [layer for layer in range(model["layers"]) if is_mixture(parse(WorkerModel, model, "model"), layer)]
    for step, number in itertools.product(range(LARGE_STEPS), range(len(layers))):
        expected = np.bincount(experts[step, number].ravel(), minlength=model["experts"]["count"])
        counts = curve.experts.get(step + 1, {}).get(layers[number])
        if counts != tuple(expected):
            where = f"{family}, step {step + 1}, layer {layers[number]}"
            raise Fails(
                f"{where}: its experts took {counts} tokens, and {tuple(expected)} by the choices to follow",
                "take the experts of ChoiceRecord.known, with gates of your own scores (levelfield.worker.choices)",
            )
    return f"{family} takes the experts that its job names"


def random_expert_choices(job: dict[str, Any]) -> NDArray[np.int64]:
    """Return choices of different experts for each token, drawn alike each time, in the shape of ChoiceRecord."""
    model, training = job["model"], job["training"]
    layers = sum(is_mixture(parse(WorkerModel, model, "model"), layer) for layer in range(model["layers"]))
    tokens = (training["steps"], layers, training["global_batch"], training["sequence_length"])
    count, chosen = model["experts"]["count"], model["experts"]["chosen"]
    return np.random.default_rng(7).random((*tokens, count)).argsort(-1)[..., :chosen]


def check_dropout(subject: FrameworkSubject) -> str:
    """Check that dropout changes the curve, and that a run with dropout repeats itself."""
    if "dropout" not in subject.manifest.architecture:
        raise NotApplicable("the manifest has no dropout")
    model: dict[str, Any] = {**next(iter(subject.models.values())), "hidden_dropout": 0.1, "attention_dropout": 0.1}
    job = small_job(model, SINGLE, 5)
    first, second = subject.train(job), subject.train(job)
    if not compare(second, first).is_within_limits():
        hint = "seed each step by dropout_seed(job, coordinates(job), step)"
        raise Fails("dropout differs when the same job runs again", hint)
    plain = subject.train(small_job({**model, "hidden_dropout": 0.0, "attention_dropout": 0.0}, SINGLE, 5))
    if compare(first, plain).is_within_limits():
        raise Fails("a model with dropout trains as one without", "apply it, or remove `dropout` from architecture")
    return "it changes the curve, and the same job repeats it"

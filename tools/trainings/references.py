"""torch's curves in one process, which recorded runs of all frameworks are compared with.

They are trained again where their code has changed. A new curve within the noise of the recorded one confirms it: its
key stays, and so the runs of other frameworks count. Another curve replaces it, and all runs are trained again
(docs/decisions/recorded-runs.md).
"""

from __future__ import annotations

import fcntl
import os
import platform
import tempfile
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from layouts import MODELS, SINGLE, Curve, Variant, compare, small_job, train
from levelfield.catalog.code_basis import training_code_digest
from levelfield.catalog.registry import Registry
from levelfield.catalog.support import REFERENCE_FRAMEWORK, REFERENCES_FILE, ReferenceState
from levelfield.specs.base import dump
from levelfield.specs.recorded_runs import CurveFigures, Difference, ReferenceCurve, ReferenceCurves, ReferenceNoise
from levelfield.specs.vendor import HOST_KIND
from levelfield.testing.framework_kit.layout_checks import changed_code_fault, row_provenance
from levelfield.testing.framework_kit.small_jobs import STANDARD_VARIANTS

STEPS = 40
HONEST = ("accumulation 1", "DP2")  # what changes the order of sums, and nothing else


def train_references(registry: Registry, families: Iterable[str]) -> dict[str, ReferenceCurve]:
    """The references of these families, trained again where their code or the machine is another one.

    Several matrices may run at a time: one trains them, the others wait and read them.
    """
    with (Path(tempfile.gettempdir()) / f"levelfield-references-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _train_references(registry, families)


def _train_references(registry: Registry, families: Iterable[str]) -> dict[str, ReferenceCurve]:
    state = ReferenceState(registry)
    implementation, folder = registry.implementation(REFERENCE_FRAMEWORK)
    old = state.recorded
    curves = {} if old is None else {curve.family: curve for curve in old.curves}
    for family in families:
        recorded = curves.get(family)
        if (
            recorded is not None
            and recorded.machine == machine()
            and state.fault(family, recorded.figures.digest_key) is None
        ):
            continue
        code = training_code_digest(implementation, folder, HOST_KIND)
        curve = train(small_job(MODELS[family], SINGLE, STEPS))
        if fault := changed_code_fault(code, training_code_digest(implementation, folder, HOST_KIND)):
            raise SystemExit(f"reference {family}: {fault}")
        curves[family] = _confirmed(recorded, curve, code) or _new(family, curve, code)
        print(f"reference {family}: {_outcome(recorded, curves[family])}", flush=True)
        part = _path(registry).with_suffix(".part")
        part.write_text(dump(ReferenceCurves(curves=tuple(curves.values()))))
        part.replace(_path(registry))
    return curves


def _path(registry: Registry) -> Path:
    return registry.implementation(REFERENCE_FRAMEWORK)[1] / REFERENCES_FILE


def _confirmed(recorded: ReferenceCurve | None, curve: Curve, code: str) -> ReferenceCurve | None:
    """The recorded reference where the new curve is within its noise; else None."""
    if recorded is None:
        return None
    difference = compare(curve, curve_of(recorded.figures))
    if not confirms(difference, recorded.noise):
        return None
    return recorded.model_copy(update={**row_provenance(code), "difference": difference, "machine": machine()})


def confirms(difference: Difference, noise: ReferenceNoise) -> bool:
    """Whether a curve with this difference is within the noise of the recorded one, which no sum's order explains."""
    pairs = ((getattr(difference, name), getattr(noise, name)) for name in ReferenceNoise.model_fields)
    within = all(value is not None and value <= limit for value, limit in pairs)
    return within and difference.same_weights and difference.same_tokens


def _new(family: str, curve: Curve, code: str) -> ReferenceCurve:
    return ReferenceCurve(
        **row_provenance(code),
        family=family,
        figures=figures_of(curve),
        noise=honest_noise(MODELS[family], curve, [variant for variant in STANDARD_VARIANTS if variant.name in HONEST]),
        difference=compare(curve, curve),
        machine=machine(),
    )


def _outcome(recorded: ReferenceCurve | None, now: ReferenceCurve) -> str:
    if recorded is None or recorded.figures.digest_key != now.figures.digest_key:
        return "another curve; all runs of the family are trained again" if recorded else "recorded"
    return "the same curve" if now.difference.loss == 0 else "within its noise"


def honest_noise(model: dict[str, Any], reference: Curve, variants: Iterable[Variant]) -> ReferenceNoise:
    """The largest differences of torch's runs of `model` in these layouts from its one process."""
    steps = len(reference.losses)
    differences = [compare(train(small_job(model, variant, steps)), reference) for variant in variants]
    return ReferenceNoise(
        **{name: max(getattr(difference, name) for difference in differences) for name in ReferenceNoise.model_fields}
    )


def figures_of(curve: Curve) -> CurveFigures:
    return CurveFigures(**{name: getattr(curve, name) for name in CurveFigures.model_fields})


def curve_of(figures: CurveFigures) -> Curve:
    names = {field.name for field in fields(Curve)}
    return Curve(**{name: getattr(figures, name) for name in CurveFigures.model_fields if name in names})


def machine() -> str:
    return f"{platform.system()} {platform.machine()}, {processor()}"


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")

"""The certificate that a plan needs, and the run that makes it. It starts no run and reads no store."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from levelfield import worker
from levelfield.catalog.registry import Registry
from levelfield.plan.request import Entry, UserRequest
from levelfield.plan.resolution import folder_digest
from levelfield.specs.certificate import CertificateNeed, CertificateSubject, code_branches, smallest_layout
from levelfield.specs.derivation import Derivation, split_name
from levelfield.specs.free_fields import CODE_FIELDS
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference, reference_name
from levelfield.specs.tuning import TuningChoice

# Micro-batches of a step in the run that makes a certificate: faults of accumulation need more than one.
MIN_ACCUMULATION = 4


def certificate_need(registry: Registry, plan: Plan) -> CertificateNeed | None:
    """Return what has to be certified, or why nothing can be; None for a plan that needs no certificate."""
    if not plan.needs_certificate or plan.refusal:
        return None
    if plan.tuning.attention == "flash_attn":
        return CertificateNeed(reason="the attention kernel flash_attn does not train in fp32")
    reference = fp32_smoke_reference(registry, plan)
    if reference is None:
        return CertificateNeed(reason=f"no reference in fp32 at smoke scale has the work of {_base_case_name(plan)}")
    if not reference.noise:
        return CertificateNeed(reason=f"the reference {reference.name} has no noise, so it has no limits")
    return CertificateNeed(subject=_certificate_subject(plan, reference))


def fp32_smoke_reference(registry: Registry, plan: Plan) -> Reference | None:
    """Return the reference of the case's smoke work in fp32, of this case or of another one with the same work.

    A derived case has the reference of the case that it comes from: the code is the same.
    """
    base = _base_case_name(plan)
    work = registry.case(base).work("smoke").digest_without_precision
    extension = registry.extension(base)
    preferred = [reference_name(case, "smoke", "fp32") for case in (base, extension.extends if extension else base)]
    names = sorted(registry.references, key=lambda name: (name not in preferred, name))
    references = (registry.reference(name) for name in names if name.endswith("_smoke_fp32"))
    return next((reference for reference in references if reference.identity.work == work), None)


def certifying_entry(registry: Registry, plan: Plan, reference: Reference, request: UserRequest) -> Entry:
    """Return the entry of the run in fp32 at smoke scale: the same code, on as few devices as its layout needs."""
    layout, tuning = smallest_layout(plan.tuning.layout), plan.tuning
    target = plan.selector.target or plan.hardware.vendor
    choice = TuningChoice(
        layout=str(layout),
        micro_batch=_certifying_micro_batch(
            registry.case(reference.case).work("smoke").training.global_batch // layout.data
        ),
        virtual_pipeline=min(tuning.virtual_pipeline, 2),
        environment=tuning.environment or None,
        **{name: getattr(tuning, name) for name in CODE_FIELDS},
    )
    certifying_request = replace(
        request,
        scale="smoke",
        choice=choice,
        repeats=1,
        assumed_hardware=None,
        derivation=Derivation(),
        save_weights=False,
        capture_step=None,
        probe=False,
        explain_steps=None,
    )
    return Entry(f"{reference.case}:{plan.implementation.label}:{target}:1:{layout.world_size}", certifying_request)


def _certifying_micro_batch(sequences: int) -> int:
    """Return the largest micro-batch that gives each rank MIN_ACCUMULATION of them in a step, or 1."""
    fitting = (n for n in range(sequences // MIN_ACCUMULATION, 0, -1) if sequences % n == 0)
    return next(fitting, 1)


def _certificate_subject(plan: Plan, reference: Reference) -> CertificateSubject:
    environment = plan.environment
    return CertificateSubject(
        work=reference.identity.work,
        reference=reference.fingerprint(),
        framework=plan.implementation.framework,
        implementation=plan.implementation.digest,
        code=shared_code_digest(Path(plan.implementation.folder)),
        vendor=plan.hardware.vendor,
        chip=plan.hardware.chip.name,
        runtime=plan.runtime,
        environment=environment.digest or environment.python,
        variables=plan.variables_digest,
        path=code_branches(plan.tuning),
    )


def shared_code_digest(folder: Path) -> str:
    """Return the digest of the worker and of the implementations beside `folder`: one may import another's code."""
    folders = (Path(worker.__file__).parent, folder.parent)
    return "sha256:" + hashlib.sha256("".join(map(folder_digest, folders)).encode()).hexdigest()


def _base_case_name(plan: Plan) -> str:
    return split_name(plan.case)[0]

"""`case check`: what a case has, which frameworks train it, and its plans at both scales. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from levelfield.catalog.lookup import FALLBACK_VENDOR, reference_of
from levelfield.catalog.registry import Registry
from levelfield.errors import NotHere, UsageError
from levelfield.measure.parameter_counts import parameters
from levelfield.specs.case import Case, Scale
from levelfield.specs.plan import Plan
from levelfield.specs.selector import Selector
from levelfield.specs.suite import NamedHardware
from levelfield.testing.findings import CheckFinding, Fails, Missing, NotApplicable, found
from levelfield.testing.plan_checks import elsewhere, planned

HARDWARE = NamedHardware(nodes=1, devices=8, chip="H100-SXM5-80GB")  # where the full scale is planned by default
SMOKE_PARAMETERS = 50_000_000  # the shipped cases have at most 15 million
GIB = 2**30


@dataclass(frozen=True)
class CaseSubject:
    """A case, and the hardware on which its full scale is planned."""

    registry: Registry
    case: Case
    hardware: NamedHardware


def check_case(subject: CaseSubject) -> Iterator[CheckFinding]:
    """Return the findings one by one: the document, both scales, each framework, and what they show together."""
    yield found("digests", lambda: _digests(subject.case))
    yield found("parameters", lambda: _parameters(subject.case))
    yield found("smoke", lambda: _smoke(subject.case))
    plans: dict[str, Plan] = {}
    for framework in sorted(subject.registry.frameworks):
        yield found(framework, lambda name=framework: _framework(subject, name, plans))  # type: ignore[misc]
    yield found("frameworks", lambda: _together(subject, plans))
    yield found("reference", lambda: _reference(subject, plans))


def _digests(case: Case) -> str:
    scales: tuple[Scale, ...] = ("full", "smoke")
    return "; ".join(f"{scale} {case.work(scale).fingerprint().removeprefix('sha256:')[:16]}" for scale in scales)


def _parameters(case: Case) -> str:
    work = case.work("full")
    count = parameters(work.model, work.training.sequence_length)
    active = f", {count.active:,} active" if work.model.experts else ""
    said = "as the case says" if case.parameters else "the case says none: `parameters: N` would hold it to N"
    return f"{count.total:,}{active}; {said}"


def _smoke(case: Case) -> str:
    """Check that two processor cores train the smoke scale, and every framework the same."""
    work = case.work("smoke")
    model, training = work.model, work.training
    count = parameters(model, training.sequence_length).total
    if model.hidden_dropout or model.attention_dropout:
        raise Fails("it has dropout, whose masks differ between frameworks", "smoke.model: both dropouts 0")
    if count > SMOKE_PARAMETERS:
        raise Fails(
            f"{count:,} parameters, expected at most {SMOKE_PARAMETERS:,}",
            "write smaller sizes in smoke.model: two processor cores should train it in about a minute",
        )
    size = f"{count:,} parameters, {training.steps} steps of {training.tokens_per_step:,} tokens, {training.precision}"
    return size if training.precision == "fp32" else f"{size}: not every processor and framework trains in it"


def _framework(subject: CaseSubject, framework: str, plans: dict[str, Plan]) -> str:
    """Plan the smoke scale on a processor and the full scale on the hardware. Raises NotApplicable where it refuses."""
    on_cpu = Selector(case=subject.case.name, framework=framework, target=FALLBACK_VENDOR, devices=1)
    has = subject.registry.implementation(framework, None)[0].architecture
    if lacking := [part for part in subject.case.parts if part not in has]:
        raise NotApplicable(f"refuses it: it does not have {', '.join(lacking)}")
    try:
        smoke = plans[framework] = planned(elsewhere(subject.registry, on_cpu), on_cpu, "smoke")
    except NotHere as error:
        raise NotApplicable(f"refuses it: {error}") from None
    said = f"smoke: {smoke.tuning.layout}, micro-batch {smoke.tuning.micro_batch}"
    chip, nodes, devices = subject.hardware.chip, subject.hardware.nodes, subject.hardware.devices
    there = Selector(case=subject.case.name, framework=framework, target=chip, nodes=nodes, devices=devices)
    try:
        full = planned(elsewhere(subject.registry, there), there, "full")
        return f"{said}; full on {subject.hardware}: {_described(full)}"
    except UsageError as error:
        return f"{said}; full on {subject.hardware}: no plan: {' '.join(str(error).split())}"


def _described(plan: Plan) -> str:
    memory, capacity = plan.expected_memory.total_bytes, plan.hardware.memory_bytes_per_device
    size = f"{memory / GIB:,.0f} of {capacity / GIB:,.0f} GiB" if capacity else f"{memory / GIB:,.0f} GiB"
    if capacity and memory > capacity:
        return f"does not fit; the least is {size} with {plan.tuning.layout}"
    known = plan.predicted[0].tokens_per_second if plan.predicted else None
    rate = "" if known is None else f", {known:,.0f} tokens/s/device predicted"
    chosen = f"{plan.tuning.layout}, micro-batch {plan.tuning.micro_batch}, recompute {plan.tuning.recomputation}"
    return f"{chosen}, {size}{rate}"


def _together(subject: CaseSubject, plans: dict[str, Plan]) -> str:
    if not plans:
        needs = ", ".join(subject.case.parts)
        raise Fails(f"no framework trains it; it needs {needs}", "the lines above name what each one lacks")
    return f"{len(plans)} of {len(subject.registry.frameworks)} train it: {', '.join(plans)}"


def _reference(subject: CaseSubject, plans: dict[str, Plan]) -> str:
    if not plans:
        raise NotApplicable("no framework trains it")
    reference = reference_of(subject.registry, next(iter(plans.values())))
    if reference is None:
        raise NotApplicable("none: runs end valid and unchecked, until `align references promote` makes one")
    if reference.identity.work != next(iter(plans.values())).work_digest:
        raise Missing("the stored one is of other work", "promote a run of the case as it is now")
    return f"{reference.name}, by {reference.framework}, with {len(reference.noise)} rows of noise"

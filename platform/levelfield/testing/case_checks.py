"""`case check`: what a case has, which frameworks train it, and its plans at both scales. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from levelfield.catalog.lookup import FALLBACK_VENDOR, find_reference
from levelfield.catalog.registry import Registry
from levelfield.errors import LayoutError, NotHere, UsageError
from levelfield.measure.parameter_counts import count_parameters
from levelfield.predict.layout_rules import broken_rules
from levelfield.specs.case import SCALES, Case, Scale
from levelfield.specs.derivation import split_name
from levelfield.specs.layout import parse_layout
from levelfield.specs.plan import Plan
from levelfield.specs.selector import Selector
from levelfield.specs.suite import NamedHardware
from levelfield.specs.tuning import TuningChoice
from levelfield.testing.findings import CheckFinding, Fails, Missing, NotApplicable, run_check
from levelfield.testing.plan_checks import make_plan, select_without_devices

DEFAULT_HARDWARE = NamedHardware(nodes=1, devices=8, chip="H100-SXM5-80GB")  # of the plan at full scale
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
    yield run_check("digests", lambda: _digest_text(subject.case))
    yield run_check("parameters", lambda: _check_parameters(subject.case))
    yield run_check("smoke", lambda: _check_smoke(subject.case))
    yield run_check("values", lambda: _check_values(subject))
    if any(_layout_fault(choice.layout) for choice in subject.case.tuning.values()):
        return  # each framework would be refused by the same words
    plans: dict[str, Plan] = {}
    for framework in sorted(subject.registry.frameworks):
        yield run_check(framework, lambda name=framework: _check_framework(subject, name, plans))  # type: ignore[misc]
    yield run_check("frameworks", lambda: _check_frameworks(subject, plans))
    yield run_check("reference", lambda: _check_reference(subject, plans))


def _digest_text(case: Case) -> str:
    return "; ".join(f"{scale} {case.work(scale).fingerprint().removeprefix('sha256:')[:16]}" for scale in SCALES)


def _check_parameters(case: Case) -> str:
    work = case.work("full")
    count = count_parameters(work.model, work.training.sequence_length)
    active = f", {count.active:,} active" if work.model.experts else ""
    note = "as the case says" if case.parameters else "the case says none: `parameters: N` would hold it to N"
    return f"{count.total:,}{active}; {note}"


def _check_smoke(case: Case) -> str:
    """Check that two processor cores train the smoke scale, and every framework the same."""
    work = case.work("smoke")
    model, training = work.model, work.training
    count = count_parameters(model, training.sequence_length).total
    if model.hidden_dropout or model.attention_dropout:
        raise Fails("it has dropout, whose masks differ between frameworks", "smoke.model: both dropouts 0")
    if count > SMOKE_PARAMETERS:
        raise Fails(
            f"{count:,} parameters, expected at most {SMOKE_PARAMETERS:,}",
            "write smaller sizes in smoke.model: two processor cores should train it in about a minute",
        )
    size = f"{count:,} parameters, {training.steps} steps of {training.tokens_per_step:,} tokens, {training.precision}"
    return size if training.precision == "fp32" else f"{size}: not every processor and framework trains in it"


def _check_values(subject: CaseSubject) -> str:
    """Check what the schema leaves open: the values of `tuning`, of `evidence` and of the corpus's split."""
    faults: list[str] = []  # for each the file, the key, what was found and what was expected
    for scale in SCALES:
        work, choice = subject.case.work(scale), subject.case.tuning.get(scale, TuningChoice())
        split, recorded = work.data.split, work.evidence.gradient_steps
        if not (split[0] > 0 and min(split) >= 0):
            expected = "three parts from 0 on, the first of them, for training, above 0"
            faults.append(f"{_key_location(subject, scale, 'data', 'split')}: found {list(split)}, expected {expected}")
        if list(recorded) != sorted(set(recorded)):
            key = _key_location(subject, scale, "evidence", "gradient_steps")
            faults.append(f"{key}: found {list(recorded)}, expected {sorted(set(recorded))}: each step once, in order")
        data = 1
        if choice.layout is not None:
            key = _key_location(subject, scale, "tuning", "layout")
            if fault := _layout_fault(choice.layout):
                faults.append(f"{key}: {fault}")
            else:
                layout = parse_layout(choice.layout).layout
                data = layout.data
                if rules := broken_rules(work, layout, 1, 1, layout.world_size, uneven_stages=True):
                    expected = f"a layout that the work allows: {', '.join(rules)}"
                    faults.append(f"{key}: found {choice.layout}, expected {expected}")
        batch, size = work.training.global_batch, choice.micro_batch
        if size is not None and batch % data == 0 and batch // data % size:
            divided_words = (
                f"global_batch {batch}" if data == 1 else f"global_batch {batch} / {data} data-parallel ranks"
            )
            expected = f"a divisor of {divided_words}; a run takes the nearest one in its place"
            faults.append(
                f"{_key_location(subject, scale, 'tuning', 'micro_batch')}: found {size}, expected {expected}"
            )
    if faults:
        raise Fails("; ".join(dict.fromkeys(faults)), "correct the named keys")
    return "tuning divides the global batch; evidence and split can be used"


def _layout_fault(layout: str | None) -> str | None:
    """Return what is wrong with the text of a layout; None for a layout and for none."""
    try:
        if layout is not None:
            parse_layout(layout)
    except LayoutError as error:
        return str(error)
    return None


def _key_location(subject: CaseSubject, scale: Scale, part: str, key: str) -> str:
    """Return the file and the key that have a value: those of the extended case where this one does not change it."""
    registry, name = subject.registry, split_name(subject.case.name)[0]
    while extension := registry.extension(name):
        if key in (extension.tuning.get(scale, {}) if part == "tuning" else extension.changes.get(part, {})):
            break
        if scale == "smoke" and key in extension.smoke.get(part, {}):
            break
        name = registry.canonical_case(extension.extends)
    document = extension or registry.case(name)
    if part == "tuning":
        path = f"tuning.{scale}.{key}"
    elif scale == "smoke" and key in document.smoke.get(part, {}):
        path = f"smoke.{part}.{key}"
    else:
        path = f"changes.{part}.{key}" if extension else f"{part}.{key}"
    return f"{registry.all_cases[name]}: key '{path}'"


def _check_framework(subject: CaseSubject, framework: str, plans: dict[str, Plan]) -> str:
    """Plan the smoke scale on a processor and the full scale on the hardware. Raises NotApplicable where it refuses."""
    on_cpu = Selector(case=subject.case.name, framework=framework, target=FALLBACK_VENDOR, devices=1)
    architecture = subject.registry.implementation(framework, None)[0].architecture
    if lacking := [part for part in subject.case.parts if part not in architecture]:
        raise NotApplicable(f"refuses it: it does not have {', '.join(lacking)}")
    try:
        smoke = plans[framework] = make_plan(select_without_devices(subject.registry, on_cpu), on_cpu, "smoke")
    except NotHere as error:
        raise NotApplicable(f"refuses it: {error}") from None
    line = f"smoke: {smoke.tuning.layout}, micro-batch {smoke.tuning.micro_batch}"
    chip, nodes, devices = subject.hardware.chip, subject.hardware.nodes, subject.hardware.devices
    on_hardware = Selector(case=subject.case.name, framework=framework, target=chip, nodes=nodes, devices=devices)
    try:
        full = make_plan(select_without_devices(subject.registry, on_hardware), on_hardware, "full")
    except UsageError as error:
        return f"{line}; full on {subject.hardware}: no plan: {' '.join(str(error).split())}"
    line += f"; full on {subject.hardware}: "
    memory, capacity = full.expected_memory.total_bytes, full.hardware.memory_bytes_per_device
    size = f"{memory / GIB:,.0f} of {capacity / GIB:,.0f} GiB" if capacity else f"{memory / GIB:,.0f} GiB"
    if capacity and memory > capacity:
        return f"{line}does not fit; the least is {size} with {full.tuning.layout}"
    speed = full.predicted[0].tokens_per_second if full.predicted else None
    rate = "" if speed is None else f", {speed:,.0f} tokens/s/device predicted"
    chosen = f"{full.tuning.layout}, micro-batch {full.tuning.micro_batch}, recompute {full.tuning.recomputation}"
    return f"{line}{chosen}, {size}{rate}"


def _check_frameworks(subject: CaseSubject, plans: dict[str, Plan]) -> str:
    if not plans:
        needs = ", ".join(subject.case.parts)
        raise Fails(f"no framework trains it; it needs {needs}", "the lines above name what each one lacks")
    return f"{len(plans)} of {len(subject.registry.frameworks)} train it: {', '.join(plans)}"


def _check_reference(subject: CaseSubject, plans: dict[str, Plan]) -> str:
    if not plans:
        raise NotApplicable("no framework trains it")
    reference = find_reference(subject.registry, next(iter(plans.values())))
    if reference is None:
        raise NotApplicable("none: runs end valid and unchecked, until `align references promote` makes one")
    if reference.identity.work != next(iter(plans.values())).work_digest:
        raise Missing("the stored one is of other work", "promote a run of the case as it is now")
    return f"{reference.name}, by {reference.framework}, with {len(reference.noise)} rows of noise"

"""The hardware of an entry: the named one, assumed for a plan, or this machine with a smaller layout; its driver."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import replace

from levelfield.catalog import lookup
from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.lookup import Selection
from levelfield.catalog.machine import usable_cores
from levelfield.catalog.registry import Registry
from levelfield.errors import DoesNotFit, UsageError
from levelfield.plan.build_checks import version_that_runs
from levelfield.plan.request import Decision, Entry, RequestedScale, Suggestion, UserRequest
from levelfield.specs.case import Work
from levelfield.specs.layout import Layout, parse_layout
from levelfield.specs.selector import Selector, parse_selector
from levelfield.specs.site import LaunchPlan
from levelfield.specs.suite import WITHHELD, NamedHardware
from levelfield.specs.tuning import TuningChoice

# FlagPerf prints the pipeline first, and neither sharded states nor sequence parallelism. DP4TP2PP1 means what it says.
_INCOMPLETE = re.compile(r"PP\d+DP\d+TP\d+", re.IGNORECASE)


def place(registry: Registry, entry: Entry, refusal: str | None = None) -> Decision:
    """Return the decision with the hardware of an entry. --assume-hardware has priority over the suite's hardware.

    refusal: why this machine cannot run the entry; nothing is checked then. Raises UsageError, UnknownName or
    DocumentError for wrong or repeated names, DoesNotFit for `--scale full` on absent hardware.
    """
    selector, request = _selector(entry), entry.request
    named = request.hardware or entry.hardware
    if request.launch:
        selector = _elsewhere(entry, selector, request.launch, named)
    if named is None:
        return _decided(registry, entry, selector, refusal)
    _refuse_second_name(selector, named)
    if named.chip == WITHHELD:
        return _here(registry, entry, selector, refusal, named)
    _, chip = find_chip(registry, named.chip)
    hardware = {"target": chip.name, "nodes": named.nodes, "devices": named.devices}
    on_it = _decided(registry, entry, selector.model_copy(update=hardware), refusal)
    if request.hardware is not None:
        found = replace(on_it.found, devices=(), problem=None, notices=())
        return _assumed(replace(on_it, found=found), "asked for with --assume-hardware")
    if request.launch:
        return _assumed(on_it, f"on the hardware that the suite names, {named}")
    if named.nodes == 1 and on_it.found.has_devices(named.devices):
        return on_it
    if request.assume and on_it.scale != "smoke":
        return _assumed(on_it, f"on the hardware that the suite names, {named}")
    return _here(registry, entry, selector, refusal, named)


def _selector(entry: Entry) -> Selector:
    """Return the entry's case string with the request's changes. Raises UsageError for a base run with a layout."""
    selector = parse_selector(entry.text)
    if entry.request.base and selector.layout:
        raise UsageError(f"--base: found layout {selector.layout} in '{entry.text}', expected the defaults alone")
    case = selector.case + entry.request.derivation.suffix
    return selector.model_copy(update={"case": case, "repeats": entry.request.repeat or selector.repeats})


def _decided(registry: Registry, entry: Entry, selector: Selector, refusal: str | None) -> Decision:
    """Return the decision from the entry alone."""
    found = _only(lookup.find(registry, selector, check=refusal is None), entry.request)
    if entry.request.launch and not found.vendor.is_host:  # the devices of this machine have no part in the run
        found = replace(found, devices=(), problem=None, notices=(), busy={})
    scale = _scale(entry)
    selector, found, driver, older = version_that_runs(
        registry, selector, found, entry.request, entry.suite is not None
    )
    by_suite = entry.suite is not None and scale != entry.request.scale
    request, completed = entry.request, tuple[str, ...]()
    if ran := _layout_that_ran(registry, found, request.choice.layout or selector.layout):
        layout, said = ran
        request = replace(request, choice=request.choice.model_copy(update={"layout": layout}))
        completed = (said,)
    return Decision(
        text=entry.text,
        selector=selector,
        found=found,
        request=request,
        scale=scale,
        why_scale=f"the suite {entry.suite.suite} asks for it" if by_suite and entry.suite else None,
        suggestion=Suggestion() if request.base else entry.suggestion,
        suite=entry.suite,
        deviations=(*older, *completed),
        refusal=refusal,
        driver=driver,
    )


def _layout_that_ran(registry: Registry, found: Selection, text: str | None) -> tuple[str, str] | None:
    """Return the layout of the published rows that print this text for the framework, and a sentence that says so.

    None where no row prints it, where rows disagree, and on a host, which takes the text as it is.
    """
    if text is None or found.vendor.is_host or not _INCOMPLETE.fullmatch(text):
        return None
    rows = [row for name in sorted(registry.published) for row in registry.figures(name).rows]
    printed = [
        row
        for row in rows
        if row.setting.layout_printed == text.upper() and row.setting.framework == found.implementation.framework
    ]
    layouts = {row.setting.layout for row in printed}
    if len(layouts) != 1 or layouts == {text}:
        return None
    (ran,) = layouts
    said = f"layout {text}: FlagPerf prints so what its row '{printed[0].name}' ran as {ran}, which is planned"
    return ran, f"{said}; write {ran.partition('SH')[0].partition('+')[0]} for that alone"


def _only(found: Selection, request: UserRequest) -> Selection:
    """Return the selection with the devices of --devices alone. Raises UsageError for one that is not here."""
    if not request.devices:
        return found
    name = found.vendor.name
    if request.launch or found.vendor.is_divided:
        why = "other machines choose theirs" if request.launch else f"{name} is divided into any number of shares"
        raise UsageError(f"--devices: found numbers of devices, expected none: {why}")
    here = {device.index: device for device in found.devices}
    if absent := [number for number in request.devices if number not in here]:
        known = ", ".join(map(str, here)) or "none"
        raise UsageError(f"--devices: found {absent[0]}, expected devices of {found.chip.name} here: {known}")
    return replace(found, devices=tuple(here[number] for number in request.devices))


def _elsewhere(entry: Entry, selector: Selector, launch: LaunchPlan, named: NamedHardware | None) -> Selector:
    """Return the selector with the devices of a launcher's hosts. Raises UsageError without a chip, or hosts."""
    if named is None and selector.target is None:
        raise UsageError(
            f"--launcher {launch.launcher}: --case '{entry.text}' names no vendor or chip; other machines are not "
            "searched for devices: write case:framework:chip:nodes:devices"
        )
    nodes = named.nodes if named else selector.nodes
    if launch.hosts and len(launch.hosts) < nodes:
        raise UsageError(f"--hosts: found {len(launch.hosts)} hosts, expected {nodes} as in '{entry.text}'")
    slots = [host.slots for host in launch.hosts[:nodes] if host.slots]
    if named or selector.devices or not slots:
        return selector
    return selector.model_copy(update={"devices": min(slots)})


def _scale(entry: Entry) -> RequestedScale:
    """Return the command line's scale, else the suite's."""
    return entry.scale if entry.request.scale == "auto" else entry.request.scale


def _refuse_second_name(selector: Selector, named: NamedHardware) -> None:
    if selector.target or selector.devices or selector.nodes > 1:
        raise UsageError(
            f"hardware is named twice for {selector.case}:{selector.framework}: '{named}', and vendor, chip or number "
            "of devices in the case string; leave one of them out"
        )


def _assumed(decision: Decision, why: str) -> Decision:
    """Return the decision at full scale where the scale is auto: the plan shows whether it fits."""
    return replace(decision, scale="full", why_scale=why) if decision.scale == "auto" else decision


def _here(registry: Registry, entry: Entry, selector: Selector, refusal: str | None, named: NamedHardware) -> Decision:
    """Return the decision for this machine instead. Raises DoesNotFit for scale full."""
    if _scale(entry) == "full":
        raise DoesNotFit(
            f"--scale full: {named} is not here. Leave --scale out to run the entry at smoke scale on this machine"
        )
    return _reduced(_decided(registry, entry, selector, refusal), named)


def _reduced(decision: Decision, named: NamedHardware) -> Decision:
    """Return the decision at smoke scale. The layout is reduced to this machine unless the command line gives one."""
    found, suggestion = decision.found, decision.suggestion
    why = f"{named} is not here" if named.chip != WITHHELD else f"the chip of {named.nodes}x{named.devices} is withheld"
    suggested = suggestion.choice.model_dump(exclude_none=True, exclude={"micro_batch"})
    said = [f"{why}: smoke scale on {found.chip.name}"]
    if decision.request.choice.layout is None:
        before = _written_layout(decision, named)
        after = _reduced_layout(decision, before)
        suggested["layout"], said = str(after), _sentences(before, after, found, why)
    return replace(
        decision,
        scale="smoke",
        why_scale=why,
        suggestion=Suggestion(TuningChoice.model_validate(suggested), suggestion.by),
        deviations=(*decision.deviations, *said),
    )


def _written_layout(decision: Decision, named: NamedHardware) -> Layout:
    text = decision.suggestion.choice.layout or decision.selector.layout
    return parse_layout(text).layout if text else Layout(data=named.nodes * named.devices)


def _reduced_layout(decision: Decision, layout: Layout) -> Layout:
    found, own = decision.found, decision.found.case.tuning.get("smoke", TuningChoice()).micro_batch
    return reduced(
        layout,
        usable_cores() if found.vendor.is_divided else max(1, len(found.devices)),
        found.case.work("smoke"),
        decision.request.choice.micro_batch or own or 1,
        found.implementation.offered_parallelism(found.vendor.device_kind),
    )


def _sentences(before: Layout, after: Layout, found: Selection, why: str) -> list[str]:
    sizes = f"layout {before} of {before.world_size} devices scaled to {after} for {after.world_size}"
    said = [f"{why}: {sizes if after != before else f'smoke scale on {found.chip.name}'}"]
    if after.sharding_degree > 1 and after.sharding_stage < before.sharding_stage:
        said.append(_lowered(before, f"lowered to {after.sharding_stage}", found))
    elif before.sharding_stage and after.data > 1 and not after.sharding_stage:
        said.append(_lowered(before, "left out", found))
    return said


def _lowered(before: Layout, what: str, found: Selection) -> str:
    name, kind = found.implementation.framework, found.vendor.device_kind
    return f"sharding stage {before.sharding_stage} {what}: it is not offered by {name} on {kind}"


def reduced(layout: Layout, devices: int, work: Work, micro_batch: int, offered: Collection[str]) -> Layout:
    """Return the layout with its largest dimension halved until it fits `devices` and the work's sizes.

    Of equal dimensions data is halved first, then context, tensor and pipeline. offered: the parallelism of the
    implementation on these devices. A sharding stage that is not offered becomes the next lower offered one.
    """
    sizes = _within(work, micro_batch, {n: getattr(layout, n) for n in ("data", "context", "tensor", "pipeline")})
    while math.prod(sizes.values()) > devices:
        largest = max(sizes, key=lambda name: sizes[name])
        sizes[largest] = _halved(sizes[largest])
    return Layout(
        **sizes,
        sequence_parallel=layout.sequence_parallel and sizes["tensor"] > 1 and "sequence" in offered,
        **_sharding(layout, sizes["data"] * sizes["context"], offered),
    )


def _within(work: Work, micro_batch: int, sizes: dict[str, int]) -> dict[str, int]:
    """Return the sizes, each halved until it divides the numbers that it splits."""
    model, training = work.model, work.training
    cut = {
        "data": max(1, training.global_batch // micro_batch),
        "context": training.sequence_length // 2,
        "tensor": math.gcd(model.kv_heads, model.heads, model.ffn_hidden_size, model.vocab_size),
        "pipeline": model.layers,
    }
    return {name: _dividing(size, cut[name]) for name, size in sizes.items()}


def _dividing(size: int, whole: int) -> int:
    return size if whole % size == 0 else _dividing(_halved(size), whole)


def _halved(size: int) -> int:
    """Return the largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)


def _sharding(layout: Layout, ranks: int, offered: Collection[str]) -> dict[str, int]:
    stages = [stage for stage in range(1, layout.sharding_stage + 1) if f"zero{stage}" in offered]
    degree = math.gcd(ranks, layout.sharding_degree) if layout.sharding_degree < layout.gradient_ranks else ranks
    if not stages or degree == 1:
        return {}
    return {"sharding_stage": stages[-1], "sharding_degree": degree}

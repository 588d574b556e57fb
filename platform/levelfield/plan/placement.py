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
from levelfield.plan.build_checks import select_runnable_version
from levelfield.plan.request import Decision, Entry, RequestedScale, Suggestion, UserRequest
from levelfield.specs.case import Work
from levelfield.specs.layout import Layout, parse_layout
from levelfield.specs.selector import Selector, parse_selector
from levelfield.specs.site import LaunchPlan
from levelfield.specs.suite import WITHHELD, NamedHardware
from levelfield.specs.tuning import TuningChoice

# A layout as FlagPerf prints it: the pipeline first, and neither sharded states nor sequence parallelism, so that it is
# incomplete. A text in another order, such as DP4TP2PP1, is complete.
_FLAGPERF_LAYOUT = re.compile(r"PP\d+DP\d+TP\d+", re.IGNORECASE)


def place(registry: Registry, entry: Entry, refusal: str | None = None) -> Decision:
    """Return the decision with the hardware of an entry. --assume-hardware has priority over the suite's hardware.

    refusal: why this machine cannot run the entry; nothing is checked then. Raises UsageError, UnknownName or
    DocumentError for wrong or repeated names, DoesNotFit for `--scale full` on absent hardware.
    """
    selector, request = parse_selector(entry.text), entry.request
    if request.base and selector.layout:
        raise UsageError(f"--base: found layout {selector.layout} in '{entry.text}', expected the defaults alone")
    case, repeats = selector.case + request.derivation.suffix, request.repeats or selector.repeats
    selector = selector.model_copy(update={"case": case, "repeats": repeats})
    hardware = request.assumed_hardware or entry.hardware
    if request.launch:
        selector = _selector_for_launch(entry, selector, request.launch, hardware)
    if hardware is None:
        return _decide(registry, entry, selector, refusal)
    if selector.target or selector.devices or selector.nodes > 1:
        raise UsageError(
            f"hardware is named twice for {selector.case}:{selector.framework}: '{hardware}', and vendor, chip or "
            "number of devices in the case string; leave one of them out"
        )
    if hardware.chip == WITHHELD:
        return _decide_smoke_here(registry, entry, selector, refusal, hardware)
    _, chip = find_chip(registry, hardware.chip)
    hardware_fields = {"target": chip.name, "nodes": hardware.nodes, "devices": hardware.devices}
    decision = _decide(registry, entry, selector.model_copy(update=hardware_fields), refusal)
    if request.assumed_hardware is not None:
        selection = replace(decision.selection, devices=(), problem=None, notices=())
        return _set_full_scale(replace(decision, selection=selection), "asked for with --assume-hardware")
    if request.launch:
        return _set_full_scale(decision, f"on the hardware that the suite names, {hardware}")
    if hardware.nodes == 1 and decision.selection.has_devices(hardware.devices):
        return decision
    if request.may_lack_hardware and decision.scale != "smoke":
        return _set_full_scale(decision, f"on the hardware that the suite names, {hardware}")
    return _decide_smoke_here(registry, entry, selector, refusal, hardware)


def _decide(registry: Registry, entry: Entry, selector: Selector, refusal: str | None) -> Decision:
    """Return the decision for the hardware that the selector names, else for this machine."""
    request, suite_entry = entry.request, entry.suite_entry
    selection = _select_devices(lookup.find_selection(registry, selector, require_support=refusal is None), request)
    if request.launch and not selection.vendor.is_host:  # the devices of this machine have no part in the run
        selection = replace(selection, devices=(), problem=None, notices=(), busy_devices={})
    scale = _requested_scale(entry)
    selector, selection, driver, deviations = select_runnable_version(
        registry, selector, selection, request, suite_entry is not None
    )
    if published_layout := _published_layout(registry, selection, request.choice.layout or selector.layout):
        layout, sentence = published_layout
        request = replace(request, choice=request.choice.model_copy(update={"layout": layout}))
        deviations = (*deviations, sentence)
    return Decision(
        text=entry.text,
        selector=selector,
        selection=selection,
        request=request,
        scale=scale,
        scale_reason=f"the suite {suite_entry.suite} asks for it" if suite_entry and scale != request.scale else None,
        suggestion=Suggestion() if request.base else entry.suggestion,
        suite_entry=suite_entry,
        deviations=deviations,
        refusal=refusal,
        driver=driver,
    )


def _published_layout(registry: Registry, selection: Selection, text: str | None) -> tuple[str, str] | None:
    """Return the complete layout of the published rows that print this text, and a sentence that says so.

    None where no row of the framework prints it, where rows disagree, and on a host, which takes the text as it is.
    """
    if text is None or selection.vendor.is_host or not _FLAGPERF_LAYOUT.fullmatch(text):
        return None
    rows = [row for name in sorted(registry.published) for row in registry.published_set(name).rows]
    matching_rows = [
        row
        for row in rows
        if row.setting.layout_printed == text.upper() and row.setting.framework == selection.implementation.framework
    ]
    layouts = {row.setting.layout for row in matching_rows}
    if len(layouts) != 1 or layouts == {text}:
        return None
    (layout,) = layouts
    sentence = (
        f"layout {text}: FlagPerf prints so what its row '{matching_rows[0].name}' ran as {layout}, which is planned"
    )
    return layout, f"{sentence}; write {layout.partition('SH')[0].partition('+')[0]} for that alone"


def _select_devices(selection: Selection, request: UserRequest) -> Selection:
    """Return the selection with the devices of --devices alone. Raises UsageError for one that is not here."""
    if not request.devices:
        return selection
    name = selection.vendor.name
    if request.launch or selection.vendor.is_divided:
        reason = "other machines choose theirs" if request.launch else f"{name} is divided into any number of shares"
        raise UsageError(f"--devices: found numbers of devices, expected none: {reason}")
    devices_here = {device.index: device for device in selection.devices}
    if absent := [number for number in request.devices if number not in devices_here]:
        numbers = ", ".join(map(str, devices_here)) or "none"
        raise UsageError(f"--devices: found {absent[0]}, expected devices of {selection.chip.name} here: {numbers}")
    return replace(selection, devices=tuple(devices_here[number] for number in request.devices))


def _selector_for_launch(
    entry: Entry, selector: Selector, launch: LaunchPlan, hardware: NamedHardware | None
) -> Selector:
    """Return the selector with the devices of a launcher's hosts. Raises UsageError without a chip or enough hosts."""
    if hardware is None and selector.target is None:
        raise UsageError(
            f"--launcher {launch.launcher}: --case '{entry.text}' names no vendor or chip; other machines are not "
            "searched for devices: write case:framework:chip:nodes:devices"
        )
    nodes = hardware.nodes if hardware else selector.nodes
    if launch.hosts and len(launch.hosts) < nodes:
        raise UsageError(f"--hosts: found {len(launch.hosts)} hosts, expected {nodes} as in '{entry.text}'")
    for host in launch.hosts[:nodes] if nodes > 1 else ():
        if problem := launch.loopback_problem(host):
            raise UsageError(f"--hosts: host {host.name}, {problem}")
    slots = [host.slots for host in launch.hosts[:nodes] if host.slots]
    if hardware or selector.devices or not slots:
        return selector
    return selector.model_copy(update={"devices": min(slots)})


def _requested_scale(entry: Entry) -> RequestedScale:
    """Return the command line's scale, else the suite's."""
    return entry.scale if entry.request.scale == "auto" else entry.request.scale


def _set_full_scale(decision: Decision, reason: str) -> Decision:
    """Return the decision at full scale where its scale is auto. Whether it fits, the plan shows."""
    return replace(decision, scale="full", scale_reason=reason) if decision.scale == "auto" else decision


def _decide_smoke_here(
    registry: Registry, entry: Entry, selector: Selector, refusal: str | None, hardware: NamedHardware
) -> Decision:
    """Return the decision for this machine at smoke scale instead. Raises DoesNotFit for scale full.

    The layout is reduced to this machine unless the command line gives one.
    """
    if _requested_scale(entry) == "full":
        raise DoesNotFit(
            f"--scale full: {hardware} is not here. Leave --scale out to run the entry at smoke scale on this machine"
        )
    decision = _decide(registry, entry, selector, refusal)
    selection, suggestion = decision.selection, decision.suggestion
    reason = f"{hardware} is not here"
    if hardware.chip == WITHHELD:
        reason = f"the chip of {hardware.nodes}x{hardware.devices} is withheld"
    suggested = suggestion.choice.model_dump(exclude_none=True, exclude={"micro_batch"})
    deviations = [f"{reason}: smoke scale on {selection.chip.name}"]
    if decision.request.choice.layout is None:
        layout_text = suggestion.choice.layout or decision.selector.layout
        asked_layout = (
            parse_layout(layout_text).layout if layout_text else Layout(data=hardware.nodes * hardware.devices)
        )
        reduced_layout = reduce_layout(
            asked_layout,
            usable_cores() if selection.vendor.is_divided else max(1, len(selection.devices)),
            selection.case.work("smoke"),
            decision.request.choice.micro_batch or selection.case.tuning.get("smoke", TuningChoice()).micro_batch or 1,
            selection.implementation.offered_parallelism(selection.vendor.device_kind),
        )
        suggested["layout"], deviations = (
            str(reduced_layout),
            _reduction_sentences(asked_layout, reduced_layout, selection, reason),
        )
    return replace(
        decision,
        scale="smoke",
        scale_reason=reason,
        suggestion=Suggestion(TuningChoice.model_validate(suggested), suggestion.source),
        deviations=(*decision.deviations, *deviations),
    )


def _reduction_sentences(asked_layout: Layout, reduced_layout: Layout, selection: Selection, reason: str) -> list[str]:
    """Return sentences about the smaller layout, and about a sharding stage that was lowered or left out."""
    sizes = (
        f"layout {asked_layout} of {asked_layout.world_size} devices scaled to {reduced_layout} for "
        f"{reduced_layout.world_size}"
    )
    sentences = [f"{reason}: {sizes if reduced_layout != asked_layout else f'smoke scale on {selection.chip.name}'}"]
    change = None
    if reduced_layout.sharding_degree > 1 and reduced_layout.sharding_stage < asked_layout.sharding_stage:
        change = f"lowered to {reduced_layout.sharding_stage}"
    elif asked_layout.sharding_stage and reduced_layout.data > 1 and not reduced_layout.sharding_stage:
        change = "left out"
    if change:
        name, kind = selection.implementation.framework, selection.vendor.device_kind
        sentences.append(
            f"sharding stage {asked_layout.sharding_stage} {change}: it is not offered by {name} on {kind}"
        )
    return sentences


def reduce_layout(layout: Layout, devices: int, work: Work, micro_batch: int, offered: Collection[str]) -> Layout:
    """Return the layout with its largest dimension halved until it fits `devices` and the work's sizes.

    Of equal dimensions data is halved first, then context, tensor and pipeline. offered: the parallelism of the
    implementation on these devices. A sharding stage that is not offered becomes the next lower offered one.
    """
    model, training = work.model, work.training
    dividends = {  # what each size has to divide
        "data": max(1, training.global_batch // micro_batch),
        "context": training.sequence_length // 2,
        "tensor": math.gcd(model.kv_heads, model.heads, model.ffn_hidden_size, model.vocab_size),
        "pipeline": model.layers,
    }
    sizes = {name: getattr(layout, name) for name in dividends}
    for name, dividend in dividends.items():
        while dividend % sizes[name]:
            sizes[name] = _halve(sizes[name])
    while math.prod(sizes.values()) > devices:
        largest = max(sizes, key=lambda name: sizes[name])
        sizes[largest] = _halve(sizes[largest])
    return Layout(
        **sizes,
        sequence_parallel=layout.sequence_parallel and sizes["tensor"] > 1 and "sequence" in offered,
        **_sharding_fields(layout, sizes["data"] * sizes["context"], offered),
    )


def _halve(size: int) -> int:
    """Return the largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)


def _sharding_fields(layout: Layout, ranks: int, offered: Collection[str]) -> dict[str, int]:
    """Return the sharding of a reduced layout with so many data and context ranks; empty for none."""
    stages = [stage for stage in range(1, layout.sharding_stage + 1) if f"zero{stage}" in offered]
    degree = math.gcd(ranks, layout.sharding_degree) if layout.sharding_degree < layout.gradient_ranks else ranks
    if not stages or degree == 1:
        return {}
    return {"sharding_stage": stages[-1], "sharding_degree": degree}

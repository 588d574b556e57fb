"""Where an entry runs: on the hardware that it names when that is here, assumed for a plan, or scaled to what is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from levelfield.catalog import lookup
from levelfield.catalog.host_cores import usable_cores
from levelfield.catalog.lookup import Found
from levelfield.catalog.registry import Registry
from levelfield.errors import DoesNotFit, UsageError
from levelfield.plan.reduced_layout import scaled
from levelfield.plan.resolve import Asked
from levelfield.specs.hardware import WITHHELD, NamedHardware
from levelfield.specs.layout import Layout, parse_layout
from levelfield.specs.selector import Selector
from levelfield.specs.tuning import TuningChoice


@dataclass(frozen=True)
class Placed:
    """What is planned: the selector and the choices with the hardware settled, and all that they lead to."""

    selector: Selector
    asked: Asked
    found: Found


def place(registry: Registry, selector: Selector, asked: Asked, named: NamedHardware | None) -> Placed:
    """Settle the hardware; `named` is the suite's, and `asked.hardware` wins over it.

    Raises UsageError, UnknownName or DocumentError for names that are wrong or said twice, DoesNotFit for `--scale
    full` on hardware that is not here.
    """
    wanted = asked.hardware or named
    if wanted is None:
        return Placed(selector, asked, lookup.find(registry, selector, check=asked.refusal is None))
    _refuse_second_name(selector, wanted)
    if wanted.chip == WITHHELD:
        return _here(registry, selector, asked, wanted)
    on_it = _placed_on(registry, selector, asked, wanted)
    if asked.hardware is not None:
        return replace(_assumed(on_it, "asked for with --assume-hardware"), found=replace(on_it.found, devices=()))
    if _is_here(on_it.found, wanted):
        return on_it
    if asked.assume and asked.scale != "smoke":
        return _assumed(on_it, f"on the hardware that the suite names, {wanted}")
    return _here(registry, selector, asked, wanted)


def _refuse_second_name(selector: Selector, named: NamedHardware) -> None:
    if selector.target or selector.devices or selector.nodes > 1:
        raise UsageError(
            f"hardware is named twice for {selector.case}:{selector.framework}: '{named}', and vendor, chip or number "
            "of devices in the case string; leave one of them out"
        )


def _placed_on(registry: Registry, selector: Selector, asked: Asked, named: NamedHardware) -> Placed:
    _, chip = lookup.find_chip(registry, named.chip)
    there = {"target": chip.name, "nodes": named.nodes, "devices": named.devices}
    selector = selector.model_copy(update=there)
    return Placed(selector, asked, lookup.find(registry, selector, check=asked.refusal is None))


def _is_here(found: Found, named: NamedHardware) -> bool:
    enough = found.vendor.divisible or len(found.devices) >= named.devices
    return named.nodes == 1 and bool(found.devices) and enough


def _assumed(placed: Placed, why: str) -> Placed:
    """Planned whole: whether it fits is what the plan is to show."""
    asked = placed.asked
    if asked.scale == "auto":
        asked = replace(asked, scale="full", why_scale=why)
    return replace(placed, asked=asked)


def _here(registry: Registry, selector: Selector, asked: Asked, named: NamedHardware) -> Placed:
    """On what is here, at smoke scale, with the layout cut down to it unless the command line gives one."""
    if asked.scale == "full":
        raise DoesNotFit(f"--scale full: {named} is not here. Without it the entry runs at smoke scale on what is here")
    found = lookup.find(registry, selector, check=asked.refusal is None)
    suggested = asked.suggested.model_dump(exclude_none=True, exclude={"micro_batch"})
    why = f"{named} is not here" if named.chip != WITHHELD else f"the chip of {named.nodes}x{named.devices} is withheld"
    said: tuple[str, ...] = (f"{why}: smoke scale on {found.chip.name}",)
    if asked.choice.layout is None:
        asked_for = _written(selector, asked, named)
        layout = _cut_down(found, asked, asked_for)
        suggested["layout"] = str(layout)
        said = tuple(_sentences(asked_for, layout, found, why))
    return Placed(
        selector,
        replace(
            asked,
            scale="smoke",
            why_scale=why,
            suggested=TuningChoice.model_validate(suggested),
            deviations=(*asked.deviations, *said),
        ),
        found,
    )


def _written(selector: Selector, asked: Asked, named: NamedHardware) -> Layout:
    text = asked.suggested.layout or selector.layout
    return parse_layout(text).layout if text else Layout(data=named.nodes * named.devices)


def _cut_down(found: Found, asked: Asked, layout: Layout) -> Layout:
    own = found.case.tuning.get("smoke", TuningChoice()).micro_batch
    return scaled(
        layout,
        usable_cores() if found.vendor.divisible else max(1, len(found.devices)),
        found.case.work("smoke"),
        asked.choice.micro_batch or own or 1,
        found.implementation.offered_parallelism(found.vendor.device_kind),
    )


def _sentences(before: Layout, after: Layout, found: Found, why: str) -> list[str]:
    sizes = f"layout {before} of {before.world_size} devices scaled to {after} for {after.world_size}"
    said = [f"{why}: {sizes if after != before else f'smoke scale on {found.chip.name}'}"]
    if after.sharding_degree > 1 and after.sharding_stage < before.sharding_stage:
        said.append(_lowered(before, f"lowered to {after.sharding_stage}", found))
    elif before.sharding_stage and after.data > 1 and not after.sharding_stage:
        said.append(_lowered(before, "left out", found))
    return said


def _lowered(before: Layout, what: str, found: Found) -> str:
    name, kind = found.implementation.framework, found.vendor.device_kind
    return f"sharding stage {before.sharding_stage} {what}: it is not offered by {name} on {kind}"

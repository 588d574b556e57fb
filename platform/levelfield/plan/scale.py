"""The scale of a run: full where the estimated memory fits, else smoke, with the reason in numbers."""

from __future__ import annotations

import shlex

from levelfield.errors import DoesNotFit
from levelfield.measure.parameter_counts import parameters
from levelfield.plan.arrangement import Arrangement, arrange
from levelfield.plan.default_layout import Place, fits_from
from levelfield.plan.devices import hardware_of
from levelfield.plan.request import Decision
from levelfield.predict.footprint import Footprint, expected_memory
from levelfield.predict.setup import setup_of

GIB = 2**30


def choose_scale(decision: Decision) -> tuple[Arrangement, str]:
    """Return the arrangement at the scale of the run, and the reason for the scale.

    Raises DoesNotFit for `--scale full` that exceeds the memory.
    """
    if decision.scale == "smoke":
        return arrange(decision, "smoke"), decision.why_scale or "asked for with --scale smoke"
    full = arrange(decision, "full")
    refusal = _why_not(decision, full)
    if decision.scale == "full":
        if refusal and not decision.request.assume:
            raise DoesNotFit(f"--scale full: {refusal}. Use --scale smoke, another --layout, or more devices")
        return full, decision.why_scale or "asked for with --scale full"
    accelerator = not decision.found.vendor.is_host
    if refusal is None and accelerator:
        return full, "the estimate says that it fits"
    no_chip = None if accelerator else "there is no accelerator here"
    more = _where_it_fits(decision, full) if accelerator else None
    return arrange(decision, "smoke"), "; ".join(part for part in (no_chip, refusal, more) if part)


def footprint_of(decision: Decision, arrangement: Arrangement) -> Footprint:
    """Return the expected memory of the arrangement's fullest rank."""
    found, work, tuning = decision.found, arrangement.work, arrangement.tuning
    return expected_memory(setup_of(work, tuning, found.vendor.is_host, found.memory_model))


def _why_not(decision: Decision, full: Arrangement) -> str | None:
    """Return a sentence when the full case cannot run on the devices; None where it can, or where that is unknown.

    Raises UsageError where the devices are absent and not assumed.
    """
    available = hardware_of(decision, full).memory_bytes_per_device
    devices = full.nodes * full.devices_per_node
    memory = footprint_of(decision, full)
    if available is None or memory.total <= available:
        return None
    where = "one device" if devices == 1 else f"the fullest of {devices} devices"
    count = parameters(full.work.model, full.work.training.sequence_length).total
    return (
        f"{decision.found.case.name} has {count:,} parameters and needs {memory.total / GIB:,.1f} GiB on {where} "
        f"as {full.tuning.layout}; there are {available / GIB:,.1f} GiB"
    )


def _where_it_fits(decision: Decision, full: Arrangement) -> str | None:
    """Return the number of devices from which the full case fits, with the command that plans it."""
    found, here = decision.found, Place(decision.found, full.work, full.nodes, full.devices_per_node)
    place = fits_from(here, decision.request.choice) if full.layout_is_default else None
    if place is None:
        return None
    return (
        f"it fits from {place.nodes} x {place.devices} devices on: `run_benchmarks.py plan {found.case.name} --chip "
        f"{found.chip.name} --framework {found.implementation.framework} --nodes {place.nodes} --devices "
        f"{shlex.join((str(place.devices), *found.options))}`"
    )

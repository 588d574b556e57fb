"""What a training needs at least: memory, time, processor time, energy. A run with less did not train.

Each rule returns a sentence with what was found, what is expected at least, and why; None where the run has enough, or
where a fact is not known. Limits lie far below what any real training showed (docs/decisions/least-work.md).
"""

from __future__ import annotations

from collections.abc import Mapping

# Of weights, gradients and optimizer states: all exist at once at the update. The least of 30 rehearsals is 1.07.
STATES_PART = 0.5
# Of the processor time that the products take at the measured peak: a probe may have been disturbed, and two threads of
# one core share its rate.
PROCESSOR_PART = 1 / 8
# Of the power before the training, and from which part of the peak on a device has to be above it.
IDLE_FACTOR, BUSY_PART = 1.1, 0.1


def memory_reason(figures: Mapping[str, float | None], states: int) -> str | None:
    """Return why the memory does not hold the states. figures: bytes of the fullest rank or device, by name."""
    least = STATES_PART * states
    low = {name: found for name, found in figures.items() if found is not None and not found >= least}
    if not low:
        return None
    name, found = min(low.items(), key=lambda item: item[1])
    return (
        f"the {name} is {found:,.0f} bytes, expected at least {least:,.0f}: {STATES_PART:.0%} of the {states:,} "
        "bytes of weights, gradients and optimizer states on a rank"
    )


def time_reason(step_seconds: float, flops: float, peak_tflops: float, source: str) -> str | None:
    """Return why a step is too short. flops: of the products of a step on one device; peak: a published one."""
    least = flops / (peak_tflops * 1e12)
    if step_seconds >= least:
        return None
    return (
        f"a step lasted {step_seconds:.4g} s, expected at least {least:.4g} s: {flops:.4g} FLOPs of matrix products on "
        f"each device, at its peak of {peak_tflops:g} TFLOP/s ({source})"
    )


def processor_reason(busy_seconds: float, flops: float, core_tflops: float) -> str | None:
    """Return why the host's processors did too little in the window. busy_seconds: of all programs on its cores.

    flops: of the products of this machine's ranks in the window. core_tflops: the measured peak over the cores.
    """
    least = PROCESSOR_PART * flops / (core_tflops * 1e12)
    if busy_seconds >= least:
        return None
    return (
        f"all programs used {busy_seconds:.3g} s of the processors in the window, expected at least {least:.3g} s: an "
        f"eighth of what {flops:.4g} FLOPs of matrix products take at the measured peak, {core_tflops:.3g} TFLOP/s a "
        "core"
    )


def energy_reason(watts: float, idle_watts: float, peak_part: float, steps_per_second: float) -> str | None:
    """Return why the devices were idle. watts, idle_watts: of all, in the window and before the training."""
    least = IDLE_FACTOR * idle_watts
    if not peak_part >= BUSY_PART or watts >= least:
        return None
    joules, expected = watts / steps_per_second, least / steps_per_second
    return (
        f"a step took {joules:.4g} J ({watts:.4g} W), expected at least {expected:.4g} J: {IDLE_FACTOR:g} times the "
        f"{idle_watts:.4g} W before the training, as its products need {peak_part:.1%} of the peak"
    )

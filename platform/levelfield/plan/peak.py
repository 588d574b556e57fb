"""The peak of a plan, for MFU: published, or measured on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from levelfield.specs.case import Work
from levelfield.specs.plan import PeakUsed, Plan
from levelfield.specs.vendor import Chip


@dataclass(frozen=True)
class MeasuredPeaks:
    """Rates that a probe measured on this machine, in TFLOP/s by dtype. how: the method, or why there are none."""

    tflops: dict[str, float] = field(default_factory=dict)
    how: str = "no probe of this machine yet; the first run makes one"


def peak_of(chip: Chip, work: Work, measured: MeasuredPeaks) -> PeakUsed:
    """Return the published peak of the precision's dtype, else the measured one, else none.

    The peak of another dtype is never used.
    """
    dtype = work.training.precision
    probe = measured.tflops.get(dtype)
    published = chip.peaks.get(dtype)
    if published:
        return PeakUsed(dtype=dtype, tflops=published.tflops, source=published.source, measured_tflops=probe)
    if probe is None:
        return PeakUsed(dtype=dtype, tflops=None, source=f"{chip.name} has no published {dtype} peak; {measured.how}")
    return PeakUsed(dtype=dtype, tflops=probe, source=f"measured: {measured.how}", measured_tflops=probe)


def with_peak(plan: Plan, measured: MeasuredPeaks) -> Plan:
    """Return the same plan with the peak that follows from the measured peaks."""
    return plan.model_copy(update={"peak": peak_of(plan.hardware.chip, plan.work, measured)})

"""The peak of a plan, for MFU: published, or measured on this machine; and when a measured one is measured again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from levelfield.measure.other_use import HostUse
from levelfield.measure.utilisation import chip_tflops_limit
from levelfield.specs.case import Work
from levelfield.specs.plan import PeakMeasurement, PeakUsed, Plan
from levelfield.specs.vendor import Chip

MAX_AGE = timedelta(days=30)  # of a measured peak that is kept
SPREAD_LIMIT = 0.25  # of the probe's best rate: its median may be so far below
MIN_REPEATS = 3  # of the best shape: the median of fewer shows no spread
# Of numpy's float32 product on the same cores. On two busy cores torch's probe gave 2 to 9 times that rate.
MIN_NUMPY_RATIO = 0.5
MIN_PEAK_SHARE = 0.1  # of a published peak: a large product reaches more than half of it, also beside other programs
BUSY_TIME = timedelta(minutes=10)  # a machine that was busy so shortly before is taken to be busy still


@dataclass(frozen=True)
class MeasuredPeaks:
    """Rates that a probe measured on this machine, by dtype."""

    tflops: dict[str, float] = field(default_factory=dict)  # TFLOP/s
    source: str = "no probe of this machine yet; the first run makes one"  # how they were measured, or why none was
    # When each was measured and beside what, by dtype, where that is known.
    measurements: dict[str, PeakMeasurement] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()  # a sentence for each rate that cannot be a peak and is left out
    limits: dict[str, float] = field(default_factory=dict)  # by dtype, TFLOP/s that a share of this host cannot exceed


def plausible_peaks(measured: MeasuredPeaks, chip: Chip, framework: str) -> MeasuredPeaks:
    """Return the rates without those that cannot be: far below the chip's published peak, as no product that is worth
    its name, or above what its maker publishes. Each refusal names the probe's framework."""
    plausible_rates, refusals = {}, list(measured.refusals)
    for dtype, rate in measured.tflops.items():
        published, limit = chip.peaks.get(dtype), chip_tflops_limit(dtype, chip.peaks)  # type: ignore[call-overload, arg-type]
        if published is not None and rate < (minimum := MIN_PEAK_SHARE * published.tflops):
            expected = f"expected at least {minimum:.3g}, {MIN_PEAK_SHARE:.0%} of the published peak of {chip.name}"
        elif limit is not None and not rate <= limit:
            expected = f"expected at most {limit:.4g} by the peaks of {chip.name}"
        else:
            plausible_rates[dtype] = rate
            continue
        refusals.append(f"the probe of {framework} is refused: it gave {rate:.3g} TFLOP/s in {dtype}, {expected}")
    return replace(measured, tflops=plausible_rates, refusals=tuple(refusals))


def mfu_peak(chip: Chip, work: Work, measured: MeasuredPeaks) -> PeakUsed:
    """Return the published peak of the precision's dtype, else the measured one, else none.

    The peak of another dtype is never used.
    """
    dtype = work.training.precision
    probe, measurement = measured.tflops.get(dtype), measured.measurements.get(dtype)
    measured_fields = {
        "measured_tflops": probe,
        "measurement": measurement if probe is not None else None,
        "limit_tflops": measured.limits.get(dtype),
    }
    if published := chip.peaks.get(dtype):
        return PeakUsed(dtype=dtype, tflops=published.tflops, source=published.source, **measured_fields)
    if probe is None:
        source = f"{chip.name} has no published {dtype} peak; {measured.source}"
        return PeakUsed(dtype=dtype, tflops=None, source=source, **measured_fields)
    return PeakUsed(
        dtype=dtype,
        tflops=probe,
        source=f"measured: {measured.source}{_measurement_words(measurement)}",
        **measured_fields,
    )


def set_measured_peak(plan: Plan, measured: MeasuredPeaks) -> Plan:
    """Return the same plan with the peak that follows from the measured peaks. A refused rate becomes a notice."""
    chip, name = plan.hardware.chip, f"{plan.implementation.framework} {plan.implementation.version}"
    rates = plausible_peaks(measured, chip, name)
    notices = (*plan.notices, *(sentence for sentence in rates.refusals if sentence not in plan.notices))
    return plan.model_copy(update={"peak": mfu_peak(chip, plan.work, rates), "notices": notices})


def remeasure_reason(measurement: PeakMeasurement | None, now: datetime) -> str | None:
    """Return why a kept peak is measured again, or None. Disturbances make a probe slower, so it may be too low."""
    if measurement is None:
        return "it is not known when and beside what it was measured"
    age = now - datetime.fromisoformat(measurement.at)
    if not timedelta(0) <= age <= MAX_AGE:
        return f"it was measured at {measurement.at}, and is kept for {MAX_AGE.days} days"
    return doubt_reason(measurement) if age > BUSY_TIME else _repeats_problem(measurement)


def doubt_reason(measurement: PeakMeasurement) -> str | None:
    """Return why a measured peak may be too low, or None."""
    if repeats_problem := _repeats_problem(measurement):
        return repeats_problem
    if HostUse(measurement.other_cores, measurement.cores).is_noticeable:
        return f"other programs used {measurement.other_cores:.2f} of {measurement.cores} cores beside the probe"
    if measurement.spread is not None and not measurement.spread <= SPREAD_LIMIT:
        return f"the probe's median was {measurement.spread:.0%} below its best"
    return _numpy_problem(measurement)


def _numpy_problem(measurement: PeakMeasurement) -> str | None:
    """Return a sentence where numpy multiplied far faster than the probe, or None."""
    ratio = measurement.numpy_ratio
    if ratio is None or ratio >= MIN_NUMPY_RATIO:
        return None
    return f"the probe gave {ratio:.0%} of numpy's product, expected at least {MIN_NUMPY_RATIO:.0%}"


def _repeats_problem(measurement: PeakMeasurement) -> str | None:
    """Return a sentence where the best shape was timed too seldom, or None.

    Earlier versions did not keep how often; the median of one product is the best itself.
    """
    repeats = 1 if measurement.repeats is None and measurement.spread == 0 else measurement.repeats
    if repeats is None or repeats >= MIN_REPEATS:
        return None
    return f"the probe timed its best product {repeats} time(s), expected at least {MIN_REPEATS}"


def is_better(new: float, old: float, measurement: PeakMeasurement | None, now: datetime) -> bool:
    """Return whether a new rate replaces a kept one: it is higher, or the kept one is too old or of unknown age.

    measurement: when the kept one was measured.
    """
    is_old = measurement is None or not timedelta(0) <= now - datetime.fromisoformat(measurement.at) <= MAX_AGE
    return not old > new or is_old


def measurement_conditions(measurement: PeakMeasurement) -> str:
    """Return beside what a peak was measured, and which library computed its float32 products."""
    others, spread = measurement.other_cores, measurement.spread
    use = "unknown use by others" if others is None else f"others used {others:.2f} of {measurement.cores} cores"
    parts = [
        use,
        None if spread is None else f"the median was {spread:.0%} below the best",
        _repeats_problem(measurement),
        _numpy_problem(measurement),
    ]
    text = ", ".join(part for part in parts if part)
    if measurement.onednn_over_mkl is None:
        return text
    name = {"onednn": "oneDNN", "mkl": "MKL"}[measurement.products or "onednn"]
    return f"{text}; float32 products by {name} (oneDNN has {measurement.onednn_over_mkl:.2f} times MKL's rate)"


def _measurement_words(measurement: PeakMeasurement | None) -> str:
    if measurement is None:
        return ""
    doubt = "; it may be too low" if doubt_reason(measurement) else ""
    return f"; measured at {measurement.at}: {measurement_conditions(measurement)}{doubt}"

"""Published throughput in the platform's own convention: tokens per second per device."""

from __future__ import annotations

from dataclasses import dataclass

from levelfield.specs.figures import PublishedRow

# The step time with more digits comes first. samples/s is only a fallback: it is rounded more than times are.
_STEP_TIMES = ("step_seconds_finer", "step_seconds")


@dataclass(frozen=True)
class Rate:
    """Tokens/s per device, or None. how: `printed`, `converted` with the arithmetic, or the reason for None."""

    tokens_per_second_per_device: float | None
    how: str


def rate(row: PublishedRow) -> Rate:
    """Return the printed rate, else the rate from the step time, else the rate from samples/s."""
    s = row.setting
    printed = row.figure("tokens_per_second_per_device")
    if printed is not None:
        return Rate(printed, "printed")
    for seconds in filter(None, map(row.figure, _STEP_TIMES)):
        value = s.global_batch * s.sequence_length / seconds / s.devices
        return Rate(value, f"converted: {s.global_batch} x {s.sequence_length} / {seconds:.10g} s / {s.devices}")
    samples = row.figure("samples_per_second")
    if samples is not None:
        value = samples * s.sequence_length / s.devices
        return Rate(value, f"converted: {samples:g} samples/s x {s.sequence_length} / {s.devices}")
    return Rate(None, f"no throughput: {row.status if row.status != 'published' else 'none is printed'}")

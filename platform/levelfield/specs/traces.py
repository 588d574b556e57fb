"""What a run's page draws beside the loss: telemetry over time, the step times of ranks, and the memory of ranks.

All of it is bounded, and left out where nothing was recorded. No figure rests on it: the raw files have all of it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from levelfield.specs.base import Value

Quantity = Literal["power_watts", "utilisation", "memory_used_mebibytes", "temperature_celsius"]
MOST_POINTS, MOST_DEVICES, MOST_RANKS, MOST_PEAKS = 32, 4, 4, 64
MOST_READINGS = 64  # points of all devices together, of one quantity


class DeviceTrace(Value):
    """Readings of one device. device: its index, with its node's before it where there are several nodes.

    values: by quantity the mean of each part of the time; null where nothing was read in it.
    """

    device: str = Field(max_length=40)
    values: dict[Quantity, tuple[float | None, ...]]


class RankTrace(Value):
    """The step times of one rank, from step 1, in microseconds."""

    rank: int = Field(ge=0)
    step_microseconds: tuple[int, ...]


class RankPeaks(Value):
    """The most memory of one rank over all steps, in MiB. Null: the framework gave no figure."""

    rank: int = Field(ge=0)
    process: int | None = None
    allocated: int | None = None
    reserved: int | None = None


class RunTraces(Value):
    """seconds: from the begin of step 1 to the end of the last step; a trace of a device is `parts` equal parts of it.

    devices, ranks: how many the run had. Of more than MOST_DEVICES those are kept that differ most from each other. Of
    more than MOST_RANKS the slowest are kept, and the fastest one; of more than MOST_PEAKS those with the most memory.
    """

    seconds: float = Field(default=0.0, ge=0)
    parts: int = Field(default=0, ge=0, le=MOST_POINTS)
    devices: int = 0
    ranks: int = 0
    device_traces: tuple[DeviceTrace, ...] = Field(default=(), max_length=MOST_DEVICES)
    rank_traces: tuple[RankTrace, ...] = Field(default=(), max_length=MOST_RANKS)
    rank_peaks: tuple[RankPeaks, ...] = Field(default=(), max_length=MOST_PEAKS)

"""configs/planner/host_runs.json: runs of small models on one processor. Predictions are compared with them."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from levelfield.specs.base import Document, Value
from levelfield.specs.case import Model, Training
from levelfield.specs.host_rates import HostRates
from levelfield.specs.layout import Layout


class HostRun(Value):
    """One run. step_seconds: the median of the window's steps; process_peak_bytes: of the largest process.

    status: the run's status word; only a valid run has figures. other_cores: the average number of cores that other
    processes used during the run; when it is not near 0, the run does not measure the machine.
    """

    name: str
    model: Model
    training: Training
    layout: Layout
    micro_batch: int = Field(ge=1)
    threads: int = Field(ge=1)
    status: str
    step_seconds: float | None = Field(default=None, gt=0)
    tokens_per_second_per_device: float | None = Field(default=None, gt=0)
    process_peak_bytes: int | None = Field(default=None, gt=0)
    load_before: float = Field(ge=0)
    other_cores: float


class HostRuns(Document):
    """The runs of one machine. rates: of the same machine, measured in the same session."""

    KIND: ClassVar[str] = "host_runs"

    date: str
    processor: str
    rates: HostRates
    runs: tuple[HostRun, ...]

"""Measurements of a host, by which predictions are made and checked: its rates, and runs of small models on it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AwareDatetime, Field, model_validator

from levelfield.specs.architecture import Model
from levelfield.specs.base import Document, Value
from levelfield.specs.case import Precision, Training
from levelfield.specs.layout import Layout

Positive = Annotated[float, Field(gt=0)]
Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "send_recv"]


class MessageTiming(Value):
    """The time of one operation between processes: alpha_seconds + bytes / bytes_per_second, and the data of the fit.

    Bytes are those of the whole message: the output of a gather, the input of a scatter, the data that one process
    sends.
    """

    alpha_seconds: Positive
    bytes_per_second: Positive
    seconds_by_bytes: dict[int, Positive] = Field(min_length=2)


class HostShare(Value):
    """The rates of the slowest of `processes` processes with `threads` threads each, while all of them compute."""

    processes: int = Field(ge=1)
    threads: int = Field(ge=1)
    # By precision and edge of the square matrices.
    matmul_flops_per_second: dict[Precision, dict[int, Positive]] = Field(min_length=1)
    # Of a = b + s c, by the bytes of each array; all three arrays count, and the largest are beyond the caches.
    triad_bytes_per_second: dict[int, Positive] = Field(min_length=1)
    copy_bytes_per_second: Positive  # of the largest array, reads and writes counted
    per_operation_seconds: Positive  # of a call with almost no work
    collectives: dict[Operation, MessageTiming] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _collectives_match_the_processes(self) -> HostShare:
        if bool(self.collectives) != (self.processes > 1):
            count = f"found {len(self.collectives)} for {self.processes} process(es)"
            raise ValueError(f"collectives: {count}, expected some for several processes and none for one")
        if any(not sizes for sizes in self.matmul_flops_per_second.values()):
            raise ValueError("matmul_flops_per_second: found a precision without sizes, expected at least one")
        return self

    @property
    def memory_bytes_per_second(self) -> float:
        """The memory rate for arrays beyond the caches."""
        return self.triad_bytes_per_second[max(self.triad_bytes_per_second)]


class HostRates(Document):
    """The rates of one machine with one version of torch."""

    KIND: ClassVar[str] = "host_rates"

    machine: str
    torch: str
    cores: int = Field(ge=1)
    # When they were measured, in UTC, and how many of `cores` other programs used meanwhile. Null: not recorded.
    measured_at: AwareDatetime | None = None
    other_cores: float | None = Field(default=None, ge=0)
    shares: tuple[HostShare, ...] = Field(min_length=1)  # one for each division of its cores

    def share(self, processes: int, threads: int) -> HostShare | None:
        """Return the rates of this division of the cores, or None when it was not measured."""
        return next((s for s in self.shares if (s.processes, s.threads) == (processes, threads)), None)


class HostRun(Value):
    """One run of a small model on the host."""

    name: str
    model: Model
    training: Training
    layout: Layout
    micro_batch: int = Field(ge=1)
    threads: int = Field(ge=1)
    status: str  # the run's status word; only a valid run has figures
    step_seconds: float | None = Field(default=None, gt=0)  # the median of the window's steps
    tokens_per_second_per_device: float | None = Field(default=None, gt=0)
    process_peak_bytes: int | None = Field(default=None, gt=0)  # of the largest process
    load_before: float = Field(ge=0)
    # The mean number of cores that other processes used; when it is not near 0, the run does not measure the machine.
    other_cores: float


class HostRuns(Document):
    """configs/planner/host_runs.json: the runs of one machine."""

    KIND: ClassVar[str] = "host_runs"

    date: str
    processor: str
    rates: HostRates  # of the machine, measured in the same session
    runs: tuple[HostRun, ...]

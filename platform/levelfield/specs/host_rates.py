"""What a host reaches, measured: matrix products, memory and messages, for each way of dividing its cores."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from levelfield.specs.base import Document, Value
from levelfield.specs.case import Precision

Positive = Annotated[float, Field(gt=0)]
Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "send_recv"]


class Messages(Value):
    """One operation between processes: alpha_seconds + bytes / bytes_per_second, and what it was fitted to.

    Bytes are those of the whole message: what a gather gives out, what a scatter takes in, what one process sends.
    """

    alpha_seconds: Positive
    bytes_per_second: Positive
    seconds_by_bytes: dict[int, Positive] = Field(min_length=2)


class HostShare(Value):
    """What each of `processes` processes reaches with `threads` threads while the others do the same: the slowest one.

    matmul_flops_per_second: by precision and edge of the square matrices. triad_bytes_per_second: of a = b + s c by the
    bytes of each array, three of which are counted; the largest are beyond the caches. copy_bytes_per_second: of the
    largest, both counted. per_operation_seconds: of a call that has next to nothing to do.
    """

    processes: int = Field(ge=1)
    threads: int = Field(ge=1)
    matmul_flops_per_second: dict[Precision, dict[int, Positive]] = Field(min_length=1)
    triad_bytes_per_second: dict[int, Positive] = Field(min_length=1)
    copy_bytes_per_second: Positive
    per_operation_seconds: Positive
    collectives: dict[Operation, Messages] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _several_send(self) -> HostShare:
        if bool(self.collectives) != (self.processes > 1):
            raise ValueError(f"collectives: found {len(self.collectives)} of {self.processes} process(es)")
        if any(not sizes for sizes in self.matmul_flops_per_second.values()):
            raise ValueError("matmul_flops_per_second: a precision has no sizes")
        return self

    @property
    def memory_bytes_per_second(self) -> float:
        """Of arrays beyond the caches."""
        return self.triad_bytes_per_second[max(self.triad_bytes_per_second)]


class HostRates(Document):
    """Of one machine and version of torch; `shares` by how its cores were divided."""

    KIND: ClassVar[str] = "host_rates"

    machine: str
    torch: str
    cores: int = Field(ge=1)
    shares: tuple[HostShare, ...] = Field(min_length=1)

    def share(self, processes: int, threads: int) -> HostShare | None:
        """Of this division of the cores; None where it was not measured."""
        return next((s for s in self.shares if (s.processes, s.threads) == (processes, threads)), None)

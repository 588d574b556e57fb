"""What a check finds: a sentence when all is well, else one of these, raised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "missing", "fails", "not applicable"]


@dataclass(frozen=True)
class Row:
    """What is read of one device, by vendor.yaml's names of fields: in W, J, bytes, shares of 1 and degrees Celsius.
    Why a value is null stands in `reasons`."""

    device: int
    values: Mapping[str, float | str | None]
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class Finding:
    """One check's result. says: what was found; do: what the author has to do about it, if anything; rows: what was
    read of each device, where the check shows that."""

    check: str
    status: Status
    says: str
    do: str = ""
    rows: tuple[Row, ...] = ()

    @property
    def is_good(self) -> bool:
        return self.status in ("ok", "not applicable")


class NotOk(Exception):
    """A check that does not end well: what was found, and what to do."""

    status: Status = "fails"

    def __init__(self, says: str, do: str = "") -> None:
        super().__init__(says)
        self.says, self.do = says, do


class Fails(NotOk):
    status = "fails"


class Missing(NotOk):
    status = "missing"


class NotApplicable(NotOk):
    status = "not applicable"

"""The findings of checks. A check returns a sentence when all is good, and otherwise raises one of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "missing", "fails", "not applicable"]


@dataclass(frozen=True)
class CheckRow:
    """The values of one device, by the field names of vendor.yaml: in W, J, bytes, fractions of 1 and degrees Celsius.
    `reasons`: why a value is null."""

    device: int
    values: Mapping[str, float | str | None]
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class CheckFinding:
    """The result of one check. says: what was found; do: what the author must do, if anything; rows: the values of
    each device, if the check shows them."""

    check: str
    status: Status
    says: str
    do: str = ""
    rows: tuple[CheckRow, ...] = ()

    @property
    def is_good(self) -> bool:
        return self.status in ("ok", "not applicable")


class NotOk(Exception):
    """The check did not pass: what was found, and what to do."""

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

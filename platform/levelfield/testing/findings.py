"""The findings of checks. A check returns a sentence when all is good, and otherwise raises one of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from levelfield.errors import UsageError

Subject = TypeVar("Subject")
Status = Literal["ok", "warns", "missing", "fails", "not applicable"]


@dataclass(frozen=True)
class CheckRow:
    """The values of one device, by the field names of vendor.yaml: in W, J, bytes, parts of 1 and degrees Celsius."""

    device: int
    values: Mapping[str, float | str | None]
    reasons: Mapping[str, str]  # of nulls


@dataclass(frozen=True)
class CheckFinding:
    """The result of one check."""

    check: str
    status: Status
    says: str  # what was found
    do: str = ""  # what the author must do, if anything
    rows: tuple[CheckRow, ...] = ()  # the values of each device, if the check shows them

    @property
    def is_good(self) -> bool:
        return self.status in ("ok", "warns", "not applicable")


@dataclass(frozen=True)
class Check(Generic[Subject]):
    """One check of a suite."""

    name: str
    run: Callable[[Subject], str]  # returns a sentence when all is good, or raises NotOk
    slow: bool = False  # it trains, waits or plans every case
    only_fast: bool = False  # a slow check does its work too
    rows: Callable[[Subject], tuple[CheckRow, ...]] | None = None  # returns the values to show beside the sentence

    def is_selected(self, fast: bool) -> bool:
        """Return whether the suite has this check. fast: without the slow ones."""
        return not (self.slow if fast else self.only_fast)


class NotOk(Exception):
    """The check did not pass as it should: what was found, and what to do."""

    status: Status = "fails"

    def __init__(self, says: str, do: str = "") -> None:
        super().__init__(says)
        self.says, self.do = says, do


class Fails(NotOk):
    status = "fails"


class Missing(NotOk):
    status = "missing"


class Warns(NotOk):
    """The check passed, but the author should read what was found."""

    status = "warns"


class NotApplicable(NotOk):
    status = "not applicable"


def run_check(check: str, run: Callable[[], str]) -> CheckFinding:
    """Return the finding of one check. Code under test that raises fails the check and does not end the suite."""
    try:
        return CheckFinding(check, "ok", run())
    except NotOk as error:
        return CheckFinding(check, error.status, error.says, error.do)
    except UsageError as error:
        return CheckFinding(check, "fails", str(error), "correct the named key or file")
    except Exception as error:  # code under test may raise anything
        return CheckFinding(
            check,
            "fails",
            f"raised {type(error).__name__}: {error}",
            "handle the error where it arises; an adapter returns nulls with reasons",
        )

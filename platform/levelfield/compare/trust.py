"""How far a side's figures can be trusted: five parts, each of which is known to hold, or says why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from levelfield.compare.comparability import busy
from levelfield.compare.ratios import LEAST_RUNS, SideValues
from levelfield.compare.sides import ComparedSide, at
from levelfield.specs.record import RunRecord

PartName = Literal["aligned", "certified", "sealed", "quiet", "repeats"]
PARTS: tuple[PartName, ...] = get_args(PartName)


@dataclass(frozen=True)
class TrustPart:
    """detail: what was found, such as the verdict, or the number of runs."""

    name: PartName
    holds: bool
    detail: str


def trust(side: ComparedSide, values: SideValues) -> tuple[TrustPart, ...]:
    """Return the parts in their order. values: the speeds of the side, with the noise of its history."""
    runs = side.counted
    verdicts = ", ".join(dict.fromkeys(record.verdict for record in runs))
    evidence = ", ".join(dict.fromkeys(record.evidence for record in runs))
    uncertified = next((why for record in runs if (why := _uncertified(record))), "")
    disturbed = next((why for record in runs if (why := _disturbed(record))), "")
    return (
        TrustPart("aligned", bool(runs) and verdicts == "aligned", verdicts),
        TrustPart("certified", bool(runs) and not uncertified, uncertified),
        TrustPart("sealed", bool(runs) and evidence == "sealed", evidence),
        TrustPart("quiet", bool(runs) and not disturbed, disturbed),
        TrustPart("repeats", len(values.values) >= LEAST_RUNS or values.history is not None, str(len(values.values))),
    )


def _uncertified(record: RunRecord) -> str:
    """Return why no certificate holds. A run in fp32 at smoke scale needs none: its own verdict is what one shows."""
    found = record.result.get("certificate")
    if found is None:
        needs = (record.series.scale, record.series.precision) != ("smoke", "fp32")
        return "not recorded" if needs else "" if record.verdict == "aligned" else record.verdict
    return "" if at(found, "holds") is True else str(at(found, "reason") or "none holds")


def _disturbed(record: RunRecord) -> str:
    """Return what others used of the machine; also where nobody recorded it."""
    used = record.result.get("other_use")
    if not isinstance(at(used, "host_in_window", "value"), (int, float)):
        return "not recorded"
    return busy(record)[1]

"""The conformance suite: every check of a vendor, in the order of an author's work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from levelfield.testing import (
    case_plans,
    container_checks,
    file_checks,
    launch_checks,
    plausibility_checks,
    run_checks,
    sample_checks,
    tool_checks,
    tuning_checks,
    value_checks,
)
from levelfield.testing.findings import CheckFinding, CheckRow, found
from levelfield.testing.subject import VendorSubject


@dataclass(frozen=True)
class Check:
    """One check. run returns a sentence when all is good, or raises NotOk. whole: it trains, waits or plans every case,
    which takes seconds. rows: returns the values to show beside the sentence."""

    name: str
    run: Callable[[VendorSubject], str]
    whole: bool = False
    rows: Callable[[VendorSubject], tuple[CheckRow, ...]] | None = None


CHECKS = (
    Check("schema", file_checks.schema),
    Check("readme", file_checks.readme),
    Check("chips", file_checks.chips),
    Check("plausible", plausibility_checks.chips),
    Check("recordings", file_checks.origins),
    Check("devices", sample_checks.devices),
    Check("values", value_checks.values, rows=value_checks.rows),
    Check("claims", plausibility_checks.claims),
    Check("truncated", sample_checks.truncated),
    Check("reordered", sample_checks.reordered),
    Check("repeated", sample_checks.repeated),
    Check("decimal-comma", sample_checks.with_comma),
    Check("not-available", sample_checks.unavailable),
    Check("other-units", sample_checks.in_another_unit),
    Check("extra-devices", sample_checks.extra_devices),
    Check("no-text", sample_checks.no_text),
    Check("commands", tool_checks.commands),
    Check("tool-missing", tool_checks.missing),
    Check("tool-failing", tool_checks.failing),
    Check("tool-slow", tool_checks.slow, whole=True),
    Check("versions", tool_checks.versions),
    Check("visible", tool_checks.visible),
    Check("container", container_checks.options),
    Check("privileges", container_checks.privileges),
    Check("images", container_checks.images),
    Check("tuning", tuning_checks.tuning),
    Check("launch", launch_checks.launch),
    Check("cases", case_plans.cases, whole=True),
    Check("telemetry", run_checks.telemetry, whole=True),
    Check("failures", run_checks.failures, whole=True),
    Check("cleanup", run_checks.cleanup, whole=True),
)


def check(subject: VendorSubject, fast: bool = False) -> Iterator[CheckFinding]:
    """Return the findings one by one. A wrong vendor.yaml is the last. fast: without checks that train or wait."""
    for item in CHECKS:
        if fast and item.whole:
            continue
        finding = find(subject, item)
        yield finding
        if item.name == "schema" and finding.status == "fails":
            return


def find(subject: VendorSubject, item: Check) -> CheckFinding:
    """Return the finding of one check, with its rows if it has any."""
    finding = found(item.name, lambda: _result(subject, item))
    if item.rows is None:
        return finding
    with suppress(Exception), subject.surroundings():  # the finding already reports the cause
        return replace(finding, rows=item.rows(subject))
    return finding


def _result(subject: VendorSubject, item: Check) -> str:
    with subject.surroundings():
        return item.run(subject)

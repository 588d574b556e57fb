"""The conformance suite: every check of a vendor, in the order of an author's work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from levelfield.testing import (
    container_checks,
    file_checks,
    plan_checks,
    rehearsal,
    sample_checks,
    tool_checks,
    value_checks,
)
from levelfield.testing.findings import Check, CheckFinding, run_check
from levelfield.testing.subject import VendorSubject

CHECKS: tuple[Check[VendorSubject], ...] = (
    Check("schema", file_checks.schema),
    Check("readme", file_checks.readme),
    Check("chips", file_checks.chips),
    Check("plausible", file_checks.plausible),
    Check("recordings", file_checks.origins),
    Check("devices", sample_checks.devices),
    Check("values", value_checks.values, rows=value_checks.rows),
    Check("claims", file_checks.claims),
    Check("truncated", sample_checks.truncated),
    Check("reordered", sample_checks.reordered),
    Check("repeated", sample_checks.repeated),
    Check("decimal-comma", sample_checks.with_comma),
    Check("not-available", sample_checks.unavailable),
    Check("other-units", sample_checks.other_units),
    Check("extra-devices", sample_checks.extra_devices),
    Check("no-text", sample_checks.no_text),
    Check("commands", tool_checks.commands),
    Check("tool-missing", tool_checks.missing),
    Check("tool-failing", tool_checks.failing),
    Check("tool-slow", tool_checks.slow, slow=True),
    Check("versions", tool_checks.versions),
    Check("visible", tool_checks.visible),
    Check("container", container_checks.options),
    Check("privileges", container_checks.privileges),
    Check("images", container_checks.images),
    Check("tuning", plan_checks.tuning),
    Check("launch", plan_checks.launch),
    Check("cases", plan_checks.cases, slow=True),
    Check("telemetry", rehearsal.telemetry, slow=True),
    Check("failures", rehearsal.failures, slow=True),
    Check("cleanup", rehearsal.cleanup, slow=True),
)


def selected_checks(fast: bool) -> tuple[Check[VendorSubject], ...]:
    """Return the checks. fast: without those that train or wait."""
    return tuple(check for check in CHECKS if not (fast and check.slow))


def check(subject: VendorSubject, fast: bool = False) -> Iterator[CheckFinding]:
    """Return the findings one by one. A wrong vendor.yaml is the last."""
    for check in selected_checks(fast):
        yield (finding := run_one_check(subject, check))
        if check.name == "schema" and finding.status == "fails":
            return


def run_one_check(subject: VendorSubject, check: Check[VendorSubject]) -> CheckFinding:
    """Return the finding of one check, with its rows if it has any."""

    def run() -> str:
        with subject.surroundings():
            return check.run(subject)

    finding = run_check(check.name, run)
    if check.rows is not None:
        with suppress(Exception), subject.surroundings():  # the finding already reports the cause
            return replace(finding, rows=check.rows(subject))
    return finding

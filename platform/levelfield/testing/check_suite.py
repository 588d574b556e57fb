"""The conformance suite: every check of a vendor, in the order of an author's work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from levelfield.testing import (
    container_checks,
    damage,
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
    Check("truncated", partial(sample_checks.never_wrong, damaged=damage.truncated, what="truncated")),
    Check("reordered", partial(sample_checks.never_wrong, damaged=damage.reordered, what="reordered")),
    Check("repeated", partial(sample_checks.never_wrong, damaged=damage.repeated, what="with lines twice or lost")),
    Check(
        "decimal-comma",
        partial(sample_checks.must_be_null, damaged=damage.with_decimal_comma, what="with a decimal comma"),
    ),
    Check("not-available", partial(sample_checks.must_be_null, damaged=damage.with_not_available, what="with NA")),
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


def run_checks(subject: VendorSubject, fast: bool = False) -> Iterator[CheckFinding]:
    """Return the findings one by one. A wrong vendor.yaml is the last. fast: without what trains or waits."""
    for check in (check for check in CHECKS if check.is_selected(fast)):
        yield (finding := run_one_check(subject, check))
        if check.name == "schema" and finding.status == "fails":
            return


def run_one_check(subject: VendorSubject, check: Check[VendorSubject]) -> CheckFinding:
    """Return the finding of one check, with its rows if it has any."""

    def run() -> str:
        with subject.stage.entered(subject.spec.visible_devices_variable):
            return check.run(subject)

    finding = run_check(check.name, run)
    if check.rows is not None:
        with suppress(Exception), subject.stage.entered(subject.spec.visible_devices_variable):
            return replace(finding, rows=check.rows(subject))
    return finding  # it already reports the cause of rows that are missing

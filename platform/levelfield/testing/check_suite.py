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
    Check("schema", file_checks.check_schema),
    Check("readme", file_checks.check_readme),
    Check("chips", file_checks.check_chips),
    Check("plausible", file_checks.check_plausibility),
    Check("recordings", file_checks.check_origins),
    Check("devices", sample_checks.check_devices),
    Check("values", value_checks.check_field_values, rows=value_checks.device_rows),
    Check("claims", file_checks.check_claims),
    Check(
        "truncated",
        partial(sample_checks.check_never_wrong, make_copies=damage.truncated_copies, damage_words="truncated"),
    ),
    Check(
        "reordered",
        partial(sample_checks.check_never_wrong, make_copies=damage.reordered_copies, damage_words="reordered"),
    ),
    Check(
        "repeated",
        partial(
            sample_checks.check_never_wrong, make_copies=damage.repeated_copies, damage_words="with lines twice or lost"
        ),
    ),
    Check(
        "decimal-comma",
        partial(
            sample_checks.check_null_values, make_damaged=damage.use_decimal_comma, damage_words="with a decimal comma"
        ),
    ),
    Check(
        "not-available",
        partial(sample_checks.check_null_values, make_damaged=damage.replace_with_na, damage_words="with NA"),
    ),
    Check("other-units", sample_checks.check_other_units),
    Check("extra-devices", sample_checks.check_extra_devices),
    Check("no-text", sample_checks.check_no_text),
    Check("commands", tool_checks.check_commands),
    Check("tool-missing", tool_checks.check_missing_tool),
    Check("tool-failing", tool_checks.check_failing_tool),
    Check("tool-slow", tool_checks.check_slow_tool, slow=True),
    Check("versions", tool_checks.check_versions),
    Check("visible", tool_checks.check_visible_devices),
    Check("container", container_checks.check_options),
    Check("privileges", container_checks.check_privileges),
    Check("images", container_checks.check_images),
    Check("tuning", plan_checks.check_tuning),
    Check("launch", plan_checks.check_launch),
    Check("cases", plan_checks.check_cases, slow=True),
    Check("telemetry", rehearsal.check_telemetry, slow=True),
    Check("failures", rehearsal.check_failures, slow=True),
    Check("cleanup", rehearsal.check_cleanup, slow=True),
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
        with subject.stage.activate(subject.spec.visible_devices_variable):
            return check.run(subject)

    finding = run_check(check.name, run)
    if check.rows is not None:
        with suppress(Exception), subject.stage.activate(subject.spec.visible_devices_variable):
            return replace(finding, rows=check.rows(subject))
    return finding  # it already reports the cause of rows that are missing

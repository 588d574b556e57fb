"""The conformance suite: every check of a vendor, in the order of an author's work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from levelfield.errors import UsageError
from levelfield.testing import containers, files, launching, reading, running, tools, values
from levelfield.testing.findings import CheckFinding, CheckRow, NotOk
from levelfield.testing.subject import Subject


@dataclass(frozen=True)
class Check:
    """One check. run returns a sentence when all is good, or raises NotOk. whole: it trains or waits, which takes
    seconds. rows: returns the values to show beside the sentence."""

    name: str
    run: Callable[[Subject], str]
    whole: bool = False
    rows: Callable[[Subject], tuple[CheckRow, ...]] | None = None


CHECKS = (
    Check("schema", files.schema),
    Check("readme", files.readme),
    Check("chips", files.chips),
    Check("recordings", files.origins),
    Check("devices", reading.devices),
    Check("values", values.values, rows=values.rows),
    Check("truncated", reading.truncated),
    Check("reordered", reading.reordered),
    Check("repeated", reading.repeated),
    Check("decimal-comma", reading.with_comma),
    Check("not-available", reading.unavailable),
    Check("other-units", reading.in_another_unit),
    Check("extra-devices", reading.extra_devices),
    Check("no-text", reading.no_text),
    Check("tool-missing", tools.missing),
    Check("tool-failing", tools.failing),
    Check("tool-slow", tools.slow, whole=True),
    Check("versions", tools.versions),
    Check("visible", tools.visible),
    Check("container", containers.options),
    Check("privileges", containers.privileges),
    Check("images", containers.images),
    Check("tuning", files.tuning),
    Check("launch", launching.launch),
    Check("telemetry", running.telemetry, whole=True),
    Check("failures", running.failures, whole=True),
    Check("cleanup", running.cleanup, whole=True),
)


def check(subject: Subject, fast: bool = False) -> Iterator[CheckFinding]:
    """Return the findings one by one. A wrong vendor.yaml is the last. fast: without checks that train or wait."""
    for item in CHECKS:
        if fast and item.whole:
            continue
        finding = find(subject, item)
        yield finding
        if item.name == "schema" and finding.status == "fails":
            return


def find(subject: Subject, item: Check) -> CheckFinding:
    """Return the finding of one check, with its rows if it has any."""
    finding = _found(subject, item)
    if item.rows is None:
        return finding
    with suppress(Exception), subject.surroundings():  # the finding already reports the cause
        return replace(finding, rows=item.rows(subject))
    return finding


def _found(subject: Subject, item: Check) -> CheckFinding:
    """Run one check. An adapter that raises fails the check and does not end the suite."""
    try:
        with subject.surroundings():
            return CheckFinding(item.name, "ok", item.run(subject))
    except NotOk as found:
        return CheckFinding(item.name, found.status, found.says, found.do)
    except UsageError as error:
        return CheckFinding(item.name, "fails", str(error), "correct the named key or file")
    except Exception as error:  # an adapter may raise anything
        return CheckFinding(item.name, "fails", f"raised {type(error).__name__}: {error}", "return nulls with reasons")

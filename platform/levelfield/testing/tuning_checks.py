"""Checks of tuning/: each row is planned on every number of nodes for which it applies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from levelfield.catalog import lookup
from levelfield.catalog.lookup import Selection
from levelfield.errors import NotHere, UsageError
from levelfield.plan.request import Decision, UserRequest
from levelfield.plan.resolution import resolve
from levelfield.specs.selector import Selector
from levelfield.specs.tuning import TuningRow
from levelfield.testing.findings import Fails, NotApplicable
from levelfield.testing.subject import VendorSubject

NODES = (1, 2, 4)
DEVICES = 8  # of a node, where the row names no number


def tuning(subject: VendorSubject) -> str:
    """Check that each file belongs to a known case, sets free fields only, and that each row gives a possible plan."""
    files = sorted((subject.folder / "tuning").glob("*.yaml"))
    if not files:
        raise NotApplicable("no tuning/<case>.yaml: cases run as they are")
    plans = sum(_check_file(subject, path.stem) for path in files)
    return f"{len(files)} case(s), {plans} plan(s): {', '.join(path.stem for path in files)}"


def _check_file(subject: VendorSubject, case: str) -> int:
    subject.registry.case(case)
    rows = lookup.tuning_rows(subject.registry, subject.name, case)
    return sum(_check_row(subject, case, number, row) for number, row in enumerate(rows))


def _check_row(subject: VendorSubject, case: str, number: int, row: TuningRow) -> int:
    """Return the number of plans. Raises Fails for a row that makes a plan impossible, or that applies nowhere."""
    plans = 0
    for selector in _selectors(subject, case, row):
        try:
            found = replace(lookup.find(subject.registry, selector), devices=())
        except NotHere:
            continue  # the framework does not have the case or the vendor, whatever the row says
        error = _error(found, selector, row)
        if error and not _error(replace(found, tuning_rows=()), selector, row):
            where = f"{selector.framework} on {selector.nodes} x {selector.devices} {selector.target}"
            raise Fails(
                f"tuning/{case}.yaml: key 'rows.{number}': {where}: {error}",
                "correct the row, or add the condition `nodes`, `devices` or `framework` to it",
            )
        plans += error is None
    if plans == 0:
        raise Fails(f"tuning/{case}.yaml: key 'rows.{number}': it applies nowhere", "correct its conditions")
    return plans


def _selectors(subject: VendorSubject, case: str, row: TuningRow) -> Iterator[Selector]:
    """Return every framework, chip and number of nodes on which the row applies."""
    for framework in [row.framework] if row.framework else subject.registry.reaching(subject.spec):
        for chip in [row.chip] if row.chip else [chip.name for chip in subject.spec.chips]:
            for nodes in [row.nodes] if row.nodes else NODES:
                devices = row.devices or DEVICES
                yield Selector(case=case, framework=framework, target=chip, nodes=nodes, devices=devices)


def _error(found: Selection, selector: Selector, row: TuningRow) -> str | None:
    request = UserRequest(row.scale, assume=True, python=sys.executable)
    try:
        resolve(Decision(selector.case, selector, found, request, scale=row.scale), "tuning")
    except UsageError as error:
        return str(error)
    return None

"""A check of the shipped cases on a vendor's chips: which have a plan, and which peaks their precisions lack."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from levelfield.catalog import lookup
from levelfield.errors import UsageError
from levelfield.plan.request import Decision, UserRequest
from levelfield.plan.resolution import resolve
from levelfield.specs.case import Precision
from levelfield.specs.selector import Selector
from levelfield.specs.vendor import Chip
from levelfield.testing.findings import Fails, Missing, NotApplicable
from levelfield.testing.subject import VendorSubject

DEVICES = 8  # of one node, as most makers build them
SHOWN = 60  # characters of why a case has no plan


def cases(subject: VendorSubject) -> str:
    """Plan each case at full scale on one node of the first chip, and name the peaks that the chips lack for them."""
    if subject.spec.is_host:
        raise NotApplicable("the full scale is for accelerators")
    frameworks = subject.registry.reaching(subject.spec)
    if not frameworks or not subject.spec.chips:
        raise Missing("no framework or no chip", "see the checks `launch` and `chips`")
    names, chip = sorted(subject.registry.cases), subject.spec.chips[0]
    without = {name: why for name in names if (why := _why_not(subject, name, frameworks, chip))}
    if len(without) == len(names):
        name, why = next(iter(without.items()))
        raise Fails(f"none of {len(names)} cases has a plan on {DEVICES} x {chip.name}: {name}: {why}", "see `launch`")
    said = f"{len(names) - len(without)} of {len(names)} cases have a plan on {DEVICES} x {chip.name}"
    none = "; ".join(f"{name}: {why[:SHOWN]}" for name, why in without.items())
    return f"{said}{f'; none: {none}' if none else ''}{_peaks(subject, names)}"


def _why_not(subject: VendorSubject, case: str, frameworks: Sequence[str], chip: Chip) -> str | None:
    """Return why no framework has a plan for the case, by the first one; None where one has."""
    reasons = []
    for framework in frameworks:
        selector = Selector(case=case, framework=framework, target=chip.name, devices=DEVICES)
        try:
            found = replace(lookup.find(subject.registry, selector), devices=(), problem=None, notices=())
            request = UserRequest("full", assume=True, python=sys.executable)
            resolve(Decision(case, selector, found, request, scale="full"), "cases")
        except UsageError as error:
            reasons.append(" ".join(str(error).split()))
        else:
            return None
    return reasons[0]


def _peaks(subject: VendorSubject, names: Sequence[str]) -> str:
    """Return a sentence about each precision of the cases whose peak a chip lacks: their runs have no MFU there."""
    uses: dict[Precision, list[str]] = {}
    for name in names:
        uses.setdefault(subject.registry.case(name).training.precision, []).append(name)
    return "".join(_missing_peak(subject.spec.chips, precision, used) for precision, used in sorted(uses.items()))


def _missing_peak(chips: Sequence[Chip], precision: Precision, used: Sequence[str]) -> str:
    lacking = [chip.name for chip in chips if precision not in chip.peaks]
    if not lacking:
        return ""
    return f". No {precision} peak, so no MFU without a probe in {_listed(used)}: {', '.join(lacking)}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} other case{'s' if len(names) > 2 else ''}"

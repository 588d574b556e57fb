"""`show`: prints every value of a case, and its free fields after a vendor's tuning."""

from __future__ import annotations

import argparse
import json

import yaml

from levelfield.catalog import lookup
from levelfield.catalog.registry import Registry
from levelfield.catalog.tuning_changes import RunPlace, tuned
from levelfield.cli.plugins import registry_of
from levelfield.cli.vendor_changes import print_changes
from levelfield.errors import UnknownName, UsageError
from levelfield.measure.parameter_counts import parameters
from levelfield.specs.case import Case, Scale
from levelfield.specs.tuning import TuningRow
from levelfield.specs.yaml_words import WordDumper


def execute(options: argparse.Namespace) -> int:
    registry = registry_of(options)
    case = registry.case(options.case)
    scales: list[Scale] = [options.scale] if options.scale else ["full", "smoke"]
    place = _place(options, registry)
    rows = lookup.tuning_rows(registry, options.vendor, case.name) if options.vendor else ()
    if options.diff:
        return print_changes(case, options.vendor, rows, scales, place, as_json=options.json)
    content: dict[str, object] = {
        "name": case.name,
        "title": case.title,
        "source": case.source,
        "tokenizer": case.tokenizer,
        "digest": case.fingerprint(),
        **_extended(registry, case.name),
        **{scale: _work(case, scale) | _tuned(options.vendor, case, rows, scale, place) for scale in scales},
    }
    if options.json:
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print(yaml.dump(content, Dumper=WordDumper, sort_keys=False, allow_unicode=True, width=80), end="")
    return 0


def _extended(registry: Registry, name: str) -> dict[str, object]:
    """Return the case that this one extends and the changes; nothing for a case that extends none."""
    extension = registry.extension(name)
    if extension is None:
        return {}
    beside = {"smoke": extension.smoke, "tuning": extension.tuning}
    return {"extends": extension.extends, "changes": {**extension.changes, **{k: v for k, v in beside.items() if v}}}


def _place(options: argparse.Namespace, registry: Registry) -> RunPlace:
    """Return the place for which rows are selected. Raises UsageError for unknown names, or without a vendor."""
    if options.vendor is None:
        given = {"--diff": options.diff, "--framework": options.framework, "--chip": options.chip}
        given["--devices"] = options.devices is not None
        if alone := [name for name, value in given.items() if value]:
            raise UsageError(
                f"show: {', '.join(alone)}: found no --vendor; add --vendor NAME; known: {', '.join(registry.vendors)}"
            )
        return RunPlace()
    vendor = registry.vendor_file(options.vendor)
    chip = vendor.chip(options.chip) if options.chip else None
    if options.chip and chip is None:
        raise UnknownName(f"chip of {vendor.name}", options.chip, [c.name for c in vendor.chips])
    if options.framework and options.framework not in registry.frameworks:
        raise UnknownName("framework", options.framework, registry.frameworks)
    if options.devices is not None and options.devices < 1:
        raise UsageError(f"--devices: found {options.devices}, expected 1 or more")
    return RunPlace(chip.name if chip else None, options.framework, options.devices)


def _work(case: Case, scale: Scale) -> dict[str, object]:
    work = case.work(scale)
    count = parameters(work.model, work.training.sequence_length)
    active = {"active_parameters": count.active} if work.model.experts else {}
    tuning = case.tuning.get(scale)
    chosen = tuning.model_dump(exclude_none=True) if tuning else {}
    head = {"parameters": count.total, **active, "digest": work.fingerprint()}
    return {**head, **work.model_dump(mode="json"), "default_tuning": chosen}


def _tuned(
    vendor: str | None, case: Case, rows: tuple[TuningRow, ...], scale: Scale, place: RunPlace
) -> dict[str, object]:
    """Return the free fields with the vendor's rows that apply, and the conditions of the other rows."""
    if vendor is None:
        return {}
    here = [row for row in rows if row.scale == scale and place.admits(row)]
    return {
        "vendor": vendor,
        "tuning": tuned(case, rows, scale, place),
        "rows_applied": [row.why for row in here if place.meets(row, scale)],
        "rows_elsewhere": [row.conditions for row in here if not place.meets(row, scale)],
    }

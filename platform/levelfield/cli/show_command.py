"""`show` (compare chips): cases, frameworks, vendors, chips, suites, runs; one case in full"""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from levelfield.catalog import lookup
from levelfield.catalog.registry import Registry
from levelfield.catalog.tuning_changes import RowChanges, RunPlace, row_changes, tuned
from levelfield.cli.command_line import Command
from levelfield.cli.listing import listing
from levelfield.cli.options import chips_option, json_option, registry_of
from levelfield.errors import UnknownName, UsageError
from levelfield.measure.parameter_counts import parameters
from levelfield.report.words import wrapped
from levelfield.rundir.directory import default_runs
from levelfield.specs.case import Case, Scale
from levelfield.specs.tuning import TuningRow
from levelfield.specs.yaml_words import WordDumper

_HELP = """\
List what there is, one line about each, or show every value of a case, at full
and at smoke scale. NAME is a case or one of these kinds: cases, frameworks,
vendors, chips, suites, published, runs. Without NAME: every kind but runs.

--vendor adds a case's free fields after the vendor's tuning; --diff shows only
what that tuning changes.

examples:
  run_benchmarks.py show
  run_benchmarks.py show chips      peaks in TFLOP/s, links in GB/s
  run_benchmarks.py show runs --runs DIR
  run_benchmarks.py show llama3_8b
  run_benchmarks.py show gpt3_6.7B --scale smoke --json
  run_benchmarks.py show llama3_8b --vendor nvidia --diff
"""
KINDS = ("cases", "frameworks", "vendors", "chips", "suites", "published", "runs")
_OF_A_CASE = ("scale", "vendor", "diff", "framework", "chip", "devices")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"a case, or {', '.join(KINDS)}")
    case = parser.add_argument_group("of a case")
    case.add_argument("--scale", choices=("full", "smoke"), help="only this scale (default: both)")
    case.add_argument("--vendor", metavar="NAME", help="add the free fields after this vendor's tuning")
    case.add_argument("--diff", action="store_true", help="only the vendor's changes: old value, new value, reason")
    case.add_argument("--framework", metavar="NAME", help="only tuning rows for this framework")
    case.add_argument("--chip", metavar="NAME", help="only tuning rows for this chip")
    case.add_argument("--devices", type=int, metavar="N", help="only tuning rows for N devices per node")
    json_option(parser)
    chips_option(parser)


def execute(options: argparse.Namespace) -> int:
    """Print a listing or a case. Return 0. Raises UsageError for options of a case without one."""
    registry = registry_of(options)
    if options.name is not None and options.name not in KINDS:
        return _show_case(options, registry)
    if given := [f"--{name}" for name in _OF_A_CASE if getattr(options, name) not in (None, False)]:
        raise UsageError(f"show: found {', '.join(given)}, expected a case beside it: show CASE {given[0]}")
    print(listing(registry, options.runs or default_runs(), options.name, options.json))
    return 0


def _show_case(options: argparse.Namespace, registry: Registry) -> int:
    case = _case(registry, options.name)
    scales: list[Scale] = [options.scale] if options.scale else ["full", "smoke"]
    place = _place(options, registry)
    rows = lookup.tuning_rows(registry, options.vendor, case.name) if options.vendor else ()
    if options.diff:
        return _print_changes(case, options.vendor, rows, scales, place, as_json=options.json)
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


def _case(registry: Registry, name: str) -> Case:
    """Return the case. Raises UnknownName with the nearest kinds and cases."""
    if name not in registry.all_cases and (near := difflib.get_close_matches(name, KINDS, n=1, cutoff=0.7)):
        raise UsageError(f"unknown case '{name}'; did you mean `show {near[0]}`?")
    return registry.case(name)


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


def _print_changes(
    case: Case, vendor: str, rows: Sequence[TuningRow], scales: Sequence[Scale], place: RunPlace, as_json: bool
) -> int:
    """Print every row that may apply, with its changes and its reason. Return 0."""
    found = {scale: list(row_changes(case, rows, scale, place)) for scale in scales}
    if as_json:
        content = {scale: [_changes_as_json(row) for row in changed] for scale, changed in found.items()}
        print(json.dumps({"case": case.name, "vendor": vendor, **content}, indent=2, ensure_ascii=False))
    else:
        print("\n".join(wrapped(line, 8) for line in _change_lines(case, vendor, found)))
    return 0


def _changes_as_json(found: RowChanges) -> dict[str, Any]:
    changes = [{"field": c.field, "from": c.before, "to": c.after} for c in found.changes]
    return {"row": found.number, **found.row.conditions, "changes": changes, "why": found.row.why}


def _change_lines(case: Case, vendor: str, found: dict[Scale, list[RowChanges]]) -> Iterator[str]:
    for scale, rows in found.items():
        changes = "changes free fields only" if rows else "changes nothing"
        yield f"{case.name} at {scale} scale: {vendor} {changes}"
        for row in rows:
            where = ", ".join(f"{name} {value}" for name, value in row.row.conditions.items()) or "anywhere"
            yield f"  row {row.number}: {where}"
            yield from (f"    {c.field:<17}{_said(c.before)} -> {_said(c.after)}" for c in row.changes)
            if not row.changes:
                yield "    no change: the case has these values"
            yield f"    why: {row.row.why}"


def _said(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" for name, text in value.items()) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


COMMANDS = {
    "show": Command(_HELP, arguments, execute),
}

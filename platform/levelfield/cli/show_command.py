"""`show` (compare chips): cases, frameworks, vendors, chips, suites, training stacks; one case in full"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from levelfield.cli.command_line import Command
from levelfield.cli.options import add_chips_option, add_json_option, registry_of
from levelfield.errors import UnknownName, UsageError
from levelfield.report.sheets import align_rows, column_widths, entry_lines, pad_row
from levelfield.report.words import wrapped
from levelfield.specs.readable_json import json_text
from levelfield.specs.short_names import clipped

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.catalog.rehearsals import Rehearsals
    from levelfield.catalog.tuning_changes import RowChanges, RunTarget
    from levelfield.specs.case import Case, Scale
    from levelfield.specs.tuning import TuningRow
    from levelfield.specs.vendor import AchievedRate, Chip, Peak, PeakDtype

    Row = dict[str, Any]

_SHOW_HELP = """\
List what there is, one line about each, or show every value of a case, at full
and at smoke scale. NAME is a case or one of these kinds: cases, frameworks,
vendors, chips, suites, published, programs. Without NAME: every kind. Programs
are others' training stacks, which `plan --program` plans for.

--vendor adds a case's free fields after the vendor's tuning; --diff shows only
what that tuning changes.

examples:
  run_benchmarks.py show
  run_benchmarks.py show chips      peaks in TFLOP/s, links in GB/s
  run_benchmarks.py show llama3_8b
  run_benchmarks.py show gpt3_6.7B --scale smoke --json
  run_benchmarks.py show llama3_8b --vendor nvidia --diff
"""
KINDS = ("cases", "frameworks", "vendors", "chips", "suites", "published", "programs")
_HERE_COLUMN_WIDTH = 28
CHIP_FIELDS = {"peaks", "achievable", "interconnect", "node", "power_watts", "power_source"}
_CASE_OPTIONS = ("scale", "vendor", "diff", "framework", "chip", "devices")


def _add_show_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"a case, or {', '.join(KINDS)}")
    case = parser.add_argument_group("of a case")
    case.add_argument("--scale", choices=("full", "smoke"), help="only this scale (default: both)")
    case.add_argument("--vendor", metavar="NAME", help="add the free fields after this vendor's tuning")
    case.add_argument("--diff", action="store_true", help="only the vendor's changes: old value, new value, reason")
    case.add_argument("--framework", metavar="NAME", help="only tuning rows for this framework")
    case.add_argument("--chip", metavar="NAME", help="only tuning rows for this chip")
    case.add_argument("--devices", type=int, metavar="N", help="only tuning rows for N devices per node")
    add_json_option(parser)
    add_chips_option(parser)


def _show(options: argparse.Namespace) -> int:
    """Print a listing or a case. Return 0. Raises UsageError for options of a case without one."""
    registry = registry_of(options)
    if options.name is not None and options.name not in KINDS:
        return _show_case(options, registry)
    stated = {name: getattr(options, name) for name in _CASE_OPTIONS}
    if case_options := [f"--{name}" for name, value in stated.items() if value is not None and value is not False]:
        raise UsageError(
            f"show: found {', '.join(case_options)}, expected a case beside it: show CASE {case_options[0]}"
        )
    print(listing(registry, options.name, options.json))
    return 0


def listing(registry: Registry, kind: str | None, as_json: bool) -> str:
    """Return the names of a kind, by default of every kind."""
    kinds: dict[str, Callable[[], list[Row]]] = {
        "cases": lambda: _case_rows(registry),
        "frameworks": lambda: framework_rows(registry),
        "vendors": lambda: _vendor_rows(registry),
        "chips": lambda: _chip_rows(registry),
        "suites": lambda: [{"name": n, "says": registry.suite(n).title} for n in sorted(registry.suites)],
        "published": lambda: [{"name": n, "says": registry.published_set(n).title} for n in sorted(registry.published)],
        "programs": lambda: _program_rows(registry),
    }
    rows = {name: kinds[name]() for name in ([kind] if kind else kinds)}
    if as_json:
        return json_text(rows)
    return "\n\n".join("\n".join([name, *FORMATTERS.get(name, entry_lines)(entries)]) for name, entries in rows.items())


def _case_lines(rows: list[Row]) -> list[str]:
    """Return a line for each case, and one line about all those that only rows of suites train."""
    suite_rows = [row for row in rows if row["suite"]]
    suites = ", ".join(sorted({row["suite"] for row in suite_rows}))
    summary = [wrapped(f"  and {len(suite_rows)} that rows of suites train: {suites}", 4)] if suite_rows else []
    return entry_lines([row for row in rows if not row["suite"]]) + summary


def _unclipped_lines(rows: list[Row]) -> list[str]:
    """Return texts wrapped where they are long, not clipped: a clipped number is another number."""
    width = max((len(row["name"]) for row in rows), default=0) + 4
    return [wrapped(line, width) for line in align_rows([(f"  {r['name']}", r["says"]) for r in rows])] or ["  none"]


def _chip_lines(rows: list[Row]) -> list[str]:
    private = [(row["name"], row["overlay"]) for row in rows if row["overlay"]]
    lines = (f"  private: {name}: {', '.join(changed['fields'])}, by {changed['file']}" for name, changed in private)
    return [*_unclipped_lines(rows), *(wrapped(line, 4) for line in lines)]


def _vendor_lines(rows: list[Row]) -> list[str]:
    """Return name, devices here, and what the vendor was verified on, wrapped where it is long."""
    table = [("  name", "here", "verified on")]
    for row in rows:
        table.append((f"  {row['name']}", clipped(row["here"], _HERE_COLUMN_WIDTH), row["verified"]))
    name_width, here_width, _ = column_widths(table)
    problems = [f"    {r['name']}: {r['problem']}" for r in rows if r["problem"]]
    lines = [wrapped(pad_row(row, (name_width, here_width)), name_width + here_width + 4) for row in table]
    return [*lines, *(wrapped(problem, 6) for problem in problems)]


def framework_lines(rows: list[Row]) -> list[str]:
    """Return name, version and families of models in columns, and below them where the pinned versions ran."""
    cells = [(f"  {row['name']}", row["version"], ", ".join(row["families"])) for row in rows]
    heads = align_rows([("  name", "version", "families of models"), *cells])
    lines = [heads[0]]
    for head, row in zip(heads[1:], rows, strict=True):
        lines += [head, *(wrapped(f"    {kind}: {where}", 6) for kind, where in row["verified"].items())]
    return lines


FORMATTERS: dict[str, Callable[[list[Row]], list[str]]] = {
    "cases": _case_lines,
    "vendors": _vendor_lines,
    "chips": _chip_lines,
    "programs": _unclipped_lines,
    "frameworks": framework_lines,
}


def _case_rows(registry: Registry) -> list[Row]:
    reference_works = {registry.reference(name).identity.work for name in registry.references}
    rows = []
    for name, path in registry.all_cases.items():
        case = registry.case(name)
        has_reference = case.work("smoke").fingerprint() in reference_works
        row: Row = {"name": name, "says": case.title if has_reference else f"no reference; {case.title}"}
        row |= {"family": case.model.family, "digest": case.fingerprint(), "has_reference": has_reference}
        rows.append({**row, "suite": None if name in registry.cases else path.stem})
    return rows


def framework_rows(registry: Registry) -> list[Row]:
    """Return a row for each version of a framework: families of models, and where the pinned versions ran."""
    from levelfield.specs.implementation import SIMULATED

    rows, rehearsals = [], _rehearsals(registry)
    for name in registry.framework_labels():
        manifest, _ = registry.implementation_of_label(name)
        verified = {}
        for kind, needs in manifest.requirements.items():
            ran = "pinned versions not run yet" if needs.verified == "none" else needs.verified
            verified[kind] = _verified_text(ran, rehearsals.latest(framework=name, kind=kind))
        verified |= {"every device": SIMULATED} if manifest.simulated else {}
        row: Row = {"name": name, "version": manifest.version, "families": manifest.families}
        row["says"] = f"{row['version']}  {', '.join(row['families'])}  {'; '.join(map(': '.join, verified.items()))}"
        rows.append({**row, "verified": verified})
    return rows


def _vendor_rows(registry: Registry) -> list[Row]:
    rows, rehearsals = [], _rehearsals(registry)
    for name in sorted(registry.vendors):
        devices = registry.machine.devices(name)
        verified = _verified_text(registry.vendor_file(name).verified, rehearsals.latest(vendor=name))
        is_unknown = devices.problem is not None and not devices
        here = f"{len(devices)} ({devices[0].description})" if devices else "unknown" if is_unknown else "no"
        row: Row = {"name": name, "says": f"here: {here}; verified: {verified}"}
        row |= {"devices": None if is_unknown else len(devices), "problem": devices.problem}
        rows.append({**row, "here": here, "verified": verified})
    return rows


@lru_cache(maxsize=1)  # a digest of each file that they rest on takes a tenth of the command's time
def _rehearsals(registry: Registry) -> Rehearsals:
    from levelfield.catalog.rehearsals import Rehearsals

    return Rehearsals(registry)


def _verified_text(ran: str, rehearsed: str | None) -> str:
    return f"{ran}; {rehearsed}" if rehearsed else ran


def _chip_rows(registry: Registry) -> list[Row]:
    rows = []
    for vendor in sorted(registry.vendors):
        spec = registry.vendor_file(vendor)
        for chip in spec.chips:
            overlay = registry.overlay.overlay_used(spec, chip) if registry.overlay else None
            says = f"{'private; ' if overlay else ''}{vendor}; a {chip.device_is}; {_chip_rates(chip)}"
            row: Row = {"name": chip.name, "says": says, **chip.model_dump(mode="json", include=CHIP_FIELDS)}
            rows.append({**row, "overlay": overlay.model_dump(mode="json") if overlay else None})
    return rows


def _program_rows(registry: Registry) -> list[Row]:
    rows = []
    for framework in sorted(registry.planner_constants_files):
        planner_constants = registry.planner_constants(framework)
        for name, program in planner_constants.programs.items() if planner_constants else ():
            row: Row = {"name": name, "says": f"{framework}; {program.title}", "framework": framework}
            rows.append({**row, "title": program.title, "source": program.source})
    return rows


def _chip_rates(chip: Chip) -> str:
    """Return published and measured peaks in TFLOP/s, links in GB/s each way, the network of a device, and power."""
    rates = [f"TFLOP/s: {_tflops(chip.peaks) or 'none published'}"]
    rates += [f"reached: {_tflops(chip.achievable)}"] if chip.achievable else []
    link = chip.interconnect
    if link and link.each_way_bytes_per_second:
        rates.append(f"links: {link.each_way_bytes_per_second / 1e9:g} GB/s each way")
    if link and link.pair_each_way_bytes_per_second:
        rates.append(f"of a pair: {link.pair_each_way_bytes_per_second / 1e9:g}")
    if chip.node:
        network = f"{chip.node.network_each_way_bytes_per_second * 8e-9:g} Gb/s"
        rates.append(f"{chip.node.devices} joined, {network} of network each")
    rates += [f"at most {chip.power_watts:g} W"] if chip.power_watts else []
    return "; ".join(rates)


def _tflops(peaks: Mapping[PeakDtype, Peak | AchievedRate]) -> str:
    return ", ".join(f"{dtype} {rate.tflops:g}" for dtype, rate in peaks.items())


def _show_case(options: argparse.Namespace, registry: Registry) -> int:
    import yaml

    from levelfield.catalog.tuning_changes import tuning_rows
    from levelfield.specs.bounded_reading import WordDumper

    if options.name not in registry.all_cases and (near := difflib.get_close_matches(options.name, KINDS, 1, 0.7)):
        raise UsageError(f"unknown case '{options.name}'; did you mean `show {near[0]}`?")
    case, vendor = registry.case(options.name), options.vendor
    scales: list[Scale] = [options.scale] if options.scale else ["full", "smoke"]
    target = _run_target(options, registry)
    rows = tuning_rows(registry, vendor, case.name) if vendor else ()
    if options.diff:
        _print_changes(case, vendor, rows, scales, target, options.json)
        return 0
    tunings = {scale: _tuning_content(vendor, case, rows, scale, target) for scale in scales} if vendor else {}
    content: dict[str, object] = {
        "name": case.name,
        "title": case.title,
        "source": case.source,
        "tokenizer": case.tokenizer,
        "digest": case.fingerprint(),
        **_extension_content(registry, case.name),
        **{scale: _work_content(case, scale) | tunings.get(scale, {}) for scale in scales},
    }
    if options.json:
        print(json_text(content))
    else:
        print(yaml.dump(content, Dumper=WordDumper, sort_keys=False, allow_unicode=True, width=80), end="")
    return 0


def _extension_content(registry: Registry, name: str) -> dict[str, object]:
    """Return the case that this one extends and the changes; nothing for a case that extends none."""
    extension = registry.extension(name)
    if extension is None:
        return {}
    other_changes = {"smoke": extension.smoke, "tuning": extension.tuning}
    return {
        "extends": extension.extends,
        "changes": {**extension.changes, **{k: v for k, v in other_changes.items() if v}},
    }


def _run_target(options: argparse.Namespace, registry: Registry) -> RunTarget:
    """Return the target for which rows are selected. Raises UsageError for unknown names, or without a vendor."""
    from levelfield.catalog.tuning_changes import RunTarget

    if options.vendor is None:
        vendor_options = {"--diff": options.diff, "--framework": options.framework, "--chip": options.chip}
        vendor_options["--devices"] = options.devices is not None
        if stated := [name for name, value in vendor_options.items() if value]:
            raise UsageError(
                f"show: {', '.join(stated)}: found no --vendor; add --vendor NAME; known: {', '.join(registry.vendors)}"
            )
        return RunTarget()
    vendor = registry.vendor_file(options.vendor)
    chip = vendor.chip(options.chip) if options.chip else None
    if options.chip and chip is None:
        raise UnknownName(f"chip of {vendor.name}", options.chip, [c.name for c in vendor.chips])
    if options.framework and options.framework not in registry.frameworks:
        raise UnknownName("framework", options.framework, registry.frameworks)
    if options.devices is not None and options.devices < 1:
        raise UsageError(f"--devices: found {options.devices}, expected 1 or more")
    return RunTarget(chip.name if chip else None, options.framework, options.devices)


def _work_content(case: Case, scale: Scale) -> dict[str, object]:
    from levelfield.measure.parameter_counts import count_parameters

    work = case.work(scale)
    count = count_parameters(work.model, work.training.sequence_length)
    active = {"active_parameters": count.active} if work.model.experts else {}
    tuning = case.tuning.get(scale)
    chosen = tuning.model_dump(exclude_none=True) if tuning else {}
    head = {"parameters": count.total, **active, "digest": work.fingerprint()}
    return {**head, **work.model_dump(mode="json"), "default_tuning": chosen}


def _tuning_content(
    vendor: str, case: Case, rows: Sequence[TuningRow], scale: Scale, target: RunTarget
) -> dict[str, object]:
    """Return the free fields with the vendor's rows that apply, and the criteria of the other rows."""
    from levelfield.catalog.tuning_changes import tuned_values

    possible = [row for row in rows if row.scale == scale and target.may_apply(row)]
    return {
        "vendor": vendor,
        "tuning": tuned_values(case, rows, scale, target),
        "rows_applied": [row.why for row in possible if target.applies(row, scale)],
        "rows_elsewhere": [row.criteria for row in possible if not target.applies(row, scale)],
    }


def _print_changes(
    case: Case, vendor: str, rows: Sequence[TuningRow], scales: list[Scale], target: RunTarget, as_json: bool
) -> None:
    from levelfield.catalog.tuning_changes import row_changes

    changes = {scale: list(row_changes(case, rows, scale, target)) for scale in scales}
    if as_json:
        content = {scale: list(map(_change_content, changed)) for scale, changed in changes.items()}
        print(json_text({"case": case.name, "vendor": vendor, **content}))
        return
    for scale, changed in changes.items():
        what = "changes free fields only" if changed else "changes nothing"
        lines = [f"{case.name} at {scale} scale: {vendor} {what}", *chain.from_iterable(map(_change_lines, changed))]
        print("\n".join(wrapped(line, 8) for line in lines))


def _change_content(row: RowChanges) -> dict[str, Any]:
    changes = [{"field": c.field, "from": c.before, "to": c.after} for c in row.changes]
    return {"row": row.number, **row.row.criteria, "changes": changes, "why": row.row.why}


def _change_lines(row: RowChanges) -> Iterator[str]:
    where = ", ".join(f"{name} {value}" for name, value in row.row.criteria.items()) or "anywhere"
    yield f"  row {row.number}: {where}"
    for change in row.changes:
        yield pad_row(
            (f"    {change.field}", f"{_value_text(change.before)} -> {_value_text(change.after)}"), (20,), " "
        )
    if not row.changes:
        yield "    no change: the case has these values"
    yield f"    why: {row.row.why}"


def _value_text(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" for name, text in value.items()) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


COMMANDS = {"show": Command(_SHOW_HELP, _add_show_options, _show)}

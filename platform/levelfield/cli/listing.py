"""What there is, one line about each: cases, frameworks, vendors, chips, suites, published figures and runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from levelfield.catalog import support
from levelfield.catalog.registry import Registry
from levelfield.catalog.rehearsals import Rehearsals
from levelfield.report.words import WIDTH, wrapped
from levelfield.rundir.directory import state_words
from levelfield.specs.implementation import SIMULATED
from levelfield.specs.paths import RunPaths
from levelfield.specs.vendor import Achieved, Chip, Peak, PeakDtype

Row = dict[str, Any]
HERE_WIDTH = 28
CHIP_DATA = {"peaks", "achievable", "interconnect"}


def listing(registry: Registry, runs: Path, kind: str | None, as_json: bool) -> str:
    """Return the names of a kind, by default of every kind but runs."""
    kinds: dict[str, Callable[[], list[Row]]] = {
        "cases": lambda: _cases(registry),
        "frameworks": lambda: _frameworks(registry),
        "vendors": lambda: _vendors(registry),
        "chips": lambda: _chips(registry),
        "suites": lambda: [{"name": n, "says": registry.suite(n).title} for n in sorted(registry.suites)],
        "published": lambda: [{"name": n, "says": registry.figures(n).title} for n in sorted(registry.published)],
        "runs": lambda: [_run(RunPaths(p.parent)) for p in sorted(runs.glob("*/status.json"))],
    }
    found = {name: kinds[name]() for name in ([kind] if kind else [k for k in kinds if k != "runs"])}
    if as_json:
        return json.dumps(found, indent=2, ensure_ascii=False)
    text = "\n\n".join(_text(found))
    return "\n".join([text, "", *support.table(list(support.rows(registry)))]) if kind == "frameworks" else text


def _text(found: dict[str, list[Row]]) -> list[str]:
    blocks = []
    for kind, rows in found.items():
        lines = {"vendors": _vendor_lines, "chips": _chip_lines, "frameworks": _framework_lines}.get(kind, _lines)(rows)
        notes = [wrapped(note, 4) for note in _private(rows)] if kind == "chips" else []
        blocks.append("\n".join([kind, *lines, *notes]))
    return blocks


def _lines(rows: list[Row]) -> list[str]:
    width = max((len(r["name"]) for r in rows), default=0)
    lines = [f"  {r['name']:<{width}}  {r['says']}" for r in rows] or ["  none"]
    return [_cut(line, WIDTH) for line in lines]


def _chip_lines(rows: list[Row]) -> list[str]:
    """Return whole texts, wrapped where they are long: a number that is cut is another number."""
    width = max((len(r["name"]) for r in rows), default=0)
    return [wrapped(f"  {r['name']:<{width}}  {r['says']}", width + 4) for r in rows] or ["  none"]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _vendor_lines(rows: list[Row]) -> list[str]:
    """Return name, devices here, and what the vendor was verified on, wrapped where it is long."""
    table = [{"name": "name", "here": "here", "verified": "verified on"}, *rows]
    name = max(len(r["name"]) for r in table)
    here = min(HERE_WIDTH, max(len(r["here"]) for r in table))
    lines = [f"  {r['name']:<{name}}  {_cut(r['here'], here):<{here}}  {r['verified']}" for r in table]
    problems = [f"    {r['name']}: {r['problem']}" for r in rows if r["problem"]]
    return [*(wrapped(line, name + here + 6) for line in lines), *(wrapped(problem, 6) for problem in problems)]


def _framework_lines(rows: list[Row]) -> list[str]:
    """Return name, version and families of models in columns; below, where its pins ran by kind of device."""
    table = [{"name": "name", "version": "version", "families": ["families of models"]}, *rows]
    name, version = (max(len(r[key]) for r in table) for key in ("name", "version"))
    lines = []
    for r in table:
        lines.append(f"  {r['name']:<{name}}  {r['version']:<{version}}  {', '.join(r['families'])}")
        lines += [wrapped(f"    {kind}: {where}", 6) for kind, where in r.get("verified", {}).items()]
    return lines


def _cases(registry: Registry) -> list[Row]:
    cases = [registry.case(name) for name in sorted(registry.cases)]
    return [{"name": c.name, "says": c.title, "family": c.model.family, "digest": c.fingerprint()} for c in cases]


def _frameworks(registry: Registry) -> list[Row]:
    listed, works, rehearsals = [], list(support.rows(registry)), Rehearsals(registry)
    for name in registry.labels():
        found, _ = registry.labelled(name)
        pins = {kind: needs.verified for kind, needs in found.requirements.items()}
        verified = {kind: "pins ran nowhere yet" if where == "none" else where for kind, where in pins.items()}
        verified = {k: _and(where, rehearsals.said(framework=name, kind=k)) for k, where in verified.items()}
        verified |= {"every device": SIMULATED} if found.simulated else {}
        row: Row = {"name": name, "version": found.version, "families": support.families_of(found)}
        row["says"] = f"{row['version']}  {', '.join(row['families'])}  {'; '.join(map(': '.join, verified.items()))}"
        row["layouts"] = [asdict(each) for each in works if each.framework == name]
        listed.append({**row, "verified": verified})
    return listed


def _vendors(registry: Registry) -> list[Row]:
    rows, rehearsals = [], Rehearsals(registry)
    for name in sorted(registry.vendors):
        verified, devices = registry.vendor_file(name).verified, registry.machine.devices(name)
        verified = _and(verified, rehearsals.said(vendor=name))
        unknown = devices.problem is not None and not devices
        here = f"{len(devices)} ({devices[0].description})" if devices else "unknown" if unknown else "no"
        says = f"here: {here}; verified: {verified}"
        listed: Row = {"name": name, "says": says, "devices": None if unknown else len(devices)}
        rows.append({**listed, "problem": devices.problem, "here": here, "verified": verified})
    return rows


def _and(where: str, rehearsed: str | None) -> str:
    """Return where something ran, with when it was rehearsed."""
    return f"{where}; {rehearsed}" if rehearsed else where


def _chips(registry: Registry) -> list[Row]:
    rows = []
    for vendor in sorted(registry.vendors):
        spec = registry.vendor_file(vendor)
        for chip in spec.chips:
            overlay = registry.overlay.used(spec, chip) if registry.overlay else None
            says = f"{'private; ' if overlay else ''}{vendor}; a {chip.device_is}; {_rates(chip)}"
            row: Row = {"name": chip.name, "says": says, **chip.model_dump(mode="json", include=CHIP_DATA)}
            rows.append({**row, "overlay": overlay.model_dump(mode="json") if overlay else None})
    return rows


def _run(paths: RunPaths) -> Row:
    return {"name": paths.root.name, "says": state_words(paths)}


def _rates(chip: Chip) -> str:
    """Return published and measured peaks in TFLOP/s, and the links in GB/s each way."""
    said = [f"TFLOP/s: {_by_dtype(chip.peaks) or 'none published'}"]
    said += [f"reached: {_by_dtype(chip.achievable)}"] if chip.achievable else []
    link = chip.interconnect
    if link and link.each_way_bytes_per_second:
        said.append(f"links: {link.each_way_bytes_per_second / 1e9:g} GB/s each way")
    if link and link.pair_each_way_bytes_per_second:
        said.append(f"of a pair: {link.pair_each_way_bytes_per_second / 1e9:g}")
    return "; ".join(said)


def _by_dtype(rates: Mapping[PeakDtype, Peak | Achieved]) -> str:
    return ", ".join(f"{dtype} {rate.tflops:g}" for dtype, rate in rates.items())


def _private(chips: list[Row]) -> Iterator[str]:
    """Return the chips that a private file changes, each with the changed fields."""
    for row in chips:
        if row["overlay"]:
            yield f"  private: {row['name']}: {', '.join(row['overlay']['fields'])}, by {row['overlay']['file']}"

"""`audit`: computes each derived figure of published tables again from its own row."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.errors import DocumentError, GateFailed, UnknownName
from levelfield.publish.audit import Audit, AuditFinding, audited, works_of
from levelfield.report.words import wrapped
from levelfield.specs.base import load
from levelfield.specs.figures import FigureSet

_HELP = """\
Compute every derived figure of published tables again from its own row, to the
last printed digit: batches, samples/s, tokens/s, FLOP/s, MFU, shares, changes.
The output lists each figure that does not follow, with the arithmetic. Exit
code 4 when the file does not record such a figure under `disagrees`.
docs/published.md shows the format for tables of your own.

examples:
  run_benchmarks.py audit
  run_benchmarks.py audit FILE.yaml --all
"""


_WORDS = {"recorded": "does not follow, as recorded", "recorded in vain": "follows, but is recorded as not following"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _HELP
    parser.add_argument(
        "what", nargs="*", metavar="NAME|FILE", help="published sets or your own files (default: every set)"
    )
    parser.add_argument("--all", action="store_true", help="also list figures that follow, with the arithmetic")
    parser.add_argument("--json", action="store_true", help="machine-readable output, with every finding")


def execute(options: argparse.Namespace) -> int:
    """Return 0 when the files record every figure that does not follow. Raises GateFailed otherwise."""
    registry = Registry(options.plugins, case_files=options.case_file)
    audits = [_audit(registry, name) for name in options.what or sorted(registry.published)]
    if options.json:
        print(json.dumps([_row(audit) for audit in audits], indent=2, ensure_ascii=False))
    else:
        print("\n".join(line for audit in audits for line in _lines(audit, options.all)))
    if faults := [f"{audit.name}: {finding.row}, {finding.figure}" for audit in audits for finding in audit.faults]:
        raise GateFailed(
            f"{len(faults)} figure(s) not as recorded: {'; '.join(faults[:5])}{'; ...' if faults[5:] else ''}"
        )
    return 0


def _audit(registry: Registry, name: str) -> Audit:
    if name in registry.published:
        return _of(registry, registry.figures(name), registry.published[name])
    if not name.endswith((".yaml", ".yml", ".json")):
        raise UnknownName("published set", name, registry.published, hint="A file of your own ends in .yaml or .json.")
    return _of(registry, load(FigureSet, Path(name)), Path(name))


def _of(registry: Registry, figures: FigureSet, path: Path) -> Audit:
    try:
        return audited(figures, works_of(registry, figures))
    except UnknownName as error:
        raise DocumentError(f"{path}: key 'setting.case': {error} Or leave it null.") from None


def _row(audit: Audit) -> dict[str, object]:
    return {
        "name": audit.name,
        "derived": len(audit.findings),
        "follow": len(audit.of("follows")),
        "faults": len(audit.faults),
        "inputs": audit.inputs,
        "findings": [asdict(finding) for finding in audit.findings],
    }


def _lines(audit: Audit, everything: bool) -> Iterator[str]:
    """Return one line about the set and lines about findings that do not follow, within 80 columns."""
    counts = {
        "follow": audit.of("follows"),
        "do not, as recorded": audit.of("recorded"),
        "NOT AS RECORDED": audit.faults,
        "have nothing to follow from": audit.of("open"),
    }
    said = ", ".join(f"{len(found)} {words}" for words, found in counts.items() if found)
    yield wrapped(f"{audit.name}: of {len(audit.findings)} derived figures and relations {said}", 4)
    for finding in audit.findings:
        if everything or finding.verdict not in ("follows", "open"):
            yield from (wrapped(line, 6) for line in _finding(finding))


def _finding(found: AuditFinding) -> Iterator[str]:
    yield f"  {found.row}, {found.figure}: {_WORDS.get(found.verdict, found.verdict)}"
    unit = f" {found.unit}" if found.unit else ""
    if found.recomputed is None:
        yield f"    printed {found.printed}; {found.arithmetic}"
        return
    by = f", difference {found.difference}" if found.difference and found.verdict != "follows" else ""
    yield f"    printed {found.printed}{unit}, recomputed {found.recomputed}{unit}{by}"
    if found.arithmetic:
        yield f"    = {found.arithmetic}"
    if found.why:
        yield f"    the file says: {found.why}"

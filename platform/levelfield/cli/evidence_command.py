"""`evidence` (compare chips): results that follow from raw files: collect, bundle, verify
`evidence collect`: compute the result of a run again from its raw files
`evidence audit`: compute published figures again from their own rows
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.cli.command_line import Command
from levelfield.cli.options import RUN_NAME, NamedRuns, registry_of
from levelfield.errors import DocumentError, GateFailed, UnknownName
from levelfield.judge.collector import collect
from levelfield.node.regular_files import read_regular_text
from levelfield.publish.audit import Audit, AuditFinding, audited, works_of
from levelfield.report.words import wrapped
from levelfield.run.runner import finish
from levelfield.specs.base import dump, load
from levelfield.specs.figures import FigureSet
from levelfield.specs.paths import RunPaths

EVIDENCE = """\
Evidence of results: the raw files, archives of them, and tables that others
published. docs/evidence.md says what each of these shows.

examples:
  run_benchmarks.py evidence bundle latest --output run.zip
  run_benchmarks.py evidence verify run.zip
"""
COLLECT = """\
Compute result.json and report.md of a run again from its raw files. The same
raw files give the same bytes.

examples:
  run_benchmarks.py evidence collect latest
  run_benchmarks.py evidence collect RUN --check
"""

AUDIT = """\
Compute every derived figure of published tables again from its own row, to the
last printed digit: batches, samples/s, tokens/s, FLOP/s, MFU, shares, changes.
The output lists each figure that does not follow, with the arithmetic. Exit
code 4 when the file does not record such a figure under `disagrees`.
docs/published.md shows the format for tables of your own.

examples:
  run_benchmarks.py evidence audit
  run_benchmarks.py evidence audit FILE.yaml --all
"""


_WORDS = {"recorded": "does not follow, as recorded", "recorded in vain": "follows, but is recorded as not following"}


def _audit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="*", metavar="NAME|FILE", help="published sets or your own files (default: every set)"
    )
    parser.add_argument("--all", action="store_true", help="also list figures that follow, with the arithmetic")
    parser.add_argument("--json", action="store_true", help="machine-readable output, with every finding")


def _audit(options: argparse.Namespace) -> int:
    """Return 0 when the files record every figure that does not follow. Raises GateFailed otherwise."""
    registry = registry_of(options)
    audits = [_audited(registry, name) for name in options.what or sorted(registry.published)]
    if options.json:
        print(json.dumps([_row(audit) for audit in audits], indent=2, ensure_ascii=False))
    else:
        print("\n".join(line for audit in audits for line in _lines(audit, options.all)))
    if faults := [f"{audit.name}: {finding.row}, {finding.figure}" for audit in audits for finding in audit.faults]:
        raise GateFailed(
            f"{len(faults)} figure(s) not as recorded: {'; '.join(faults[:5])}{'; ...' if faults[5:] else ''}"
        )
    return 0


def _audited(registry: Registry, name: str) -> Audit:
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


def _collect_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", metavar="RUN", help=RUN_NAME)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 4 if the result differs")


def _collect(options: argparse.Namespace) -> int:
    """Collect every run that can be. Raises the error of one that goes on, is damaged or differs, after the others."""
    named = NamedRuns(options)
    for paths in named.over():
        with named.kept_error():
            _check(paths) if options.check else _write(paths)
    named.raise_error()
    return 0


def _write(paths: RunPaths) -> None:
    """Write result and report. Raises GateFailed for a tampered run, whose result then says so."""
    result = finish(paths)
    print(f"{result.run_id}: {result.status.word}")
    if result.seal and result.seal.word == "tampered":
        raise GateFailed(f"{result.run_id} is tampered: {result.seal.reason}")


def _check(paths: RunPaths) -> None:
    if _text(paths.result) != dump(collect(paths)):
        raise GateFailed(
            f"{paths.result} is not what its raw files give; `evidence collect` without --check writes it again"
        )
    print(f"{paths.result}: the raw files give the same result")


def _text(path: Path) -> str:
    """Return a file's text; an empty one where there is no regular file."""
    try:
        return read_regular_text(path, "replace")
    except OSError:
        return ""


COMMANDS = {
    "evidence": Command(EVIDENCE),
    "evidence collect": Command(COLLECT, _collect_options, _collect),
    "evidence audit": Command(AUDIT, _audit_options, _audit),
}

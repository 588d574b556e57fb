"""The report of a preflight beside a run: read back, and in a sentence."""

from __future__ import annotations

from pathlib import Path

from levelfield.errors import DocumentError
from levelfield.specs.base import load
from levelfield.specs.preflight_report import PreflightReport

_GIGA = 1e9
MOST_TEXT = 500


def preflight_sentence(path: Path) -> str | None:
    """Return the report of a run in a sentence; None where there is none."""
    if not path.is_file():
        return None
    try:
        return sentence_of(load(PreflightReport, path))
    except DocumentError:
        return "preflight.json is damaged"


def sentence_of(report: PreflightReport) -> str:
    """Return the word, the number of nodes, the fastest all-reduce, and what is out of line."""
    if report.word == "failed":
        why = report.evidence or "; ".join(finding.sentence for finding in report.faults)
        return f"failed: {why}"[:MOST_TEXT]
    said = [f"{report.word}: {len(report.nodes)} node(s)", *_fastest(report)]
    said += [finding.sentence for finding in report.faults[:2]]
    more = len(report.faults) - 2
    said += [f"{more} more in preflight.json"] if more > 0 else []
    remarks = len(report.remarks)
    return "; ".join([*said, *([f"{remarks} remark(s)"] if remarks else [])])[:MOST_TEXT]


def _fastest(report: PreflightReport) -> list[str]:
    rates = [row.bus_bytes_per_second for row in report.collectives if row.operation == "all_reduce"]
    return [f"all_reduce up to {max(rates) / _GIGA:.3g} GB/s bus bandwidth"] if rates else []

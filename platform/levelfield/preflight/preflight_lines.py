"""The report of a preflight, in lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from levelfield.report.escapes import one_line
from levelfield.report.sheets import pad_row
from levelfield.report.words import NONE, WIDTH, wrapped
from levelfield.specs.preflight_report import NodeReport, PairReport, PreflightReport

_TERA, _GIGA, _MILLI = 1e12, 1e9, 1e-3
_NODES_PER_TABLE = 5  # nodes side by side
_MAX_NODES = 20
_MAX_PAIRS = 15


def preflight_lines(report: PreflightReport) -> list[str]:
    """Return the report in lines of at most 80 columns."""
    kind = "short preflight" if report.short else "preflight"
    node_words = f" of {len(report.nodes)} node(s)" if report.nodes else ""
    lines = [f"{kind}{node_words} by {report.launcher}, {report.framework}", f"{report.word}"]
    if report.evidence:
        lines.append(report.evidence)
    lines += [f"! {finding.sentence}" for finding in report.faults]
    lines += [f"remark: {finding.sentence}" for finding in report.remarks]
    tables = [*_rate_lines(report.nodes), *_collective_lines(report), *_pair_lines(report.pairs)]
    return [*(wrapped(one_line(line), 2) for line in lines), *(line[:WIDTH] for line in tables)]


def _rate_lines(nodes: Sequence[NodeReport]) -> Iterator[str]:
    for first in range(0, min(len(nodes), _MAX_NODES), _NODES_PER_TABLE):
        columns = nodes[first : first + _NODES_PER_TABLE]
        figures = list(dict.fromkeys(figure for node in columns for figure in node.rates))
        yield ""
        widths = (24, *[-11] * len(columns))
        yield pad_row(("median of repeats", *(one_line(node.name)[:10] for node in columns)), widths, gap="")
        for figure in figures:
            rates = [rate.value if (rate := node.rates.get(figure)) else None for node in columns]
            values = [NONE if rate is None else f"{rate / _TERA:,.4g}" for rate in rates]
            yield pad_row((f"{figure}, TFLOP/s", *values), widths, gap="")
    if len(nodes) > _MAX_NODES:
        yield f"and {len(nodes) - _MAX_NODES} more nodes; --json has all"


def _collective_lines(report: PreflightReport) -> Iterator[str]:
    if report.collectives_missing:
        yield from ("", f"collectives: not measured: {one_line(report.collectives_missing)}")
    if not report.collectives:
        return
    yield ""
    ranks = report.collectives[0].ranks
    barrier = f", barrier {_milliseconds(report.barrier_seconds)}" if report.barrier_seconds else ""
    yield f"collectives of {ranks} ranks by {one_line(str(report.backend))[:20]}{barrier}; GB/s"
    widths = (16, -10, -12, -12, -10)
    yield pad_row(("", "size", "time", "algorithm", "bus", "  values"), widths, gap="")
    for row in report.collectives:
        rates = (f"{rate / _GIGA:.4g}" for rate in (row.algorithm_bytes_per_second, row.bus_bytes_per_second))
        verdict = "  right" if row.wrong is None else "  WRONG"
        yield pad_row(
            (one_line(row.operation)[:15], byte_text(row.bytes), _milliseconds(row.seconds), *rates, verdict),
            widths,
            gap="",
        )


def _pair_lines(pairs: Sequence[PairReport]) -> Iterator[str]:
    if not pairs:
        return
    yield ""
    widths = (34, -10, -12, -10)
    yield pad_row(("pairs, slowest first", "size", "one way", "GB/s", "  values"), widths, gap="")
    ordered = sorted(pairs, key=lambda pair: (-pair.bytes, pair.bytes_per_second))
    for pair in ordered[:_MAX_PAIRS]:
        name, rate = one_line(" to ".join(pair.members))[:33], f"{pair.bytes_per_second / _GIGA:.4g}"
        verdict = "  right" if pair.wrong is None else "  WRONG"
        yield pad_row((name, byte_text(pair.bytes), _milliseconds(pair.seconds), rate, verdict), widths, gap="")
    if len(pairs) > _MAX_PAIRS:
        yield f"and {len(pairs) - _MAX_PAIRS} more; --json has all"


def _milliseconds(seconds: float) -> str:
    return f"{seconds / _MILLI:.3f} ms"


def byte_text(number: int) -> str:
    """Return bytes with a binary prefix: 4 KiB, 1.5 MiB."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= scale:
            return f"{number / scale:.4g} {unit}"
    return f"{number} B"

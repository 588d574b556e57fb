"""A preflight as text: nodes side by side, collectives by size, pairs, and what is out of line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from levelfield.report.escapes import one_line
from levelfield.report.words import NONE, WIDTH, wrapped
from levelfield.specs.preflight_report import NodeReport, PairReport, PreflightReport

_GIGA, _MILLI = 1e9, 1e-3
_PER_TABLE = 5  # nodes side by side
_SHOWN_NODES = 20
_SHOWN_PAIRS = 15
_UNITS = {"B/s": ("GB/s", 1e9), "1/s": ("10^6/s", 1e6), "FLOP/s": ("TFLOP/s", 1e12)}


def preflight_lines(report: PreflightReport) -> list[str]:
    """Return the report in lines of at most 80 columns."""
    kind = "short preflight" if report.short else "preflight"
    of = f" of {len(report.nodes)} node(s)" if report.nodes else ""
    lines = [f"{kind}{of} by {report.launcher}, {report.framework}", f"{report.word}"]
    if report.evidence:
        lines.append(report.evidence)
    lines += [f"! {finding.sentence}" for finding in report.faults]
    lines += [f"remark: {finding.sentence}" for finding in report.remarks]
    tables = [*_rates(report.nodes), *_collectives(report), *_pairs(report.pairs)]
    return [*(wrapped(one_line(line), 2) for line in lines), *(line[:WIDTH] for line in tables)]


def _rates(nodes: Sequence[NodeReport]) -> Iterator[str]:
    """Return the nodes' rates, a few nodes side by side."""
    for first in range(0, min(len(nodes), _SHOWN_NODES), _PER_TABLE):
        shown = nodes[first : first + _PER_TABLE]
        figures = list(dict.fromkeys(figure for node in shown for figure in node.rates))
        yield ""
        yield f"{'median of repeats':<24}" + "".join(f"{one_line(node.name)[:10]:>11}" for node in shown)
        for figure in figures:
            unit = next(node.rates[figure].unit for node in shown if figure in node.rates)
            name, scale = _UNITS.get(unit, (unit, 1.0))
            yield f"{figure + ', ' + name:<24}" + "".join(f"{_value(node, figure, scale):>11}" for node in shown)
    if len(nodes) > _SHOWN_NODES:
        yield f"and {len(nodes) - _SHOWN_NODES} more nodes; --json has all"


def _value(node: NodeReport, figure: str, scale: float) -> str:
    rate = node.rates.get(figure)
    return NONE if rate is None or rate.value is None else f"{rate.value / scale:,.4g}"


def _collectives(report: PreflightReport) -> Iterator[str]:
    if report.collectives_missing:
        yield from ("", f"collectives: not measured: {one_line(report.collectives_missing)}")
    if not report.collectives:
        return
    yield ""
    ranks = report.collectives[0].ranks
    barrier = f", barrier {_time(report.barrier_seconds)}" if report.barrier_seconds else ""
    yield f"collectives of {ranks} ranks by {one_line(str(report.backend))[:20]}{barrier}; GB/s"
    yield f"{'':<16}{'size':>10}{'time':>12}{'algorithm':>12}{'bus':>10}  values"
    for row in report.collectives:
        yield (
            f"{one_line(row.operation)[:15]:<16}{size(row.bytes):>10}{_time(row.seconds):>12}"
            f"{row.algorithm_bytes_per_second / _GIGA:>12.4g}{row.bus_bytes_per_second / _GIGA:>10.4g}  "
            f"{'right' if row.wrong is None else 'WRONG'}"
        )


def _pairs(pairs: Sequence[PairReport]) -> Iterator[str]:
    """Return the pairs, the slowest first."""
    if not pairs:
        return
    yield ""
    yield f"{'pairs, slowest first':<34}{'size':>10}{'one way':>12}{'GB/s':>10}  values"
    ordered = sorted(pairs, key=lambda pair: (-pair.bytes, pair.bytes_per_second))
    for pair in ordered[:_SHOWN_PAIRS]:
        yield (
            f"{one_line(' to '.join(pair.members))[:33]:<34}{size(pair.bytes):>10}{_time(pair.seconds):>12}"
            f"{pair.bytes_per_second / _GIGA:>10.4g}  {'right' if pair.wrong is None else 'WRONG'}"
        )
    if len(pairs) > _SHOWN_PAIRS:
        yield f"and {len(pairs) - _SHOWN_PAIRS} more; --json has all"


def _time(seconds: float) -> str:
    return f"{seconds / _MILLI:.3f} ms"


def size(number: int) -> str:
    """Return bytes with a binary prefix: 4 KiB, 1.5 MiB."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= scale:
            return f"{number / scale:.4g} {unit}"
    return f"{number} B"

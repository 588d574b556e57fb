"""The pairs of the OSDI report over repeats: optimizer placement on against off, with an interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from levelfield.measure.series import over_repeats
from levelfield.publish.foreign_tables import ReportedRun, used_bytes
from levelfield.specs.result import Result


def _rate(result: Result) -> float | None:
    return result.throughput.tokens_per_second if result.throughput else None


_FIGURES: tuple[tuple[str, Callable[[Result], float | None]], ...] = (("gpu_mem", used_bytes), ("throughput", _rate))


def pair_lines(runs: Sequence[ReportedRun]) -> Iterator[str]:
    """Yield a line for each figure of each pair: the median of on over off and its interval over the repeats."""
    pairs: dict[str, list[tuple[Result, Result]]] = {}
    for run in runs:
        if run.baseline is not None and run.baseline.repeat == run.result.repeat:
            pairs.setdefault(_name(run.result), []).append((run.result, run.baseline))
    for name, found in pairs.items():
        for figure, read in _FIGURES:
            yield from _line(f"{name}, on over off: {figure}", [_ratio(read(on), read(off)) for on, off in found])


def _name(result: Result) -> str:
    return f"{result.case} {result.nodes}x{result.devices // result.nodes} {result.chip} {result.layout}"


def _ratio(on: float | None, off: float | None) -> float | None:
    return on / off if on is not None and off else None


def _line(title: str, ratios: Sequence[float | None]) -> Iterator[str]:
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return
    found = over_repeats(known)
    if found.low is None or found.high is None:
        yield f"{title} {found.median:.3f}; one pair has no interval, --repeat 5 gives one"
        return
    yield (
        f"{title} {found.median:.3f}, {found.coverage:.0%} interval {found.low:.3f} to {found.high:.3f} of {found.n} "
        f"pairs of repeats ({found.method})"
    )

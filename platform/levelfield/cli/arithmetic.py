"""The arithmetic of a predicted layout, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from levelfield.predict.explanation import Term, memory_terms, time_terms
from levelfield.predict.layout_search import LayoutEstimate, LayoutQuestion
from levelfield.report.words import GIB, wrapped


def explained(question: LayoutQuestion, row: LayoutEstimate) -> Iterator[str]:
    """Return each part of memory and time with its numbers and the source of its formula."""
    yield f"{row.layout}, micro-batch {row.tuning.micro_batch}, recomputed: {row.tuning.recompute}"
    yield f"\nmemory of the fullest device: {row.memory.total / GIB:.2f} GiB\n"
    yield from _term_lines(memory_terms(question, row), GIB, "GiB")
    yield f"\ntime of a step: {row.time.total:.4g} s, so {row.tokens_per_second:,.1f} tokens/s on each device\n"
    yield from _term_lines(time_terms(question, row), 1, "s")


def _term_lines(terms: list[Term], unit: float, name: str) -> Iterator[str]:
    for term in terms:
        yield f"{term.part:<17} {term.value / unit:>9.3f} {name} = {term.arithmetic}"
        yield wrapped(f"    {term.words} [{term.source}]", 4)

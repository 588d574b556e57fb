"""Matches the patterns of vendor.yaml within a time limit.

Some patterns take exponential time on a text that they do not fit, and a tool may print any text. Python's own `re`
cannot be interrupted in a thread; the library `regex` reads the same patterns and has a time limit.
"""

from __future__ import annotations

from typing import Any

import regex

LIMIT_SECONDS = 0.5  # of one search; the slowest shipped pattern takes a hundredth of it on its recording


def every_match(pattern: str, text: str, start: int = 0, end: int | None = None) -> list[Any]:
    """Return the matches in a part of the text; `^` and `$` match at every line. Raises ValueError after the limit."""
    compiled = regex.compile(pattern, regex.MULTILINE)
    try:
        return list(compiled.finditer(text, start, len(text) if end is None else end, timeout=LIMIT_SECONDS))
    except TimeoutError:
        raise _too_slow(pattern) from None


def first_match(pattern: str, text: str) -> Any:
    """Return the first match, or None; `^` and `$` match at every line. Raises ValueError after the limit."""
    try:
        return regex.search(pattern, text, regex.MULTILINE, timeout=LIMIT_SECONDS)
    except TimeoutError:
        raise _too_slow(pattern) from None


def whole_match(pattern: str, text: str) -> Any:
    """Return the match of the whole text, or None. Raises ValueError after the limit."""
    try:
        return regex.fullmatch(pattern, text, timeout=LIMIT_SECONDS)
    except TimeoutError:
        raise _too_slow(pattern) from None


def _too_slow(pattern: str) -> ValueError:
    shown = pattern if len(pattern) <= 60 else f"{pattern[:57]}..."
    return ValueError(f"the pattern '{shown}' took more than {LIMIT_SECONDS:g} s")

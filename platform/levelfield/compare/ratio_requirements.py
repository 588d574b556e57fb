"""Whether the ratios of a comparison meet what is required of them: the whole 95 % interval decides.

An interval that holds the limit, a missing figure and a side with too few runs leave a requirement undecided: noise
neither passes nor fails anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from levelfield.compare.comparability import NO_VALUE
from levelfield.compare.comparison import ComparedFigure, Comparison
from levelfield.compare.ratios import Ratio
from levelfield.compare.sides import QUANTITIES
from levelfield.errors import UsageError
from levelfield.report.costs import COST_NAME
from levelfield.report.sheets import Sheet

RequirementWord = Literal["met", "missed", "undecided", "not comparable"]
ALIGNED = "aligned"
MAX_LIMIT = 10.0  # a larger one is meant as a percentage, and every ratio would meet it by `<=`
_PATTERN = re.compile(r"\s*(\w+)\s*([<>=!]+)\s*(\S+)\s*")


@dataclass(frozen=True)
class RatioRequirement:
    """What a ratio has to reach."""

    text: str  # as written
    figure: str  # its name in JSON, or ALIGNED
    is_least: bool = True  # whether the ratio is at least `limit`
    limit: float = 1.0


@dataclass(frozen=True)
class RequirementFinding:
    """A requirement of one side against the base."""

    requirement: str
    side: str
    against: str
    word: RequirementWord
    reason: str  # why it is undecided, else empty
    ratio: Ratio | None


def parse_requirement(text: str, has_prices: bool = False) -> RatioRequirement:
    """Return a requirement such as `tokens_per_second>=0.95`. Raises UsageError for any other text.

    A figure may be shortened as long as one figure alone begins so.
    """
    if text.strip() == ALIGNED:
        return RatioRequirement(text, ALIGNED)
    names = [quantity.column.name for quantity in QUANTITIES if quantity.is_noisy] + [COST_NAME] * has_prices
    match = _PATTERN.fullmatch(text)
    beginning, operator, number = match.groups() if match else ("", "", "")
    figures = [name for name in names if name == beginning] or [name for name in names if name.startswith(beginning)]
    limit = math.nan
    with suppress(ValueError):
        limit = float(number)
    if not match:
        fault = "no figure, operator and ratio"
    elif len(figures) != 1:
        fault = f"figure '{beginning}'"
    elif operator not in (">=", "<="):
        fault = f"operator '{operator}'"
    elif not 0 < limit <= MAX_LIMIT:
        fault = f"ratio '{number}'"
    else:
        return RatioRequirement(text, figures[0], operator == ">=", limit)
    raise UsageError(
        f"--require '{text}': found {fault}, expected '{ALIGNED}', 'FIGURE>=RATIO' or 'FIGURE<=RATIO' in quotes, with "
        f"a RATIO above 0 and at most {MAX_LIMIT:g}; figures: {', '.join(names)}"
    )


def judge_requirements(requirements: Sequence[RatioRequirement], comparison: Comparison) -> list[RequirementFinding]:
    """Return a finding for every requirement and every side after the base."""
    base, *others = comparison.sides
    findings = []
    for requirement in requirements:
        figure = next((entry for entry in comparison.figures if entry.quantity.column.name == requirement.figure), None)
        for side_index, side in enumerate(others, start=1):
            word, reason = _judge_requirement(requirement, comparison, figure, side_index)
            ratio = figure.ratios[side_index - 1] if figure else None
            findings.append(RequirementFinding(requirement.text, side.name, base.name, word, reason, ratio))
    return findings


def _judge_requirement(
    requirement: RatioRequirement, comparison: Comparison, figure: ComparedFigure | None, side_index: int
) -> tuple[RequirementWord, str]:
    """Return the word and its reason. Every comparison with NaN is false, so that NaN meets nothing."""
    base, side = comparison.sides[0], comparison.sides[side_index]
    if unequal := comparison.comparability.unequal:
        return "not comparable", f"must be equal: {', '.join(field.name for field in unequal)}"
    if requirement.figure == ALIGNED:
        verdicts = dict.fromkeys(run.verdict for run in (*base.counted, *side.counted))
        return ("met", "") if set(verdicts) == {ALIGNED} else ("undecided", f"the runs are {', '.join(verdicts)}")
    if figure is None:
        return "undecided", f"no run has {requirement.figure}"
    reasons = {base.name: figure.sides[0].reason, side.name: figure.sides[side_index].reason}
    if missing := "; ".join(f"missing on {name}: {reason}" for name, reason in reasons.items() if reason):
        return "undecided", missing
    ratio, limit = figure.ratios[side_index - 1], requirement.limit
    if ratio.low is None or ratio.high is None:
        return "undecided", ratio.reason
    if ratio.low >= limit if requirement.is_least else ratio.high <= limit:
        return "met", ""
    if ratio.high < limit if requirement.is_least else ratio.low > limit:
        return "missed", ""
    return "undecided", f"the interval holds {limit:g}; more runs of both sides make it narrower"


def requirement_sheet(findings: Sequence[RequirementFinding]) -> Sheet:
    rows = []
    for f in findings:
        text = NO_VALUE if f.ratio is None or f.ratio.value is None else f"{f.ratio.value:.4f}"
        if f.ratio and f.ratio.value is not None and f.ratio.low is not None:
            text += f" [{f.ratio.low:.4f}, {f.ratio.high:.4f}]"
        rows.append((f.requirement, f"{f.side}/{f.against}", f.word, text))
    notes = (f"{f.requirement}, {f.side}/{f.against}: {f.reason}" for f in findings if f.reason)
    return Sheet("required", ("requirement", "sides", "word", "ratio, 95 % interval"), tuple(rows), tuple(notes))

"""One page for a decision: which side is faster, by how much and how surely, in a sentence, and what it rests on.

The figures and ratios are those of a comparison. The sentence names the faster of the first two sides first. The file
is HTML without a script that prints to one sheet of A4; what runs recorded stays in English.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import levelfield
from levelfield.compare.comparability import NOTHING, WHY, chip_of, comparability
from levelfield.compare.comparison import ComparedFigure, Comparison, Histories, deciding_command, side_values
from levelfield.compare.ratios import own_interval, own_mean
from levelfield.compare.sides import RATE, ComparedSide, Quantity, exclusion, quiet_runs, side_of
from levelfield.errors import UsageError
from levelfield.pages.page_rendering import PageRenderer, basis, text, verdict
from levelfield.pages.series_history import grouped
from levelfield.report.costs import NAME, described
from levelfield.report.sheets import Sheet
from levelfield.specs.record import RunRecord

# What one sheet of paper has room for: sides, cautions, and characters of a line, a side's runs and its name.
MOST_SIDES, MOST_CAUTIONS, LONGEST, LONGEST_IDS, LONGEST_NAME = 6, 5, 160, 104, 36
_STYLE = Path(__file__).parent / "assets" / "summary.css"
Say = Callable[..., str]  # a key of the texts with its values


@dataclass(frozen=True)
class SummaryBar:
    """One side in the picture. part, low, high: of the largest value; low and high None without an interval."""

    name: str
    shown: str
    part: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Summary:
    """title, sentence: what is compared, and the verdict. certainty: what it rests on, a line each.

    header, rows: a side in each row. bars: of tokens/s/device. runs: of each side, by their ids.
    """

    language: str
    title: str
    sentence: str
    certainty: tuple[str, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bars: tuple[SummaryBar, ...]
    runs: tuple[str, ...]

    def sheets(self) -> Iterator[Sheet]:
        """Yield the page as tables and notes."""
        say = partial(text, self.language)
        yield Sheet(self.title, notes=(self.sentence,))
        yield Sheet(say("figures"), self.header, self.rows, (say("summary.statistic"),))
        yield Sheet(say("trust"), notes=self.certainty)
        yield Sheet(say("runs"), notes=self.runs)

    def html(self, made: datetime) -> str:
        """Return the page as a file of its own. Its policy allows nothing but its own style, by the digest of it."""
        style = _STYLE.read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        return PageRenderer(self.language, {}).render(
            "summary",
            "summary",
            s=self,
            certainty=map(_short, self.certainty),
            runs=[_short(line, LONGEST_IDS) for line in self.runs],
            style=style,
            policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
            made=made.strftime("%Y-%m-%d %H:%M UTC"),
            version=levelfield.__version__,
        )


def sides_of_case(records: Iterable[RunRecord]) -> tuple[list[ComparedSide], int]:
    """Return the fastest series of each chip and framework, the fastest first, and how many are left out.

    records: of a case; those that do not count stay in their side, as in `compare`. Only sides count that did the work
    of the fastest one. Raises UsageError for fewer than two.
    """
    every = grouped(records, lambda record: record.series.fingerprint()).values()
    groups = sorted((group for group in every if _counted(group)), key=_speed, reverse=True)
    best: dict[tuple[str, str], list[RunRecord]] = {}
    for group in groups:
        first = group[0].series
        if not best or _did_same_work(_counted(next(iter(best.values()))), _counted(group)):
            best.setdefault((chip_of(first), first.framework_label), group)
    if len(best) < 2:
        raise UsageError(
            f"report summary --case: found {len(best)} chip and framework with valid, sealed runs of one work, "
            "expected at least 2; `compare --matrix framework --case CASE` shows what there is"
        )
    kept = list(best.values())[:MOST_SIDES]
    return [side_of(chr(ord("A") + i), group) for i, group in enumerate(kept)], len(best) - len(kept)


def _did_same_work(runs: Sequence[RunRecord], others: Sequence[RunRecord]) -> bool:
    return comparability([side_of("A", runs), side_of("B", others)]).holds


def _counted(runs: Sequence[RunRecord]) -> list[RunRecord]:
    return quiet_runs([run for run in runs if exclusion(run) is None and RATE.read(run) is not None])


def _speed(runs: Sequence[RunRecord]) -> float:
    counted = _counted(runs)
    return math.fsum(RATE.read(run) or 0.0 for run in counted) / len(counted)


def summary(comparison: Comparison, histories: Histories, left_out: int = 0, language: str = "en") -> Summary:
    """Return the page of a comparison. histories: as they were given to it. Raises UsageError for too many sides."""
    sides, say = comparison.sides, partial(text, language)
    if len(sides) > MOST_SIDES:
        raise UsageError(f"report summary: found {len(sides)} sides, expected at most {MOST_SIDES} on one page")
    names, first = names_of(sides, say), sides[0].first.series
    figures = [figure for figure in comparison.figures if any(found.values for found in figure.sides)]
    more = (say("summary.left-out", count=left_out),) if left_out else ()
    return Summary(
        language=language,
        title=say("summary.title", case=first.case, scale=first.scale, precision=first.precision),
        sentence=_sentence(comparison, names, language),
        certainty=(*_certainty(comparison, names, language), *more),
        header=(
            say("summary.side"),
            *(_heading(figure, comparison, say) for figure in figures),
            say("summary.against", base=names[0]),
        ),
        rows=tuple(_row(i, comparison, figures, names, histories, say) for i in range(len(sides))),
        bars=tuple(_bars(comparison, histories, [_marked(*pair, say) for pair in zip(names, sides, strict=True)])),
        runs=tuple(_ids(*pair) for pair in zip(names, sides, strict=True)),
    )


def _heading(figure: ComparedFigure, comparison: Comparison, say: Say) -> str:
    """Return the name of a figure; of a cost with its currency."""
    name = figure.quantity.column.name
    if name == NAME and comparison.prices:
        return say("summary.cost", currency=comparison.prices.currency)
    return say(f"column.{name}")


def _ids(name: str, side: ComparedSide) -> str:
    return f"{name}: {', '.join(run.run_id for run in side.counted) or NOTHING}"


def names_of(sides: Sequence[ComparedSide], say: Say) -> list[str]:
    """Return a name of each side: chip and framework where these tell the sides apart, else with its letter."""
    series = [side.first.series for side in sides]
    plain = [_short(say("summary.name", chip=s.chip, framework=s.framework_label), LONGEST_NAME) for s in series]
    if len(set(plain)) == len(plain):
        return plain
    return [f"{side.name} ({name})" for side, name in zip(sides, plain, strict=True)]


def _marked(name: str, side: ComparedSide, say: Say) -> str:
    """Return the name of a side, with the word for one whose runs were all disturbed."""
    return f"{name}, {say('flag.disturbed')}" if side.is_disturbed else name


def _sentence(comparison: Comparison, names: Sequence[str], language: str) -> str:
    """Return the verdict on the first two sides, the faster one first, and their ratio as the table has it."""
    if unequal := comparison.comparability.unequal:
        return text(language, "answer.unequal", fields=", ".join(field.name for field in unequal))
    found = next(f for f in comparison.figures if f.quantity is RATE).ratios[0]
    if found.value is None:
        return text(language, "answer.no-ratio", why=found.reason)
    said = (found, names[1], names[0]) if found.value >= 1 else (found.inverse, names[0], names[1])
    rests = basis(language, found, names[1], names[0])
    return text(language, "answer.sentences", verdict=verdict(language, "tokens", *said), basis=rests)


def _certainty(comparison: Comparison, names: Sequence[str], language: str) -> Iterator[str]:
    """Yield what the verdict rests on, and what asks for caution."""
    say = partial(text, language)
    counted = "; ".join(f"{name}: {_runs(side, say)}" for name, side in zip(names, comparison.sides, strict=True))
    yield say("summary.counted", sides=counted)
    if comparison.figures:
        found = next(f for f in comparison.figures if f.quantity is RATE).ratios[0]
        if found.standing == "inconclusive":
            yield say("summary.decide", command=deciding_command(comparison.sides[1], comparison.sides[0]))
        elif found.low is not None:
            yield say("summary.interval", how=found.reason)
    yield from _of_place(comparison, names, say)
    yield from _of_cost(comparison, names, say)
    yield from _cautions(comparison, language)


def _cautions(comparison: Comparison, language: str) -> Iterator[str]:
    say = partial(text, language)
    cautions = comparison.comparability.with_caution
    for field in cautions[:MOST_CAUTIONS]:
        why = WHY.get(field.name) if language == "en" else say(f"why.{field.name}") if field.name in WHY else None
        yield say("summary.caution", name=field.name, values=" | ".join(field.cells)) + (f" ({why})" if why else "")
    if len(cautions) > MOST_CAUTIONS:
        yield say("summary.more-cautions", count=len(cautions) - MOST_CAUTIONS)
    if comparison.figures and not cautions:
        yield say("summary.no-caution")


def _of_place(comparison: Comparison, names: Sequence[str], say: Say) -> Iterator[str]:
    """Yield the devices and the layout of each side, where the sides differ in them."""
    for field in comparison.comparability.on_purpose:
        values = "; ".join(f"{name}: {cell}" for name, cell in zip(names, field.cells, strict=True))
        if field.name == "devices":
            yield say("summary.devices", values=values)
        if field.name == "layout":
            yield say("summary.layout", values=values)


def _of_cost(comparison: Comparison, names: Sequence[str], say: Say) -> Iterator[str]:
    """Yield the prices, and why a side has no cost."""
    if not comparison.prices:
        return
    chips = [side.first.series.chip for side in comparison.sides]
    for line in described(comparison.prices, chips):
        yield say("summary.price", price=line)
    for figure in comparison.figures:
        if figure.quantity.column.name == NAME:
            for name, found in zip(names, figure.sides, strict=True):
                if found.reason:
                    yield say("summary.no-cost", name=name, why=found.reason)


def _runs(side: ComparedSide, say: Say) -> str:
    verdicts = ", ".join(dict.fromkeys(run.verdict for run in side.counted)) or NOTHING
    return say("summary.runs", count=len(side.counted), all=len(side.runs), verdicts=verdicts)


def _row(
    place: int,
    comparison: Comparison,
    figures: Sequence[ComparedFigure],
    names: Sequence[str],
    histories: Histories,
    say: Say,
) -> tuple[str, ...]:
    cells = [_figure(figure.quantity, comparison.sides[place], histories) for figure in figures]
    name = _marked(names[place], comparison.sides[place], say)
    if place == 0 or not comparison.figures:
        return (name, *cells, "1" if comparison.figures else NOTHING)
    found = next(f for f in comparison.figures if f.quantity is RATE).ratios[place - 1]
    value = NOTHING if found.value is None else f"{found.value:.3f}"
    return (name, *cells, " ".join(filter(None, (value, found.ends, say(f"standing.{found.standing}")))))


def _figure(quantity: Quantity, side: ComparedSide, histories: Histories) -> str:
    """Return a side's geometric mean with its interval, where it has one that its digits show."""
    values, column = side_values(quantity, side, histories), quantity.column
    mean = own_mean(values)
    if mean is None:
        return NOTHING
    ends = (quantity.is_noisy and own_interval(values)) or (mean, mean)
    shown, low, high = map(column.shown, (mean, *ends))
    return shown if low == high else f"{shown} [{low}, {high}]"


def _bars(comparison: Comparison, histories: Histories, names: Sequence[str]) -> Iterator[SummaryBar]:
    """Yield a bar of each side with a speed. The intervals are of each side alone, by its runs or its history."""
    values = [side_values(RATE, side, histories) for side in comparison.sides]
    means = [(name, mean, own_interval(v)) for name, v in zip(names, values, strict=True) if (mean := own_mean(v))]
    top = max([end for _, mean, ends in means for end in (mean, *(ends or ()))], default=1.0)
    for name, mean, ends in means:
        low, high = (ends[0] / top, ends[1] / top) if ends else (None, None)
        yield SummaryBar(name, RATE.column.shown(mean), mean / top, low, high)


def _short(line: str, longest: int = LONGEST) -> str:
    return line if len(line) <= longest else f"{line[: longest - 1]}…"

"""The audit of published figures: each derived one, and rows against each other, compared with the printed text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from levelfield.catalog.registry import Registry
from levelfield.publish.derived_figures import Derived, LoggedReading, Underivable, derive
from levelfield.specs.case import Work
from levelfield.specs.figures import (
    Disagreement,
    FigureSet,
    Log,
    PublishedFigure,
    PublishedRow,
    Setting,
    Shape,
    cut,
    read_number,
    written,
)
from levelfield.specs.layout import Layout, LayoutText, parse_layout
from levelfield.worker.division import DIVIDED_OVER

Verdict = Literal["follows", "does not follow", "recorded", "recorded in vain", "recorded otherwise", "open"]
FAULTS: tuple[Verdict, ...] = ("does not follow", "recorded in vain", "recorded otherwise")


@dataclass(frozen=True)
class AuditFinding:
    """One derived figure or one relation of a row. difference: printed minus recomputed, in the figure's unit.

    follows: correct. does not follow: a fault. recorded: a difference that the file records. recorded in vain: the
    file records a difference, but there is none. recorded otherwise: the file records another difference.
    open: the row lacks an input; `arithmetic` names it.
    """

    row: str
    figure: str
    verdict: Verdict
    printed: str
    recomputed: str | None
    difference: str | None
    unit: str | None
    arithmetic: str
    why: str | None = None


@dataclass(frozen=True)
class Audit:
    """All findings of a set. inputs: the number of figures that have no formula and so cannot be checked."""

    name: str
    findings: tuple[AuditFinding, ...]
    inputs: int

    def of(self, *verdicts: Verdict) -> list[AuditFinding]:
        return [finding for finding in self.findings if finding.verdict in verdicts]

    @property
    def faults(self) -> list[AuditFinding]:
        return self.of(*FAULTS)


def works_of(registry: Registry, figures: FigureSet) -> dict[str, Work]:
    """Return the full work of every case that the set names. Raises UnknownName."""
    names = {row.setting.case for row in figures.rows if row.setting.case}
    return {name: registry.case(name).work("full") for name in sorted(names)}


def audited(figures: FigureSet, works: Mapping[str, Work]) -> Audit:
    """Check every derived figure and every relation of the set. `works` holds each case that the set names."""
    findings = [
        _relation(row, relation)
        for row in figures.rows
        for relation in relations(row.setting, works.get(row.setting.case or ""))
    ]
    findings += [finding for row in figures.rows for finding in _row(figures, row)]
    findings += [finding for log in figures.logs for finding in _log(figures, log)]
    lines = [row.figures for row in figures.rows] + [line for log in figures.logs for line in log.lines]
    return Audit(figures.name, tuple(findings), sum(not cell.formula for line in lines for cell in line.values()))


def _row(figures: FigureSet, row: PublishedRow) -> Iterator[AuditFinding]:
    baseline = figures.row(row.baseline) if row.baseline else None
    for name, figure in row.figures.items():
        if figure.formula:
            yield _figure(figures, row, baseline, name, figure)


def _log(figures: FigureSet, log: Log) -> Iterator[AuditFinding]:
    """Check the lines of a log, each as a row with the setting of the log's row."""
    of = figures.row(log.of)
    for number, line in enumerate(log.lines, start=1):
        row = of.model_copy(update={"name": f"{of.name}, log line {number}", "figures": line})
        yield from (_figure(figures, row, None, name, cell) for name, cell in line.items() if cell.formula)


def _figure(
    figures: FigureSet, row: PublishedRow, baseline: PublishedRow | None, name: str, figure: PublishedFigure
) -> AuditFinding:
    chip = figures.chips.get(row.setting.chip or "")
    try:
        if len(figure.numbers) != 1:
            raise Underivable(f"the figure is {figure.status}")
        derived = derive(figure, row, baseline, chip, _logged(figures, row, figure.of))
    except Underivable as problem:
        printed = ", ".join(figure.texts)
        return AuditFinding(row.name, name, "open", printed, None, None, figure.unit, str(problem))
    return _held_against(row, name, figure, derived)


def _held_against(row: PublishedRow, name: str, figure: PublishedFigure, derived: Derived) -> AuditFinding:
    """Compare a figure to the last printed digit, or to the decimals of its column."""
    number = read_number(figure.texts[0])
    decimals = number.decimals if figure.decimals is None else figure.decimals
    value = derived.value / figure.scale
    difference = number.value - cut(value, decimals, figure.printed)
    shown = written(cut(value, decimals, figure.printed), decimals)
    by = written(difference, decimals, sign=True)
    verdict = _verdict(difference, by, figure.disagrees)
    why = figure.disagrees.why if figure.disagrees else None
    return AuditFinding(row.name, name, verdict, figure.texts[0], shown, by, figure.unit, derived.arithmetic, why)


def _verdict(difference: Fraction, by: str, recorded: Disagreement | None) -> Verdict:
    if recorded is None:
        return "follows" if difference == 0 else "does not follow"
    if difference == 0:
        return "recorded in vain"
    return "recorded" if recorded.by == by else "recorded otherwise"


def _logged(figures: FigureSet, row: PublishedRow, of: str | None) -> LoggedReading | None:
    """Return the numbers of `log.NAME` over all lines of the row's log, or None when the formula reads the row."""
    if not of or not of.startswith("log."):
        return None
    lines = (line for log in figures.logs if log.of == row.name for line in log.lines)
    cells = (line.get(of.removeprefix("log.")) for line in lines)
    return LoggedReading(tuple(number for cell in cells if cell for number in cell.numbers))


def _relation(row: PublishedRow, relation: Relation) -> AuditFinding:
    why = row.disagrees.get(relation.name)
    broken: Verdict = "recorded" if why else "does not follow"
    verdict: Verdict = ("recorded in vain" if why else "follows") if relation.holds else broken
    return AuditFinding(row.name, relation.name, verdict, relation.found, relation.expected, None, None, "", why)


# The first five come from OneFlow's GPT report.


@dataclass(frozen=True)
class Relation:
    """A relation of a setting. `found` and `expected`: the numbers of its two sides, as text."""

    name: str
    holds: bool
    found: str
    expected: str


def relations(s: Setting, work: Work | None = None) -> Iterator[Relation]:
    """Return every relation of the setting, true or false. With `work`, relations to its case are included."""
    layout = s.parallel
    product = s.micro_batch * layout.data * s.accumulation
    yield _equal(
        "global_batch", product, s.global_batch, f"{s.micro_batch} x data {layout.data} x {s.accumulation} = {product}"
    )
    yield _equal("devices", layout.world_size, s.devices, f"{layout.in_words} = {layout.world_size}")
    if shape := s.model or (_shape(work) if work else None):
        yield from _divisions(shape, layout)
    if work:
        yield from _case(s, work)
    if s.layout_printed:
        yield from _printed(s, parse_layout(s.layout_printed))


def _divisions(model: Shape, layout: Layout) -> Iterator[Relation]:
    yield _divides("hidden_size over heads", model.hidden_size, model.heads)
    for name, over in DIVIDED_OVER.items():
        if name in Shape.model_fields:
            yield _divides(f"{name} over {over}", getattr(model, name), getattr(layout, over))


def _case(s: Setting, work: Work) -> Iterator[Relation]:
    """Compare the setting with the case that it names as the same work."""
    training, shape = work.training, _shape(work)
    pairs: dict[str, tuple[object, object]] = {
        "global_batch": (s.global_batch, training.global_batch),
        "sequence_length": (s.sequence_length, training.sequence_length),
        "precision": (s.precision, training.precision),
        **{name: (getattr(s.model or shape, name), getattr(shape, name)) for name in Shape.model_fields},
    }
    for name, (said, is_) in pairs.items():
        yield Relation(f"{name} of {s.case}", said == is_, f"{said}", f"{is_}")


def _shape(work: Work) -> Shape:
    return Shape(layers=work.model.layers, hidden_size=work.model.hidden_size, heads=work.model.heads)


def _printed(s: Setting, said: LayoutText) -> Iterator[Relation]:
    """Compare the printed layout, which may be incomplete, with the layout that ran."""
    ran = s.parallel
    pairs: dict[str, tuple[int | None, int]] = {
        "data": (said.layout.data, ran.data),
        "tensor": (said.layout.tensor, ran.tensor),
        "pipeline": (said.layout.pipeline, ran.pipeline),
        "sharding_stage": (said.layout.sharding_stage or None, ran.sharding_stage),
        "nodes": (said.nodes, s.nodes),
        "devices_per_node": (said.devices, s.devices_per_node),
        "micro_batch": (said.micro_batch, s.micro_batch),
    }
    for part, (printed, setting) in pairs.items():
        if printed is not None:
            yield _equal(f"layout_printed, {part}", printed, setting, f"{s.layout_printed} says {printed}")


def _equal(name: str, found: int, expected: int, text: str) -> Relation:
    return Relation(name, found == expected, text, f"{expected}")


def _divides(name: str, whole: int, by: int) -> Relation:
    return Relation(name, whole % by == 0, f"{whole} / {by}", "a whole number")

"""Findings of a gate on series and figures: one word, the change with its interval, and the exit code of all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

from levelfield.errors import GateFailed, RunFailed
from levelfield.report.words import NONE, format_number, gib
from levelfield.series.ticket import Ticket, Tickets
from levelfield.specs.base import Document
from levelfield.specs.record import GatedFigure
from levelfield.specs.run_figures import GATED_FIGURES

FindingWord = Literal[
    "regression",
    "training differs",
    "environment step",
    "missing",
    "invalid run",
    "incomparable",
    "bad night",
    "biased arms",
    "inconclusive",
    "stale",
    "improvement",
    "new series",
    "no change",
]
FINDING_WORDS: tuple[FindingWord, ...] = get_args(FindingWord)  # the worst first: the order of every table
FAILURE_WORDS = frozenset({"regression", "training differs", "environment step"})
ABSENCE_WORDS = frozenset({"missing", "invalid run", "incomparable"})  # what was expected is not compared
OPEN_WORDS = frozenset({"bad night", "biased arms", "inconclusive", "stale", "improvement", "new series"})
COMPARED_WORDS = frozenset(FINDING_WORDS) - ABSENCE_WORDS - {"training differs", "new series"}
FIGURE_NAMES: dict[GatedFigure, str] = {name: figure.heading.split(",")[0] for name, figure in GATED_FIGURES.items()}
SPEED_FIGURE: GatedFigure = "tokens_per_second_per_device"
# A word as a reader gets it, for one and for several series. The store and JSON have the word itself.
STATUS_TEXTS: dict[FindingWord, tuple[str, str]] = {
    "regression": ("regression", "regressions"),
    "training differs": ("training differs", "trainings differ"),
    "environment step": ("environment step", "environment steps"),
    "missing": ("missing", "missing"),
    "invalid run": ("invalid run", "invalid runs"),
    "incomparable": ("incomparable", "incomparable"),
    "bad night": ("bad night", "bad nights"),
    "biased arms": ("A/A mismatch", "A/A mismatches"),
    "inconclusive": ("inconclusive", "inconclusive"),
    "stale": ("stale baseline", "stale baselines"),
    "improvement": ("improvement", "improvements"),
    "new series": ("new series", "new series"),
    "no change": ("unchanged", "unchanged"),
}
# A figure's logarithm times this sign is its cost: a higher cost is worse, for every figure.
COST_SIGNS: dict[GatedFigure, int] = {name: figure.worse for name, figure in GATED_FIGURES.items() if figure.worse}


class Finding(Document):
    """One word about one series and figure in one night."""

    KIND: ClassVar[str] = "finding"

    series: str
    label: str
    figure: GatedFigure | None  # None where the word is about the whole run
    word: FindingWord
    change: float | None = None  # measured / level - 1, with its 95 % interval from `low` to `high`
    low: float | None = None
    high: float | None = None
    level: float | None = None  # in the figure's unit
    level_since: str | None = None  # the date of its first night
    nights: int = 0  # how many the level rests on
    detectable: float | None = None  # the least change that one night shows with 90 % probability
    run_id: str | None = None
    detail: str = ""
    fields: tuple[str, ...] = ()  # those of the conditions or of the series that differ
    night: str | None = None
    node: str | None = None
    pairs: int = 0  # how many were compared
    # of a finding about a node or a change of conditions, which has no series: all runs that it stands for
    runs: tuple[str, ...] = ()
    build_change: float | None = None  # of tonight's build against the accepted one, by pairs
    conditions_change: float | None = None  # of the accepted build against its level, by pairs under new conditions
    explanation: tuple[str, ...] = ()  # why a step of tonight's build takes longer, in sentences (docs/explain.md)
    against: str | None = None  # the run whose build tonight's was compared with
    # the night that found the regression, where tonight does not decide; `change` is then of the last one that did
    named: str | None = None
    is_gain_to_confirm: bool = False  # better in one night: a second one decides

    @property
    def status(self) -> str:
        """The word as a reader gets it."""
        if self.is_gain_to_confirm:
            return "possible improvement"
        if self.word == "missing" and self.figure:
            return "figure missing"
        return STATUS_TEXTS[self.word][0] if self.word != "no change" else self.word

    @property
    def is_plain(self) -> bool:
        """Whether it says that nothing changed, without pairs: after another such finding it is not stored."""
        return self.word == "no change" and not self.pairs

    @property
    def is_set_back(self) -> bool:
        """Whether its night is dated before one that the store had already: a clock was wrong."""
        return self.word == "incomparable" and not self.series

    @property
    def bad_runs(self) -> tuple[str, ...]:
        """The runs of a night that was found bad: no level and no evidence rests on them."""
        run = (self.run_id,) if self.run_id else ()
        return (*run, *self.runs) if self.word == "bad night" else ()


def set_back_nights(findings: Iterable[Finding]) -> set[str | None]:
    """Return the nights that came after later ones. Nothing rests on them: no level, and no A of pairs."""
    return {finding.night for finding in findings if finding.is_set_back}


def restore_explanations(findings: Iterable[Finding], stored: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings of a night that is judged again, with the stored explanations of its own runs."""
    explanations = {(f.night, f.series, f.figure, f.word): f.explanation for f in stored}
    pairs = [(f, explanations.get((f.night, f.series, f.figure, f.word), ())) for f in findings]
    return tuple(f.model_copy(update={"explanation": explanation}) if explanation else f for f, explanation in pairs)


def exit_code(findings: Iterable[Finding], strict: bool = False, advisory: bool = False) -> int:
    """Return 4 for a failure, else 3 for what is missing, else 0. strict: open words give 4 too. advisory: always 0."""
    words = {finding.word for finding in findings}
    if advisory:
        return 0
    if words & FAILURE_WORDS or (strict and words & OPEN_WORDS):
        return GateFailed.exit_code
    return RunFailed.exit_code if words & ABSENCE_WORDS else 0


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with the worst word first, then by label; of a series the speed is the first figure."""
    figures = [None, *FIGURE_NAMES]
    return sorted(findings, key=lambda f: (FINDING_WORDS.index(f.word), f.label, f.series, figures.index(f.figure)))


def group_by_series(findings: Iterable[Finding]) -> dict[FindingWord, list[tuple[Finding, ...]]]:
    """Return by word the findings of each series, node or change of conditions, the worst word and the speed first.

    A series without a change is one whose figures all have none.
    """
    groups: dict[tuple[FindingWord, str, str], list[Finding]] = {}
    for finding in worst_first(findings):
        groups.setdefault((finding.word, finding.series, finding.label), []).append(finding)
    others = {series for word, series, _ in groups if word != "no change"}
    ordered: dict[FindingWord, list[tuple[Finding, ...]]] = {}
    for (word, series, _), group in groups.items():
        if word != "no change" or series not in others:
            ordered.setdefault(word, []).append(tuple(group))
    return ordered


@dataclass(frozen=True)
class FindingPage:
    """What a report of a night has: its first line, and its findings with the worst first."""

    first_line: str
    night: str
    findings: tuple[Finding, ...]
    strict: bool = False
    advisory: bool = False
    tickets: Tickets = field(default_factory=dict)  # of some findings, by series and figure
    link: str | None = None  # of the pages
    suite: str | None = None
    folder: str | None = None  # where the pages were written
    notes: Sequence[str] = ()  # further sentences about the night
    store: str | None = None  # the file that --store named, which the printed commands need
    order_problem: str = ""  # what is wrong with its date, or nights before it that did not run; empty for nothing

    def ticket(self, finding: Finding) -> Ticket | None:
        return self.tickets.get((finding.series, finding.figure))

    @property
    def exit_code(self) -> int:
        return exit_code(self.findings, self.strict, self.advisory)

    @property
    def verdict(self) -> str:
        """The night in one sentence: whether it fails, by what, and which nights before it did not run.

        --advisory changes the exit code and not this.
        """
        return "; ".join(filter(None, (self._outcome, self.order_problem)))

    @property
    def _outcome(self) -> str:
        code = exit_code(self.findings, self.strict)
        if code == 0:
            is_calm = any(finding.word == "no change" for finding in self.findings)
            open_words = outcome_text(self.findings, OPEN_WORDS)
            return f"night {self.night} passes: {open_words or ('no change' if is_calm else 'no run')}"
        fails = code == GateFailed.exit_code
        words = (FAILURE_WORDS | OPEN_WORDS if self.strict else FAILURE_WORDS) if fails else ABSENCE_WORDS
        return f"night {self.night} {'fails' if fails else 'is incomplete'}: {outcome_text(self.findings, words)}"


def figure_value(value: float | None, figure: GatedFigure) -> str:
    """Return a figure with its unit."""
    declared = GATED_FIGURES[figure]
    if declared.unit == "B":
        return gib(value)
    return format_number(value, declared.digits, declared.divisor)


def percent_change(change: float | None) -> str:
    return NONE if change is None else f"{change:+.1%}".replace("%", " %")


def change_text(finding: Finding) -> str:
    """Return the change with its interval, such as `-4.6 % [-5.6, -3.6]`."""
    interval = "" if finding.low is None or finding.high is None else f" [{finding.low:+.1%}, {finding.high:+.1%}]"
    return percent_change(finding.change) + interval.replace("%", "")


def count_text(findings: Iterable[Finding], words: Collection[str] = FINDING_WORDS) -> str:
    """Return how many series have each of the words, such as `1 regression, 2 missing, 1 without a figure`."""
    groups = group_by_series(findings)
    return ", ".join(_word_count(word, groups[word]) for word in FINDING_WORDS if word in words and word in groups)


def _word_count(word: FindingWord, groups: Sequence[tuple[Finding, ...]]) -> str:
    count = len(groups)
    if word == "missing":
        entries = sum(finding.figure is None for finding, *_ in groups)
        texts = (f"{entries} missing", f"{count - entries} without a figure")
        return ", ".join(text for text in texts if text[0] != "0")
    if word == "bad night":  # of a machine, however many of its series show it
        count = len({finding.node for finding, *_ in groups})
    return f"{count} {STATUS_TEXTS[word][count > 1]}"


def outcome_text(findings: Iterable[Finding], words: Collection[str]) -> str:
    """Return what a night found, in series: `1 series slower: tokens/s -4.6 % [-5.6, -3.6], 2 missing`."""
    groups = group_by_series(findings)
    return ", ".join(
        text for word in FINDING_WORDS if word in words for text in _word_texts(word, groups.get(word, ()))
    )


def _word_texts(word: FindingWord, groups: Sequence[tuple[Finding, ...]]) -> list[str]:
    """Return how many series have a word, the changes of figures first, with what changed."""
    moved: dict[tuple[GatedFigure | None, bool, bool], list[Finding]] = {}
    for finding, *_ in groups:
        is_change = finding.is_gain_to_confirm or (word in ("regression", "improvement") and bool(finding.series))
        is_worse = word == "regression"
        moved.setdefault((finding.figure if is_change else None, is_worse, finding.is_gain_to_confirm), []).append(
            finding
        )
    texts = []
    for (figure, is_worse, is_to_confirm), leads in moved.items():
        if figure is None:
            fields = {finding.fields for finding in leads if not finding.is_set_back}
            (only,) = fields if len(fields) == 1 else [()]
            texts.append(_word_count(word, [(lead,) for lead in leads]) + (f": {', '.join(only)}" if only else ""))
            continue
        is_more = (GATED_FIGURES[figure].worse == 1) == is_worse
        how = f"with {'more' if is_more else 'less'} {FIGURE_NAMES[figure]}"
        if figure == SPEED_FIGURE:
            how = "slower" if is_worse else "faster"
        largest = max(leads, key=lambda finding: abs(finding.change or 0.0))
        text = f"{len(leads)} series {how}{', the most' if len(leads) > 1 else ''}"
        if largest.change is not None:
            text += f": {FIGURE_NAMES[figure].removesuffix('/device')} {change_text(largest)}"
        texts.append(text + (" (to be confirmed by a second night)" if is_to_confirm else ""))
    return texts


@dataclass(frozen=True)
class OpenRegression:
    """A regression that was named and has not ended: a night that does not decide keeps the word and its exit code.

    Pairs end a regression when they find it gone. One that nights named without pairs ends by nights too. A level that
    somebody accepts ends both: the gate's input takes those out.
    """

    first_finding: Finding  # the one that named it
    last_finding: Finding  # the newest one that decided
    is_by_pairs: bool  # pairs have shown it

    def is_ended_by(self, finding: Finding) -> bool:
        """Whether a night found it gone."""
        is_better = finding.word in ("no change", "improvement")
        if finding.pairs and finding.build_change is not None:
            # The A of an older finding, which does not name it, may have had the regression itself.
            return finding.word != "regression" and (is_better or finding.against is not None)
        return is_better and not self.is_by_pairs and not finding.fields

    def undecided_finding(self, tonight: Finding) -> Finding:
        """Return the finding of a night that does not decide. tonight: the finding by the night alone."""
        method = f"by {self.last_finding.pairs} pairs" if self.last_finding.pairs else "by nights"
        tonight_text = ": ".join(filter(None, (tonight.word, tonight.detail)))
        return tonight.model_copy(
            update={
                "word": "regression",
                "change": self.last_finding.change,
                "low": self.last_finding.low,
                "high": self.last_finding.high,
                "detail": f"found in night {self.first_finding.night}, {method}, and not gone since; "
                f"tonight: {tonight_text}",
                "fields": (),
                "build_change": None,
                "explanation": self.last_finding.explanation,
                "against": self.last_finding.against,
                "named": self.first_finding.night,
            }
        )


def open_regressions(past_findings: Iterable[Finding], night: str) -> dict[tuple[str, GatedFigure], OpenRegression]:
    """Return by series and figure the regressions that were named before the night and have not ended since."""
    past_findings = list(past_findings)
    series_figures = {(f.series, f.figure) for f in past_findings if f.word == "regression"}
    earlier = (f for f in past_findings if (f.series, f.figure) in series_figures and f.night and f.night < night)
    last = {(f.night or "", f.series, f.figure): f for f in earlier}  # a night may have been judged again
    regressions: dict[tuple[str, GatedFigure], OpenRegression] = {}
    for (_, series, figure), finding in sorted(last.items(), key=lambda entry: entry[0][0]):
        assert figure is not None
        key = (series, figure)
        regression = regressions.get(key)
        if finding.word == "regression" and finding.named is None:
            # against another build it is another regression
            builds = {build for build in (regression and regression.last_finding.against, finding.against) if build}
            if regression is None or len(builds) > 1:
                regressions[key] = OpenRegression(finding, finding, bool(finding.pairs))
            else:
                newest = finding if finding.pairs or not regression.is_by_pairs else regression.last_finding
                by_pairs = regression.is_by_pairs or bool(finding.pairs)
                regressions[key] = replace(regression, last_finding=newest, is_by_pairs=by_pairs)
        elif regression is not None and finding.word != "regression" and regression.is_ended_by(finding):
            del regressions[key]
    return regressions

"""A duel: two cases, run in turns on one machine until one is shown to be faster, or neither is.

The test is that of pairs of builds (`series/pairs.py`), in both directions: Student's t on the differences of the
logarithms of pairs. Its error of 5 % is spread over the looks (Bonferroni), so the interval holds at every look.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from levelfield.compare.comparison import Comparison, compare, comparison_json, comparison_sheets
from levelfield.compare.ratios import MIN_RUNS, Ratio, standing_of
from levelfield.compare.sides import RATE, count_steady_runs, disturbance, excess_use, exclusion_reason, side_of
from levelfield.errors import INTERRUPTED, GateFailed, LevelfieldError, RunFailed, UsageError
from levelfield.report.sheets import Sheet
from levelfield.report.words import duration
from levelfield.run.quiet import QuietWait
from levelfield.run.turns import run_alternating_pairs
from levelfield.series.pairs import Looks, Pair, PairRuling, pairs_so_far
from levelfield.series.segments import change_of
from levelfield.specs.prices import Prices
from levelfield.specs.record import DuelConclusion, DuelWord, GatedFigure, RunRecord, Series, StoreEvent
from levelfield.specs.result import DISTURBED

FIGURE: GatedFigure = "tokens_per_second_per_device"
MAX_REPEATS = 100
_ALPHA_BY_PAIRS = {3: 0.002, 4: 0.003, 5: 0.004, 6: 0.005, 7: 0.011}  # in each direction, in all .025
_ALPHA_OF_ONE_LOOK = 0.025
_EQUAL_FIELDS = ("work", "corpus", "scale", "precision", "device_is")
_WORDS_OF_RULINGS: dict[str, DuelWord] = {
    "regression": "slower",
    "improvement": "faster",
    "no change": "no difference",
}

RecordedPair = tuple[RunRecord, RunRecord]  # of A and of B
StartRun = Callable[[str, int], RunRecord]  # takes `a` or `b` and the number of its repeat; returns its record


@dataclass(frozen=True)
class DuelOutcome:
    """What a duel of two case strings measured."""

    cases: Sequence[str]
    looks: Looks
    pairs: Sequence[RecordedPair]  # at least one
    ruling: PairRuling
    stop_reason: str | None = None  # why it ended before the test did
    exit_code: int = 0
    pair_seconds: float = 0.0  # mean time of a pair, including installations
    waited_seconds: float = 0.0  # how long it waited for a quiet machine

    @property
    def word(self) -> DuelWord:
        """Return how B compares with A: slower, faster, no difference or inconclusive."""
        return _WORDS_OF_RULINGS.get(self.ruling.word, "inconclusive")

    @property
    def ratio(self) -> Ratio:
        """Return the speed of B over A, estimated from the pairs."""
        ruling, n = self.ruling, self.ruling.pairs
        if ruling.excess is None or ruling.low is None or ruling.high is None:
            return Ratio(None, None, None, "inconclusive", f"found {n} pair(s), expected at least {MIN_RUNS}")
        # high and low change places: the higher cost is the lower speed
        value, high, low = (1 + change_of(cost, FIGURE) for cost in (ruling.excess, ruling.low, ruling.high))
        looks = f", wider for {len(self.looks.alpha)} interim looks" if len(self.looks.alpha) > 1 else ""
        reason = f"by pairs: 95 %, Student's t on logarithms, {n} pairs in turns{looks}"
        reason += f", disturbed: {self.disturbance}" if self.disturbance else ""
        return Ratio(value, low, high, standing_of(low, high), reason, n)

    @property
    def disturbance(self) -> str:
        """Return the most that others used of the machine in a run, beyond the limits; empty where it was quiet."""
        used = max(excess_use(run) for pair in self.pairs for run in pair)[1]
        return f"other programs used {used}" if used else ""

    @property
    def disturbed_runs(self) -> int:
        return sum(bool(disturbance(run)) for pair in self.pairs for run in pair)

    def event(self, event_time: str) -> StoreEvent | None:
        """Return the conclusion as an event for the store; None for too few pairs. No text of the user is in it."""
        if self.ruling.pairs < MIN_RUNS or not (self.ratio.value and self.ratio.low and self.ratio.high):
            return None
        a, b = (run.series for run in self.pairs[0])
        pairs = tuple((first.run_id, second.run_id) for first, second in self.pairs)
        duel_conclusion = DuelConclusion(
            other=b.fingerprint(), pairs=pairs, ratio=self.ratio.value, low=self.ratio.low, high=self.ratio.high,
            word=self.word, least=math.expm1(self.looks.min_change), reason=self.ratio.reason,
        )  # fmt: skip
        return StoreEvent(
            id=f"duel-{pairs[0][0]}", kind="duel", series=a.fingerprint(), at=event_time, who="compare duel",
            why=conclusion(replace(self, cases=(a.label, b.label))),
            runs=tuple(run for pair in pairs for run in pair), data=duel_conclusion.model_dump(mode="json"),
        )  # fmt: skip


def duel_looks(repeats: int | None, least_percent: float) -> Looks:
    """Return when a duel decides and how surely: after `repeats` pairs, else after 3 to 7. least_percent: the smallest
    difference that counts."""
    if repeats is not None and not MIN_RUNS <= repeats <= MAX_REPEATS:
        raise UsageError(f"--repeat: found {repeats}, expected {MIN_RUNS} to {MAX_REPEATS} in a duel")
    if not 0 < least_percent <= 50:
        raise UsageError(f"--min-effect: found {least_percent:g}, expected a percentage above 0 and up to 50")
    return Looks({repeats: _ALPHA_OF_ONE_LOOK} if repeats else _ALPHA_BY_PAIRS, math.log1p(least_percent / 100))


def refuse_other_work(a: Series, b: Series) -> None:
    """Raise GateFailed before any run starts if the planned runs are not comparable."""
    for name in _EQUAL_FIELDS:
        actual, expected = getattr(b, name), getattr(a, name)
        if actual != expected:
            raise GateFailed(
                f"compare duel: not comparable: found {name} {expected} and {actual}, expected the same of both"
            )


def run_duel(cases: Sequence[str], looks: Looks, start_run: StartRun, quiet_wait: QuietWait) -> DuelOutcome:
    """Run pairs until the test decides or an error stops them. Raises that error where it stopped the first pair.

    quiet_wait: waits for a quiet machine before each pair.
    """
    pairs: list[RecordedPair] = []
    rates: list[Pair] = []
    run_counts = {"a": 0, "b": 0}

    def next_repeat(arm: str) -> RunRecord:
        run_counts[arm] += 1
        record = start_run(arm, run_counts[arm])
        if reason := exclusion_reason(record):
            raise RunFailed(f"{cases['ab'.index(arm)]}: {record.run_id} is {reason}")
        return record

    stop_reason, exit_code = None, 0
    began = time.monotonic()
    try:
        for pair in run_alternating_pairs(max(looks.alpha), next_repeat, quiet_wait):
            pairs.append(pair)
            if not _compare_arms(pairs).comparability.is_comparable:
                raise GateFailed("the sides are not comparable")
            rates.append((RATE.read(pair[0]), RATE.read(pair[1])))
            if pairs_so_far(rates, FIGURE, 0, looks=looks).word != "more pairs":
                break
    except (LevelfieldError, KeyboardInterrupt) as stop:
        if not pairs:
            raise
        stop_reason, exit_code = (
            (str(stop), stop.exit_code) if isinstance(stop, LevelfieldError) else ("interrupted", INTERRUPTED)
        )
    pair_seconds = (time.monotonic() - began - quiet_wait.waited_seconds) / len(pairs)
    ruling = pairs_so_far(rates, FIGURE, 0, looks=looks, is_last=True)
    return DuelOutcome(cases, looks, pairs, ruling, stop_reason, exit_code, pair_seconds, quiet_wait.waited_seconds)


def _compare_arms(pairs: Sequence[RecordedPair], prices: Prices | None = None) -> Comparison:
    arms = zip("AB", zip(*pairs, strict=True), strict=True)
    sides = [side_of(name, list(records), is_paired=True) for name, records in arms]
    return compare(sides, prices=prices)


def duel_comparison(outcome: DuelOutcome, prices: Prices | None = None) -> Comparison:
    """Return the comparison of both sides, with the ratio of the speed by pairs."""
    comparison = _compare_arms(outcome.pairs, prices)
    paired = (replace(f, ratios=(outcome.ratio,)) if f.quantity is RATE else f for f in comparison.figures)
    return replace(comparison, figures=tuple(paired))


def conclusion(outcome: DuelOutcome) -> str:
    """Return what the duel shows in a sentence, with the load of the machine where others used it."""
    sentence = _result_sentence(outcome)
    return f"{sentence}; disturbed: {outcome.disturbance}" if outcome.disturbance else sentence


def _result_sentence(outcome: DuelOutcome) -> str:
    (a, b), ratio, n = outcome.cases, outcome.ratio, outcome.ruling.pairs
    if ratio.value is None:
        return f"inconclusive: {ratio.reason}"
    numbers = f"{ratio.value:.3f} of A's speed, {n} pairs, 95 % interval {ratio.ends}"
    if outcome.word in ("slower", "faster"):
        return f"{b} (B) is {100 * abs(ratio.value - 1):.1f} % {outcome.word} than {a} (A): {numbers}"
    if outcome.word == "no difference":
        return f"no difference of more than {100 * math.expm1(outcome.looks.min_change):.3g} %: {b} (B) has {numbers}"
    return f"inconclusive: {b} (B) has {numbers}; A is {a}"


def duel_sheets(outcome: DuelOutcome, prices: Prices | None = None) -> list[Sheet]:
    """Return the comparison of both sides, the pairs in their order, and last, where a terminal ends, the conclusion.

    Its notes say what to know about it, and what to do next.
    """
    rows, rate_text = [], RATE.column.text
    for number, (a, b) in enumerate(outcome.pairs):
        first, second = RATE.read(a), RATE.read(b)
        ratio = f"{second / first:.3f}" if first and second else ""
        rows.append((str(number + 1), "B A" if number % 2 else "A B", rate_text(first), rate_text(second), ratio))
    notes = [f"stopped: {outcome.stop_reason}. The runs so far are kept"] if outcome.stop_reason else []
    runs = [run for pair in outcome.pairs for run in pair]
    if runs[0].series.scale == "smoke":
        notes.append("at smoke scale: this says nothing about the full case")
    steady, checked = count_steady_runs(runs)
    if unsteady := checked - steady:
        notes.append(f"in {unsteady} of {len(runs)} runs the steps' time drifted or jumped: the machine was not steady")
    if outcome.disturbance:
        waited = f", after {duration(outcome.waited_seconds)} of waiting" if outcome.waited_seconds else ""
        notes.append(
            f"in {outcome.disturbed_runs} of {len(runs)} runs {outcome.disturbance}{waited}: their status is "
            f"'{DISTURBED}', so repeat the duel on an idle machine"
        )
    n = outcome.ruling.pairs
    if outcome.word == "inconclusive" and n > 1 and not outcome.stop_reason:
        needed = n + (outcome.ruling.more_pairs or 0)
        cost = f"{2 * needed} runs, about {duration(needed * outcome.pair_seconds)}"
        if needed > MAX_REPEATS:
            notes.append(f"even {MAX_REPEATS} pairs would not decide at this noise; a quieter machine might")
        else:
            notes.append(f"about {needed} pairs ({cost}) would decide: the same command with --repeat {needed}")
    notes.append(
        "why one is slower: run both with --explain-step, then `report explain A B`; pages of all runs: `report pages "
        "out`"
    )
    header = ("pair", "order", "A, tokens/s/device", "B, tokens/s/device", "B/A")
    pairs = Sheet("pairs, in their order", header, tuple(rows))
    return [*comparison_sheets(duel_comparison(outcome, prices)), pairs, Sheet(conclusion(outcome), notes=tuple(notes))]


def duel_json(outcome: DuelOutcome, prices: Prices | None = None) -> dict[str, Any]:
    """Return the duel as a JSON object: that of the comparison, with what the pairs show."""
    steady, checked = count_steady_runs([run for pair in outcome.pairs for run in pair])
    return {
        **comparison_json(duel_comparison(outcome, prices)),
        "duel": {
            "cases": list(outcome.cases),
            "word": outcome.word,
            **{name: value for name, value in asdict(outcome.ratio).items() if name not in ("standing", "pairs")},
            "pairs": [[a.run_id, b.run_id] for a, b in outcome.pairs],
            "least": math.expm1(outcome.looks.min_change),
            "more_pairs": outcome.ruling.more_pairs,
            "unsteady_runs": checked - steady,
            "disturbed": outcome.disturbance or None,
            "disturbed_runs": outcome.disturbed_runs,
            "waited_seconds": outcome.waited_seconds,
            "stopped": outcome.stop_reason,
        },
    }

"""Duels of planted speeds: faster, equal, noise; a run that fails, an interrupt, other work; and their words."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from compared_records import other_use, record, step_times, with_result
from levelfield.compare.comparison import comparison_sheets
from levelfield.errors import GateFailed, RunFailed, UsageError
from levelfield.measure.other_use import HostUse
from levelfield.report.sheets import format_text
from levelfield.report.words import duration
from levelfield.run.quiet import QuietWait
from levelfield.series.pairs import PairRuling, pairs_so_far
from levelfield.specs.layout import Layout
from levelfield.specs.record import RunRecord
from levelfield.studies.duels import (
    FIGURE,
    MAX_REPEATS,
    DuelOutcome,
    conclusion,
    duel_comparison,
    duel_json,
    duel_looks,
    duel_sheets,
    refuse_other_work,
    run_duel,
)

CASES = ("gpt:torch", "gpt:jax")
QUIET = QuietWait(pytest.fail, lambda: HostUse(0.0, 2))
FRAMEWORKS = {"a": "torch", "b": "jax"}
Rates = Callable[[str, int], float]


def outcome_of(rates: Rates, repeats: int | None = None, least: float = 1.0, **changes: Any) -> DuelOutcome:
    """Run a duel of these speeds. changes: of every run of B."""
    order: list[str] = []

    def start(arm: str, number: int) -> RunRecord:
        order.append(arm)
        more = changes if arm == "b" else {}
        return record(len(order), rates(arm, number), framework=FRAMEWORKS[arm], **more)

    return run_duel(CASES, duel_looks(repeats, least), start, QUIET)


def text_of(outcome: DuelOutcome) -> str:
    return " ".join(format_text(duel_sheets(outcome)).split())


def jumped(run: RunRecord) -> RunRecord:
    steps = step_times(0.5, "change point: step time shifts by -16.6%")
    return with_result(run, throughput={**run.stored_result.content["throughput"], "step_seconds": steps})


def noisy(deviation: float, ratio: float = 1.0, seed: int = 1) -> Rates:
    """Return speeds with this noise; B has `ratio` times the speed of A."""
    normal = random.Random(seed)

    def rate(arm: str, number: int) -> float:
        return 1000.0 * (ratio if arm == "b" else 1.0) * math.exp(normal.gauss(0, deviation))

    return rate


def test_a_side_that_is_five_per_cent_faster_is_found() -> None:
    outcome = outcome_of(noisy(0.002, 1 / 1.05))
    assert outcome.word == "slower" and len(outcome.pairs) < 7 and outcome.exit_code == 0
    assert outcome.ratio.low is not None and outcome.ratio.high is not None
    assert outcome.ratio.low < 1 / 1.05 < outcome.ratio.high < 1 and outcome.ratio.standing == "lower"
    assert conclusion(outcome).startswith(
        f"gpt:jax (B) is 4.6 % slower than gpt:torch (A): {outcome.ratio.value:.3f} of A's"
    )
    assert outcome_of(noisy(0.002, 1.05)).word == "faster"


def test_equal_sides_have_no_difference_of_more_than_the_least() -> None:
    outcome = outcome_of(noisy(0.002))
    assert outcome.word == "no difference" and " 1 %: gpt:jax" in conclusion(outcome)
    assert outcome_of(noisy(0.01), least=10).word == "no difference"


def test_a_difference_below_the_least_is_no_difference() -> None:
    assert outcome_of(noisy(0.001, 1.03), least=5).word == "no difference"
    assert outcome_of(noisy(0.001, 1.03), least=2).word == "faster"


def test_noise_decides_nothing_and_says_how_many_more_would() -> None:
    outcome = outcome_of(noisy(0.05, 1.02, seed=2))
    assert (outcome.word, len(outcome.pairs), outcome.exit_code) == ("inconclusive", 7, 0)
    assert conclusion(outcome).startswith("inconclusive: gpt:jax") and conclusion(outcome).endswith(" gpt:torch")
    assert f"even {MAX_REPEATS}" in text_of(outcome)
    scattered = (1000.0, 1030.0, 1020.0)
    few = outcome_of(lambda arm, number: scattered[number - 1] if arm == "b" else 1000.0, repeats=3)
    assert (few.word, len(few.pairs)) == ("inconclusive", 3) and few.ruling.more_pairs
    needed = 3 + few.ruling.more_pairs
    few = replace(few, pair_seconds=60.0)
    assert f"{needed} pairs ({2 * needed} runs, about {duration(60 * needed)})" in text_of(few)
    assert f"--repeat {needed}" in text_of(few)


def test_repeat_runs_exactly_so_many_pairs_and_decides_by_all() -> None:
    outcome = outcome_of(noisy(0.002, 1.05), repeats=5)
    assert (outcome.word, len(outcome.pairs), outcome.ruling.pairs) == ("faster", 5, 5)


def test_the_order_is_abba_so_a_drift_is_no_difference() -> None:
    """Every run is 1 % slower than the one before it. With A always first, B would be 1 % slower."""
    steps = iter(range(100))
    outcome = outcome_of(lambda arm, number: 1000.0 * 0.99 ** next(steps), repeats=4)
    assert outcome.ratio.value == pytest.approx(1.0) and outcome.word != "slower"


def test_the_ratio_is_of_pairs_by_hand() -> None:
    """B/A of three pairs: 1.02, 1.03 and 1.04. Student's t of 2 degrees at 97.5 % is 4.3027."""
    rates = cycle([1000.0, 1020.0, 1030.0, 1000.0, 1000.0, 1040.0])
    outcome = outcome_of(lambda arm, number: next(rates), repeats=3)
    logs = [math.log(x) for x in (1.02, 1.03, 1.04)]
    mean = sum(logs) / 3
    half = 4.3027 * math.sqrt(sum((x - mean) ** 2 for x in logs) / 2) / math.sqrt(3)
    assert outcome.ratio.value == pytest.approx(math.exp(mean))
    assert outcome.ratio.low == pytest.approx(math.exp(mean - half), rel=1e-5)
    assert outcome.ratio.high == pytest.approx(math.exp(mean + half), rel=1e-5)
    assert duel_comparison(outcome).figures[0].ratios == (outcome.ratio,)


def ruled(*logs: float) -> PairRuling:
    return pairs_so_far([(1000.0, 1000.0 * math.exp(log)) for log in logs], FIGURE, 0, looks=duel_looks(None, 1))


def test_interval_and_no_difference_have_the_error_of_the_look() -> None:
    """By hand: after three of seven pairs the error is .002, for which Student's t of 2 degrees is 15.764."""
    outcome = ruled(0.02, 0.03, 0.04)
    assert outcome.high is not None and outcome.excess is not None and outcome.word == "more pairs"
    assert outcome.high - outcome.excess == pytest.approx(15.764 * 0.01 / math.sqrt(3), rel=1e-3)
    assert ruled(0.0, 0.003, -0.003).word == "more pairs"  # by the t of 4.3 of an only look it would be no difference
    assert ruled(0.0, 0.001, -0.001).word == "no change"


def test_equal_arms_are_rarely_called_different() -> None:
    """Over all looks 5 % are wrong at most: two standard errors of 1,000 duels above it are 6.4 %."""
    normal, wrong = random.Random(7), 0
    for _ in range(1000):
        pairs: list[tuple[float, float]] = []
        word = "more pairs"
        while word == "more pairs":
            pairs.append((math.exp(normal.gauss(0, 0.02)), math.exp(normal.gauss(0, 0.02))))
            word = pairs_so_far(pairs, FIGURE, 0, looks=duel_looks(None, 0.1)).word
        wrong += word in ("regression", "improvement")
    assert 0 < wrong <= 64


def test_what_weakens_the_conclusion_stands_below_it() -> None:
    """Half of the runs jumped; a duel of looks says that its interval is wider."""
    quiet = outcome_of(noisy(0.002, 1.05), repeats=3)
    assert "not steady" not in text_of(quiet) and "look" not in quiet.ratio.reason
    outcome = replace(quiet, pairs=[(a, jumped(b)) for a, b in quiet.pairs])
    assert "not steady" in text_of(outcome) and duel_json(outcome)["duel"]["unsteady_runs"] == 3
    assert f"{len(duel_looks(None, 1).alpha)} interim looks" in outcome_of(noisy(0.002, 1.05)).ratio.reason


def test_each_pair_waits_for_a_quiet_machine_and_the_notes_name_the_load() -> None:
    """Others use 1.7 of 2 cores from the second pair on, and go on: the third pair waits no more."""
    happened: list[str] = []
    wait = QuietWait(
        happened.append, lambda: HostUse(1.7 if len(happened) > 1 else 0.0, 2), iter(range(0, 9000, 200)).__next__
    )

    def start(arm: str, number: int) -> RunRecord:
        happened.append(arm)
        run = record(len(happened), 1000.0 + number, framework=FRAMEWORKS[arm])
        return with_result(run, other_use=other_use(1.7 if number > 1 else 0.0, 2))

    outcome = run_duel(CASES, duel_looks(3, 1), start, wait)
    first, goes_on = (place for place, text in enumerate(happened) if "1.70 of 2 cores" in text)
    assert [*happened[:first], *happened[goes_on + 1 :]] == ["a", "b", "b", "a", "a", "b"] and first == 2
    assert (outcome.waited_seconds, outcome.disturbed_runs) == (wait.limit_seconds, 4)
    text = text_of(outcome)
    assert "in 4 of 6 runs other programs used up to 1.7 of 2 cores, after 5:00 of waiting" in text
    assert "up to 1.7 of 2 cores" in conclusion(outcome)
    values = duel_json(outcome)["duel"]
    assert (values["disturbed_runs"], values["waited_seconds"]) == (4, wait.limit_seconds)
    assert "waiting" not in text_of(outcome_of(noisy(0.002)))


def fails_from(number: int, **changes: Any) -> DuelOutcome:
    """Return a duel whose B fails from this run of it on."""

    def start(arm: str, repeat: int) -> RunRecord:
        more = changes if arm == "b" and repeat >= number else {}
        return record(2 * repeat + (arm == "b"), 1000.0 + repeat, framework=FRAMEWORKS[arm], **more)

    return run_duel(CASES, duel_looks(None, 1), start, QUIET)


def test_a_run_that_fails_ends_the_duel_and_keeps_the_pairs() -> None:
    outcome = fails_from(3, word="failed", failure="exit", reason="rank 0")
    assert (len(outcome.pairs), outcome.exit_code, outcome.word) == (2, 3, "inconclusive")
    text = " ".join(format_text(duel_sheets(outcome)).split())
    assert "stopped: gpt:jax: " in text and outcome.stop_reason is not None and outcome.stop_reason in text
    assert outcome.stop_reason.endswith(" failed (exit): rank 0")
    assert (
        duel_json(outcome)["duel"]["stopped"].startswith("gpt:jax: ") and len(duel_json(outcome)["duel"]["pairs"]) == 2
    )


@pytest.mark.parametrize("bad", [{"word": "failed"}, {"evidence": "tampered"}, {"layout": Layout(data=2)}])
def test_a_run_without_a_figure_before_a_whole_pair_is_an_error(bad: dict[str, Any]) -> None:
    def start(arm: str, number: int) -> RunRecord:
        return record(number, **{"framework": FRAMEWORKS[arm], **(bad if arm == "b" else {})})

    with pytest.raises(RunFailed, match="gpt:jax: "):
        run_duel(CASES, duel_looks(None, 1), start, QUIET)


def test_an_interrupt_keeps_what_was_measured() -> None:
    def rates(arm: str, number: int) -> float:
        if number == 3:
            raise KeyboardInterrupt
        return 1000.0

    outcome = outcome_of(rates)
    assert (len(outcome.pairs), outcome.stop_reason, outcome.exit_code) == (2, "interrupted", 130)
    with pytest.raises(KeyboardInterrupt):
        outcome_of(lambda arm, number: rates(arm, 3))


def test_sides_that_are_not_comparable_end_after_the_first_pair() -> None:
    outcome = outcome_of(noisy(0.002), verdict="diverged")
    assert (len(outcome.pairs), outcome.exit_code) == (1, GateFailed.exit_code)
    text = format_text(duel_sheets(outcome))
    assert "NOT COMPARABLE" in text and "B/A 1" not in text


def test_other_work_is_refused_before_anything_runs() -> None:
    refuse_other_work(record(1).series, record(2, framework="jax").series)
    expected = record(1).series
    changes: dict[str, Any] = {"work": "sha256:" + "7" * 64, "precision": "bf16", "scale": "full"}
    for name, other in changes.items():
        with pytest.raises(GateFailed, match=f"{name} {getattr(expected, name)} and {other}"):
            refuse_other_work(expected, record(2, **{name: other}).series)


@pytest.mark.parametrize(
    ("repeats", "least", "fault"),
    [(2, 1, "--repeat: found 2"), (101, 1, "--repeat: found 101"), (None, 0, "--min-effect: found 0"),
     (None, math.nan, "--min-effect: found nan"), (None, 60, "--min-effect: found 60")],
)  # fmt: skip
def test_what_cannot_decide_is_refused(repeats: int | None, least: float, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        duel_looks(repeats, least)


def test_the_errors_of_all_looks_are_two_and_a_half_per_cent_in_each_direction() -> None:
    assert sum(duel_looks(None, 1).alpha.values()) == pytest.approx(0.025) == duel_looks(9, 1).alpha[9]


def test_the_text_fits_eighty_columns_and_ends_with_the_conclusion() -> None:
    outcome = outcome_of(noisy(0.002, 1.05))
    text = format_text(duel_sheets(outcome))
    heading = conclusion(outcome).split(" than ")[0]
    assert f"\n\n{heading}" in text and max(map(len, text.splitlines())) <= 80
    assert text.index("against A") < text.index(heading)
    assert " ".join(format_text(comparison_sheets(duel_comparison(outcome))).split()) in " ".join(text.split())
    assert "run order" not in text

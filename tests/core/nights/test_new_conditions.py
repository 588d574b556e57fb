"""Changes of conditions: what the build did, what the conditions did, one finding for one cause, a budget of pairs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from gate_points import conditions, day, event, nights, noise, point, series
from levelfield.measure.student import normal_tail, t_quantile
from levelfield.nights.gate import ConfirmingPairs, GateReport, judge_night, suspects
from levelfield.nights.gate_input import GateInput, examinations
from levelfield.series.causes import MIN_CLEARED_BUILDS
from levelfield.series.findings import Finding, FindingWord, exit_code
from levelfield.series.pairs import Pair
from levelfield.series.segments import condition_changes
from levelfield.specs.record import Conditions, GatedFigure, Point

TOKENS: GatedFigure = "tokens_per_second_per_device"
NIGHT = 40


def document_of(digest: str) -> Conditions:
    return conditions(software={"driver": "550" if digest == "c1" else "560"})


CHANGE = condition_changes(document_of("c1"), document_of("c2"))


def under_driver(effect: float, after: int = 1, seed: int = 2, quiet: float = 0.01, **changes: Any) -> list[Point]:
    """Forty quiet nights, then some under another driver, with this effect of driver and build together."""
    later = noise(after, quiet / 2, seed + 90)
    return [
        *nights(NIGHT, quiet, seed, **changes),
        *(point(NIGHT + i, 1000 * (1 + effect) * math.exp(z), conditions="c2", **changes) for i, z in enumerate(later)),
    ]


def gate_night(points: Mapping[str, Sequence[Point]], night: int = NIGHT, **more: Any) -> GateInput:
    documents = {name: series(case=name) for name in points}
    return GateInput(day(night), points, documents, find_conditions=document_of, **more)


def paired(build: float = 0.0, driver: float = 0.0, seed: int = 5) -> list[Pair]:
    """Seven pairs under the driver: A has its effect, B that of its build too."""
    values = zip(noise(7, 0.003, seed), noise(7, 0.003, seed + 1), strict=True)
    return [(1000 * (1 + driver) * math.exp(a), 1000 * (1 + driver) * (1 + build) * math.exp(b)) for a, b in values]


def source(build: float = 0.0, driver: float = 0.0, called: list[str] | None = None) -> ConfirmingPairs:
    def pairs(name: str, figure: GatedFigure) -> list[Pair] | None:
        if figure != TOKENS:
            return None
        if called is not None:
            called.append(name)
        return paired(build, driver)

    return pairs


def of(report: GateReport, name: str = "S") -> Finding:
    (finding,) = [f for f in report.findings if f.series == name and f.figure == TOKENS]
    return finding


def of_causes(report: GateReport) -> list[Finding]:
    return [finding for finding in report.findings if not finding.series]


# -- the build and the conditions apart


@pytest.mark.parametrize(
    ("build", "driver", "word"),
    [
        (-0.05, 0.05, "regression"),
        (-0.05, -0.06, "regression"),
        (-0.05, 0.0, "regression"),
        (-0.03, 0.10, "regression"),
        (0.0, -0.06, "environment step"),
        (0.06, -0.06, "environment step"),
        (0.0, 0.06, "improvement"),
        (0.0, 0.0, "no change"),
    ],
)
def test_pairs_tell_the_build_from_the_conditions_until_they_are_accepted(
    build: float, driver: float, word: str
) -> None:
    """The third night has pairs again only for a regression. A step of one series is known from its second night."""
    both, past = (1 + build) * (1 + driver) - 1, list[Finding]()
    for after in range(1, 4):
        called: list[str] = []
        inputs = gate_night({"S": under_driver(both, after)}, NIGHT + after - 1, past_findings=past)
        report = judge_night(inputs, source(build, driver, called))
        finding = of(report)
        is_open = after == 1 and word in ("environment step", "improvement")
        expected_word = "inconclusive" if is_open else word
        assert (finding.word, bool(called)) == (expected_word, after == 1 or word == "regression"), (after, finding)
        assert exit_code(report.findings) == (4 if expected_word in ("regression", "environment step") else 0)
        if after == 1:
            proven = build if abs(build) > 0.01 else 0.0
            assert finding.build_change == pytest.approx(proven, abs=0.005)
            assert finding.conditions_change == pytest.approx(driver, abs=0.01) and CHANGE[0] in finding.detail
        past += report.findings


def test_a_build_that_did_not_change_needs_no_pairs_under_a_new_driver() -> None:
    points = [p.model_copy(update={"subject": "same"}) for p in under_driver(0.0)]
    assert suspects(gate_night({"S": points})) == []
    assert {s.figure for s in suspects(gate_night({"S": under_driver(0.0)}))} == {TOKENS, "memory_bytes"}


def test_a_known_regression_without_pairs_tonight_is_not_green() -> None:
    first = judge_night(gate_night({"S": under_driver(0.0)}), source(-0.05, 0.05))
    inputs = gate_night({"S": under_driver(0.0, 2)}, NIGHT + 1, past_findings=first.findings)
    report = judge_night(inputs, lambda series, figure: "no build")
    assert of(report).word == "regression" and exit_code(report.findings) == 4
    assert of(report).named == day(NIGHT) and "no build" in of(report).detail
    suspect = suspects(inputs)[0]
    assert suspect.figure == TOKENS and suspect.probability < 0.0, "it is the first to get pairs"


def test_pairs_that_cannot_be_compared_prove_nothing() -> None:
    for broken in ([(math.nan, 950.0)] * 7, [(None, 950.0)] * 7, [(0.0, 950.0)] * 7, [(-1000.0, 950.0)] * 7, []):
        finding = of(judge_night(gate_night({"S": under_driver(0.0)}), lambda series, figure, b=broken: b))  # type: ignore[misc]
        assert (finding.word, finding.pairs) == ("inconclusive", 0), broken


@pytest.mark.parametrize("bad", [(0,), (1,), (0, 1), (0, 1, 2)])
def test_one_bad_night_under_a_new_driver_is_no_step_and_two_are(bad: Sequence[int]) -> None:
    points = under_driver(0.0, 3)
    points[NIGHT:] = [replace_tokens(p, 0.88 if i in bad else 1.0) for i, p in enumerate(points[NIGHT:])]
    words = [of(judge_night(gate_night({"S": points[: NIGHT + n]}, NIGHT + n - 1))).word for n in (1, 2, 3)]
    steps = [len(set(bad) & set(range(n))) > n / 2 and n > 1 for n in (1, 2, 3)]
    assert [word == "environment step" for word in words] == steps, words
    assert (words[0] == "inconclusive") is (0 in bad)


@pytest.mark.parametrize(("z", "word"), [(3.2, "inconclusive"), (3.8, "environment step")])
def test_one_series_alone_needs_a_clearer_step(z: float, word: str) -> None:
    """Three nights, each this many errors of a step (as a normal z) slower than the level before."""
    points = under_driver(0.0, 3)
    ((_, finding),) = [m for m in examinations(gate_night({"S": points}, NIGHT + 2)) if m[1].figure == TOKENS]
    assert finding.step is not None
    excess = t_quantile(normal_tail(z), finding.step.level_before.freedom) * finding.step.standard_error
    rate = math.exp(-finding.step.level_before.cost - excess)
    points[NIGHT:] = [point(NIGHT + i, rate, conditions="c2") for i in range(3)]
    assert of(judge_night(gate_night({"S": points}, NIGHT + 2))).word == word


@pytest.mark.parametrize(
    ("before", "after", "variance"), [(30, 2, 1 + math.pi / 30), (7, 10, math.pi / 7 + math.pi / 10)]
)
def test_the_error_of_a_step_has_the_correlation_of_nights_on_both_sides(
    before: int, after: int, variance: float
) -> None:
    points = [*nights(before), *(point(before + i, 1000.0, conditions="c2") for i in range(after))]
    ((_, finding),) = [m for m in examinations(gate_night({"S": points}, before + after - 1)) if m[1].figure == TOKENS]
    assert finding.step is not None
    assert finding.step.standard_error == pytest.approx(finding.step.level_before.scale * math.sqrt(variance))


# -- one finding for one cause


def fleet(count: int, effect: float = 0.0, after: int = 1, **changes: Any) -> dict[str, list[Point]]:
    """Series on two nodes, all under the new driver."""
    finding = {}
    for i in range(count):
        points = under_driver(effect, after, seed=10 + i, node=f"n{i % 2}", **changes)
        finding[f"X{i}"] = [p.model_copy(update={"run_id": f"{i}.{p.run_id}"}) for p in points]
    return finding


def test_a_driver_that_moves_all_series_is_one_finding_until_it_is_accepted() -> None:
    past: list[Finding] = []
    for after in (1, 2, 9):
        report = judge_night(gate_night(fleet(12, -0.06, after), NIGHT + after - 1, past_findings=past))
        (finding,) = [finding for finding in report.findings if finding.figure == TOKENS]
        assert (finding.word, finding.series, finding.label) == ("environment step", "", CHANGE[0])
        assert len(finding.runs) == 12 and finding.change == pytest.approx(-0.06, abs=0.01)
        assert "2 nodes" in finding.detail and report.compared_count == 12
        past += report.findings
    step = {"before": "c1", "after": "c2"}
    events = [event("environment-step", NIGHT + 9, series=f"X{i}", data=step) for i in range(12)]
    later = judge_night(gate_night(fleet(12, -0.06, 12), NIGHT + 11, past_findings=past, events=events))
    assert exit_code(later.findings) == 0 and not of_causes(later)


def test_a_driver_that_makes_all_faster_is_one_open_finding() -> None:
    (finding,) = of_causes(judge_night(gate_night(fleet(12, 0.06))))
    assert (finding.word, exit_code([finding])) == ("improvement", 0)


def test_one_series_that_a_driver_moved_keeps_its_own_finding() -> None:
    points = {**fleet(12), "S": under_driver(-0.10, seed=99)}
    report = judge_night(gate_night(points))
    assert of(report).word == "environment step" and not of_causes(report), "thirteen series tell one that moved"


def test_the_build_of_a_series_that_its_driver_moved_has_its_own_word() -> None:
    def pairs(name: str, figure: GatedFigure) -> list[Pair] | None:
        return paired(-0.05 if name == "X3" else 0.0, -0.06) if figure == TOKENS else None

    points = fleet(12, -0.06)
    points["X3"] = [replace_tokens(p, 0.95) if p.conditions == "c2" else p for p in points["X3"]]
    report = judge_night(gate_night(points), pairs)
    (step,) = of_causes(report)
    assert step.word == "environment step" and {f.series for f in report.findings if f.word == "regression"} == {"X3"}
    assert of(report, "X4").word == "no change" and of(report, "X4").conditions_change == pytest.approx(-0.06, abs=0.01)


def replace_tokens(of_run: Point, factor: float) -> Point:
    return of_run.model_copy(update={TOKENS: (of_run.tokens_per_second_per_device or 0.0) * factor})


def with_outliers(points: dict[str, list[Point]], nights_of: Mapping[int, Sequence[int]]) -> dict[str, list[Point]]:
    """Make one series 15 % slower in each named night."""
    return {
        name: [replace_tokens(p, 0.85) if i in nights_of.get(int(name[1:]), ()) else p for i, p in enumerate(of_series)]
        for name, of_series in points.items()
    }


def test_what_the_same_series_show_by_chance_is_no_step() -> None:
    """One of forty is 15 % off in the first night: a step where no night before was, and chance where some were."""
    tonight = {7: [NIGHT]}
    quiet = judge_night(gate_night(with_outliers(fleet(40), tonight)))
    assert of(quiet, "X7").word == "environment step"
    before = {i: [20 + i % 15] for i in range(0, 40, 4)}
    finding = judge_night(gate_night(with_outliers(fleet(40), {**before, **tonight})))
    assert of(finding, "X7").word == "inconclusive" and "by chance" in of(finding, "X7").detail
    assert exit_code(finding.findings) == 0


def test_a_bad_night_counts_for_chance_although_no_level_rests_on_it() -> None:
    before = {i: [20 + i % 15] for i in range(0, 40, 4)}
    points = with_outliers(fleet(40), {**before, 7: [NIGHT]})
    bad = [
        Finding(series=f"X{i}", label="", figure=TOKENS, word="bad night", night=day(n), run_id=f"{i}.run{n:03d}")
        for i, (n,) in before.items()
    ]
    assert of(judge_night(gate_night(points, past_findings=bad)), "X7").word == "inconclusive"
    of_node = [replace_series(f) for f in bad]
    assert of(judge_night(gate_night(points, past_findings=of_node)), "X7").word == "environment step", (
        "the node was slow, not X7"
    )


@pytest.mark.parametrize(("largest", "by_chance"), [(0.06, False), (0.072, True), (0.14, True)])
def test_a_step_has_to_be_half_as_large_again_as_what_nights_before_showed(largest: float, by_chance: bool) -> None:
    """Beside the others tonight's is 10 %; weeks of nights have not seen the largest."""
    points = fleet(40)
    for i in range(0, 40, 4):
        points[f"X{i}"] = [
            replace_tokens(p, 1 - largest) if n == 20 + i % 15 else p for n, p in enumerate(points[f"X{i}"])
        ]
    finding = of(judge_night(gate_night(with_outliers(points, {7: [NIGHT]}))), "X7")
    assert finding.word == ("inconclusive" if by_chance else "environment step")


def replace_series(finding: Finding) -> Finding:
    return finding.model_copy(update={"series": "", "runs": (finding.run_id,), "run_id": None})


# -- a budget of pairs


def slow(sizes: Mapping[str, float]) -> dict[str, list[Point]]:
    return {
        name: [*nights(NIGHT, seed=30 + i, node=name), point(NIGHT, 1000 * (1 - size), node=name)]
        for i, (name, size) in enumerate(sizes.items())
    }


def test_a_budget_goes_to_the_likeliest_and_names_what_it_does_not_hold() -> None:
    points = slow({"A": 0.04, "B": 0.12, "C": 0.06, "D": 0.05})
    called: list[str] = []
    report = judge_night(gate_night(points), source(-0.1, 0.0, called), max_pairs=5)
    assert called == ["B", "C"], "C begins: B alone took fewer than five"
    assert [of(report, name).word for name in "ABCD"] == ["inconclusive", "regression", "regression", "inconclusive"]
    assert "5 pairs" in of(report, "A").detail


def test_two_nights_decide_nothing_where_pairs_were_only_put_off() -> None:
    points = {
        n: [*p, point(NIGHT + 1, {"A": 900.0, "B": 700.0}[n], node=n)] for n, p in slow({"A": 0.1, "B": 0.3}).items()
    }
    inputs = gate_night(points, NIGHT + 1)
    assert of(judge_night(inputs), "A").word == "regression", "no pairs at all"
    assert of(judge_night(inputs, source(-0.1), max_pairs=1), "A").word == "inconclusive"
    assert of(judge_night(inputs, lambda series, figure: "no build"), "A").word == "regression"


def test_the_slower_build_behind_a_faster_driver_gets_the_first_pairs() -> None:
    points = fleet(30, 0.05)
    points["X8"] = [replace_tokens(p, 0.95) if p.conditions == "c2" else p for p in points["X8"]]
    inputs, called = gate_night(points), list[str]()

    def pairs(name: str, figure: GatedFigure) -> list[Pair] | None:
        called.append(name)
        return paired(-0.05 if name == "X8" else 0.0, 0.05) if figure == TOKENS else None

    report = judge_night(inputs, pairs, max_pairs=1)
    assert set(called) == {"X8"} and of(report, "X8").word == "regression"
    waiting = [finding for finding in of_causes(report) if finding.word == "inconclusive"]
    assert [f.label for f in waiting] == [*CHANGE] and re.findall(r"\d+", waiting[0].detail)[:2] == ["29", "30"]


def cleared(names: Iterable[str], word: FindingWord = "no change", change: float | None = 0.0) -> list[Finding]:
    """Findings of the first night under the driver, by pairs."""
    first = {"night": day(NIGHT), "pairs": 4, "build_change": change, "figure": TOKENS, "label": ""}
    return [Finding(series=n, run_id=f"{n[1:]}.run{NIGHT:03d}", word=word, **first) for n in names]


def due(past: Sequence[Finding], **moved: float) -> set[str]:
    """The series of 22 that want pairs for their speed in the second night under a driver that costs nothing."""
    points = {**fleet(22, after=2)}
    for name, factor in moved.items():
        points[name] = [replace_tokens(p, factor) if p.conditions == "c2" else p for p in points[name]]
    return {s.series for s in suspects(gate_night(points, NIGHT + 1, past_findings=past)) if s.figure == TOKENS}


def test_pairs_end_once_they_found_enough_builds_no_slower() -> None:
    """The others get pairs only where they lie beside the rest, in either direction."""
    all_names = [f"X{i}" for i in range(22)]
    enough, rest = cleared(all_names[:MIN_CLEARED_BUILDS]), set(all_names[MIN_CLEARED_BUILDS:])
    assert due([]) == set(all_names) and due(enough) == set()
    assert due(enough[1:]) == {"X0", *rest}, "one too few"
    assert due(enough, X20=0.95, X21=1.05) == {"X20", "X21"}
    assert due([*enough[1:], *cleared(["X0"], change=None)]) == rest, "pairs that decided nothing"
    assert due([*enough, *cleared(["X21"], "regression", -0.05)]) == rest, "one build is slower"
    other = [f.model_copy(update={"run_id": f"{f.series[1:]}.run{NIGHT - 1:03d}"}) for f in enough]
    assert due(other) == set(all_names), "they ran before the driver changed"


# -- the arms


def nulls_of(bias: float, count: int = 7, day_of: int = NIGHT, node: str = "n1", seed: int = 3) -> list[Point]:
    """Stored runs of null pairs, in ABBA order; the second side has the bias."""
    finding = []
    for i, (a, b) in enumerate(zip(noise(count, 0.003, seed), noise(count, 0.003, seed + 1), strict=True)):
        values = [("null-a", 1000 * math.exp(a)), ("null-b", 1000 * (1 + bias) * math.exp(b))]
        for j, (purpose, tokens) in enumerate(values[:: -1 if i % 2 else 1]):
            at = f"{day(day_of)}T05:{2 * i + j:02}:00Z"
            finding.append(point(day_of, tokens, run_id=f"{purpose}{day_of}-{i}", purpose=purpose, began=at, node=node))
    return finding


def test_a_bias_of_the_arms_is_no_regression_and_a_finding_of_its_own() -> None:
    suspicious = [*nights(NIGHT), point(NIGHT, 940.0)]
    alone = judge_night(gate_night({"S": suspicious}), source(-0.03))
    assert of(alone).word == "regression"
    report = judge_night(gate_night({"S": [*suspicious, *nulls_of(-0.03)]}), source(-0.03))
    assert of(report).word in ("no change", "inconclusive") and "of -3." in of(report).detail
    (arms,) = of_causes(report)
    assert (arms.word, arms.figure, exit_code([arms])) == ("biased arms", TOKENS, 0)
    assert exit_code([arms], strict=True) == 4 and arms.change == pytest.approx(-0.03, abs=0.005)


def test_null_pairs_run_for_a_regression_alone_and_no_more_than_are_needed() -> None:
    called: list[str] = []

    def nulls(name: str, figure: GatedFigure) -> Any:
        for pair in [(1000.0 + i, 1000.0 - i) for i in range(7)]:
            called.append(figure)
            yield pair

    suspicious = [*nights(NIGHT), point(NIGHT, 900.0)]
    assert of(judge_night(gate_night({"S": suspicious}), source(0.0), nulls)).word == "no change" and called == []
    finding = of(judge_night(gate_night({"S": suspicious}), source(-0.1), nulls))
    assert finding.word == "regression" and called == [TOKENS] * 7 and "7 A/A pairs" in finding.detail
    stored = judge_night(gate_night({"S": [*suspicious, *nulls_of(0.0)]}), source(-0.1), nulls)
    assert of(stored).word == "regression" and len(called) == 7, "those of the last weeks suffice"


@pytest.mark.parametrize(("stored", "more"), [(0, 14), (5, 14), (10, 11), (21, 7), (25, 7)])
def test_null_pairs_end_with_seven_to_fourteen_a_night(stored: int, more: int) -> None:
    """The arms explain the whole difference, so that none of them decides."""
    ran = iter(range(99))

    def nulls(name: str, figure: GatedFigure) -> Any:
        return ((1000.0, 970.0 + next(ran) % 2) for _ in range(99))

    points = [*nights(NIGHT), point(NIGHT, 900.0), *nulls_of(-0.03, stored)]
    assert of(judge_night(gate_night({"S": points}), source(-0.03), nulls)).word != "regression"
    assert next(ran) == more


@pytest.mark.parametrize(
    ("nulls", "counts"),
    [
        (nulls_of(-0.03, day_of=NIGHT - 20), True),
        (nulls_of(-0.03, day_of=NIGHT - 22), False),
        (nulls_of(-0.03, node="n2"), False),
        ([p.model_copy(update={"word": "failed"}) for p in nulls_of(-0.03)], False),
        ([p.model_copy(update={"evidence": "tampered"}) for p in nulls_of(-0.03)], False),
        ([p for p in nulls_of(-0.03) if p.purpose == "null-a"], False),
        ([p.model_copy(update={"purpose": "confirm-" + p.purpose[-1]}) for p in nulls_of(-0.03)], False),
        ([p.model_copy(update={TOKENS: None}) for p in nulls_of(-0.03)], False),
        (nulls_of(-0.03, 2), False),
    ],
)
def test_only_whole_valid_null_pairs_of_the_node_and_the_last_weeks_count(nulls: list[Point], counts: bool) -> None:
    suspicious = [*nights(NIGHT), point(NIGHT, 940.0)]
    report = judge_night(gate_night({"S": [*suspicious, *nulls]}), source(-0.03))
    assert (of(report).word == "regression") is not counts and bool(of_causes(report)) is counts


def test_a_run_without_its_partner_takes_none_of_another_pair() -> None:
    runs = nulls_of(-0.03, 8)
    del runs[3]  # of the second pair, which is b a
    inputs = gate_night({"S": [*nights(NIGHT), point(NIGHT, 940.0), *runs]})
    pairs = inputs.null_pairs("S", "n1", TOKENS)
    assert len(pairs) == 7 and all(a and b and 0.95 < b / a < 0.99 for a, b in pairs), "a stays a"


def test_null_pairs_change_no_level_and_no_trend() -> None:
    points = [*nights(NIGHT), point(NIGHT, 960.0)]
    quiet = judge_night(gate_night({"S": points}))
    with_nulls = judge_night(gate_night({"S": [*points, *nulls_of(0.0), *nulls_of(0.0, day_of=NIGHT - 5)]}))
    assert replace(with_nulls) == quiet

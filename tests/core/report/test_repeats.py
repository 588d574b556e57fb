"""Repeats of one plan: the median with its interval, in a terminal, in JSON and in Markdown."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.judge.collector import collect
from levelfield.measure.series import over_repeats
from levelfield.report import repeats
from levelfield.report.tables import as_json
from levelfield.report.words import scaled
from levelfield.series.findings import figure_value
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import NodeResult, RankPace, Result, Status
from levelfield.specs.run_figures import GATED
from recorded_runs import rename

RATES = [100.0, 104.0, 102.0, 98.0, 101.0]
SAME = ["one plan"] * len(RATES)


@pytest.fixture
def five(run: RunPaths) -> list[Result]:
    """Five repeats whose speeds are RATES."""
    first = collect(run)
    return [_repeat(first, number, rate) for number, rate in enumerate(RATES, start=1)]


def _repeat(first: Result, number: int, rate: float) -> Result:
    assert first.throughput
    throughput = first.throughput.model_copy(update={"tokens_per_second_per_device": rate})
    return first.model_copy(update={"run_id": f"run{number}", "repeat": number, "throughput": throughput})


def test_the_interval_is_of_the_repeats_and_of_nothing_else(five: list[Result]) -> None:
    (found,) = repeats.repeats_of(five, SAME)
    interval = next(f.interval for f in found.figures if f.column.name == "tokens_per_second_per_device")
    assert interval == over_repeats(RATES) and (interval.n, interval.median) == (5, 101.0)
    assert interval.low is not None and interval.high is not None and interval.low < 101.0 < interval.high


def test_all_three_formats_end_with_the_same_median_and_interval(five: list[Result]) -> None:
    expected = over_repeats(RATES)
    text, markdown = "\n".join(repeats.as_lines(five, SAME)), repeats.as_markdown(five, SAME)
    shown = f"[{expected.low:,.1f}, {expected.high:,.1f}]"
    assert "5 repeats, 5 valid" in text and "5 repeats, 5 valid" in markdown
    assert [line.split() for line in text.splitlines() if "tokens/s" in line] == [
        ["tokens/s/device", "101.0", *shown.split()]
    ]
    assert f"| tokens/s/device | 101.0 | {shown} |" in markdown.splitlines()
    assert "interval of 5 values: 95%, student-t about the mean" in text
    *rows, last = json.loads(as_json(five, SAME))
    assert [row["repeat"] for row in rows] == [1, 2, 3, 4, 5]
    assert last["schema"] == "levelfield.repeats/1" and last["runs"] == [r.run_id for r in five]
    figure = last["figures"]["tokens_per_second_per_device"]
    assert (figure["median"], figure["low"], figure["high"], figure["unit"]) == (
        101.0, expected.low, expected.high, "1/s",
    )  # fmt: skip
    assert max(map(len, text.splitlines())) <= 80


def test_the_interval_of_mfu_ends_at_all_of_the_peak(five: list[Result]) -> None:
    values = iter([0.4, 0.55])
    column = replace(repeats.FIGURE_COLUMNS["mfu_palm"], read=lambda result: next(values))
    (found,) = repeats.repeats_of(five[:2], SAME[:2], (column,))
    assert found.figures[0].interval.high == 1.0


def test_what_the_nodes_and_ranks_of_one_run_did_does_not_part_repeats(five: list[Result]) -> None:
    nodes = (NodeResult.model_construct(node=0, name="a"),)
    pace = RankPace.model_construct(waited=())
    other = five[1].model_copy(update={"preflight": "6 TFLOP/s", "pace": pace, "machines": nodes})
    (found,) = repeats.repeats_of([five[0], other], SAME[:2])
    assert len(found.results) == 2


def test_a_run_that_is_not_valid_is_counted_and_gives_no_figure(five: list[Result]) -> None:
    invalid = five[1].model_copy(update={"status": Status(word="invalid", reasons=("x",))})
    (found,) = repeats.repeats_of([five[0], invalid, *five[2:]], SAME)
    assert (found.valid, len(found.results)) == (4, 5)
    assert found.figures[0].interval == over_repeats([RATES[0], *RATES[2:]])
    text = "\n".join(repeats.as_lines([five[0], invalid], SAME[:2]))
    assert "no figure over repeats: 1 valid run(s), expected at least 2" in text


@pytest.mark.parametrize(
    "change", [{"case": "other"}, {"micro_batch": 3}, {"framework_version": "9"}, {"compile": True}, {"graph": True}]
)
def test_runs_of_different_plans_are_no_repeats(five: list[Result], change: dict[str, object]) -> None:
    other = five[1].model_copy(update=change)
    assert repeats.repeats_of([five[0], other], SAME[:2]) == []
    assert repeats.as_lines([five[0], other], SAME[:2]) == [] and repeats.as_markdown([five[0]], SAME[:1]) == ""


def test_a_value_that_is_not_finite_is_refused(five: list[Result]) -> None:
    with pytest.raises(ValueError, match="all finite"):
        repeats.as_lines([five[0], _repeat(five[0], 2, float("nan"))], SAME[:2])


def test_report_of_repeats_shows_them(run: RunPaths, five: list[Result], capsys: pytest.CaptureFixture[str]) -> None:
    other = run.root.with_name(run.root.name.replace("abcdef", "fedcba"))
    _copy(run, other)
    assert main(["report", str(run.root), str(other), "--format", "markdown"]) == 0
    assert "2 repeats, 2 valid" in capsys.readouterr().out
    assert main(["report", str(run.root), str(other)]) == 0
    assert "over repeats:" in capsys.readouterr().out


def _copy(run: RunPaths, other: Path) -> None:
    shutil.copytree(run.root, other)
    rename(RunPaths(other), repeat=2)


def test_a_run_without_its_plan_at_hand_is_no_repeat(five: list[Result]) -> None:
    assert repeats.repeats_of(five[:2], [None, None]) == []
    (found,) = repeats.repeats_of(five[:3], ["one plan", None, "one plan"])
    assert [result.run_id for result in found.results] == ["run1", "run3"]


@pytest.mark.parametrize("change", [{"threads": 7}, {"environment": {"ONEDNN_VERBOSE": "1"}}])
def test_runs_with_other_threads_or_variables_are_two_trainings(
    run: RunPaths, change: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    other = RunPaths(run.root.with_name(run.root.name.replace("abcdef", "fedcba")))
    _copy(run, other.root)
    plan = json.loads(other.plan.read_text())
    plan["tuning"] |= change
    other.plan.write_text(json.dumps(plan))
    for form in ("table", "markdown", "json"):
        assert main(["report", str(run.root), str(other.root), "--format", form]) == 0
        assert "repeats, " not in capsys.readouterr().out, form


def test_runs_with_other_variables_of_the_shell_are_two_trainings(five: list[Result]) -> None:
    def beside(name: str) -> list[repeats.Repeats]:
        other = five[1].model_copy(update={"inherited": {**five[1].inherited, name: "3"}})
        return repeats.repeats_of([five[0], other], SAME[:2])

    assert beside("OMP_NUM_THREADS") == [] and len(beside("SHLVL")) == 1


def test_mfu_by_two_measured_peaks_has_no_median(five: list[Result]) -> None:
    used = tuple(u.model_copy(update={"peak_tflops": 0.5, "value": 0.3}) for u in five[0].utilisation)
    first = five[0].model_copy(update={"utilisation": used})
    twice = [u.model_copy(update={"peak_tflops": 1.0, "value": 0.15}) for u in used]
    second = five[1].model_copy(update={"utilisation": tuple(twice)})
    (found,) = repeats.repeats_of([first, second], SAME[:2])
    assert "mfu_palm" not in {figure.column.name for figure in found.figures}
    said = "\n".join(repeats.as_lines([first, second], SAME[:2]))
    assert "MFU (palm): no median, as the runs refer to 2 different measured peaks" in said
    (same,) = repeats.repeats_of([first, first.model_copy(update={"run_id": "b"})], SAME[:2])
    assert "mfu_palm" in {figure.column.name for figure in same.figures}


def test_a_figure_without_decimals_is_a_whole_number() -> None:
    assert scaled(1234.6, 1, 0) == "1,235" and scaled(1234.6, 100, None) == "12.35" and scaled(None, 1, 0) == "-"
    whole = replace(GATED["joules_per_token"], digits=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GATED, "joules_per_token", whole)
        assert figure_value(2.6, "joules_per_token") == "3"

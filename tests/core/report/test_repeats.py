"""Repeats of one plan: the median with its interval, in a terminal, in JSON and in Markdown."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from compared_records import other_use
from golden_files import golden
from levelfield.cli.main import main
from levelfield.judge.collector import collect
from levelfield.measure.series import median_interval
from levelfield.report import repeats
from levelfield.report.tables import format_json
from levelfield.report.words import format_number
from levelfield.series.findings import figure_value
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import NodeResult, RankPace, Result, Status
from levelfield.specs.run_figures import GATED_FIGURES, MFU_NAME
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
    (group,) = repeats.group_repeats(five, SAME)
    interval = next(f.interval for f in group.figures if f.column.name == "tokens_per_second_per_device")
    assert interval == median_interval(RATES) and (interval.n, interval.median) == (5, 101.0)
    assert interval.low is not None and interval.high is not None and interval.low < 101.0 < interval.high


def with_two_peaks(five: list[Result]) -> list[Result]:
    """Return two repeats whose MFU refers to different measured peaks."""
    peaks = {0.5: 0.3, 1.0: 0.15}
    return [
        result.model_copy(
            update={
                "utilisation": tuple(
                    u.model_copy(update={"peak_tflops": peak, "value": value}) for u in result.utilisation
                )
            }
        )
        for result, (peak, value) in zip(five, peaks.items(), strict=False)
    ]


def invalid(result: Result) -> Result:
    return result.model_copy(update={"status": Status(word="invalid", reasons=("x",))})


def test_repeats_are_printed_as_they_were_read(five: list[Result]) -> None:
    """Several repeats; one valid run; and two measured peaks, between which an MFU has no median."""
    parts = []
    for results in (five, [five[0], invalid(five[1])], with_two_peaks(five)):
        lines, plans = repeats.repeat_lines(results, SAME[: len(results)]), SAME[: len(results)]
        assert max(map(len, lines)) <= 80
        parts += ["\n".join(lines), "\n".join([*repeats.repeat_lines(results, plans, is_markdown=True), ""])]
    text = "\n".join(parts)
    assert text == golden("report/repeats.md", text)


def test_all_three_formats_end_with_the_same_median_and_interval(five: list[Result]) -> None:
    expected = median_interval(RATES)
    ends = f"[{expected.low:,.1f}, {expected.high:,.1f}]"
    (line,) = [line for line in repeats.repeat_lines(five, SAME) if "tokens/s" in line]
    (row,) = [row for row in repeats.repeat_lines(five, SAME, is_markdown=True) if "tokens/s" in row]
    assert line.split() == row.replace("|", "").split() == ["tokens/s/device", "101.0", *ends.split()]
    *rows, last = json.loads(format_json(five, SAME))
    assert [row["repeat"] for row in rows] == [1, 2, 3, 4, 5]
    assert last["schema"] == "levelfield.repeats/1" and last["runs"] == [r.run_id for r in five]
    figure = last["figures"]["tokens_per_second_per_device"]
    assert (figure["median"], figure["low"], figure["high"], figure["unit"]) == (
        101.0, expected.low, expected.high, "1/s",
    )  # fmt: skip


def test_the_interval_of_mfu_ends_at_all_of_the_peak(five: list[Result]) -> None:
    values = iter([0.4, 0.55, 0.95])
    column = replace(repeats.FIGURE_COLUMNS[MFU_NAME], read=lambda result: next(values))
    (group,) = repeats.group_repeats(five[:3], SAME[:3], (column,))
    assert group.figures[0].interval.high == 1.0


def test_what_the_nodes_and_ranks_of_one_run_did_does_not_part_repeats(five: list[Result]) -> None:
    unknown = dict.fromkeys(("word", "detail", "kernel", "cores", "memory_bytes"))
    nodes = (NodeResult.model_validate({"node": 0, "name": "a", "missing": (), "software": {}, **unknown}),)
    pace = RankPace(steps=10, stragglers=())
    other = five[1].model_copy(update={"preflight": "6 TFLOP/s", "pace": pace, "machines": nodes})
    (group,) = repeats.group_repeats([five[0], other], SAME[:2])
    assert len(group.results) == 2


def test_a_run_that_is_not_valid_is_counted_and_gives_no_figure(five: list[Result]) -> None:
    (group,) = repeats.group_repeats([five[0], invalid(five[1]), *five[2:]], SAME)
    assert (group.valid_count, len(group.results)) == (4, 5)
    assert group.figures[0].interval == median_interval([RATES[0], *RATES[2:]])
    (alone,) = repeats.group_repeats([five[0], invalid(five[1])], SAME[:2])
    assert (alone.valid_count, alone.figures) == (1, ())


def disturbed(result: Result) -> Result:
    return Result.model_validate({**result.model_dump(), "other_use": other_use(1.72, 2)})


def test_a_disturbed_repeat_gives_no_figure_beside_a_quiet_one(five: list[Result]) -> None:
    results = [five[0], disturbed(five[1]), *five[2:]]
    (group,) = repeats.group_repeats(results, SAME)
    assert (group.valid_count, group.disturbed_count) == (5, 1)
    assert group.figures[0].interval == median_interval([RATES[0], *RATES[2:]])
    text = "\n".join(repeats.repeat_lines(results, SAME))
    assert "5 valid, 1 of them disturbed" in text and "not counted: 1 disturbed" in text
    assert json.loads(format_json(results, SAME))[-1]["disturbed"] == 1
    alone = "\n".join(repeats.repeat_lines(results[:2], SAME[:2]))
    assert "1 quiet run" in alone and "tokens/s" not in alone


def test_disturbed_repeats_alone_have_figures_and_the_word(five: list[Result]) -> None:
    results = [*map(disturbed, five)]
    (group,) = repeats.group_repeats(results, SAME)
    assert group.disturbed_count == 5 and group.figures[0].interval == median_interval(RATES)
    text = "\n".join(repeats.repeat_lines(results, SAME))
    assert "5 of them disturbed" in text and "not counted" not in text


@pytest.mark.parametrize(
    "change", [{"case": "other"}, {"micro_batch": 3}, {"framework_version": "9"}, {"compile": True}, {"graph": True}]
)
def test_runs_of_different_plans_are_no_repeats(five: list[Result], change: dict[str, object]) -> None:
    other = five[1].model_copy(update=change)
    assert repeats.group_repeats([five[0], other], SAME[:2]) == []
    assert repeats.repeat_lines([five[0], other], SAME[:2]) == []
    assert repeats.repeat_lines([five[0]], SAME[:1], is_markdown=True) == []


def test_a_value_that_is_not_finite_is_refused(five: list[Result]) -> None:
    with pytest.raises(ValueError, match="all finite"):
        repeats.repeat_lines([five[0], _repeat(five[0], 2, float("nan"))], SAME[:2])


def test_report_of_repeats_shows_them(run: RunPaths, five: list[Result], capsys: pytest.CaptureFixture[str]) -> None:
    other = run.root.with_name(run.root.name.replace("abcdef", "fedcba"))
    _copy(run, other)
    for form in ("markdown", "table"):
        assert main(["report", str(run.root), str(other), "--format", form]) == 0
        assert "2 repeats" in capsys.readouterr().out, form


def _copy(run: RunPaths, other: Path) -> None:
    shutil.copytree(run.root, other)
    rename(RunPaths(other), repeat=2)


def test_a_run_without_its_plan_at_hand_is_no_repeat(five: list[Result]) -> None:
    assert repeats.group_repeats(five[:2], [None, None]) == []
    (group,) = repeats.group_repeats(five[:3], ["one plan", None, "one plan"])
    assert [result.run_id for result in group.results] == ["run1", "run3"]


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
    def beside(name: str) -> list[repeats.RepeatGroup]:
        other = five[1].model_copy(update={"inherited": {**five[1].inherited, name: "3"}})
        return repeats.group_repeats([five[0], other], SAME[:2])

    assert beside("OMP_NUM_THREADS") == [] and len(beside("SHLVL")) == 1


def test_mfu_by_two_measured_peaks_has_no_median(five: list[Result]) -> None:
    first, second = with_two_peaks(five)
    (group,) = repeats.group_repeats([first, second], SAME[:2])
    assert MFU_NAME not in {figure.column.name for figure in group.figures}
    (same,) = repeats.group_repeats([first, first.model_copy(update={"run_id": "b"})], SAME[:2])
    assert MFU_NAME in {figure.column.name for figure in same.figures}


def test_a_figure_without_decimals_is_a_whole_number() -> None:
    assert (
        format_number(1234.6, 0) == "1,235"
        and format_number(1234.6, None, 100) == "12.35"
        and format_number(None, 0) == "-"
    )
    whole = replace(GATED_FIGURES["joules_per_token"], digits=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GATED_FIGURES, "joules_per_token", whole)
        assert figure_value(2.6, "joules_per_token") == "3"

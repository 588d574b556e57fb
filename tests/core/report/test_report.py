"""Reports: what fits a terminal, what programs read, and a reason wherever a figure is missing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable

import pytest
from fuzzing import ROOT
from golden_files import golden
from levelfield.judge.collector import collect
from levelfield.report import result_words, words
from levelfield.report.costs import format_results
from levelfield.report.one_run import result_lines, run_report
from levelfield.report.tables import format_json, format_markdown, format_text
from levelfield.report.words import duration
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Figure, ReadingAround, Result
from levelfield.specs.vendor import HOST_SHARE
from recorded_runs import Event, break_off, change_plan, change_steps, edit, fail


def interrupt(run: RunPaths) -> None:
    break_off(run, 7)
    fail(run, cause="interrupted", evidence="interrupted by the user")


def lower_the_probed_peak(run: RunPaths) -> None:
    """The probe lies low: the run is faster than the peak, by each formula."""
    peak = read_plan(run).peak
    change_plan(run, peak=peak.model_copy(update={"tflops": 1e-6, "source": "measured: a probe that lies low"}))


def lose_power_readings(run: RunPaths) -> None:
    """The tool fails in most of the run."""

    def fail_late(lines: list[Event]) -> list[Event]:
        reasons = {"power_watts": "acme-smi ended with exit code 1"}
        for line in lines[len(lines) // 4 :]:
            line["samples"] = [{**sample, "power_watts": None, "reasons": reasons} for sample in line["samples"]]
        return lines

    edit(run.telemetry, fail_late)


def count_wrong_tokens(run: RunPaths) -> None:
    change_steps(run, lambda event: event.update(tokens=31))


SCENES: dict[str, Callable[[RunPaths], None]] = {
    "valid": lambda run: None,
    "interrupted": interrupt,
    "above_the_peak": lower_the_probed_peak,
    "without_power": lose_power_readings,
    "wrong_tokens": count_wrong_tokens,
}


def screen(result: Result) -> str:
    return "\n".join(result_lines(result))


def report_rows(report: str, label: str) -> list[list[str]]:
    """Return the cells behind the label, of each row of report.md with it."""
    rows = [line.strip("|").split(" | ") for line in report.splitlines() if line.startswith(f"| {label} |")]
    return [[cell.strip() for cell in row[1:]] for row in rows]


@pytest.fixture
def valid(run: RunPaths) -> Result:
    return collect(run)


@pytest.fixture
def interrupted(run: RunPaths, valid: Result) -> Result:
    """The same run, interrupted at step 7; it asks for `valid` first, which is not to be broken."""
    interrupt(run)
    return collect(run)


@pytest.fixture
def long(valid: Result) -> Result:
    """Long names and long sentences."""
    status = valid.status.model_copy(
        update={"word": "invalid", "reasons": ("steps: " + "rank 1: step 5 missing " * 9,)}
    )
    names = {"case": "flagperf_llama3_8b_with_a_long_tail", "chip": "A100-SXM4-80GB-of-somebody-with-a-long-name"}
    return valid.model_copy(update={**names, "status": status, "deviations": ("torch 2.5.1 was asked for " * 5,)})


def too_long(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > 80]


@pytest.mark.parametrize("scene", SCENES)
def test_screen_and_report_md_are_as_they_were_read(run: RunPaths, scene: str) -> None:
    SCENES[scene](run)
    result = collect(run)
    text = f"{screen(result)}\n\n{run_report(result, read_plan(run))}"
    assert text == golden(f"report/{scene}.md", text)
    assert "None" not in text and "nan" not in text


def test_the_sample_of_the_readme_has_the_rows_of_a_screen(valid: Result) -> None:
    """It is of a run on a host, whose energy has no reading, and ends with its folder."""
    alignment = valid.alignment.model_copy(update={"limits": "tolerance"})
    lines = result_lines(valid.model_copy(update={"alignment": alignment, "warnings": ()}))
    sample = (
        (ROOT / "README.md")
        .read_text(encoding="utf-8")
        .partition("## What a run prints")[2]
        .partition("\n\nOn two ")[0]
    )
    labels = [line[4:13].strip() for line in sample.strip("\n").splitlines()[1:]]
    screen_labels = [line[:9].strip() for line in lines[1:] if not line.startswith(("energy", " "))]
    assert [label for label in labels if label] == [*screen_labels, "run"]


def test_tables_fit_eighty_columns(valid: Result, interrupted: Result, long: Result) -> None:
    for results in ([valid], [valid, interrupted], [long, valid], [long, interrupted, valid]):
        assert too_long(format_text(results)) == []


def test_one_run_in_full_fits_eighty_columns(valid: Result, interrupted: Result, long: Result) -> None:
    for result in (valid, interrupted, long):
        assert too_long(screen(result)) == []


def test_wrapping_loses_no_word(long: Result) -> None:
    for text, sentences in ((format_text([long, long]), 2), (screen(long), 1)):
        words = text.split()
        assert words.count("missing") == words.count("rank") == 9 * sentences and long.case in words


def test_a_rate_above_the_peak_does_not_count(run: RunPaths) -> None:
    lower_the_probed_peak(run)
    result = collect(run)
    assert result.status.word == "valid" and all(use.value is None for use in result.utilisation)
    assert "%" not in format_text([result]).split("MFU")[1].split("GiB")[0]


@pytest.mark.parametrize(
    ("alignment", "status", "says"),
    [
        ({"verdict": "aligned"}, {}, None),
        ({"verdict": "different"}, {}, "`align diagnose {}` names the first step"),
        ({"verdict": "not comparable", "reason": "these differ: initial_weights"}, {}, "`framework check fake` tells"),
        ({"verdict": "not comparable", "reason": "these differ: tokens"}, {}, None),
        ({"verdict": "different", "reason": "identity: (initial_weights: found"}, {}, "`framework check fake` tells"),
        ({"verdict": "different", "reason": "identity: (tokens: found"}, {}, "`align diagnose"),
        ({"verdict": "unchecked"}, {"word": "failed", "failure": "error"}, "logs/ of the run has all that each rank"),
        ({"verdict": "unchecked"}, {"word": "failed", "failure": "killed"}, None),
    ],
)
def test_a_training_that_is_not_as_expected_says_what_to_do(
    alignment: dict[str, str], status: dict[str, str], says: str | None, valid: Result
) -> None:
    parts = {
        "alignment": valid.alignment.model_copy(update=alignment),
        "status": valid.status.model_copy(update=status),
    }
    text = " ".join(screen(valid.model_copy(update=parts)).split())
    assert (f"next: {says.format(valid.run_id)}" in text) if says else ("next:" not in text)


def test_memory_of_the_whole_machine_is_never_a_runs(valid: Result) -> None:
    """A processor's run that failed before its first step: its processes gave no figure, the machine's counter did."""
    unknown = Figure(value=None, unit="B", reason="no step was finished")
    peaks = dict.fromkeys(("process_peak", "reserved_peak", "allocated_peak"), unknown)
    memory = valid.memory.model_copy(update={**peaks, "device_used_peak": Figure(value=2**30, unit="B")})
    on_processor = valid.model_copy(update={"device_is": HOST_SHARE, "memory": memory})
    assert result_words.first_known_memory(on_processor) == ("process", None)
    assert result_words.first_known_memory(on_processor.model_copy(update={"device_is": "card"})) == (
        "device used",
        2**30,
    )


def test_report_md_says_whose_memory_each_row_is_and_which_one_counts(run: RunPaths, valid: Result) -> None:
    """A processor's counter is of the whole machine; there the largest process is what runs are compared by."""
    peaks = {
        name: Figure(value=n * 2**30, unit="B")
        for n, name in enumerate(("device_used_peak", "reserved_peak", "allocated_peak", "process_peak"), start=1)
    }
    memory = valid.memory.model_copy(update=peaks)
    foreign = "peak of all programs on the machine, or in its control group; no figure of this run"
    headline = "peak; what runs are compared by"
    for device_is, name, device, process in (
        (HOST_SHARE, "whole machine", foreign, headline),
        ("card", "device used", headline, "peak"),
    ):
        result = valid.model_copy(update={"device_is": device_is, "memory": memory})
        report = run_report(result, read_plan(run))
        assert report_rows(report, f"memory, {name}") == [["1.00 GiB", device]], device_is
        assert report_rows(report, "memory, largest process") == [["4.00 GiB", process]], device_is
        (counts,) = [figure.value for _, figure, how in result_words.memory_rows(result) if how == headline]
        assert counts == result_words.headline_memory(result).value, device_is


def test_no_energy_is_shown_where_none_can_be(run: RunPaths, valid: Result) -> None:
    """Most processors give none, and a run without a rate has none."""
    lose_power_readings(run)
    result = collect(run)
    assert result.status.word == "valid" and "energy" in screen(result)
    assert "energy" not in screen(result.model_copy(update={"device_is": HOST_SHARE}))
    assert "energy" not in screen(result.model_copy(update={"throughput": None}))


@pytest.mark.parametrize(
    ("stored", "printed"),
    [
        (
            "trend: step time drifts by -114.4% over the window (p = 4e-07)",
            "trend: step time drifts by -114.4% of its median over the window, on a line from 1.57 to 0.428 times it "
            "(p = 4e-07)",
        ),
        (
            "change point: step time shifts by +7.5% at step 6 (p = 0.001)",
            "change point: step time shifts by +7.5% of the window's median at step 6 (p = 0.001)",
        ),
        ("change point: as it is (p = 0.1)", "change point: as it is (p = 0.1)"),
    ],
)
def test_flags_of_step_times_refer_to_the_median(stored: str, printed: str, run: RunPaths, valid: Result) -> None:
    assert valid.throughput is not None
    step = valid.throughput.step_seconds.model_copy(update={"flags": (stored,)})
    result = valid.model_copy(update={"throughput": valid.throughput.model_copy(update={"step_seconds": step})})
    assert f"flagged: {printed}" in " ".join(screen(result).split())
    assert report_rows(run_report(result, read_plan(run)), "step times") == [["flagged", printed]]
    assert json.loads(format_json([result], [None]))[0]["throughput"]["step_seconds"]["flags"] == [stored]


def test_report_md_says_what_a_load_is(run: RunPaths, valid: Result) -> None:
    load = ReadingAround(what="load", unit="1", in_step=0.92, in_window=0.9)
    power = ReadingAround(what="power", unit="W", in_step=300.0, in_window=290.0)
    disturbance = valid.disturbance
    assert disturbance
    slowest = disturbance.slowest.model_copy(update={"telemetry": (load, power)})
    result = valid.model_copy(update={"disturbance": disturbance.model_copy(update={"slowest": slowest})})
    readings = "load 0.92, the busy part of the devices' time (window: 0.90); power 300.00 W (window: 290.00)"
    assert report_rows(run_report(result, read_plan(run)), "around it") == [["telemetry", readings]]


def test_no_results_are_no_fault() -> None:
    assert format_text([]) == "\n" and json.loads(format_json([], [])) == []
    assert list(csv.DictReader(io.StringIO(format_results("csv", [], [])))) == []


def test_json_holds_every_figure_in_full(valid: Result, interrupted: Result) -> None:
    rows = json.loads(format_json([valid, interrupted], [None, None]))
    assert rows[0].pop("schema") == "levelfield.result/1"
    assert Result.model_validate(rows[0]) == valid
    assert rows[1]["status"]["failure"] == "interrupted" and rows[1]["throughput"] is None


def test_csv_has_units_in_its_names_and_nothing_for_what_is_missing(valid: Result, interrupted: Result) -> None:
    first, second = csv.DictReader(io.StringIO(format_results("csv", [valid, interrupted], [None, None])))
    assert float(first["tokens_per_second_per_device"]) == 64 and float(first["step_seconds_median"]) == 0.5
    assert float(first["joules_per_token"]) == pytest.approx(1.5625)
    assert (
        second["tokens_per_second_per_device"] == second["joules_per_token"] == ""
        and second["failure"] == "interrupted"
    )


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_csv_columns_do_not_depend_on_which_run_comes_first(
    valid: Result, interrupted: Result, order: tuple[int, int]
) -> None:
    results = [(valid, interrupted)[i] for i in order]
    rows = list(csv.DictReader(io.StringIO(format_results("csv", results, [None] * len(results)))))
    assert [row["status"] for row in rows] == [r.status.word for r in results]
    assert next(row for row in rows if row["status"] == "valid")["mfu_megatron/1"] != ""


def test_markdown_is_a_table_with_the_reasons_below(valid: Result, interrupted: Result) -> None:
    head, rule, *rest = format_markdown([valid, interrupted]).splitlines()
    assert {line.count("|") for line in (head, rule, *rest[:2])} == {len(result_words.COLUMNS) + 1}
    assert rest[-1].endswith(interrupted.status.reasons[-1]) and interrupted.run_id in rest[-1]
    assert "| - |" in rest[1]


def test_a_bar_in_a_text_does_not_break_the_table(run: RunPaths, valid: Result) -> None:
    odd = valid.model_copy(update={"chip": "A|B"})
    head, _, row = format_markdown([odd]).splitlines()[:3]
    assert row.replace("\\|", "").count("|") == head.count("|")
    energy = valid.energy.model_copy(update={"joules_per_token": Figure(value=None, unit="J/token", reason="a | b")})
    report = run_report(odd.model_copy(update={"energy": energy}), read_plan(run))
    rows = [line for line in report.splitlines() if line.startswith("| energy")]
    assert [line.replace("\\|", "").count("|") for line in rows] == [4]


def test_the_report_has_the_inherited_variables_that_may_matter(run: RunPaths, valid: Result) -> None:
    plan, many = read_plan(run), {f"X{number}_CERT": "/etc/ssl" for number in range(77)}
    for inherited, row in (
        ({"CUDA_HOME": "/cuda", "LD_X": "a|b", **many}, r"CUDA_HOME=/cuda, LD_X=a\|b, 77 more: provenance.json"),
        ({"CUDA_HOME": "/cuda"}, "CUDA_HOME=/cuda"),
        (many, "77 that are not known to change a training: provenance.json"),
    ):
        text = run_report(valid.model_copy(update={"inherited": inherited}), plan)
        assert report_rows(text, "inherited variables") == [[row]]
    assert "inherited variables" not in run_report(valid.model_copy(update={"inherited": {}}), plan)


def test_a_table_has_the_reasons_of_an_invalid_run(run: RunPaths) -> None:
    count_wrong_tokens(run)
    result = collect(run)
    assert result.status.word == "invalid" and result.status.reasons
    assert all(reason in " ".join(format_text([result]).split()) for reason in result.status.reasons)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3599, "59:59"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.0, "0.0"), (1234.56, "1,234.6")])
def test_numbers(value: float | None, text: str) -> None:
    assert words.format_number(value) == text


class TestRunsOfDifferentCases:
    """Each training has its own table with a heading: only cells of one table may be compared."""

    @pytest.fixture
    def mixed(self, valid: Result) -> list[Result]:
        """Runs of two cases, given in turn."""
        other = {"case": "llama", "identity": valid.identity.model_copy(update={"work": "sha256:" + "8" * 64})}
        return [valid, valid.model_copy(update=other), valid.model_copy(update={"run_id": "again"})]

    def test_their_tables_are_as_they_were_read(self, mixed: list[Result]) -> None:
        text = f"{format_text(mixed)}\n{format_markdown(mixed)}"
        assert text == golden("report/two_trainings.md", text)

    def test_text_has_a_table_for_each(self, mixed: list[Result]) -> None:
        first, second = format_text(mixed).split("\n\n")
        assert "llama" not in first and "tiny" not in second
        assert first.count("64.0") == 2 and second.count("64.0") == 1 and too_long(format_text(mixed)) == []

    def test_markdown_has_a_table_for_each(self, mixed: list[Result]) -> None:
        first, second = format_markdown(mixed).split("\n\n### ")
        assert first.count("| tiny |") == 2 and second.count("| llama |") == second.count("\n|---") == 1

    def test_other_work_under_the_same_name_is_told_apart(self, mixed: list[Result]) -> None:
        same = [result.model_copy(update={"case": "tiny"}) for result in mixed]
        assert "work 88888888" in format_text(same) and "work 88888888" in format_markdown(same)

    @pytest.mark.parametrize("change", [{"window": (4, 12)}, {"scale": "full"}])
    def test_another_window_or_scale_is_another_table(self, valid: Result, change: dict[str, object]) -> None:
        assert format_text([valid, valid.model_copy(update=change)]).count("steps ") == 2

    def test_runs_of_one_training_have_no_heading(self, valid: Result) -> None:
        assert "steps" not in format_text([valid, valid]) and "###" not in format_markdown([valid, valid])

    def test_reasons_stand_below_their_own_table(self, mixed: list[Result], interrupted: Result) -> None:
        first, second = format_text([interrupted, mixed[1]]).split("\n\nllama (smoke), ")
        assert interrupted.status.reasons[-1] in first and "interrupted" not in second

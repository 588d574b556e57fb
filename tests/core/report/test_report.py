"""Reports: what fits a terminal, what programs read, and a reason wherever a figure is missing."""

from __future__ import annotations

import csv
import io
import json

import pytest
from levelfield.judge.collector import collect
from levelfield.report import result_words, words
from levelfield.report.costs import results_as
from levelfield.report.one_run import result_lines, run_report
from levelfield.report.tables import as_json, as_markdown, as_text
from levelfield.report.words import duration
from levelfield.rundir.directory import read_plan, write_atomically
from levelfield.specs.base import dump
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Figure, ReadingAround, Result
from levelfield.specs.vendor import HOST_SHARE
from recorded_runs import Event, break_off, change_steps, edit, fail, seal_again


@pytest.fixture
def valid(run: RunPaths) -> Result:
    return collect(run)


@pytest.fixture
def interrupted(run: RunPaths, valid: Result) -> Result:
    """The same run, interrupted at step 7; it asks for `valid` first, which is not to be broken."""
    break_off(run, 7)
    fail(run, cause="interrupted", evidence="interrupted by the user")
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


def test_tables_fit_eighty_columns(valid: Result, interrupted: Result, long: Result) -> None:
    for results in ([valid], [valid, interrupted], [long, valid], [long, interrupted, valid]):
        assert too_long(as_text(results)) == []


def test_one_run_in_full_fits_eighty_columns(valid: Result, interrupted: Result, long: Result) -> None:
    for result in (valid, interrupted, long):
        assert too_long("\n".join(result_lines(result))) == []


def test_wrapping_loses_no_word(long: Result) -> None:
    for text in (as_text([long, long]), "\n".join(result_lines(long))):
        assert " ".join(text.split()).count("rank 1: step 5 missing") % 9 == 0
        assert long.case in text and "rank 1" in text


def test_a_run_in_full_says_its_figures(valid: Result) -> None:
    text = "\n".join(result_lines(valid))
    for said in ("tiny (smoke)", "fake 1.2.3", "DP2TP1PP1", "valid", "64.0 tokens/s/device", "500.0 ms", "2 TFLOP/s"):
        assert said in text
    assert "measured: a probe of the tests" in text


def test_a_rate_above_the_peak_is_named_and_does_not_count(run: RunPaths) -> None:
    """A probe that lies low: the run is faster than the peak, by each formula."""
    plan = read_plan(run)
    peak = plan.peak.model_copy(update={"tflops": 1e-6, "source": "measured: a probe that lies low"})
    write_atomically(run.plan, dump(plan.model_copy(update={"peak": peak})))
    seal_again(run)
    found = collect(run)
    assert found.status.word == "valid" and all(each.value is None for each in found.utilisation)
    text = " ".join("\n".join(result_lines(found)).split())
    said = "the probe gave less than the run itself reaches, and is refused (measured: a probe that lies low)"
    assert text.count(said) == 3 and "MFU - palm/1" in text and "MFU megatron/1: " in text
    assert said in run_report(found, plan) and "%" not in as_text([found]).split("MFU")[1].split("GiB")[0]


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
    text = " ".join("\n".join(result_lines(valid.model_copy(update=parts))).split())
    assert (f"next: {says.format(valid.run_id)}" in text) if says else ("next:" not in text)


def test_memory_of_the_whole_machine_is_never_a_runs(valid: Result) -> None:
    """A processor's run that failed before its first step: its processes gave no figure, the machine's counter did."""
    unknown = Figure(value=None, unit="B", reason="no step was finished")
    peaks = dict.fromkeys(("process_peak", "reserved_peak", "allocated_peak"), unknown)
    memory = valid.memory.model_copy(update={**peaks, "device_used_peak": Figure(value=2**30, unit="B")})
    on_processor = valid.model_copy(update={"device_is": HOST_SHARE, "memory": memory})
    assert result_words.worst_memory(on_processor) == ("process", None)
    assert result_words.worst_memory(on_processor.model_copy(update={"device_is": "card"})) == ("device used", 2**30)


def test_report_md_says_whose_memory_each_row_is_and_which_one_counts(run: RunPaths, valid: Result) -> None:
    """A processor's counter is of the whole machine; there the largest process is what runs are compared by."""
    known = {
        name: Figure(value=n * 2**30, unit="B")
        for n, name in enumerate(("device_used_peak", "reserved_peak", "allocated_peak", "process_peak"), start=1)
    }
    memory = valid.memory.model_copy(update=known)
    own = "peak of all programs on the machine, or in its control group; no figure of this run"
    for device_is, first, last in (
        (HOST_SHARE, f"| memory, whole machine | 1.00 GiB | {own} |", "peak; what runs are compared by"),
        ("card", "| memory, device used | 1.00 GiB | peak; what runs are compared by |", "peak"),
    ):
        found = valid.model_copy(update={"device_is": device_is, "memory": memory})
        text = run_report(found, read_plan(run))
        assert first in text and f"| memory, largest process | 4.00 GiB | {last} |" in text, device_is
        headline = result_words.headline_memory(found).value
        (counts,) = [figure.value for _, figure, how in result_words.memory_rows(found) if how.endswith("compared by")]
        assert counts == headline, device_is


def test_the_screen_shows_the_energy_or_why_it_is_unknown(run: RunPaths, valid: Result) -> None:
    assert "energy   1.562 J/token of the chips, 200.0 W together" in "\n".join(result_lines(valid))

    def failing(lines: list[Event]) -> list[Event]:
        """The tool fails in most of the run."""
        reasons = {"power_watts": "acme-smi ended with exit code 1"}
        for line in lines[len(lines) // 4 :]:
            line["samples"] = [{**each, "power_watts": None, "reasons": reasons} for each in line["samples"]]
        return lines

    edit(run.telemetry, failing)
    found = collect(run)
    assert found.status.word == "valid"
    text = " ".join("\n".join(result_lines(found)).split())
    assert "energy unknown: device 0: readings cover" in text and "(acme-smi ended with exit code 1)" in text
    on_host = found.model_copy(update={"device_is": HOST_SHARE})
    assert "energy" not in "\n".join(result_lines(on_host)), "most processors give none"
    assert "energy" not in "\n".join(result_lines(found.model_copy(update={"throughput": None})))


def test_a_drift_of_more_than_all_of_the_median_is_told_by_its_ends(run: RunPaths, valid: Result) -> None:
    assert valid.throughput is not None
    flags = ("trend: step time drifts by -114.4% over the window (p = 4e-07)", "change point: as it is (p = 0.1)")
    step = valid.throughput.step_seconds.model_copy(update={"flags": flags})
    found = valid.model_copy(update={"throughput": valid.throughput.model_copy(update={"step_seconds": step})})
    said = "drifts by -114.4% of its median over the window, on a line from 1.57 to 0.428 times it (p = 4e-07)"
    assert said in " ".join("\n".join(result_lines(found)).split())
    report = run_report(found, read_plan(run))
    assert said in report and "| step times | flagged | change point: as it is (p = 0.1) |" in report
    assert json.loads(as_json([found], [None]))[0]["throughput"]["step_seconds"]["flags"] == [*flags]


def test_report_md_says_what_a_load_is(run: RunPaths, valid: Result) -> None:
    load = ReadingAround(what="load", unit="1", in_step=0.92, in_window=0.9)
    power = ReadingAround(what="power", unit="W", in_step=300.0, in_window=290.0)
    disturbance = valid.disturbance
    assert disturbance
    slowest = disturbance.slowest.model_copy(update={"telemetry": (load, power)})
    found = valid.model_copy(update={"disturbance": disturbance.model_copy(update={"slowest": slowest})})
    said = "load 0.92, the busy part of the devices' time (window: 0.90); power 300.00 W (window: 290.00)"
    assert said in run_report(found, read_plan(run))


def test_an_interrupted_run_says_so_and_shows_no_speed(interrupted: Result) -> None:
    text = "\n".join(result_lines(interrupted))
    assert "failed (interrupted)" in text and "interrupted by the user" in text and "tokens/s" not in text


def test_no_results_are_no_fault() -> None:
    assert as_text([]) == "\n" and json.loads(as_json([], [])) == []
    assert list(csv.DictReader(io.StringIO(results_as("csv", [], [])))) == []


def test_json_holds_every_figure_in_full(valid: Result, interrupted: Result) -> None:
    rows = json.loads(as_json([valid, interrupted], [None, None]))
    assert rows[0].pop("schema") == "levelfield.result/1"
    assert Result.model_validate(rows[0]) == valid
    assert rows[1]["status"]["failure"] == "interrupted" and rows[1]["throughput"] is None


def test_csv_has_units_in_its_names_and_nothing_for_what_is_missing(valid: Result, interrupted: Result) -> None:
    first, second = csv.DictReader(io.StringIO(results_as("csv", [valid, interrupted], [None, None])))
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
    rows = list(csv.DictReader(io.StringIO(results_as("csv", results, [None] * len(results)))))
    assert [row["status"] for row in rows] == [r.status.word for r in results]
    assert next(row for row in rows if row["status"] == "valid")["mfu_palm/1"] != ""


def test_markdown_is_a_table_with_the_reasons_below(valid: Result, interrupted: Result) -> None:
    head, rule, *rest = as_markdown([valid, interrupted]).splitlines()
    assert {line.count("|") for line in (head, rule, *rest[:2])} == {len(result_words.COLUMNS) + 1}
    assert "interrupted by the user" in rest[-1] and interrupted.run_id in rest[-1]
    assert "| - |" in rest[1]


def test_a_bar_in_a_text_does_not_break_the_table(run: RunPaths, valid: Result) -> None:
    odd = valid.model_copy(update={"chip": "A|B"})
    head, _, row = as_markdown([odd]).splitlines()[:3]
    assert row.replace("\\|", "").count("|") == head.count("|")
    energy = valid.energy.model_copy(update={"joules_per_token": Figure(value=None, unit="J/token", reason="a | b")})
    report = run_report(odd.model_copy(update={"energy": energy}), read_plan(run))
    rows = [line for line in report.splitlines() if line.startswith("| energy")]
    assert [line.replace("\\|", "").count("|") for line in rows] == [4]


def test_the_report_of_a_run_gives_every_figure_and_how_it_came_about(run: RunPaths, valid: Result) -> None:
    text = run_report(valid, read_plan(run))
    for said in (
        "# tiny (smoke) on 1 x 2 F1 with fake 1.2.3",
        "**valid**",
        "Smoke scale: asked for with --scale smoke. Never compared with a full run.",
        "| tokens/s per device | 64.0 | steps 3 to 12",
        "a device is a die",
        "measured: a probe of the tests",
        "| memory, framework reserved | - | the framework gave no figure for rank 0 |",
        "1.5625 J/token | boundary: chip |",
        "| alignment | unchecked |",
        "`" + valid.identity.work + "`",
    ):
        assert said in text
    assert "None" not in text and "nan" not in text


def test_the_report_has_the_inherited_variables_that_may_matter(run: RunPaths, valid: Result) -> None:
    plan, many = read_plan(run), {f"X{number}_CERT": "/etc/ssl" for number in range(77)}
    for inherited, row in (
        ({"CUDA_HOME": "/cuda", "LD_X": "a|b", **many}, r"CUDA_HOME=/cuda, LD_X=a\|b, 77 more: provenance.json"),
        ({"CUDA_HOME": "/cuda"}, "CUDA_HOME=/cuda"),
        (many, "77 that are not known to change a training: provenance.json"),
    ):
        text = run_report(valid.model_copy(update={"inherited": inherited}), plan)
        assert f"\n| inherited variables | {row} |\n" in text
    assert "inherited variables" not in run_report(valid.model_copy(update={"inherited": {}}), plan)


def test_the_report_of_a_failed_run_gives_its_evidence(run: RunPaths, interrupted: Result) -> None:
    text = run_report(interrupted, read_plan(run))
    assert "**failed (interrupted)**" in text and "- interrupted by the user" in text
    assert "evidence: `7 steps were finished`" in text and "| tokens/s per device | - | the run is failed" in text
    assert "None" not in text


def test_an_invalid_run_names_its_reasons(run: RunPaths) -> None:
    change_steps(run, lambda event: event.update(tokens=31))
    result = collect(run)
    assert "31 tokens, expected 32" in run_report(result, read_plan(run)) and "31 tokens" in as_text([result])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3599, "59:59"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.0, "0.0"), (1234.56, "1,234.6")])
def test_numbers(value: float | None, text: str) -> None:
    assert words.number(value) == text


class TestRunsOfDifferentCases:
    """Each training has its own table with a heading: only cells of one table may be compared."""

    @pytest.fixture
    def mixed(self, valid: Result) -> list[Result]:
        """Runs of two cases, given in turn."""
        other = {"case": "llama", "identity": valid.identity.model_copy(update={"work": "sha256:" + "8" * 64})}
        return [valid, valid.model_copy(update=other), valid.model_copy(update={"run_id": "again"})]

    def test_text_has_a_heading_for_each(self, mixed: list[Result]) -> None:
        first, second = as_text(mixed).split("\n\n")
        assert first.splitlines()[0] == "tiny (smoke), fp32, steps 3 to 12" and "llama" not in first
        assert second.splitlines()[0] == "llama (smoke), fp32, steps 3 to 12" and "tiny" not in second
        assert first.count("64.0") == 2 and second.count("64.0") == 1 and too_long(as_text(mixed)) == []

    def test_markdown_has_a_table_for_each(self, mixed: list[Result]) -> None:
        first, second = as_markdown(mixed).split("\n\n### ")
        assert first.startswith("### tiny (smoke), fp32, steps 3 to 12\n\n| case |") and first.count("| tiny |") == 2
        assert second.count("| llama |") == 1 and second.count("\n|---") == 1

    def test_other_work_under_the_same_name_is_told_apart(self, mixed: list[Result]) -> None:
        same = [result.model_copy(update={"case": "tiny"}) for result in mixed]
        assert "work 88888888" in as_text(same) and "work 88888888" in as_markdown(same)

    @pytest.mark.parametrize("change", [{"window": (4, 12)}, {"scale": "full"}])
    def test_another_window_or_scale_is_another_table(self, valid: Result, change: dict[str, object]) -> None:
        assert as_text([valid, valid.model_copy(update=change)]).count("steps ") == 2

    def test_runs_of_one_training_have_no_heading(self, valid: Result) -> None:
        assert "steps 3 to 12" not in as_text([valid, valid]) and "###" not in as_markdown([valid, valid])

    def test_reasons_stand_below_their_own_table(self, mixed: list[Result], interrupted: Result) -> None:
        first, second = as_text([interrupted, mixed[1]]).split("\n\nllama (smoke), ")
        assert "interrupted by the user" in first and "interrupted" not in second

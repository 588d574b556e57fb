"""Every door prints one MFU for a run: that of what is multiplied, of a sliding window the window's own attention."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from compared_records import mfu_row, record, with_result
from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.compare import published_rows, sides
from levelfield.compare.comparison import compare
from levelfield.compare.published_rows import measured_row
from levelfield.compare.ranking import metrics
from levelfield.compare.sides import side_of
from levelfield.judge.collector import collect
from levelfield.measure.flops import flops_per_token
from levelfield.pages.content import read_content
from levelfield.pages.first_view import first_view, read_trainings
from levelfield.pages.series_history import InMemoryStore, summary_of
from levelfield.report import one_run, result_words
from levelfield.report.one_run import result_lines, run_report
from levelfield.report.result_words import COLUMNS
from levelfield.report.tables import figure_row
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import RunRecord
from levelfield.specs.result import Result
from levelfield.specs.run_figures import HEADLINE_FORMULA, MFU_NAME, MFU_TITLE
from levelfield.store.run_record import record_of
from recorded_runs import change_plan

WINDOW = 4
NUMBERS = {"palm/1": 0.859, "6n/1": 0.6, "megatron/1": 0.44}
BY_MFU = next(metric for metric in metrics() if metric.name == "mfu")


def windowed(run: RunPaths) -> tuple[float, float]:
    """Give the model of a run a sliding window, and return its FLOPs per token and those of whole sequences."""
    work = read_plan(run).work
    length = work.training.sequence_length
    narrow = work.model.model_copy(update={"sliding_window": WINDOW})
    change_plan(run, work=work.model_copy(update={"model": narrow}))
    return flops_per_token("megatron", narrow, length), flops_per_token("megatron", work.model, length)


def percent(text: str) -> float:
    (value,) = re.findall(r"([\d.]+) %", text)
    return float(value) / 100


def doors(result: Result, stored: RunRecord) -> Iterator[tuple[str, float | None]]:
    """Yield the MFU of a run by the door that shows it."""
    (line,) = [line for line in result_lines(result) if line.startswith("MFU")]
    yield "terminal", percent(line)
    yield "tables", percent(COLUMNS[MFU_TITLE](result))
    value = figure_row(result)[MFU_NAME]
    yield "CSV and JSON", value if isinstance(value, float) else None
    yield "beside published rows", measured_row(result).mfu_high
    yield "store", stored.mfu_megatron
    again = stored.model_copy(update={"run_id": "again", "content": "again"})
    comparison = compare([side_of("A", [stored]), side_of("B", [again])])
    (figure,) = [figure for figure in comparison.figures if figure.quantity.column.name == MFU_NAME]
    yield "compare", figure.sides[0].values[0]
    source = InMemoryStore([stored])
    content = read_content(source)
    view = first_view(read_trainings(content, source), BY_MFU, {})
    ((bar,),) = [training.best_bars for training in view.trainings]
    yield "page by MFU", bar.ranked.value
    yield "roof of that page", bar.achieved_and_peak and bar.achieved_and_peak[0] / bar.achieved_and_peak[1]
    (runs,) = content.series.values()
    latest = summary_of(runs).latest
    yield "page of the case", latest.mfu_megatron if latest else None


def other_numbers(result: Result, stored: RunRecord) -> dict[str, float | None]:
    """Return the doors that show another number than the headline's, with it."""
    (expected,) = [use.value for use in result.utilisation if (use.formula, use.kind) == ("megatron/1", "MFU")]
    return {door: value for door, value in doors(result, stored) if value != pytest.approx(expected, rel=2e-3)}


def test_the_headline_of_a_sliding_window_is_the_windows(run: RunPaths) -> None:
    narrow, whole = windowed(run)
    result = collect(run)
    use = result_words.find_utilisation(result, HEADLINE_FORMULA)
    assert use and use.value and result.throughput and use.peak_tflops and narrow < whole
    rate = result.throughput.tokens_per_second_per_device
    assert use.value == pytest.approx(narrow * rate / (use.peak_tflops * 1e12))
    (line,) = [line for line in result_lines(result) if line.startswith("MFU")]
    assert percent(line) == pytest.approx(use.value, abs=5e-4) and "megatron/1" in line


@pytest.fixture
def both(run: RunPaths) -> tuple[Result, RunRecord]:
    """A run whose formulas give numbers that no rounding hides."""
    windowed(run)
    result = collect(run)
    uses = []
    for use in result.utilisation:
        value = NUMBERS.get(use.formula)
        same = dict.fromkeys(("value", "low", "high"), value)
        achieved = value and use.peak_tflops and value * use.peak_tflops
        uses.append(use.model_copy(update={**same, "achieved_tflops": achieved}))
    result = result.model_copy(update={"utilisation": tuple(uses)})
    stored = record_of(run, result=result)
    assert stored.evidence == "sealed" and stored.word == "valid"
    return result, stored.model_copy(update={"verdict": "aligned"})


def test_every_door_has_the_headlines_number(both: tuple[Result, RunRecord]) -> None:
    assert other_numbers(*both) == {}


@pytest.mark.parametrize("module", [one_run, result_words, published_rows, sides], ids=lambda m: m.__name__)
def test_a_mix_up_of_formulas_is_seen(
    both: tuple[Result, RunRecord], module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEADLINE_FORMULA", "palm")
    assert other_numbers(*both) != {}


def test_the_report_of_a_run_has_every_formula(both: tuple[Result, RunRecord], run: RunPaths) -> None:
    text = run_report(both[0], read_plan(run))
    assert [formula for formula in ("palm/1", "6n/1", "megatron/1") if f"{formula}" not in text] == []


def test_a_plan_counts_what_the_headline_counts(capsys: pytest.CaptureFixture[str]) -> None:
    case = "mixtral_8x7b"
    assert main(["plan", case, "--chip", "H100", "--devices", "64", "--top", "1"]) == 0
    (row,) = re.findall(r"^ +1 .*?([\d,]+) +([\d.]+)%", capsys.readouterr().out, re.MULTILINE)
    work, (_, chip) = Registry().case(case).work("full"), find_chip(Registry(), "H100")
    flops = flops_per_token("megatron", work.model, work.training.sequence_length)
    rate = float(row[0].replace(",", ""))
    assert float(row[1]) / 100 == pytest.approx(rate * flops / (chip.peaks["bf16"].tflops * 1e12), abs=1e-3)


def test_a_ratio_of_two_runs_is_that_of_the_headline() -> None:
    """The numbers by palm have the opposite order."""
    runs = [with_result(record(n, mfu=mfu), utilisation=[mfu_row(palm, "palm"), mfu_row(mfu)])
            for n, mfu, palm in ((1, 0.4, 0.9), (2, 0.5, 0.6))]  # fmt: skip
    comparison = compare([side_of("A", runs[:1]), side_of("B", runs[1:])])
    (figure,) = [figure for figure in comparison.figures if figure.quantity.column.name == MFU_NAME]
    assert figure.ratios[0].value == pytest.approx(0.5 / 0.4)

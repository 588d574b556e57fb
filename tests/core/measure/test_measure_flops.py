"""FLOPs and utilisation against published tables, and against faults planted in them."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.measure.flops import (
    FORMULAS,
    FULL_RECOMPUTATIONS,
    FormulaError,
    FormulaId,
    Recomputation,
    flops_per_token,
    formula_version,
    repeated_layers,
)
from levelfield.measure.parameter_counts import count_parameters, parameter_shapes
from levelfield.measure.utilisation import PeakRange, hfu, mfu, peak_range
from levelfield.specs.architecture import Model
from levelfield.specs.base import load
from levelfield.specs.case import Case
from levelfield.specs.figures import PublishedRow
from levelfield.specs.result import ABOVE_PEAK
from levelfield.specs.vendor import Peak
from levelfield.worker.architecture import Model as WorkerModel
from levelfield.worker.job import parse
from levelfield.worker.parameters import list_parameters

ROOT = Path(__file__).resolve().parents[3]
V100, A100 = Peak(tflops=125, source="datasheet"), Peak(tflops=312, source="datasheet")
H100, H100_FP8 = Peak(tflops=989, source="the table's note"), Peak(tflops=1979, source="the table's note")
TABLE_VOCABULARY = 51200


ONEFLOW = Registry([]).published_set("oneflow_gpt").rows
FLAGPERF = [
    row for row in Registry([]).published_set("flagperf_llama3").rows if row.setting.chip and row.status != "oom"
]


def model(name: str, **changes: Any) -> Model:
    shape = load(Case, ROOT / "configs" / "cases" / f"{name}.yaml").model
    return shape.model_copy(update=changes)


def gpt(row: PublishedRow, vocabulary: int = TABLE_VOCABULARY) -> Model:
    shape = row.setting.model
    assert shape is not None
    sizes = {"hidden_size": shape.hidden_size, "ffn_hidden_size": 4 * shape.hidden_size, "layers": shape.layers}
    return model("gpt2_small", vocab_size=vocabulary, heads=shape.heads, kv_heads=shape.heads, **sizes)


def printed(row: PublishedRow, name: str) -> str:
    (text,) = row.figures[name].texts
    return text


def printed_like(value: float, cell: str, digits: int = 2) -> bool:
    """Whether `value` rounds to `cell`; the table drops trailing zeros of its `digits` decimals."""
    rounded = Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)
    return rounded == Decimal(cell)


def tokens_per_second_per_device(row: PublishedRow, milliseconds: float = 1e-3) -> float:
    seconds = float(printed(row, "step_seconds")) * milliseconds
    return row.setting.global_batch * 2048 / seconds / row.setting.devices


def achieved(row: PublishedRow, vocabulary: int = TABLE_VOCABULARY) -> float:
    flops = flops_per_token("megatron-2021", gpt(row, vocabulary), 2048, recompute="full")
    return flops * tokens_per_second_per_device(row) / 1e12


@pytest.mark.parametrize("row", ONEFLOW, ids=[r.name for r in ONEFLOW])
def test_every_oneflow_row_is_reproduced_to_its_last_digit(row: PublishedRow) -> None:
    rate = tokens_per_second_per_device(row)
    figure = hfu("megatron-2021", gpt(row), 2048, rate, PeakRange(V100), "full")
    assert figure.achieved_tflops is not None and figure.value is not None
    assert printed_like(figure.achieved_tflops, printed(row, "flops_per_second"))
    assert printed_like(100 * figure.value, printed(row, "share_of_peak"), digits=0)
    assert printed_like(figure.achieved_tflops * row.setting.devices / 1000, printed(row, "aggregate_flops_per_second"))
    assert printed_like(rate * row.setting.devices / 2048, printed(row, "samples_per_second"))


def test_the_oneflow_test_sees_one_percent_and_another_vocabulary() -> None:
    assert not any(printed_like(1.01 * achieved(row), printed(row, "flops_per_second")) for row in ONEFLOW)
    assert not all(printed_like(achieved(row, vocabulary=50688), printed(row, "flops_per_second")) for row in ONEFLOW)


def test_flops_of_a_step_are_those_of_its_tokens() -> None:
    row = ONEFLOW[0]
    b, s, layers, h, v = 2, 2048, 16, 1536, TABLE_VOCABULARY
    expected = 96 * b * s * layers * h * h * (1 + s / (6 * h) + v / (16 * layers * h))
    assert b * s * flops_per_token("megatron-2021", gpt(row), s, recompute="full") == pytest.approx(expected, rel=1e-14)


def flagperf_cells(row: PublishedRow) -> list[tuple[str, float, str]]:
    """(where, computed per cent, printed per cent) of each MFU of a row; a range is fp8's low and 16-bit's high."""
    mixed = row.setting.precision == "fp8"
    peaks = PeakRange(H100 if row.name.startswith("H100") else A100, H100_FP8 if mixed else None, is_mixed=mixed)
    rate = row.figure("tokens_per_second_per_device")
    assert rate is not None
    figure = mfu("6n", model("llama3_8b"), 8192, rate, peaks, 8e9)
    assert figure.low is not None and figure.high is not None
    if not mixed:
        return [(row.name, 100 * figure.high, printed(row, "mfu"))]
    low = (row.name, 100 * figure.low, printed(row, "mfu_low"))
    return [low, (f"{row.name} high", 100 * figure.high, printed(row, "mfu_high"))]


def test_two_cells_of_the_llama3_table_do_not_agree_with_their_own_row() -> None:
    cells = [cell for row in FLAGPERF for cell in flagperf_cells(row)]
    wrong = {
        where: (round(figure, 1), cell) for where, figure, cell in cells if not printed_like(figure, cell, digits=1)
    }
    assert len(cells) == 14
    rows = ("H100 1x8 bf16+fp8 PP1DP4TP2 high", "ablation PP4DP2TP1")
    assert wrong == dict(zip(rows, ((50.9, "50.6"), (50.9, "50.0")), strict=True))


def test_parameters_are_exact() -> None:
    assert count_parameters(model("llama3_8b"), 8192).total == 8_030_261_248
    assert count_parameters(model("flagperf_llama3_8b"), 8192).total == pytest.approx(7.54e9, rel=1e-3)
    # GPT-2 small with its own vocabulary: 124,439,808 in the published checkpoint.
    assert count_parameters(model("gpt2_small", vocab_size=50257, tied_embeddings=True), 1024).total == 124_439_808


@pytest.mark.parametrize("name", sorted(Registry().all_cases))
def test_the_counted_parameters_are_those_that_the_worker_makes(name: str) -> None:
    case = Registry().case(name)
    for work in (case.work("full"), case.work("smoke")):
        made = list_parameters(parse(WorkerModel, work.model.model_dump(), "model"), work.training.sequence_length)
        counted = parameter_shapes(work.model, work.training.sequence_length)
        assert counted == {name: spec.shape for name, spec in made.items()}


def test_the_four_formulas_on_one_example() -> None:
    gpt3 = model("gpt3_6.7B")
    n, width = count_parameters(gpt3, 2048).total, 32 * 4096 * 2048
    assert flops_per_token("palm", gpt3, 2048) == 6 * n + 12 * width
    assert flops_per_token("6n", gpt3, 2048) == 6 * n
    matrices = 32 * 12 * 4096**2
    assert flops_per_token("megatron", gpt3, 2048) == 6 * matrices + 6 * 4096 * 50304 + 6 * width
    # Recomputation aside, the 2021 formula counts what `megatron` does and the masked half of attention.
    repeated = 2 * matrices + 4 * width
    assert flops_per_token("megatron-2021", gpt3, 2048, recompute="full") == pytest.approx(
        6 * matrices + 6 * 4096 * 50304 + 12 * width + repeated, rel=1e-14
    )


def test_grouped_heads_and_the_gate_are_counted_exactly() -> None:
    llama = model("llama3_8b")
    layer = 4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336
    expected = 6 * (32 * layer + 4096 * 128256) + 6 * 32 * 4096 * 8192
    assert flops_per_token("megatron", llama, 8192) == expected


def test_recomputation_enters_hfu_and_never_mfu() -> None:
    llama, peaks = model("llama3_8b"), PeakRange(A100)
    plain = mfu("palm", llama, 8192, 3000, peaks)
    assert hfu("palm", llama, 8192, 3000, peaks, "none").value == plain.value
    assert hfu("palm", llama, 8192, 3000, peaks, "selective").value == plain.value
    full = flops_per_token("megatron", llama, 8192, recompute="full")
    attention = flops_per_token("megatron", llama, 8192, recompute="selective-attention")
    none = flops_per_token("megatron", llama, 8192)
    logits = 2 * 4096 * 128256
    assert full - none == none / 3 - logits
    assert attention - none == 2 * 32 * 4096 * 8192
    inside = count_parameters(llama, 8192).in_layers  # embeddings and logits are never repeated
    cores: dict[FormulaId, float] = {"6n": 0.0, "palm": 4.0 * llama.layers * llama.hidden_size * 8192}
    for formula, core in cores.items():
        repeated = flops_per_token(formula, llama, 8192, recompute="full") - flops_per_token(formula, llama, 8192)
        assert repeated == pytest.approx(2 * inside + core, rel=1e-12)


@pytest.mark.parametrize("name", ["llama3_8b", "gpt3_6.7B"])
def test_a_product_that_is_not_repeated_is_not_counted(name: str) -> None:
    shape = model(name)
    down = 2 * shape.layers * shape.hidden_size * shape.ffn_hidden_size
    formulas: tuple[FormulaId, ...] = ("megatron", "palm", "6n")
    for formula in formulas:
        full, less = (flops_per_token(formula, shape, 2048, recompute=kind) for kind in FULL_RECOMPUTATIONS)
        assert full - less == down


def test_the_first_layers_of_each_chunk_are_those_that_lie_there() -> None:
    assert repeated_layers(8, 1, 1, 3) == (0, 1, 2)
    assert repeated_layers(8, 2, 1, 3) == (0, 1, 2, 4, 5, 6)
    assert repeated_layers(8, 2, 2, 1) == (0, 2, 4, 6)
    assert repeated_layers(7, 3, 1, 2) == (0, 1, 3, 4, 5, 6), "the first part has a layer more"
    assert repeated_layers(4, 2, 1, 9) == (0, 1, 2, 3)


@pytest.mark.parametrize("name", ["llama3_8b", "gpt3_6.7B"])
@pytest.mark.parametrize("kind", ["full", "full-except-down"])
def test_of_equal_layers_the_share_that_is_repeated_counts(name: str, kind: Recomputation) -> None:
    shape = model(name)
    for formula in ("megatron", "palm", "6n"):
        none, some, full = (
            flops_per_token(formula, shape, 2048, recompute=how, repeated=layers)  # type: ignore[arg-type]
            for how, layers in (("none", None), (kind, repeated_layers(shape.layers, 2, 1, 4)), (kind, None))
        )
        assert some - none == pytest.approx((full - none) * 8 / shape.layers, rel=1e-12)


def test_of_a_mixture_each_repeated_layer_counts_what_it_has() -> None:
    """DeepSeek-V3's first three layers are dense: here they are half as wide as what a token uses of a mixture."""
    shape = model("deepseek_v3", ffn_hidden_size=9216)
    for formula in ("megatron", "palm", "6n"):

        def more(*layers: int, formula: Any = formula) -> float:
            plain = flops_per_token(formula, shape, 4096)
            return flops_per_token(formula, shape, 4096, recompute="full", repeated=layers) - plain

        dense, mixture, whole_model = more(0), more(10), more(*range(shape.layers))
        assert abs(dense / mixture - 1) > 0.01, formula
        assert more(0, 1, 10) == pytest.approx(2 * dense + mixture, rel=1e-9)
        assert 3 * dense + (shape.layers - 3) * mixture == pytest.approx(whole_model, rel=1e-9)
        assert more() == 0


def test_the_published_formula_refuses_recomputation_of_some_layers() -> None:
    shape = gpt(ONEFLOW[0])
    whole = flops_per_token("megatron-2021", shape, 2048, recompute="full")
    everything = tuple(range(shape.layers))
    assert flops_per_token("megatron-2021", shape, 2048, recompute="full", repeated=everything) == whole
    with pytest.raises(FormulaError, match=f"all {shape.layers} layers;.* 2$"):
        flops_per_token("megatron-2021", shape, 2048, recompute="full", repeated=(0, 1))


def test_the_published_formula_counts_whole_layers_for_both_kinds() -> None:
    shape = gpt(ONEFLOW[0])
    full, less = (flops_per_token("megatron-2021", shape, 2048, recompute=k) for k in ("full", "full-except-down"))
    assert full == less


def test_what_a_formula_cannot_say_is_null_with_a_reason() -> None:
    llama, gpt3, peaks = model("llama3_8b"), model("gpt3_6.7B"), PeakRange(A100)
    for figure in (
        hfu("megatron-2021", llama, 8192, 3000, peaks, "full"),
        hfu("megatron-2021", gpt3, 2048, 3000, peaks, "none"),
        mfu("megatron-2021", gpt3, 2048, 3000, peaks),
        hfu("6n", llama, 8192, 3000, peaks, "selective-attention"),
        mfu("palm", llama, 8192, 3000, PeakRange(None)),
        mfu("palm", llama, 8192, 3000, PeakRange(H100, None, is_mixed=True)),
        mfu("palm", llama, 8192, float("nan"), peaks),
        mfu("palm", llama, 8192, 0.0, peaks),
        mfu("6n", llama, 8192, 3000, peaks, parameters_override=float("nan")),
    ):
        assert figure.value is None and figure.low is None and figure.reason
    with pytest.raises(FormulaError, match="positive"):
        flops_per_token("6n", llama, 8192, parameters_override=0)


def test_an_unknown_peak_still_says_what_was_achieved() -> None:
    figure = mfu("palm", model("gpt2_small"), 1024, 1000, PeakRange(None))
    assert figure.achieved_tflops == pytest.approx(1000 * flops_per_token("palm", model("gpt2_small"), 1024) / 1e12)
    assert figure.peak_tflops is None and figure.peak_source is None


def test_milliseconds_read_as_seconds_are_no_utilisation() -> None:
    row = ONEFLOW[0]
    wrong = hfu("megatron-2021", gpt(row), 2048, tokens_per_second_per_device(row, 1e-6), PeakRange(V100), "full")
    assert wrong.value is None and wrong.is_above_peak


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("measured: best matmul rate of fake", "the probe gave less than the run itself reaches, and is refused"),
        ("a datasheet", "the throughput, the device count or the peak is wrong"),
    ],
)
def test_no_utilisation_counts_above_the_peak(source: str, cause: str) -> None:
    flops = flops_per_token("6n", model("gpt2_small"), 1024)
    peak = PeakRange(Peak(tflops=1.0, source=source))
    beyond = mfu("6n", model("gpt2_small"), 1024, 1.023e12 / flops, peak)
    assert beyond.value is None and beyond.is_above_peak
    assert beyond.reason == f"102.3% of 1 TFLOP/s, {ABOVE_PEAK}: {cause} ({source})"
    below = mfu("6n", model("gpt2_small"), 1024, 0.999e12 / flops, peak)
    assert below.value == pytest.approx(0.999) and below.reason is None and not below.is_above_peak


def test_a_range_counts_where_its_lower_end_is_below_the_peak() -> None:
    flops = flops_per_token("6n", model("gpt2_small"), 1024)
    mixed = PeakRange(H100, H100_FP8, is_mixed=True)
    figure = mfu("6n", model("gpt2_small"), 1024, 1.2 * H100.tflops * 1e12 / flops, mixed)
    assert figure.high == pytest.approx(1.2) and figure.low is not None and figure.low < 1
    beyond = mfu("6n", model("gpt2_small"), 1024, 1.01 * H100_FP8.tflops * 1e12 / flops, mixed)
    assert beyond.low is None and beyond.is_above_peak
    assert f"101.0% of {H100_FP8.tflops:.4g} TFLOP/s" in str(beyond.reason)


def test_peaks_by_precision_never_borrow_another_dtype() -> None:
    peaks = {"tf32": Peak(tflops=156, source="datasheet"), "bf16": A100}
    assert peak_range("fp32", peaks).peak is None  # type: ignore[arg-type]
    assert peak_range("bf16", peaks).peak == A100  # type: ignore[arg-type]
    fp8 = peak_range("fp8", {"bf16": H100, "fp8": H100_FP8})
    assert (fp8.peak, fp8.fp8, fp8.is_mixed) == (H100, H100_FP8, True)


def test_formulas_have_versions() -> None:
    assert [formula_version(f) for f in FORMULAS] == ["palm/1", "6n/1", "megatron/1", "megatron-2021/1"]

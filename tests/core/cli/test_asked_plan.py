"""`plan` for one layout, another program, and rows that do not fit; test_plan_words.py has the sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from levelfield.predict import questions
from levelfield.specs.implementation import RECOMPUTE_FIRST_LAYERS
from plan_outputs import plan_output, plan_refusal, plan_values

CASE = ("llama3_8b", "--chip", "H100")
FIRST = ("--recompute", "full", "--recompute-layers")


def test_one_layout_that_fits_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    question = (*CASE, "--layout", "DP8SH3", "--micro-batch", "2", "--recompute", "selective")
    rows = [line.split() for line in plan_output(capsys, *question).splitlines() if line.startswith("  1 ")]
    assert [row[1:5] for row in rows] == [["DP8TP1PP1SH3SP8", "2", "1", "selective"]]
    assert plan_values(capsys, *question)["fitting"] == 1


def test_the_first_layers_of_each_chunk_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    question = (*CASE, "--layout", "DP2PP4SH1", "--micro-batch", "1", *FIRST, "4")
    text = plan_output(capsys, *question)
    rows = [line.split() for line in text.splitlines() if line.startswith("  1 ")]
    assert [row[1:6] for row in rows] == [["DP2TP1PP4SH1SP2", "1", "1", "full", "4"]]
    assert max(map(len, text.splitlines())) <= 80
    row = plan_values(capsys, *question)["rows"][0]
    assert (row["recompute"], row["recompute_layers"]) == ("full", 4)


def test_a_program_has_rows_with_first_layers_where_its_framework_has_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbers() -> set[object]:
        arguments = ("gpt3_6.7B", "--chip", "A100-SXM4-40GB", "--framework", "megatron", "--top", "400")
        rows = plan_values(capsys, *arguments, "--program", "nemo")["rows"]
        return {row["recompute_layers"] for row in rows}

    assert len(numbers()) > 2
    offered = questions.supported_parallelism
    monkeypatch.setattr(
        questions, "supported_parallelism", lambda *of: replace(offered(*of), refusals=(RECOMPUTE_FIRST_LAYERS,))
    )
    assert numbers() == {None}


def test_one_layout_that_does_not_fit_says_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    question = (*CASE, "--layout", "DP8", "--micro-batch", "1")
    text, plan = plan_output(capsys, *question), plan_values(capsys, *question)
    beyond = plan["beyond"][0]
    assert plan["rows"] == [] and beyond["memory_parts_bytes"]["optimizer_states"] == pytest.approx(59.8 * 2**30, 0.01)
    row = next(line.split() for line in text.splitlines() if line.split()[:1] == ["DP8TP1PP1"] and "+" in line)
    assert float(row[-1]) == pytest.approx(float(row[4]) - 80.0, abs=0.11)


def test_rows_beyond_the_memory_need_least_first(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_values(capsys, *CASE, "--framework", "megatron")
    sizes = [row["memory_bytes"] for row in plan["beyond"]]
    assert sizes == sorted(sizes) and min(sizes) > plan["capacity_bytes"]
    text = plan_output(capsys, *CASE, "--framework", "megatron", "--show-oom", "3")
    over = [float(line.split()[-1]) for line in text.splitlines() if line.split() and line.split()[-1][0] == "+"]
    assert len(over) == 3 and over == sorted(over)


def test_rows_beyond_the_memory_are_shown_where_none_fits(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_values(capsys, *CASE, "--devices", "1")
    assert [row["recompute"] for row in plan["beyond"]] == ["full", "selective", "none"] and not plan["rows"]


def test_stages_may_differ_by_a_layer_where_one_asks(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_values(capsys, *CASE, "--layout", "PP5", "--devices", "5", "--framework", "megatron")
    assert plan["rows"][0]["needs_what_is_not_offered"] == ["uneven"]
    assert plan["rows"][0]["step_parts_seconds"]["imbalance"] > 0


def test_micro_batches_are_any_divisor(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("flagperf_llama3_8b_b1760", "--chip", "H100", "--devices", "8", "--framework", "megatron")
    plan = plan_values(capsys, *arguments, "--layout", "DP4TP2SH1SP4+seq", "--micro-batch", "5")
    assert {row["micro_batch"] for row in plan["rows"] + plan["beyond"]} == {5}


def test_the_overlap_of_tensor_parallelism_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    def tensor_seconds(*options: str) -> float:
        plan = plan_values(capsys, *CASE, "--layout", "DP4TP2SH1", "--micro-batch", "1", *options)
        return float(plan["rows"][0]["step_parts_seconds"]["tensor"])

    assert tensor_seconds("--tensor-overlap", "1") == 0
    assert tensor_seconds("--tensor-overlap", "0.5") == pytest.approx(tensor_seconds() / 2)


def test_a_kernel_and_a_program_change_the_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    question = (*CASE, "--framework", "megatron", "--layout", "DP4TP2SH1SP4+seq", "--micro-batch", "1")
    options: list[tuple[str, ...]] = [("--attention", "flash1"), (), ("--attention", "flash3"), ("--program", "nemo")]
    rates = [plan_values(capsys, *question, *o)["rows"][0]["tokens_per_second_per_device"] for o in options]
    assert rates == sorted(set(rates))


def test_a_tight_row_is_marked_and_a_speed_has_an_interval(capsys: pytest.CaptureFixture[str]) -> None:
    question = (*CASE, "--framework", "megatron", "--top", "40")
    plan = plan_values(capsys, *question)
    rows, most = plan["rows"], 0.9 * plan["capacity_bytes"]
    assert {row["is_tight"] for row in rows} == {True, False}
    assert all(row["is_tight"] == (row["memory_bytes"] > most) for row in rows)
    low, high = rows[0]["tokens_per_second_interval"]
    assert 0 < low < high and 0.5 < high / rows[0]["tokens_per_second_per_device"] < 1.5
    lines = plan_output(capsys, *question).splitlines()
    assert sum(line.endswith("tight") for line in lines) == sum(row["is_tight"] for row in rows)
    assert max(map(len, lines)) <= 80
    mixture = ("mixtral_8x7b", "--chip", "H100", "--devices", "64", "--framework", "megatron")
    low, high = plan_values(capsys, *mixture)["rows"][0]["tokens_per_second_interval"]
    assert high / low > rows[0]["tokens_per_second_interval"][1] / rows[0]["tokens_per_second_interval"][0]


def test_context_parallelism_is_predicted_and_marked(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_values(capsys, *CASE, "--framework", "deepspeed", "--layout", "DP4CP2SH1", "--micro-batch", "1")
    (row, *_), (assumption,) = plan["rows"], plan["assumed"]
    assert (row["layout"], row["micro_batch"]) == ("DP4CP2TP1PP1SH1SP8", 1)
    assert row["needs_what_is_not_offered"] == ["context"]
    assert assumption.startswith("context,") and "deepspeed" in assumption


def test_rows_that_a_framework_does_not_offer_are_beyond(capsys: pytest.CaptureFixture[str]) -> None:
    question = (*CASE, "--nodes", "2", "--framework", "megatron", "--show-oom", "2")
    text = plan_output(capsys, *question)
    rows = [line for line in text.splitlines() if line.split()[-1:] in (["context"], ["hybrid"], ["several"])]
    assert len(rows) == 2 and max(map(len, text.splitlines())) <= 80
    plan = plan_values(capsys, *question)
    assert len(plan["not_offered"]) == 2
    assert all(row["needs_what_is_not_offered"] for row in plan["not_offered"])
    assert all(not row["needs_what_is_not_offered"] for row in plan["rows"])
    assert plan_values(capsys, *question[:-2])["not_offered"] == []


def test_a_precision_that_a_run_may_not_choose_can_be_planned(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("gpt2_medium", "--chip", "A100", "--layout", "DP8", "--micro-batch", "1", "--precision")
    fp32, bf16 = (plan_values(capsys, *question, precision) for precision in ("fp32", "bf16"))
    rates = [plan["rows"][0]["tokens_per_second_per_device"] for plan in (fp32, bf16)]
    assert rates[1] > 2 * rates[0]
    assert fp32["precision"] == "fp32" and "precision fp32" in " ".join(fp32["assumed"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*CASE, "--layout", "DP4"), "4 is not 8"),
        ((*CASE, "--layout", "DP8", "--micro-batch", "3"), "512 is not a multiple of 24"),
        ((*CASE, "--layout", "TP64", "--devices", "64"), "32 attention heads cannot be cut over tensor 64"),
        ((*CASE, "--framework", "paddle", "--recompute", "selective"), "paddle offers none, full"),
        (
            (*CASE, "--recompute-layers", "3"),
            "--recompute-layers 3: found --recompute left out, expected --recompute full",
        ),
        (
            (*CASE, "--recompute", "none", "--recompute-layers", "3"),
            "found --recompute none, expected --recompute full",
        ),
        ((*CASE, "--recompute", "full", "--recompute-layers", "0"), "--recompute-layers: found 0, expected 1 or more"),
        ((*CASE, "--recompute", "full", "--recompute-layers", "33"), "llama3_8b has 32 layers; expected 1 to 32"),
        ((*CASE, "--layout", "DP4PP2", *FIRST, "17"), "has 16 of the 32 layers; give 1 to 16"),
        ((*CASE, "--framework", "paddle", *FIRST, "3"), "framework paddle computes all layers again or none"),
        (
            (*CASE, "--program", "ours"),
            "known: torchtitan, torchtitan_rowwise, torchtitan_2025, torchtitan_2025_rowwise, automodel",
        ),
        ((*CASE, "--program", "torchtitn"), "nearest: torchtitan; known: torchtitan"),
        ((*CASE, "--tensor-overlap", "1.5"), "expected a share from 0 to 1"),
        ((*CASE, "--tensor-overlap", "nan"), "expected a share from 0 to 1"),
        ((*CASE, "--micro-batch", "0"), "--micro-batch: found 0"),
        (("gpt2_medium", "--chip", "H100", "--precision", "nvfp4"), "no published nvfp4 peak"),
        (("gpt2_medium", "--chip", "cpu", "--precision", "nvfp4"), "--precision nvfp4: a host's processors have none"),
        (("llama3_8b", "--chip", "A100", "--layout", "CP3", "--devices", "3"), "cannot be cut over 2 x context 3"),
        (("llama3_8b", "--chip", "A100", "--framework", "oneflow"), "found precision bf16, expected one of fp32, fp16"),
    ],
)
def test_impossible_wishes_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert says in plan_refusal(capsys, *arguments)

"""`plan` for one layout, another program, and rows that do not fit."""

from __future__ import annotations

import json

import pytest
from test_plan_command import refused, said

CASE = ("llama3_8b", "--chip", "H100")


def test_one_layout_that_fits_has_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *CASE, "--layout", "DP8SH3", "--micro-batch", "2", "--recompute", "selective")
    rows = [line.split() for line in text.splitlines() if line.startswith("  1 ")]
    assert [row[1:5] for row in rows] == [["DP8TP1PP1SH3SP8", "2", "1", "selective"]]
    assert "GiB: weights" in text and "seconds of a step of" in text and "1 of 1 layouts fit" in text


def test_one_layout_that_does_not_fit_says_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *CASE, "--layout", "DP8", "--micro-batch", "1")
    assert "no layout fits" in text and "optimizer states 59.8" in text
    row = next(line.split() for line in text.splitlines() if line.split()[:1] == ["DP8TP1PP1"] and "+" in line)
    assert float(row[-1]) == pytest.approx(float(row[4]) - 80.0, abs=0.11)


def test_rows_beyond_the_memory_need_least_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, *CASE, "--framework", "megatron", "--json"))
    sizes = [row["memory_bytes"] for row in found["beyond"]]
    assert sizes == sorted(sizes) and min(sizes) > found["capacity_bytes"]
    text = said(capsys, *CASE, "--framework", "megatron", "--beyond", "3")
    over = [float(line.split()[-1]) for line in text.splitlines() if line.split() and line.split()[-1][0] == "+"]
    assert len(over) == 3 and over == sorted(over)


def test_stages_may_differ_by_a_layer_where_one_asks(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *CASE, "--layout", "PP5", "--devices", "5", "--framework", "megatron")
    assert "2 stages of 7 layers and 3 of 6" in text and "imbalance" in text


def test_micro_batches_are_any_divisor(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("flagperf_llama3_8b_b1760", "--chip", "H100", "--devices", "8", "--framework", "megatron", "--json")
    found = json.loads(said(capsys, *arguments, "--layout", "DP4TP2SH1SP4+seq", "--micro-batch", "5"))
    assert {row["micro_batch"] for row in found["rows"] + found["beyond"]} == {5}


@pytest.mark.parametrize(
    ("options", "row"),
    [
        (("--overlap", "1"), {"data": 0.0}),
        (("--tensor-overlap", "1", "--overlap", "0"), {"tensor": 0.0}),
    ],
)
def test_what_overlaps_can_be_said(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], row: dict[str, float]
) -> None:
    asked = ("--layout", "DP4TP2SH1SP4", "--micro-batch", "1", "--json")
    found = json.loads(said(capsys, *CASE, *asked, *options))
    plain = json.loads(said(capsys, *CASE, *asked))
    for part, seconds in row.items():
        assert (found["rows"] + found["beyond"])[0]["step_parts_seconds"][part] == pytest.approx(seconds, abs=1e-9)
        assert (plain["rows"] + plain["beyond"])[0]["step_parts_seconds"][part] > 0


def test_a_kernel_and_a_program_change_the_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    asked = (*CASE, "--framework", "megatron", "--layout", "DP4TP2SH1SP4+seq", "--micro-batch", "1", "--json")
    options: list[tuple[str, ...]] = [(), ("--attention", "flash3"), ("--program", "aleph_alpha_flash1")]
    rates = [json.loads(said(capsys, *asked, *o))["rows"][0]["tokens_per_second_per_device"] for o in options]
    assert rates[1] > rates[0] > rates[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*CASE, "--layout", "DP4"), "4 is not 8"),
        ((*CASE, "--layout", "DP8", "--micro-batch", "3"), "512 is not a multiple of 24"),
        ((*CASE, "--layout", "TP64", "--devices", "64"), "32 attention heads cannot be cut over tensor 64"),
        ((*CASE, "--framework", "paddle", "--recompute", "selective"), "paddle offers none, full"),
        ((*CASE, "--program", "ours"), "known: llm_foundry"),
        ((*CASE, "--overlap", "1.5"), "expected a share from 0 to 1"),
        ((*CASE, "--micro-batch", "0"), "--micro-batch: found 0"),
        (("gpt3_6.7B", "--chip", "A100", "--framework", "oneflow"), "found precision fp16, expected one of fp32"),
    ],
)
def test_wrong_wishes(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(capsys, *arguments)


def test_numbers_that_do_not_divide_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(said(capsys, *CASE, "--devices", "7").split())
    assert "32 heads, 8 key-value heads and the vocabulary of 128256 (1, 2, 4, 8)" in text
    assert "divides 32 layers (1, 2, 4, 8, 16, 32)" in text and "global batch of 512" in text

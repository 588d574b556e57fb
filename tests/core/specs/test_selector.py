"""Case strings, FlagPerf's own among them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.errors import UsageError
from levelfield.specs.selector import parse_selector

Parts = dict[str, str | int]
GPT: Parts = {"case": "gpt3_6.7B", "framework": "torch"}
LLAMA: Parts = {"case": "llama3_8b", "framework": "torch"}
PADDLE: Parts = {**GPT, "framework": "paddle", "version": "2.5.1", "devices": 8}
THREE: Parts = {**PADDLE, "target": "A10040G", "layout": "TP2PP4SH1SP1", "repeats": 3}
READ: dict[str, Parts] = {
    "gpt3_6.7B:torch": GPT,
    "gpt3_6.7B:torch_2.13.0": {**GPT, "version": "2.13.0"},
    "gpt3_6.7B:torch_2.13.0+cpu": {**GPT, "version": "2.13.0+cpu"},
    "llama3_8b:torch:nvidia": {**LLAMA, "target": "nvidia"},
    "llama3_8b:torch:H100-80GB:2:8": {**LLAMA, "target": "H100-80GB", "nodes": 2, "devices": 8},
    "gpt3_6.7B:paddle_2.5.1:A100:1:8:1": {**PADDLE, "target": "A100"},
    "gpt3_6.7B:paddle_2.5.1:TP1PP1SH2SP8A10080G:1:8:1": {**PADDLE, "target": "A10080G", "layout": "TP1PP1SH2SP8"},
    "gpt3_6.7B:paddle_2.5.1:TP2PP4SH1SP1A10040G:1:8:3": THREE,
    "llama3_8b:megatron_core060": {**LLAMA, "framework": "megatron", "version": "core060"},
    "tiny:fake:DP2TP2:1:4": {"case": "tiny", "framework": "fake", "layout": "DP2TP2", "devices": 4},
    "tiny:fake:DP2TP2-A100": {"case": "tiny", "framework": "fake", "layout": "DP2TP2", "target": "A100"},
}


@pytest.mark.parametrize("text", READ)
def test_a_case_string_is_read(text: str) -> None:
    unset = {"version": None, "target": None, "layout": None, "nodes": 1, "devices": None, "repeats": 1}
    assert parse_selector(text).model_dump() == {**unset, **READ[text]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpt3_6.7B", "found 1 parts, expected case:framework"),
        ("a:b:c:1:1:1:1", "found 7 parts"),
        ("a::cpu", "expected case:framework"),
        ("a:torch-2:cpu:", "expected case:framework"),
        ("a:2.13", "found '2.13', expected framework[_version]"),
        ("a:torch:cpu:0", "nodes: found '0', expected a whole number from 1 to 100000"),
        ("a:torch:cpu:1:-2", "devices: found '-2'"),
        ("a:torch:cpu:1:eight", "devices: found 'eight'"),
        ("a:torch:cpu:1:1:1.5", "repeats: found '1.5'"),
        ("a:torch:DP4DP4A100:1:1", "found DP twice"),
        ("a:torch:DP6SH2SP4A100", "sharding_degree 4 does not divide"),
    ],
)
def test_a_wrong_case_string_names_the_part(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_selector(text)
    assert message in str(refusal.value) and refusal.value.exit_code == 2


@given(st.text(max_size=30))
def test_any_text_is_a_selector_or_a_usage_error(text: str) -> None:
    try:
        parse_selector(text)
    except UsageError:
        return
    assert ":" in text

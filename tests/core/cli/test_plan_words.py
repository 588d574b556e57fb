"""The sentences of `plan`: what is assumed, what is not known, and what the columns mean."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from golden_files import golden
from plan_outputs import plan_output, plan_words

QUESTIONS = """\
llama3_8b --chip H100 --layout DP8SH3 --micro-batch 2 --recompute selective
llama3_8b --chip H100 --layout DP8 --micro-batch 1
llama3_8b --chip H100 --layout PP5 --devices 5 --framework megatron
llama3_8b --chip H100 --layout DP2PP4SH1 --micro-batch 1 --recompute full --recompute-layers 4 --explain 1
llama3_8b --chip H100 --layout DP4CP2SH1 --micro-batch 1 --framework deepspeed
llama3_8b --chip H100 --nodes 2 --framework megatron --show-oom 2
llama3_8b --chip H100 --devices 7 --framework megatron
llama3_8b --chip H100 --nodes 1 --devices 37
llama3_8b --chip H100 --tokens 300B --top 3 --prices prices.yaml
llama3_8b --chip H200 --tokens 1T --top 1 --prices prices.yaml
llama3_8b --chip A800 --tokens 1T --top 1 --prices prices.yaml
llama3_8b --chip MI300X --tokens 300B --top 2
llama3_8b --chip MI355X --top 1
llama3_8b --chip 910B1 --top 3 --tokens 1T
llama3_8b --chip 910B1 --top 3 --explain 1
llama3_8b --chip 910B2 --top 1
llama3_405b --chip H100 --devices 8 --tokens 1T
llama3_405b --chip H100 --devices 8 --tokens 1T --prices prices.yaml
llama3_70b --chip A100 --devices 1
llama3_70b --chip H100 --devices 16384 --framework megatron
llama3_70b --chip H100 --devices 1024 --framework megatron --tokens 15T --top 2
mixtral_8x7b --chip H100 --devices 64 --top 1 --tokens 300B
gpt3_6.7B --chip A100 --nodes 2 --network 8x400Gb/s --top 3
gpt3_6.7B --chip ours --chips chips.yaml
gpt2_medium --chip A100 --layout DP8 --micro-batch 1 --precision fp32
gpt2_small_b8 --chip BI-V100 --devices 1
flagperf_llama3_8b_fp8 --framework megatron --chip GB300 --devices 8 --top 1 --precision nvfp4
llama3_8b --devices 8 --chip H100,A100
llama3_8b --devices 8 --chip H100,B200,GB200
llama3_8b --devices 8 --chip A100,V100,Ascend-910B1,B200
llama3_8b --devices 8 --chip H100,MI300X,MI355X,A100
llama3_8b --devices 8 --chip Ascend-910B1,H100,A100
llama3_8b --devices 8 --chip A100,B200 --precision nvfp4
llama3_8b --devices 8 --chip H100,A100 --tokens 1T --prices prices.yaml
deepseek_v3 --framework megatron --devices 1024 --chip B200,H200
mixtral_8x7b --devices 64 --chip H100,H200
"""
PRICES = """\
schema: levelfield.prices/1
currency: EUR
chips:
  H100-SXM5-80GB: {per: device, rent: 2.0}
  A800-SXM4-80GB: {per: node, own: {capital: 87660, years: 4, utilisation: 0.5, power_per_kwh: 0.1, pue: 1.2}}
"""
CHIPS = """\
schema: levelfield.chips/1
vendors:
  nvidia:
    - {name: ours, device_is: card, memory_bytes: 68719476736, memory_source: a letter}
"""


def test_sentences_of_plans_are_as_they_were_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prices.yaml").write_text(PRICES)
    Path("chips.yaml").write_text(CHIPS)
    parts = []
    for question in QUESTIONS.splitlines():
        output = plan_output(capsys, *shlex.split(question))
        assert max(map(len, output.splitlines())) <= 80, question
        parts.append(f"plan {question}\n{plan_words(output)}\n")
    text = "\n".join(parts)
    assert text == golden("cli/plans.txt", text)

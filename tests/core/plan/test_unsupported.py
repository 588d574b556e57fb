"""What an implementation refuses is refused when the plan is made, by name, before an environment is."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli import main
from levelfield.errors import LayoutError, NotHere
from levelfield.plan.arrangement import refuse_unsupported
from levelfield.predict.layout_rules import broken_rules
from levelfield.specs.base import parse
from levelfield.specs.case import Work
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.layout import Layout
from levelfield.specs.plan import Plan
from levelfield.specs.tuning import Tuning
from levelfield.worker.architecture import UNUSED
from levelfield.worker.faults import Unsupported
from plans import ROOT, make_plan

REGISTRY = Registry()
SMOKE = REGISTRY.case("gpt2_small").work("smoke")  # 4 layers, batch 32, micro-batch 8


def file(framework: str) -> ImplementationFile:
    return REGISTRY.implementation(framework)[0]


UNEVEN = [name for name in REGISTRY.frameworks if "uneven" in file(name).offered_parallelism("cpu")]


def plan_of(text: str, **fields: Any) -> Plan:
    return make_plan(REGISTRY, text, scale="smoke", may_lack_hardware=True, **fields)


@pytest.mark.parametrize(
    ("text", "fields", "words"),
    [
        ("oneflow:cpu", {"compile": True}, "compile (this implementation runs OneFlow eagerly)"),
        ("paddle:cpu", {"compile": True}, "compile (this implementation runs Paddle's dynamic graph)"),
        ("megatron:cpu", {"compile": True}, "compile (Megatron fuses its own operations)"),
        ("torch:cpu", {"graph": True}, "graph (a CUDA graph needs CUDA devices)"),
        ("torch:amd", {"graph": True}, "graph (a CUDA graph needs CUDA devices)"),
        ("torch:nvidia:1:2", {"graph": True}, "graph with several ranks (not written; its collectives"),
        ("torch:nvidia", {"graph": True, "capture_step": 3}, "graph with captured tensors (the host writes them"),
        ("deepspeed:nvidia", {"graph": True}, "graph (an option that deepspeed does not have)"),
        ("jax:nvidia", {"graph": True}, "graph (an option that jax does not have)"),
        ("oneflow:nvidia", {"attention": "flash_attn"}, "flash_attn (OneFlow 0.9 has no kernel of it that can train)"),
        ("torch:cpu", {"attention": "flash_attn"}, "flash_attn (the package flash-attn is for accelerators)"),
        ("megatron:amd", {"attention": "flash_attn"}, "flash_attn (it is transformer-engine's"),
        ("deepspeed:cpu", {"layout": "DP4SH3SP2"}, "partial sharding (DeepSpeed's ZeRO is over all"),
        ("megatron:cpu", {"layout": "DP4SH1SP2"}, "partial sharding (Megatron's distributed optimizer"),
        ("deepspeed:cpu", {"layout": "DP2SH3SP2", "compile": True}, "compile under zero3"),
        ("paddle:nvidia", {"layout": "DP2PP2SH2SP2"}, "zero2 or zero3 in a pipeline (Paddle's pipelines"),
        (
            "torch:cpu",
            {"layout": "DP2PP2SH2SP2", "virtual_pipeline": 2, "micro_batch": 1},
            "zero2 or zero3 with interleaved stages (torch's schedule",
        ),
        ("paddle:cpu", {"layout": "DP2CP2"}, "context (several ranks share each sequence;"),
        ("torch:cpu", {"layout": "PP4", "micro_batch": 16}, "fewer micro-batches than stages (torch's 1F1B"),
        ("paddle:cpu", {"layout": "PP4", "micro_batch": 16}, "fewer micro-batches than stages (fleet's 1F1B"),
    ],
)
def test_a_choice_that_the_implementation_refuses(text: str, fields: dict[str, object], words: str) -> None:
    with pytest.raises(NotHere) as caught:
        plan_of(f"gpt2_small:{text}", **fields)
    assert str(caught.value).startswith(text.split(":")[0]) and words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("megatron:nvidia", {"attention": "flash_attn"}),
        ("torch:cpu", {"layout": "DP4SH3SP2"}),
        ("deepspeed:cpu", {"layout": "DP4SH3SP4"}),
        ("torch:cpu", {"layout": "DP2PP2SH2SP2"}),
        ("megatron:cpu", {"layout": "PP4", "micro_batch": 16}),
        ("oneflow:cpu", {"layout": "PP4", "micro_batch": 16}),
        ("torch:cpu", {"compile": True}),
        ("torch:nvidia", {"graph": True}),
        ("torch:nvidia", {"graph": True, "compile": True}),
        ("torch:nvidia", {"graph": False, "capture_step": 3}),
        ("torch:nvidia:1:2", {"graph": False}),
    ],
)
def test_what_another_implementation_offers_is_planned(text: str, fields: dict[str, object]) -> None:
    assert plan_of(f"gpt2_small:{text}", **fields)


def test_a_refusal_comes_before_any_plan_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    graph = ["--case", "gpt2_small:torch:cpu:1:1", "--runs", str(tmp_path)]
    for command, words in (
        (["--case", "gpt2_small:deepspeed:cpu:1:4", "--layout", "DP4SH3SP2", "--runs", str(tmp_path)], "partial shard"),
        ([*graph, "--graph"], "a CUDA graph needs CUDA devices"),
    ):
        for more in ([], ["--dry-run"]):
            assert main.main([*command, *more]) == 2
            output = capsys.readouterr()
            assert output.out == "" and words in output.err
    assert list(tmp_path.iterdir()) == []
    assert main.main([*graph, "--no-graph", "--dry-run"]) == 0


@pytest.mark.parametrize(("scale", "refused"), [(1000.0, True), (3.0, True), (1048576.0, False), (0.5, False)])
def test_deepspeed_is_refused_a_loss_scale_that_it_would_truncate(scale: float, refused: bool) -> None:
    work = changed(SMOKE, training={"precision": "fp16", "loss_scale": {"initial": scale, "growth_interval": 10}})
    assert ("loss scale" in refusal("deepspeed", "nvidia", work, Tuning())) == refused
    assert refusal("torch", "nvidia", work, Tuning()) == ""


def test_an_unknown_refusal_is_an_error_of_the_file() -> None:
    content = {**file("torch").model_dump(mode="json"), "refuses": {"any": {"compiled": "why"}}}
    with pytest.raises(Exception, match=r"refuses\.any\.compiled"):
        parse(ImplementationFile, {"schema": ImplementationFile.schema_name(), **content}, "a file")


# ---- stages of unequal length


@pytest.mark.parametrize("framework", UNEVEN)
def test_uneven_stages_are_planned_with_their_memory(framework: str) -> None:
    plan = plan_of(f"gpt2_small:{framework}:cpu", layout="PP3")
    assert (plan.tuning.layout, plan.accumulation) == (Layout(pipeline=3), 4)
    even, wide = (plan_of(f"gpt2_small:{framework}:cpu", layout=text) for text in ("PP4", "PP2"))
    # its first stage has two layers, as both of PP2, and waits for one micro-batch more
    assert even.expected_memory.total_bytes < plan.expected_memory.total_bytes
    assert plan.expected_memory.parts["weights"] <= wide.expected_memory.parts["weights"]


def test_uneven_stages_are_refused_where_the_framework_has_none() -> None:
    with pytest.raises(LayoutError, match=r"4.layers.*pipeline 3"):
        plan_of("gpt2_small:megatron:cpu", layout="PP3")
    with pytest.raises(LayoutError, match=r"4.layers.*pipeline 5"):
        plan_of("gpt2_small:torch:cpu", layout="PP5")


# ---- the trainings' own checks, which need no framework, refuse nothing that the platform plans


def every_choice() -> Iterator[tuple[Layout, Tuning]]:
    sizes = itertools.product((1, 2, 3, 4), (1, 2, 3), (1, 2, 3, 5), (0, 1, 2, 3), (False, True))
    for data, tensor, pipeline, stage, sequence in sizes:
        for degree in {data, 2} if stage and data % 2 == 0 else {data if stage else 1}:
            layout = Layout(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                sequence_parallel=sequence,
                sharding_stage=stage if degree > 1 else 0,
                sharding_degree=degree if stage else 1,
            )
            for micro_batch, chunks, compiled in ((8, 1, False), (32 // data, 1, False), (4, 2, False), (8, 1, True)):
                yield layout, Tuning(layout=layout, micro_batch=micro_batch, virtual_pipeline=chunks, compile=compiled)


@pytest.mark.parametrize("framework", ["oneflow", "megatron"])
def test_a_training_refuses_nothing_that_the_platform_plans(framework: str) -> None:
    check, wrong, both = own_check(framework), [], 0
    for layout, tuning in every_choice():
        job = small_job(SMOKE, tuning)
        try:
            check(job)
        except Unsupported as error:
            both += 1
            if not platform_refuses(framework, SMOKE, layout, tuning):
                wrong.append(f"{layout} {tuning}: {error}")
    assert both > 100
    assert wrong == []


def platform_refuses(framework: str, work: Work, layout: Layout, tuning: Tuning) -> bool:
    uneven = "uneven" in file(framework).offered_parallelism("cpu")
    rules = broken_rules(work, layout, tuning.micro_batch, 1, layout.world_size, tuning.virtual_pipeline, uneven)
    return bool(rules or refusal(framework, "cpu", work, tuning))


def refusal(framework: str, kind: str, work: Work, tuning: Tuning) -> str:
    try:
        refuse_unsupported(file(framework), work, tuning, kind)
    except NotHere as error:
        return str(error)
    return ""


def changed(work: Work, **parts: dict[str, Any]) -> Work:
    content = work.model_dump()
    return Work.model_validate({**content, **{name: {**content[name], **part} for name, part in parts.items()}})


def small_job(work: Work, tuning: Tuning) -> SimpleNamespace:
    return SimpleNamespace(
        model=SimpleNamespace(**{**UNUSED, **work.model.model_dump()}),
        training=SimpleNamespace(**work.training.model_dump()),
        layout=SimpleNamespace(**{"context": 1, "expert": 1, **tuning.layout.model_dump()}),
        tuning=SimpleNamespace(**tuning.model_dump()),
        accumulation=max(1, work.training.global_batch // (tuning.micro_batch * tuning.layout.data)),
        device="cpu",
    )


def own_check(framework: str) -> Callable[[SimpleNamespace], None]:
    """The check of models/<framework>/limits.py, which imports the worker only."""
    spec = importlib.util.spec_from_file_location(f"limits_{framework}", ROOT / f"models/{framework}/limits.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    check: Callable[[SimpleNamespace], None] = module.check
    return check


# ---- a layout that the full case's batch does not allow, where the scale falls to smoke


@pytest.mark.parametrize(
    ("layout", "words", "batch"),
    [
        ("PP1DP220TP2", "global batch: 512 is not a multiple of 220", 660),
        (
            None,
            "no layout of 440 devices is possible: global batch 512",
            880,
        ),
    ],
)
def test_a_batch_that_440_devices_do_not_divide_is_the_full_case_s(layout: str | None, words: str, batch: int) -> None:
    """FlagPerf's row of 55 x 8 has a global batch of 1760, which is another case."""
    with pytest.raises(LayoutError) as caught:
        make_plan(REGISTRY, "flagperf_llama3_8b:megatron:H100:55:8", may_lack_hardware=True, layout=layout)
    message = " ".join(str(caught.value).split())
    assert words in message and f"--global-batch {batch}," in message
    for part in ("scale full", "smoke scale", "batch 512"):
        assert part in message
    plan = make_plan(REGISTRY, "flagperf_llama3_8b_b1760:megatron:H100:55:8", may_lack_hardware=True, scale="full")
    assert plan.work.training.global_batch == 1760


def test_a_layout_that_only_the_smoke_scale_forbids_names_its_sizes_alone() -> None:
    with pytest.raises(LayoutError) as caught:
        make_plan(REGISTRY, "gpt2_small:megatron:cpu", may_lack_hardware=True, layout="PP12")
    assert str(caught.value).startswith("layout DP1TP1PP12")


EXPERTS = {"count": 4, "chosen": 2, "ffn_hidden_size": 48}
LATENT = {"key_value_rank": 16, "plain_size": 8, "rotary_size": 4, "value_size": 8}


@pytest.mark.parametrize(
    ("model", "tuning", "words"),
    [
        ({"experts": EXPERTS, "bias": True}, Tuning(), "experts with biases"),
        ({"experts": EXPERTS}, Tuning(compile=True), "experts with compile"),
        (
            {"experts": EXPERTS},
            Tuning(layout=Layout(data=4, expert=2, sharding_stage=1, sharding_degree=2)),
            "experts of a part of the ranks with partial sharding",
        ),
        (
            {"experts": EXPERTS},
            Tuning(layout=Layout(data=10, expert=2, sharding_stage=1, sharding_degree=10)),
            "experts of a part of the ranks with an uneven hidden size",
        ),
        (
            {"experts": {**EXPERTS, "capacity_factor": 1.0}},
            Tuning(layout=Layout(context=2)),
            "expert capacity with context parallel",
        ),
        ({"latent_attention": LATENT}, Tuning(layout=Layout(tensor=2)), "latent attention with tensor parallel"),
        (
            {"latent_attention": LATENT, "rope_scaling": {"kind": "linear", "factor": 2}},
            Tuning(),
            "latent attention with rope scaling",
        ),
    ],
)
def test_torch_refuses_what_its_mixtures_do_not_have(model: dict[str, object], tuning: Tuning, words: str) -> None:
    plain = {"positions": "rope", "rope_base": 1e4, "bias": False}
    assert words in refusal("torch", "cpu", changed(SMOKE, model={**plain, **model}), tuning)
    assert words not in refusal("torch", "cpu", changed(SMOKE, model=plain), tuning)


@pytest.mark.parametrize("expert", [1, 2, 4])
def test_experts_are_planned_with_zero_over_all_ranks(expert: int) -> None:
    work = changed(SMOKE, model={"experts": EXPERTS, "bias": False})
    tuning = Tuning(layout=Layout(data=4, expert=expert, sharding_stage=3, sharding_degree=4))
    assert refusal("torch", "cpu", work, tuning) == ""


SCALE = {"initial": 1024.0, "growth_interval": 10}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"training": {"precision": "fp16", "loss_scale": SCALE}}, "graph with fp16 (the loss scale"),
        ({"training": {"precision": "fp8"}}, "fp8 with graph (not written)"),
        ({"model": {"hidden_dropout": 0.1}}, "graph with dropout (the host draws"),
        ({"model": {"attention_dropout": 0.1}}, "graph with dropout (the host draws"),
        ({"model": {"experts": EXPERTS, "bias": False}}, "experts with graph (the host reads"),
    ],
)
def test_torch_captures_no_step_that_the_host_decides_on(parts: dict[str, dict[str, object]], words: str) -> None:
    work = changed(SMOKE, **parts)
    assert words in refusal("torch", "nvidia", work, Tuning(graph=True))
    assert refusal("torch", "nvidia", work, Tuning()) == ""


def test_torch_captures_a_step_in_bf16_of_one_process() -> None:
    work = changed(SMOKE, training={"precision": "bf16"})
    assert refusal("torch", "nvidia", work, Tuning(graph=True)) == ""

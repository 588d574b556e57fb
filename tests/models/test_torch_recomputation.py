"""What recomputation repeats in torch, counted by its own FLOP counter, against what HFU counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from layouts import MODELS, parsed_model
from levelfield.measure.flops import Recomputation, flops_per_token, repeated_layers
from levelfield.specs.architecture import Model
from levelfield.worker import Unsupported
from levelfield.worker.architecture import Model as WorkerModel
from levelfield.worker.job import Tuning
from torch.utils.flop_counter import FlopCounterMode

pytestmark = pytest.mark.torch

LENGTH, SEQUENCES = 32, 2


def linear_flop(x: Sequence[int], weight: Sequence[int], *_rest: Any, **_options: Any) -> int:
    return 2 * torch.Size(x).numel() * weight[0]


def addmm_flop(_total: Any, left: Sequence[int], right: Sequence[int], **_options: Any) -> int:
    return 2 * left[0] * left[1] * right[1]


def grouped_flop(x: Sequence[int], weight: Sequence[int], *_rest: Any, **_options: Any) -> int:
    """Of rows by expert with each expert's matrix; or, for the matrices' gradient, of two with the rows as columns."""
    return 2 * torch.Size(x).numel() * weight[-1]


def counted(job: Any) -> int:
    """FLOPs of the matrix products of one forward and backward pass. Attention's kernel on a processor has no count."""
    from model.attention import choose_attention
    from model.decoder import Decoder, compute_dtype, stage_of
    from step.recompute import recompute_blocks

    model, training = job.model, job.training
    attend = choose_attention("sdpa", model.attention_dropout, None)
    decoder = Decoder(model, LENGTH, compute_dtype(training.precision), stage_of(model.layers, 1, 0), lambda _: attend)
    if training.precision == "fp8":
        from step.fp8 import use_fp8

        use_fp8(decoder, job)
        decoder.to_empty(device="cpu")  # any numbers: their products are counted
    decoder.prepare(torch.device("cpu"))
    recompute_blocks(decoder, job.tuning)
    tokens = torch.randint(0, model.vocab_size, (SEQUENCES, LENGTH))
    own = {torch.ops.levelfield.product: linear_flop, torch.ops.aten.addmm_: addmm_flop}
    own |= {torch.ops.aten._grouped_mm: grouped_flop}
    with FlopCounterMode(display=False, custom_mapping=own) as counter:
        decoder(tokens, tokens).backward()
    return counter.get_total_flops()


def job(family: str, recompute: str, precision: str, dropout: float, model: WorkerModel | None = None) -> Any:
    """As the worker has it: the model of the tests with two layers, or another one."""
    plain = parsed_model({**MODELS[family], "layers": 2, "hidden_dropout": dropout})
    return SimpleNamespace(
        model=model or plain,
        training=SimpleNamespace(precision=precision),
        tuning=SimpleNamespace(recompute=recompute, recompute_layers=None, compile=False),
        layout=SimpleNamespace(tensor=1),
        device="cpu",
    )


@pytest.mark.parametrize("family", ["gpt", "llama"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_hfu_counts_what_torch_repeats(family: str, precision: str, dropout: float) -> None:
    from step.recompute import repeats

    without = counted(job(family, "none", precision, dropout))
    for recompute in ("selective", "full"):
        with_it = job(family, recompute, precision, dropout)
        kind, model = cast(Recomputation, repeats(with_it)), Model(**asdict(with_it.model))
        attention = 2 * model.layers * LENGTH * model.hidden_size if recompute == "full" else 0
        plain = flops_per_token("megatron", model, LENGTH)
        repeated = flops_per_token("megatron", model, LENGTH, recompute=kind)
        assert counted(with_it) - without == (repeated - plain - attention) * LENGTH * SEQUENCES, recompute


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("layers", [1, 2])
def test_hfu_counts_the_layers_that_torch_repeats(precision: str, layers: int) -> None:
    """Of two layers the first, or both. A layer more or less than that is a quarter of the step."""
    from step.recompute import repeats

    with_it = job("llama", "full", precision, 0.0)
    with_it.tuning.recompute_layers = layers
    kind, model = cast(Recomputation, repeats(with_it)), Model(**asdict(with_it.model))
    some = repeated_layers(model.layers, 1, 1, layers)
    plain = flops_per_token("megatron", model, LENGTH)
    repeated = flops_per_token("megatron", model, LENGTH, recompute=kind, repeated=some)
    attention = 2 * layers * LENGTH * model.hidden_size
    without = counted(job("llama", "none", precision, 0.0))
    assert counted(with_it) - without == (repeated - plain - attention) * LENGTH * SEQUENCES


def test_the_first_layers_of_each_stage_are_repeated() -> None:
    """The second stage of a pipeline has its own first ones."""
    from model.attention import choose_attention
    from model.decoder import Decoder, compute_dtype, stage_of
    from step.recompute import recompute_blocks

    found = job("gpt", "full", "fp32", 0.0)
    found.model, found.tuning.recompute_layers = replace(found.model, layers=8), 3
    attend = choose_attention("sdpa", 0.0, None)
    for stage, expected in ((0, ["0", "1", "2"]), (1, ["4", "5", "6"])):
        decoder = Decoder(found.model, LENGTH, compute_dtype("fp32"), stage_of(8, 2, stage), lambda _: attend)
        recompute_blocks(decoder, found.tuning)
        changed = [name for name, block in decoder.layers.items() if "forward" in vars(block)]
        assert changed == expected


@pytest.mark.parametrize(("mode", "layers"), [("selective", 1), ("none", 1), ("full", 0)])
def test_layers_of_another_mode_are_refused(mode: str, layers: int) -> None:
    from step.recompute import check_recompute

    with pytest.raises(Unsupported, match=f"recompute '{mode}' of {layers} layers"):
        check_recompute(Tuning(1, None, mode, False, "sdpa", recompute_layers=layers))


def test_without_recomputation_all_products_are_those_of_the_formula() -> None:
    found = job("gpt", "none", "bf16", 0.0)
    model = Model(**asdict(found.model))
    attention = 6 * model.layers * LENGTH * model.hidden_size
    assert counted(found) == (flops_per_token("megatron", model, LENGTH) - attention) * LENGTH * SEQUENCES


def test_the_kind_depends_on_dropout_and_kernel() -> None:
    """Otherwise the test above could pass with one kind everywhere."""
    from step.recompute import repeats

    kinds = {(p, d): repeats(job("gpt", "full", p, d)) for p in ("fp32", "bf16") for d in (0.0, 0.1)}
    assert kinds["bf16", 0.0] == "full-except-down" and kinds["bf16", 0.1] == kinds["fp32", 0.1] == "full"
    assert repeats(job("gpt", "selective", "bf16", 0.0)) == "selective"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_hfu_counts_what_a_mixture_repeats(precision: str) -> None:
    """All of it, and the router, which no formula counts."""
    from step.recompute import repeats

    experts = {**MODELS["mixture"]["experts"], "first_layer": 0}
    mixture = parsed_model({**MODELS["mixture"], "layers": 2, "experts": experts})
    without = counted(job("mixture", "none", precision, 0.0, mixture))
    for recompute in ("selective", "full"):
        with_it = job("mixture", recompute, precision, 0.0, mixture)
        kind = cast(Recomputation, repeats(with_it))
        model = Model.model_validate({**MODELS["mixture"], "layers": 2, "experts": experts})
        plain = flops_per_token("megatron", model, LENGTH)
        repeated = flops_per_token("megatron", model, LENGTH, recompute=kind)
        attention = 2 * model.layers * LENGTH * model.hidden_size if recompute == "full" else 0
        router = 2 * model.layers * experts["count"] * model.hidden_size if recompute == "full" else 0
        expected = (repeated - plain - attention + router) * LENGTH * SEQUENCES
        assert counted(with_it) - without == expected, recompute

"""Ranks that share each sequence, in torch: which tokens a rank has, and faults that the comparison must see.

That they train what one process trains is in the matrix (test_layouts.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from layouts import (
    MODELS,
    NOBODY_JOINS,
    SINGLE,
    Curve,
    Variant,
    compare,
    events,
    launch,
    parsed_job,
    planted,
    shallow,
    small_job,
    train,
)
from levelfield.worker import Unsupported, check_context_parallel
from levelfield.worker.job import Coordinates
from matrix import VARIANTS

pytestmark = [pytest.mark.torch, pytest.mark.layouts]
STEPS = 3
# torch's kernel for processors in the place of that for CUDA: a processor attends with a mask otherwise
PROCESSOR_KERNEL = """
import torch
aten = torch.ops.aten
def forward(query, key, value, causal):
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal)
def backward(gradient, output, scale, query, key, value, causal):
    inputs = gradient, query, key, value, output, scale, 0.0, causal
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(*inputs)
"""
JOINED = f"""{PROCESSOR_KERNEL}
from parallelism import joined_attention, parallelize
joined_attention.KERNELS["flash"] = (forward, backward)
parallelize.joined_kernel = lambda job, device: "flash"
"""


@pytest.mark.parametrize(("length", "ranks"), [(8, 2), (32, 4), (24, 3)])
def test_ranks_share_a_sequence_by_pieces_from_both_ends(length: int, ranks: int) -> None:
    from parallelism.context_parallel import SequenceShare

    group: Any = None  # nothing is exchanged
    shares = [SequenceShare(length, ranks, rank, group) for rank in range(ranks)]
    positions = [share.positions.tolist() for share in shares]
    assert sorted(itertools.chain(*positions)) == list(range(length))
    # under the causal mask a token attends to as many as its position says: all ranks to as many
    assert len({sum(own) for own in positions}) == 1
    for share, own in zip(shares, positions, strict=True):
        assert own == sorted(own) and share.of(torch.arange(length)[None]).tolist() == [own]
        assert [own[length // ranks // 2 - 1] + 1, own[-1] + 1] == share.ends


def test_under_sequence_parallelism_a_rank_embeds_a_part_of_its_share() -> None:
    from parallelism.context_parallel import SequenceShare

    group: Any = None  # nothing is exchanged
    parts = [SequenceShare(16, 2, 1, group, 2, rank).embedded.tolist() for rank in (0, 1)]
    assert parts == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_fewer_queries_than_keys_are_the_last_ones() -> None:
    from model.attention import scaled_dot_product

    query, key, value = torch.randn(3, 2, 12, 4, 8, generator=torch.Generator().manual_seed(0)).unbind()
    for window in (None, 3):
        whole = scaled_dot_product(query, key[:, :, :2], value[:, :, :2], 0.0, window)
        last = scaled_dot_product(query[:, 7:], key[:, :, :2], value[:, :, :2], 0.0, window)
        torch.testing.assert_close(last, whole[:, 7:])


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.05)], ids=str
)
def test_attention_in_two_calls_is_that_with_a_mask(
    dtype: torch.dtype, tolerance: float, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward, of each rank; what other ranks gather and sum is done here."""
    from model.attention import scaled_dot_product
    from parallelism import joined_attention
    from parallelism.context_parallel import in_order
    from parallelism.joined_attention import by_rank

    kernel: dict[str, Any] = {}
    exec(PROCESSOR_KERNEL, kernel)
    monkeypatch.setitem(joined_attention.KERNELS, "flash", (kernel["forward"], kernel["backward"]))
    random = torch.Generator().manual_seed(0)
    batch, length, heads, kv_heads, size = 2, 10 * ranks, 4, 2, 8
    query, gradient = torch.randn(2, batch, length, heads, size, dtype=torch.float64, generator=random).to(dtype)
    keys = torch.randn(batch, length, kv_heads, 2 * size, dtype=torch.float64, generator=random).to(dtype)
    inputs = [each.clone().requires_grad_() for each in (query, keys)]
    key, value = inputs[1].chunk(2, dim=-1)
    right = scaled_dot_product(inputs[0], key, value, 0.0)
    expected = (right.detach(), *torch.autograd.grad(right, inputs, gradient))

    gathered = by_rank(keys, ranks)
    assert torch.equal(in_order(gathered, ranks), keys)
    outputs, of_queries, of_keys = [], [], torch.zeros_like(gathered)
    for rank, (piece, own, back) in enumerate(
        zip(*(by_rank(each, ranks).chunk(ranks) for each in (query, keys, gradient)), strict=True)
    ):
        output, scales = joined_attention.attention(piece, own, gathered, rank, "", "flash")
        assert scales.dtype == torch.promote_types(dtype, torch.float32)
        joined = list(zip(joined_attention.halves(back), joined_attention.halves(output), scales, strict=True))
        of_query, of_whole = joined_attention.gradients_before(joined, piece, keys, rank, "flash")
        causal = joined_attention.own_gradients(joined, piece, own, "flash")
        for gradients, totals in zip(
            causal, joined_attention.own_inputs(of_query, of_keys.chunk(ranks)[rank]), strict=True
        ):
            joined_attention.add(gradients, totals)
        outputs.append(output)
        of_queries.append(of_query)
        of_keys += by_rank(of_whole, ranks)
    for found, wanted in zip((torch.cat(outputs), torch.cat(of_queries), of_keys), expected, strict=True):
        torch.testing.assert_close(in_order(found, ranks), wanted, rtol=tolerance, atol=tolerance)


# torch generates no code: blocks are traced and differentiated as it compiles them
TRACED = """
import functools
torch.compile = functools.partial(torch.compile, backend="aot_eager")
"""


@pytest.mark.thorough  # the next test has what the compiler is told of the operation
def test_attention_in_two_calls_is_traced(tmp_path: Path, torch_of: Callable[[dict[str, Any]], Curve]) -> None:
    model = shallow(MODELS["llama"])
    variant = Variant("CP2, traced, recompute full", {"context": 2}, recompute="full", compile=True)
    difference = compare(
        train(small_job(model, variant, STEPS), planted(tmp_path, "torch", JOINED + TRACED)),
        torch_of(small_job(model, SINGLE, STEPS)),
    )
    assert difference.is_within_limits(), difference


def test_the_operations_outputs_are_as_the_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sizes and types, also of the backward pass, whose sum over two ranks is one rank's here."""
    from parallelism import joined_attention

    kernel: dict[str, Any] = {}
    exec(PROCESSOR_KERNEL, kernel)
    monkeypatch.setitem(joined_attention.KERNELS, "flash", (kernel["forward"], kernel["backward"]))
    summing = SimpleNamespace(
        reduce_scatter_tensor=lambda whole, *_: whole.chunk(2)[1].clone(), wait_tensor=lambda part: part
    )
    monkeypatch.setattr(joined_attention, "collectives", summing)
    query, local = torch.randn(2, 12, 4, 8).bfloat16(), torch.randn(2, 12, 2, 16).bfloat16()
    gathered, last = torch.cat((local, local)), (1, "", "flash")
    output, scales = joined_attention.attention(query, local, gathered, *last)
    torch.library.opcheck(joined_attention.attention, (query, local, gathered, *last), test_utils="test_faketensor")
    inputs = (output, query, gathered, output, scales, *last)
    torch.library.opcheck(joined_attention.attention_backward, inputs, test_utils="test_faketensor")


@pytest.mark.parametrize(
    "variant",
    [
        VARIANTS["CP2"],
        *(
            pytest.param(variant, marks=pytest.mark.thorough)
            for variant in (
                Variant("CP4, recompute selective", {"context": 4}, recompute="selective"),
                Variant("CP2, compiled, recompute full", {"context": 2}, recompute="full", compile=True),
                VARIANTS["CP2 x TP2 sequence parallel"],
            )
        ),
    ],
    ids=lambda each: each.name,
)
def test_attention_in_two_calls_trains_the_same(
    variant: Variant, tmp_path: Path, torch_of: Callable[[dict[str, Any]], Curve]
) -> None:
    model = shallow(MODELS["llama"])
    found = compare(
        train(small_job(model, variant, STEPS), planted(tmp_path, "torch", JOINED)),
        torch_of(small_job(model, SINGLE, STEPS)),
    )
    assert found.is_within_limits(), found


def test_selective_recomputation_keeps_attention_in_two_calls() -> None:
    """Of the operation's one output; what it calls inside is not seen."""
    from parallelism import joined_attention
    from step.recompute import _policy
    from torch.utils.checkpoint import CheckpointPolicy

    assert _policy(None, joined_attention.attention._opoverload) == CheckpointPolicy.MUST_SAVE


def test_a_sliding_window_reaches_over_the_pieces_of_other_ranks(torch_of: Callable[[dict[str, Any]], Curve]) -> None:
    model = {**shallow(MODELS["llama"]), "sliding_window": 11}
    right = torch_of(small_job(model, SINGLE, STEPS))
    found = compare(train(small_job(model, VARIANTS["CP2"], STEPS)), right)
    assert found.is_within_limits(), found


FAULTS = {
    "a rank with the positions of the sequence's start": """
from model import decoder
right = decoder.Decoder.prepare
def prepare(self, device):
    right(self, device)
    if job.rank == 1:
        self.rotary = decoder.rotary_tables(8, self.length // 2, 10000.0, device, self.dtype)
decoder.Decoder.prepare = prepare
""",
    "key and value gradients of other ranks left out": """
import torch
from parallelism.context_parallel import SequenceShare
right = SequenceShare.whole
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part, share):
        ctx.positions = share.positions
        return right(share, part)
    @staticmethod
    def backward(ctx, gradient):
        return gradient[:, ctx.positions], None
SequenceShare.whole = lambda self, part: Own.apply(part, self)
""",
    "a causal mask that counts from a piece's own start": """
import torch
from model import attention
attention.banded = lambda queries, keys, *_: torch.ones(queries, keys, dtype=torch.bool).tril()
""",
    "keys in the order of the ranks": """
from parallelism import context_parallel
context_parallel.in_order = lambda gathered, ranks: gathered.unflatten(0, (ranks, -1)).transpose(0, 1).flatten(1, 2)
""",
    "the targets of another rank": """
from parallelism.context_parallel import SequenceShare
right = SequenceShare.of
def of(self, sequences):
    self.turn = not getattr(self, "turn", False)
    return right(self, sequences if self.turn else sequences.roll(1, -1))
SequenceShare.of = of
""",
}

JOINED_FAULTS = {
    "key and value gradients of other ranks left out": """
import torch
from parallelism import joined_attention
right = joined_attention.gradients_before
def left_out(*inputs):
    query, whole = right(*inputs)
    return query, torch.zeros_like(whole)
joined_attention.gradients_before = left_out
""",
    "attention to a piece itself without a mask": """
from parallelism import joined_attention
right = joined_attention.KERNELS["flash"]
joined_attention.KERNELS["flash"] = (lambda *inputs: right[0](*inputs[:3], False), right[1])
""",
    "keys in the order of the ranks": """
from parallelism import joined_attention
joined_attention.in_order = lambda gathered, ranks: gathered.unflatten(0, (ranks, -1)).transpose(0, 1).flatten(1, 2)
""",
    "gradients in the order of the sequence": """
from parallelism import joined_attention
def in_sequence(whole, ranks):
    return whole.unflatten(1, (ranks, -1)).transpose(0, 1).flatten(0, 1).contiguous()
joined_attention.by_rank = in_sequence
""",
    "two outputs joined without their weights": """
import torch
from parallelism import joined_attention
def join(own, before, into):
    into.copy_(own[0] if before is None else (own[0] + before[0]) / 2)
    return own[1] if before is None else torch.logaddexp(own[1], before[1])
joined_attention.join = join
""",
    "a backward pass with the log-sum-exp of the own keys": """
from parallelism import joined_attention
right = joined_attention.join
def join(own, before, into):
    right(own, before, into)
    return own[1]
joined_attention.join = join
""",
    "the pieces of a rank in each other's place": """
from parallelism import joined_attention
right = joined_attention.inputs_before
def swapped(query, whole, rank):
    return right(query, whole, whole.shape[1] // query.shape[1] - 1 - rank)
joined_attention.inputs_before = swapped
""",
    "a key too many before a piece": """
from parallelism import joined_attention
def before(query, whole, rank):
    size = query.shape[1] // 2
    ends = rank * size, whole.shape[1] - (rank + 1) * size
    keys = [whole[:, : end + 1].transpose(1, 2).chunk(2, dim=-1) if end else None for end in ends]
    return [pair and (piece, *pair) for piece, pair in zip(joined_attention.halves(query), keys)]
joined_attention.inputs_before = before
""",
}
FAULTS |= {f"joined: {name}": JOINED + fault for name, fault in JOINED_FAULTS.items()}


# One of each way to attend. The comparison that sees all of them is that of the trainings above and of test_layouts.py.
FIRST = ("keys in the order of the ranks", "joined: two outputs joined without their weights")


@pytest.mark.parametrize(
    "fault", [name if name in FIRST else pytest.param(name, marks=pytest.mark.thorough) for name in FAULTS]
)
def test_a_planted_fault_is_seen(fault: str, tmp_path: Path, torch_of: Callable[[dict[str, Any]], Curve]) -> None:
    model = shallow(MODELS["llama"])
    right = torch_of(small_job(model, SINGLE, STEPS))
    found = compare(train(small_job(model, VARIANTS["CP2"], STEPS), planted(tmp_path, "torch", FAULTS[fault])), right)
    assert not found.is_within_limits()
    assert found.same_tokens and found.same_weights
    assert found.parameter_norm is not None
    assert found.parameter_norm > 1e-2


def test_a_sequence_that_cannot_be_shared_is_refused_before_ranks_join(tmp_path: Path) -> None:
    job = small_job(MODELS["llama"], VARIANTS["CP2"], 2, sequence_length=30)
    assert {end.returncode for end in launch(job, tmp_path, planted(tmp_path, "torch", NOBODY_JOINS))} == {1}
    error = events(tmp_path, 1)[-1]
    assert error["class"] == "unsupported"
    assert "sequence_length 30 cannot be divided by 4" in error["message"]


@pytest.mark.parametrize(("tensor", "length", "fits"), [(1, 24, True), (1, 26, False), (4, 20, False), (4, 32, True)])
def test_tensor_parallel_ranks_divide_a_share_again(tensor: int, length: int, fits: bool) -> None:
    shared = Variant("shared", {"context": 2, "tensor": tensor, "sequence_parallel": tensor > 1})
    job = parsed_job(small_job(MODELS["llama"], shared, sequence_length=length))
    if fits:
        check_context_parallel(job)
        return
    with pytest.raises(Unsupported, match="context parallel over 2 ranks"):
        check_context_parallel(job)


def test_context_ranks_draw_dropout_of_their_own() -> None:
    from training import step_seed

    def seed(context_ranks: int, context: int) -> int:
        job = parsed_job(small_job(MODELS["llama"], Variant("shared", {"context": context_ranks})))
        return step_seed(job, Coordinates(pipeline=0, data=0, context=context, tensor=0), 1)

    assert len({seed(1, 0), seed(2, 0), seed(2, 1)}) == 3


@pytest.mark.thorough  # what a context rank draws is above; recomputation draws it again in test_torch_dropout.py
def test_dropout_trains_with_shared_sequences() -> None:
    variant = Variant("", {"context": 2}, recompute="selective")
    model = {**shallow(MODELS["gpt"]), "hidden_dropout": 0.1, "attention_dropout": 0.1}
    curve = train(small_job(model, variant, STEPS))
    assert train(small_job(model, variant, STEPS)) == curve

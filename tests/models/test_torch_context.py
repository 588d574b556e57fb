"""Ranks that share each sequence, in torch: which tokens a rank has, and faults that the comparison must see.

That they train what one process trains is in the matrix (test_layouts.py).
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from layouts import MODELS, NOBODY_JOINS, SINGLE, Variant, compare, events, job_of, launch, planted, shallow, train
from levelfield.worker import Unsupported, check_context_parallel
from matrix import VARIANTS

pytestmark = [pytest.mark.torch, pytest.mark.layouts]
STEPS = 3


@pytest.mark.parametrize(("length", "ranks"), [(8, 2), (32, 4), (24, 3)])
def test_ranks_share_a_sequence_by_pieces_from_both_ends(length, ranks):
    from parallelism.context_parallel import SequenceShare

    shares = [SequenceShare(length, ranks, rank, None) for rank in range(ranks)]
    positions = [share.positions.tolist() for share in shares]
    assert sorted(itertools.chain(*positions)) == list(range(length))
    # under the causal mask a token attends to as many as its position says: all ranks to as many
    assert len({sum(own) for own in positions}) == 1
    for share, own in zip(shares, positions, strict=True):
        assert own == sorted(own) and share.of(torch.arange(length)[None]).tolist() == [own]
        assert [own[length // ranks // 2 - 1] + 1, own[-1] + 1] == share.ends


def test_under_sequence_parallelism_a_rank_embeds_a_part_of_its_share():
    from parallelism.context_parallel import SequenceShare

    parts = [SequenceShare(16, 2, 1, None, 2, rank).embedded.tolist() for rank in (0, 1)]
    assert parts == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_fewer_queries_than_keys_are_the_last_ones():
    from model.attention import scaled_dot_product

    query, key, value = torch.randn(3, 2, 12, 4, 8, generator=torch.Generator().manual_seed(0)).unbind()
    for window in (None, 3):
        whole = scaled_dot_product(query, key[:, :, :2], value[:, :, :2], 0.0, window)
        last = scaled_dot_product(query[:, 7:], key[:, :, :2], value[:, :, :2], 0.0, window)
        torch.testing.assert_close(last, whole[:, 7:])


def test_a_sliding_window_reaches_over_the_pieces_of_other_ranks(torch_of):
    model = {**shallow(MODELS["llama"]), "sliding_window": 11}
    right = torch_of(job_of(model, SINGLE, STEPS))
    found = compare(train(job_of(model, VARIANTS["CP2"], STEPS)), right)
    assert found.within(), found


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
from parallelism.context_parallel import SequenceShare, all_gather_single_autograd
SequenceShare.whole = lambda self, part: all_gather_single_autograd(part.contiguous(), 1, self.group)
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


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault, tmp_path, torch_of):
    model = shallow(MODELS["llama"])
    right = torch_of(job_of(model, SINGLE, STEPS))
    found = compare(train(job_of(model, VARIANTS["CP2"], STEPS), planted(tmp_path, "torch", FAULTS[fault])), right)
    assert not found.within()
    assert found.same_tokens and found.same_weights
    assert found.parameter_norm > 1e-2


def test_a_sequence_that_cannot_be_shared_is_refused_before_ranks_join(tmp_path):
    job = job_of(MODELS["llama"], VARIANTS["CP2"], 2, sequence_length=30)
    assert {end.returncode for end in launch(job, tmp_path, planted(tmp_path, "torch", NOBODY_JOINS))} == {1}
    error = events(tmp_path, 1)[-1]
    assert error["class"] == "unsupported"
    assert "sequence_length 30 cannot be divided by 4" in error["message"]


@pytest.mark.parametrize(("tensor", "length", "fits"), [(1, 24, True), (1, 26, False), (4, 20, False), (4, 32, True)])
def test_tensor_parallel_ranks_divide_a_share_again(tensor, length, fits):
    layout = SimpleNamespace(context=2, tensor=tensor, sequence_parallel=tensor > 1)
    job = SimpleNamespace(layout=layout, training=SimpleNamespace(sequence_length=length))
    if fits:
        check_context_parallel(job)
        return
    with pytest.raises(Unsupported, match="context parallel over 2 ranks"):
        check_context_parallel(job)


def test_context_ranks_draw_dropout_of_their_own():
    from training import step_seed

    def seed(context_ranks, context):
        layout = SimpleNamespace(context=context_ranks, sequence_parallel=False)
        job = SimpleNamespace(layout=layout, training=SimpleNamespace(seed=7))
        return step_seed(job, SimpleNamespace(data=0, pipeline=0, tensor=0, context=context), 1)

    assert len({seed(1, 0), seed(2, 0), seed(2, 1)}) == 3


def test_dropout_trains_with_shared_sequences():
    variant = Variant("", {"context": 2}, recompute="selective")
    model = {**shallow(MODELS["gpt"]), "hidden_dropout": 0.1, "attention_dropout": 0.1}
    curve = train(job_of(model, variant, STEPS))
    assert train(job_of(model, variant, STEPS)) == curve

"""Batches: the same work for every layout; the synthetic corpus; the order of samples."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.worker import Batches, CorpusError, JobError
from levelfield.worker.batches import open_source
from levelfield.worker.checksum import checksum_samples
from levelfield.worker.order import Order, permute
from levelfield.worker.synthetic import SyntheticCorpus, choice_probabilities, synthetic_entropy
from numpy.typing import NDArray
from planted_corpora import write_megatron, write_paddle
from worker_jobs import make_job

LAYOUTS = [(1, 2, 4), (1, 8, 1), (2, 2, 2), (2, 4, 1), (4, 1, 2), (8, 1, 1)]  # data, micro-batch, accumulation


Tokens = NDArray[np.int64]


def whole_step(
    folder: Path, data: int, micro_batch: int, accumulation: int, step: int = 2, **changes: Any
) -> tuple[Tokens, Tokens, int, int]:
    """All ranks' batches of one step: rows in run order, the sum of checksums, of tokens."""
    changes = dict(changes, layout=dict(data=data), tuning=dict(micro_batch=micro_batch), accumulation=accumulation)
    batches = [Batches(make_job(folder, **changes), rank).batch(step) for rank in range(data)]
    inputs = np.stack([b.inputs for b in batches], axis=1).reshape(8, 32)
    targets = np.stack([b.targets for b in batches], axis=1).reshape(8, 32)
    return inputs, targets, sum(b.checksum for b in batches) % 2**64, sum(b.tokens for b in batches)


@pytest.fixture(params=["synthetic", "megatron", "paddle"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    prefix = tmp_path / "c"
    if request.param == "megatron":
        write_megatron(prefix, [1000, 1, 3000])
    if request.param == "paddle":
        write_paddle(prefix, [1000, 1, 3000])
    return {"kind": request.param, "prefix": str(prefix)}


def test_the_ranks_together_do_the_same_work_in_every_layout(tmp_path: Path, corpus: dict[str, str]) -> None:
    inputs, targets, checksum, tokens = whole_step(tmp_path, *LAYOUTS[0], corpus=corpus)
    assert tokens == 8 * 32
    for layout in LAYOUTS[1:]:
        other = whole_step(tmp_path, *layout, corpus=corpus)
        assert np.array_equal(other[0], inputs) and np.array_equal(other[1], targets)
        assert other[2:] == (checksum, tokens)


def test_targets_are_the_next_tokens(tmp_path: Path, corpus: dict[str, str]) -> None:
    batch = Batches(make_job(tmp_path, corpus=corpus), 0).batch(1)
    assert batch.inputs.shape == batch.targets.shape == (4, 2, 32)
    assert batch.inputs.dtype == batch.targets.dtype == np.int64
    assert np.array_equal(batch.inputs[..., 1:], batch.targets[..., :-1])


def test_steps_and_seeds_give_other_batches(tmp_path: Path, corpus: dict[str, str]) -> None:
    batches = Batches(make_job(tmp_path, corpus=corpus), 0)
    other = Batches(make_job(tmp_path, corpus=corpus, data={"seed": 8}), 0)
    assert [b.step for b in batches] == [1, 2, 3, 4] and len(batches) == 4
    sums = [b.checksum for b in batches] + [b.checksum for b in other]
    assert len(set(sums)) == 8


def test_a_checksum_sees_tokens_and_places(tmp_path: Path) -> None:
    numbers = np.arange(4, dtype=np.uint64)
    tokens = np.arange(40, dtype=np.int64).reshape(4, 10)
    target, swapped = tokens.copy(), tokens.copy()
    target[3, 9] += 1
    swapped[1, [2, 3]] = swapped[1, [3, 2]]
    variants = [
        (numbers, tokens),
        (numbers, target),
        (numbers, swapped),
        (numbers + np.uint64(1), tokens),
        (numbers, tokens[::-1].copy()),
    ]
    assert len({checksum_samples(n, t) for n, t in variants}) == len(variants)
    assert checksum_samples(numbers[::-1].copy(), tokens[::-1].copy()) == checksum_samples(numbers, tokens)


@pytest.mark.parametrize(("accumulation", "rank"), [(3, 0), (4, 1), (4, -1)])
def test_sizes_that_do_not_multiply_are_refused(tmp_path: Path, accumulation: int, rank: int) -> None:
    with pytest.raises(JobError) as error:
        Batches(make_job(tmp_path, accumulation=accumulation), rank)
    for fact in (f"rank {rank}", f"accumulation {accumulation}", "micro_batch 2", "global_batch 8"):
        assert fact in str(error.value)


# the synthetic corpus


def synthetic(folder: Path, count: int = 64, **data: Any) -> Tokens:
    job = make_job(folder, data=data, training={"sequence_length": 512})
    return open_source(job).samples(np.arange(count, dtype=np.uint64))


def test_the_synthetic_corpus_is_pinned(tmp_path: Path) -> None:
    content = synthetic(tmp_path).astype("<i8").tobytes()
    assert hashlib.sha256(content).hexdigest() == "9729af8206479a849427ae7be103e59e5c30da54e873947f66d36ce2420fdc41"


def test_a_sample_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    samples = open_source(job).samples(np.arange(20, dtype=np.uint64))
    assert np.array_equal(open_source(job).samples(np.array([13, 7], dtype=np.uint64)), samples[[13, 7]])


def entropy(counts: Mapping[Any, int]) -> float:
    total = sum(counts.values())
    return -sum(n / total * math.log(n / total) for n in counts.values())


def bigram_entropy(branching: int) -> float:
    """The entropy of a token in nats, given one token before it: the floor plus the entropy of one parity."""
    odd = math.fsum(choice_probabilities(branching)[1::2])
    return synthetic_entropy(branching) - odd * math.log(odd) - (1 - odd) * math.log(1 - odd)


@pytest.mark.parametrize("branching", [2, 3, 4, 8])
def test_the_measured_entropy_is_the_formulas(tmp_path: Path, branching: int) -> None:
    # the steps between states follow from the tokens alone: invert the spread over the vocabulary
    tokens = synthetic(tmp_path, count=512, branching=branching, alphabet=64)
    source = open_source(make_job(tmp_path))
    assert isinstance(source, SyntheticCorpus)
    stride = int(source._tokens[1])
    states = tokens * pow(stride, -1, 1000) % 1000
    assert states.max() < 64
    steps = np.diff(states, axis=1) % 64
    assert steps.min() == 1 and steps.max() == 2 * branching
    pairs = Counter(zip(steps[:, :-1].ravel().tolist(), steps[:, 1:].ravel().tolist(), strict=True))
    singles = Counter(steps[:, 1:].ravel().tolist())
    conditional = entropy(pairs) - entropy(Counter(steps[:, :-1].ravel().tolist()))
    assert conditional == pytest.approx(synthetic_entropy(branching), abs=0.005)
    assert entropy(singles) == pytest.approx(bigram_entropy(branching), abs=0.005)
    # the first target too, about which the model knows least
    assert entropy(Counter(steps[:, 0].tolist())) == pytest.approx(synthetic_entropy(branching), abs=0.15)
    assert steps[:, 0].max() <= branching


def test_entropy_of_two_and_of_four_choices() -> None:
    assert synthetic_entropy(2) == pytest.approx(math.log(2))
    assert synthetic_entropy(4) == pytest.approx(1.75 * math.log(2))
    assert bigram_entropy(2) == pytest.approx(2 * math.log(2))


@pytest.mark.parametrize("alphabet", [7, 1001])
def test_an_alphabet_that_does_not_fit_is_refused(tmp_path: Path, alphabet: int) -> None:
    with pytest.raises(CorpusError, match=rf"data\.alphabet is {alphabet}, .*\b8\b.*\b1000\b"):
        synthetic(tmp_path, alphabet=alphabet)


@pytest.mark.parametrize("vocabulary", [64, 65, 128256, 50304, 50257])
def test_the_alphabet_spreads_over_the_vocabulary(tmp_path: Path, vocabulary: int) -> None:
    source = open_source(make_job(tmp_path, model={"vocab_size": vocabulary}))
    assert isinstance(source, SyntheticCorpus)
    tokens = source._tokens
    assert len(set(tokens.tolist())) == 64
    assert tokens.min() >= 0 and vocabulary * 0.9 <= tokens.max() < vocabulary


# the order of samples


@given(count=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_the_permutation_is_one(count: int, key: int) -> None:
    places = permute(np.arange(count, dtype=np.uint64), count, key)
    assert sorted(places.tolist()) == list(range(count))


@given(count=st.integers(2**31, 2**50), key=st.integers(0, 2**64 - 1))
def test_large_permutations_keep_numbers_apart_and_inside(count: int, key: int) -> None:
    numbers = np.unique(np.linspace(0, count - 1, 500).astype(np.uint64))
    places = permute(numbers, count, key)
    assert len(set(places.tolist())) == len(numbers) and int(places.max()) < count


def test_the_permutation_mixes() -> None:
    places = permute(np.arange(10_000, dtype=np.uint64), 10_000, 3).astype(np.float64)
    assert abs(np.corrcoef(places, np.arange(10_000))[0, 1]) < 0.05
    assert abs(np.corrcoef(places[1:], places[:-1])[0, 1]) < 0.05
    assert (places == np.arange(10_000)).sum() < 10


def test_every_epoch_holds_every_sample_in_an_order_of_its_own() -> None:
    order = Order(50, seed=1, shuffle=True)
    epochs = order.places(np.arange(150, dtype=np.uint64)).reshape(3, 50)
    assert all(sorted(epoch.tolist()) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3
    assert np.array_equal(order.places(np.array([120, 49, 50], dtype=np.uint64)), epochs.ravel()[[120, 49, 50]])


def test_without_shuffling_the_order_is_the_corpus() -> None:
    assert Order(5, 1, False).places(np.arange(12, dtype=np.uint64)).tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]

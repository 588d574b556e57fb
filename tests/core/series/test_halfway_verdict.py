"""A build is told from the middle between two known ends, and noise leaves it undecided."""

from __future__ import annotations

import math
import random

import pytest
from levelfield.series.pairs import MAX_PAIRS, BuildVerdict, Pair, halfway_verdict

EFFECT = math.log(1.1)  # the bad end is 10 % slower


def verdict_of(speed: float, noise: float, seed: int = 1) -> BuildVerdict:
    source, pairs = random.Random(seed), list[Pair]()
    verdict: BuildVerdict = "unknown"
    for _ in range(MAX_PAIRS):
        good, tried = (value * math.exp(source.gauss(0, noise)) for value in (1000.0, speed))
        pairs.append((good, tried))
        if (verdict := halfway_verdict(pairs, "tokens_per_second_per_device", EFFECT)) != "unknown":
            break
    return verdict


@pytest.mark.parametrize(
    ("speed", "verdict"), [(1000.0, "good"), (1050.0, "good"), (1000 / 1.1, "bad"), (500.0, "bad")]
)
def test_both_ends_are_told_apart(speed: float, verdict: BuildVerdict) -> None:
    assert verdict_of(speed, 0.0) == verdict
    assert [verdict_of(speed, 0.01, seed) for seed in range(40)].count(verdict) >= 38


def test_the_wrong_end_is_rare_and_noise_leaves_it_open() -> None:
    verdicts = [verdict_of(1000.0, 0.05, seed) for seed in range(300)]
    assert verdicts.count("bad") <= 3 and "unknown" in verdicts


def test_one_pair_and_pairs_without_numbers_decide_nothing() -> None:
    one: list[Pair] = [(1000.0, 500.0), (None, 500.0), (1000.0, math.nan), (0.0, 500.0)]
    assert halfway_verdict(one, "tokens_per_second_per_device", EFFECT) == "unknown"
    assert halfway_verdict([*one, one[0]], "tokens_per_second_per_device", EFFECT) == "bad"


def test_for_memory_more_is_worse() -> None:
    pair = (100.0, 110.0)
    assert halfway_verdict([pair], "memory_bytes", EFFECT) == "unknown"
    assert halfway_verdict([pair, pair], "memory_bytes", EFFECT) == "bad"

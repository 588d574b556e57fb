"""The first bad build is found by halving, and builds that cannot be decided are named."""

from __future__ import annotations

from functools import partial

import pytest
from levelfield.errors import RunFailed
from levelfield.nights.bisection import find_first_bad
from levelfield.series.pairs import BuildVerdict


def verdict_of(first: int, build: int) -> BuildVerdict:
    return "bad" if build >= first else "good"


@pytest.mark.parametrize("builds", [2, 3, 8, 33])
def test_every_place_is_found_in_few_trials(builds: int) -> None:
    for first in range(1, builds):
        search = find_first_bad(range(builds), partial(verdict_of, first))
        assert (search.last_good, search.first_bad, search.undecided) == (first - 1, first, ())
        assert len(search.trials) <= 2 + builds.bit_length()


def test_builds_that_cannot_be_decided_lie_between() -> None:
    search = find_first_bad(range(12), lambda build: "unknown" if build in (5, 6) else verdict_of(6, build))
    assert (search.last_good, search.first_bad, search.undecided) == (4, 7, (5, 6))


@pytest.mark.parametrize("answer", ["good", "unknown"])
def test_without_a_difference_between_both_ends_nothing_is_searched(answer: BuildVerdict) -> None:
    with pytest.raises(RunFailed, match=f"build is {answer}"):
        find_first_bad(range(4), lambda build: answer)

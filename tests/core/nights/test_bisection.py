"""The first bad build is found by halving, and builds that cannot be decided are named."""

from __future__ import annotations

import pytest
from levelfield.errors import RunFailed
from levelfield.nights.bisection import first_bad


@pytest.mark.parametrize("builds", [2, 3, 8, 33])
def test_every_place_is_found_in_few_trials(builds: int) -> None:
    for first in range(1, builds):
        found = first_bad(range(builds), lambda build, first=first: "bad" if build >= first else "good")
        assert (found.good, found.bad, found.undecided) == (first - 1, first, ())
        assert len(found.trials) <= 2 + builds.bit_length()


def test_builds_that_cannot_be_decided_lie_between() -> None:
    answers = {5: "unknown", 6: "unknown"}
    found = first_bad(range(12), lambda build: answers.get(build, "bad" if build >= 6 else "good"))
    assert (found.good, found.bad, found.undecided) == (4, 7, (5, 6))


@pytest.mark.parametrize("answer", ["good", "unknown"])
def test_without_a_difference_between_both_ends_nothing_is_searched(answer: str) -> None:
    with pytest.raises(RunFailed, match=f"the last build is {answer} in pairs with the first"):
        first_bad(range(4), lambda build: answer)

"""The search for the first build that is slower: halving a list of builds, each held against the good one in pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from levelfield.errors import RunFailed

Answer = Literal["good", "bad", "unknown"]
T = TypeVar("T")


@dataclass(frozen=True)
class Trial:
    """A build of the list that was tried, by its place, and what the pairs said."""

    place: int
    answer: Answer


@dataclass(frozen=True)
class FirstBad:
    """The result: places of the last good and the first bad build, and every trial in order.

    Builds between the two could not be decided.
    """

    good: int
    bad: int
    trials: tuple[Trial, ...]

    @property
    def undecided(self) -> tuple[int, ...]:
        return tuple(range(self.good + 1, self.bad))


def first_bad(builds: Sequence[T], answer_of: Callable[[T], Answer]) -> FirstBad:
    """Return the first bad build of a list whose first is good and whose last is bad.

    The last one is tried first: without a difference between both ends there is nothing to find. A build that cannot be
    decided is left out, and its nearest neighbour is tried. Raises RunFailed where the last build is not bad.
    """
    trials = [Trial(len(builds) - 1, answer_of(builds[-1]))]
    if trials[0].answer != "bad":
        raise RunFailed(
            f"bisect: the last build is {trials[0].answer} in pairs with the first; expected it to be worse. "
            "Another case, or an idle machine, may show the difference"
        )
    good, bad = 0, len(builds) - 1
    while (place := _middle(good, bad, {t.place for t in trials})) is not None:
        trials.append(Trial(place, answer_of(builds[place])))
        good = place if trials[-1].answer == "good" else good
        bad = place if trials[-1].answer == "bad" else bad
    return FirstBad(good, bad, tuple(trials))


def _middle(good: int, bad: int, tried: set[int]) -> int | None:
    """Return the place nearest to the middle that was not tried; None when none is left."""
    left = [place for place in range(good + 1, bad) if place not in tried]
    return min(left, key=lambda place: abs(2 * place - good - bad), default=None)

"""The gate of this project on simulated nights, by its own code: levelfield.series."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from gate_rules.worlds import Nights
from levelfield.series.examination import NightsBefore, examined
from levelfield.series.judgement import Pairs, Surroundings, judged_night
from levelfield.series.pairs import MOST_PAIRS
from levelfield.series.segments import Observation

FIGURE = "memory_bytes"  # a figure of which more is worse, as of a step time
AROUND = Surroundings("series", "series")


@dataclass(frozen=True)
class Night:
    """night: its index. word: of the finding. pairs: how many the sequential test used."""

    night: int
    word: str
    pairs: int


def judged_nights(
    nights: Nights, series: int, first: int, random: np.random.Generator, has_pairs: bool = True
) -> Iterator[Night]:
    """Yield the gate's word for every night from `first` on. A bad or changed night enters no level."""
    history, cleared, changed = [observation(nights, series, night) for night in range(first)], "", set[str]()
    for night in range(first, nights.observed.shape[1]):
        tonight = observation(nights, series, night)

        def confirm(night: int = night) -> Pairs | None:
            return nights.pairs(series, night, MOST_PAIRS, random) if has_pairs else None

        finding = judged_night(
            examined(FIGURE, tonight, NightsBefore(history, cleared=cleared, unaccepted=changed)), AROUND, confirm
        )
        yield Night(night, finding.word, finding.pairs)
        if finding.pairs and finding.word == "no change":
            cleared = tonight.began
        if finding.word in ("regression", "improvement"):
            changed.add(tonight.run_id)
        if finding.word != "bad night":
            history.append(tonight)


def observation(nights: Nights, series: int, night: int) -> Observation:
    name = f"{night:04d}"
    return Observation(name, name, str(nights.node[series, night]), name, float(nights.observed[series, night]))


def stepped_nights(
    nights: Nights, series: int, first: int, step: float, random: np.random.Generator
) -> Iterator[Night]:
    """Yield the gate's word for nights under new conditions, which move every build by `step` from night `first` on."""
    earlier = [observation(nights, series, night) for night in range(first)]
    own: list[Observation] = []
    is_known = False
    for night in range(first, nights.observed.shape[1]):
        plain = observation(nights, series, night)
        tonight = plain._replace(cost=plain.cost + float(np.log1p(step)))

        def confirm(night: int = night) -> Pairs:
            values = nights.pairs(series, night, MOST_PAIRS, random)
            return [(a * (1 + step), b * (1 + step)) for a, b in values]

        around = Surroundings("series", "series", ("driver 550 -> 560",), is_known_step=is_known)
        finding = judged_night(examined(FIGURE, tonight, NightsBefore(own, earlier)), around, confirm)
        yield Night(night, finding.word, finding.pairs)
        is_known = is_known or finding.word == "environment step"
        if finding.word != "bad night":
            own.append(tonight)

#!/usr/bin/env python3
"""How often the gate is wrong, and what it finds, beside the rules of other tools, on simulated nights.

The gate is judged by its own code, levelfield.series; the others by benchmarks/gate_rules/peers.py. Rates have 95 %
intervals (Wilson, 1927). Nothing is timed but the gate itself on many series, in seconds of processor time.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

import numpy as np
from gate_rules.ours import Night, judged_nights, stepped_nights
from gate_rules.peers import PEERS, Peer
from gate_rules.speed import seconds_of_gate
from gate_rules.worlds import WorldKind, simulated

SEED = 20261122
HISTORY = 40
DEVIATIONS = (0.005, 0.01, 0.02, 0.03)
SHIFTS = (0.02, 0.05, 0.10)
TAILS: dict[str, int | None] = {"normal": None, "t, 4 degrees": 4, "t, 3 degrees": 3}
OURS, FALLBACK = "**this gate, with pairs**", "this gate, two nights running"
# rule, world -> for every series, whether each night from HISTORY on is an alarm
Alarms = Callable[[WorldKind, int, int, int], list[list[bool]]]


@dataclass(frozen=True)
class Share:
    """hits of trials, with the 95 % interval."""

    hits: int
    trials: int

    @property
    def interval(self) -> tuple[float, float]:
        n, z, p = self.trials, 1.96, self.hits / self.trials
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    def text(self, digits: int = 0) -> str:
        low, high = self.interval
        return f"{100 * self.hits / self.trials:.{digits}f} ({100 * low:.{digits}f}-{100 * high:.{digits}f})"


@dataclass(frozen=True)
class Sizes:
    """series of a cell of power, series and nights of a cell of false alarms."""

    power: int
    quiet_series: int
    quiet_nights: int


FULL, QUICK = Sizes(400, 200, 60), Sizes(4, 3, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true", help="the seconds of the gate, as JSON")
    options = parser.parse_args()
    if options.json:
        print(json.dumps(seconds_of_gate(30 if options.quick else 300), indent=2))
        return
    for line in tables(QUICK if options.quick else FULL):
        print(line, flush=True)


def tables(sizes: Sizes) -> Iterator[str]:
    start = time.process_time()
    yield from power_table("normal", sizes)
    yield from own_table(sizes)
    yield from costs_table(sizes)
    yield from steps_table(sizes)
    figures = seconds_of_gate(30 if sizes is QUICK else 300)
    seconds, size = figures["seconds"], f"{figures['series']:.0f} series x {figures['nights']:.0f} nights x 3 figures"
    yield f"\nA gate of {size}: {seconds:.2f} s of processor time. All tables: {time.process_time() - start:.0f} s."


def rules() -> dict[str, Alarms]:
    peers: dict[str, Alarms] = {name: _peer(rule) for name, rule in PEERS.items()}
    return {**peers, FALLBACK: _ours(False), OURS: _ours(True)}


def power_table(tail: str, sizes: Sizes) -> Iterator[str]:
    """False alarms in 100 series-nights and power in percent, at a noise of 1 %, with bad nights and two nodes."""
    base = WorldKind(0.01, True, TAILS[tail])
    yield "Noise 1 %, normal, bad nights and two nodes. Night of / within three nights, percent."
    yield ""
    yield "| rule | false alarms | 2 % | 5 % | 10 % | bad night called a regression | one bad run |"
    yield "|---|---|---|---|---|---|---|"
    for name, rule in rules().items():
        cells = [false_alarms(rule, base, sizes).text(2)]
        cells += [" / ".join(s.text() for s in power(rule, replace(base, shift=x), sizes)) for x in SHIFTS]
        cells += [power(rule, replace(base, bad_at_start=kind), sizes)[0].text() for kind in ("night", "run")]
        yield f"| {name} | {' | '.join(cells)} |"


def own_table(sizes: Sizes) -> Iterator[str]:
    """The gate at every noise and tail, and slow ramps."""
    yield ""
    yield "This gate with pairs, with bad nights and two nodes. Ramp: .2 % a night, found before it reaches 2.5 %."
    yield ""
    yield "| noise | tail | false alarms | 2 % | 5 % | 10 % | bad night | ramp |"
    yield "|---|---|---|---|---|---|---|---|"
    rule = _ours(True)
    for tail, degrees in TAILS.items():
        for deviation in DEVIATIONS:
            base = WorldKind(deviation, True, degrees)
            cells = [false_alarms(rule, base, sizes).text(2)]
            cells += [" / ".join(s.text() for s in power(rule, replace(base, shift=x), sizes)) for x in SHIFTS]
            cells.append(power(rule, replace(base, bad_at_start="night"), sizes)[0].text())
            ramp = found_within(rule(replace(base, ramp=0.002, is_real=False), sizes.power, 12, 9))
            yield f"| {deviation:.1%} | {tail} | {' | '.join(cells)} | {ramp.text()} |"


def costs_table(sizes: Sizes) -> Iterator[str]:
    """What the confirmation costs, and the words of nights without a change."""
    yield ""
    yield "Nights without a change: words in percent, and pairs for each series-night."
    yield ""
    yield "| noise | tail | no change | inconclusive | bad night | improvement | regression | pairs |"
    yield "|---|---|---|---|---|---|---|---|"
    for tail, degrees in TAILS.items():
        for deviation in DEVIATIONS:
            nights = [n for series in _judged(WorldKind(deviation, True, degrees), sizes, 4) for n in series]
            words = Counter(night.word for night in nights)
            shares = [
                f"{100 * words[word] / len(nights):.1f}"
                for word in ("no change", "inconclusive", "bad night", "improvement", "regression")
            ]
            pairs = sum(night.pairs for night in nights) / len(nights)
            yield f"| {deviation:.1%} | {tail} | {' | '.join(shares)} | {pairs:.2f} |"


def steps_table(sizes: Sizes) -> Iterator[str]:
    """How often a change of conditions is called an environment step: without an effect, and with one."""
    yield ""
    yield "A new driver: called an environment step in the first night / within ten nights, percent."
    yield ""
    yield "| noise | no effect | 2 % | 5 % | 10 % |"
    yield "|---|---|---|---|---|"
    for deviation in DEVIATIONS:
        kind = WorldKind(deviation, True)
        cells = []
        for step in (0.0, *SHIFTS):
            random = _random(kind, 5)
            world = simulated(kind, sizes.power, HISTORY + 10, random)
            nights = (stepped_nights(world, i, HISTORY, step, random) for i in range(sizes.power))
            found = [[night.word == "environment step" for night in series] for series in nights]
            cells.append(f"{Share(sum(row[0] for row in found), len(found)).text()} / {found_within(found).text()}")
        yield f"| {deviation:.1%} | {' | '.join(cells)} |"


def false_alarms(rule: Alarms, kind: WorldKind, sizes: Sizes) -> Share:
    alarms = rule(kind, sizes.quiet_series, sizes.quiet_nights, 1)
    return Share(sum(map(sum, alarms)), sum(map(len, alarms)))


def power(rule: Alarms, kind: WorldKind, sizes: Sizes) -> tuple[Share, Share]:
    """Return the share of series with an alarm in the first night of the change, and within three nights."""
    alarms = rule(kind, sizes.power, 3, 2)
    return Share(sum(row[0] for row in alarms), len(alarms)), found_within(alarms)


def found_within(alarms: list[list[bool]]) -> Share:
    return Share(sum(map(any, alarms)), len(alarms))


def _peer(rule: Peer) -> Alarms:
    def alarms(kind: WorldKind, series: int, nights: int, stream: int) -> list[list[bool]]:
        values = np.exp(simulated(kind, series, HISTORY + nights, _random(kind, stream)).observed)
        found = [rule(values, night) for night in range(HISTORY, HISTORY + nights)]
        return [[bool(night[i]) for night in found] for i in range(series)]

    return alarms


def _ours(has_pairs: bool) -> Alarms:
    def alarms(kind: WorldKind, series: int, nights: int, stream: int) -> list[list[bool]]:
        found = _gated(kind, series, nights, stream, has_pairs)
        return [[night.word == "regression" for night in row] for row in found]

    return alarms


def _judged(kind: WorldKind, sizes: Sizes, stream: int) -> list[list[Night]]:
    return _gated(kind, sizes.quiet_series, sizes.quiet_nights, stream, True)


def _gated(kind: WorldKind, series: int, nights: int, stream: int, has_pairs: bool) -> list[list[Night]]:
    random = _random(kind, stream)
    world = simulated(kind, series, HISTORY + nights, random)
    return [list(judged_nights(world, i, HISTORY, random, has_pairs)) for i in range(series)]


def _random(kind: WorldKind, stream: int) -> np.random.Generator:
    """Return the same numbers for every rule, and others for every noise and tail."""
    return np.random.default_rng([SEED, stream, round(kind.deviation * 1e4), kind.tail or 0])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""How often the gate is wrong, and what it finds, beside the rules of other tools, on simulated nights.

The gate is judged by its own code, levelfield.nights.gate and levelfield.series; the others by
benchmarks/gate_rules/peers.py. Rates have 95 % intervals (Wilson, 1927). Nothing is timed but the gate itself on many
series, in seconds of processor time.
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
from gate_rules.ours import Night, fleet_reports, judged_nights
from gate_rules.peers import PEERS, Peer
from gate_rules.speed import seconds_of_gate
from gate_rules.worlds import WorldKind, simulated
from gate_rules.young_levels import NOMINAL, fires
from levelfield.errors import GateFailed
from levelfield.series.findings import exit_code

SEED = 20261127
DEVIATIONS = (0.005, 0.01, 0.02, 0.03)
SHIFTS = (0.02, 0.05, 0.10)
TAILS: dict[str, int | None] = {"normal": None, "t, 4 degrees": 4, "t, 3 degrees": 3}
BASE = WorldKind(0.01, True)
WORLDS = {
    "as above": BASE,
    "plain t, 3 degrees": replace(BASE, tail=3, is_scaled=False),
    "plain t, 2 degrees": replace(BASE, tail=2, is_scaled=False),
    "outliers, 5 % of runs": replace(BASE, outliers=0.05),
    "autocorrelation 0.8": replace(BASE, memory=0.8),
    "two clocks, by night": replace(BASE, states="night"),
    "two clocks, by run": replace(BASE, states="run"),
    "noise tripled": replace(BASE, noise=3.0),
    "7 nights before, one node": replace(BASE, start=7, nodes=1),
    "7 nights before, two nodes": replace(BASE, start=7),
    "7 nights before, three nodes": replace(BASE, start=7, nodes=3),
    "30 % of nights missing": replace(BASE, missing=0.3),
    "a driver without effect": replace(BASE, driver=0.0),
    "a driver 5 % faster": replace(BASE, driver=-0.05),
    "arms differ by 1.5 %": replace(BASE, arm_bias=0.015),
}
FLEETS = {
    "without effect": replace(BASE, driver=0.0),
    "5 % faster": replace(BASE, driver=-0.05),
    "5 % faster, 3 builds 5 % slower": replace(BASE, driver=-0.05, shift=0.05, fallen=3),
}
FLEET_NIGHTS, GAIN_NIGHTS, LATER_NIGHTS = 10, 20, 25
WITHIN = (1, 3, 7, LATER_NIGHTS)
LEVELS = {"7": (7, False), "15": (15, False), "40": (40, False), "15, accepted": (15, True), "40, accepted": (40, True)}
QUIET_WORDS = ("no change", "inconclusive", "bad night", "improvement", "regression")
OURS, FALLBACK = "**this gate, with pairs**", "this gate, two nights running"
# rule, world -> for every series, whether each judged night is an alarm
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
    """series of a cell of power, series and nights of a cell of false alarms, fleets and the series of each."""

    power: int
    quiet_series: int
    quiet_nights: int
    fleets: int
    fleet_series: int


FULL, QUICK = Sizes(200, 100, 60, 4, 300), Sizes(2, 3, 6, 1, 30)
OF_MANY_CELLS = replace(FULL, power=100, quiet_nights=40)  # noise and worlds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="by default all")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true", help="the seconds of the gate, as JSON")
    options = parser.parse_args()
    if options.json:
        print(json.dumps(seconds_of_gate(30 if options.quick else 300), indent=2))
        return
    for name in options.tables:
        full = OF_MANY_CELLS if name in ("noise", "later", "worlds") else FULL
        for line in TABLES[name](QUICK if options.quick else full):
            print(line, flush=True)
        print(flush=True)


def speed_line(sizes: Sizes) -> Iterator[str]:
    figures = seconds_of_gate(30 if sizes is QUICK else 300)
    seconds, size = figures["seconds"], f"{figures['series']:.0f} series x {figures['nights']:.0f} nights x 3 figures"
    yield f"A gate of {size}: {seconds:.2f} s of processor time. All tables: {time.process_time():.0f} s."


def rules() -> dict[str, Alarms]:
    peers: dict[str, Alarms] = {name: _peer(rule) for name, rule in PEERS.items()}
    return {**peers, FALLBACK: _ours(False), OURS: _ours(True)}


def power_table(sizes: Sizes) -> Iterator[str]:
    """False alarms in 100 series-nights and power in percent, at a noise of 1 %, with bad nights and two nodes."""
    yield "Noise 1 %, normal, bad nights and two nodes. Night of / within three nights, percent."
    yield ""
    yield "| rule | false alarms | 2 % | 5 % | 10 % | bad night called a regression | one bad run |"
    yield "|---|---|---|---|---|---|---|"
    for name, rule in rules().items():
        cells = [false_alarms(rule, BASE, sizes).text(2)]
        cells += [" / ".join(s.text() for s in power(rule, replace(BASE, shift=x), sizes)) for x in SHIFTS]
        cells += [power(rule, replace(BASE, bad_at_start=kind), sizes)[0].text() for kind in ("night", "run")]
        yield f"| {name} | {' | '.join(cells)} |"


def own_table(sizes: Sizes) -> Iterator[str]:
    """The gate at every noise and tail, slow ramps, the words of nights without a change, and what pairs cost."""
    yield "This gate with pairs, with bad nights and two nodes. Ramp: .2 % a night, found before it reaches 2.5 %."
    yield ""
    yield "| noise | tail | false alarms | 2 % | 5 % | 10 % | bad night | ramp |"
    yield "|---|---|---|---|---|---|---|---|"
    rule, words = _ours(True), []
    for tail, degrees in TAILS.items():
        for deviation in DEVIATIONS:
            base = WorldKind(deviation, True, degrees)
            quiet = _quiet(base, sizes)
            words.append(f"| {deviation:.1%} | {tail} | {_words(quiet)} |")
            cells = [_share(quiet, "regression").text(2)]
            cells += [" / ".join(s.text() for s in power(rule, replace(base, shift=x), sizes)) for x in SHIFTS]
            cells.append(power(rule, replace(base, bad_at_start="night"), sizes)[0].text())
            ramp = found_within(rule(replace(base, ramp=0.002, is_real=False), sizes.power, 12, 9))
            yield f"| {deviation:.1%} | {tail} | {' | '.join(cells)} | {ramp.text()} |"
    yield ""
    yield "Nights without a change: words in percent, and pairs for each series-night."
    yield ""
    yield f"| noise | tail | {' | '.join(QUIET_WORDS)} | pairs |"
    yield "|---|---|---|---|---|---|---|---|"
    yield from words


def _words(nights: list[Night]) -> str:
    counts = Counter(night.word for night in nights)
    shares = (f"{100 * counts[word] / len(nights):.1f}" for word in QUIET_WORDS)
    return " | ".join((*shares, f"{_pairs_each(nights):.2f}"))


def _share(nights: list[Night], word: str) -> Share:
    return Share(sum(night.word == word for night in nights), len(nights))


def later_table(sizes: Sizes) -> Iterator[str]:
    """How often a regression is found in its first nights and later, on young levels and on accepted ones."""
    yield f"A regression that stays, on young and accepted levels: found within {' / '.join(map(str, WITHIN))} nights,"
    yield f"percent. False alarms: in {LATER_NIGHTS} nights without a change. Lost, of those that were found: not named"
    yield "in some later night; in the last night."
    yield ""
    yield "| noise | nights before | false alarms | 3 % | lost | 5 % | lost |"
    yield "|---|---|---|---|---|---|---|"
    for deviation in (0.01, 0.02):
        for name, (start, is_accepted) in LEVELS.items():
            kind = WorldKind(deviation, True, start=start, is_accepted=is_accepted)
            quiet = _ours(True)(kind, sizes.quiet_series, LATER_NIGHTS, 9)
            cells = [Share(sum(map(sum, quiet)), sum(map(len, quiet))).text(2)]
            for shift in (0.03, 0.05):
                rows = _ours(True)(replace(kind, shift=shift), sizes.power, LATER_NIGHTS, 10)
                shares = [found_within([row[:nights] for row in rows]) for nights in WITHIN]
                *first, last = (f"{100 * share.hits / share.trials:.0f}" for share in shares)
                from_first_alarm = [row[row.index(True) :] for row in rows if any(row)]
                lost = sum(not all(row) for row in from_first_alarm), sum(not row[-1] for row in from_first_alarm)
                low, high = shares[-1].interval
                cells += [f"{' / '.join((*first, last))} ({100 * low:.0f}-{100 * high:.0f})", "{}; {}".format(*lost)]
            yield f"| {deviation:.0%} | {name} | {' | '.join(cells)} |"


def steps_table(sizes: Sizes) -> Iterator[str]:
    """How often a change of conditions is called an environment step by its second night and within ten."""
    yield "A new driver on one series: called an environment step in the second night / within ten nights, percent."
    yield "In the first night none is: a bad night looks the same."
    yield ""
    yield "| noise | no effect | 2 % | 5 % | 10 % |"
    yield "|---|---|---|---|---|"
    for deviation in DEVIATIONS:
        cells = []
        for step in (0.0, *SHIFTS):
            nights = _gated(WorldKind(deviation, True, driver=step), sizes.power, 10, 5)
            is_step = [[night.word == "environment step" for night in series] for series in nights]
            cells.append(f"{found_within([row[:2] for row in is_step]).text()} / {found_within(is_step).text()}")
        yield f"| {deviation:.1%} | {' | '.join(cells)} |"


def worlds_table(sizes: Sizes) -> Iterator[str]:
    """The gate with pairs in worlds that are harsher than the one its thresholds were set in."""
    yield "This gate with pairs, noise 1 %, in harsher worlds. Nights without a change of the software: false alarms,"
    yield "environment steps, pairs for each series-night. Two clocks: 30 % of nights, or runs, are 3 % slower."
    yield ""
    yield "| world | false alarms | steps | pairs | 2 % | 5 % | 10 % |"
    yield "|---|---|---|---|---|---|---|"
    rule = _ours(True)
    for name, kind in WORLDS.items():
        nights = _quiet(kind, sizes)
        cells = [_share(nights, word).text(2) for word in ("regression", "environment step")]
        cells.append(f"{_pairs_each(nights):.2f}")
        cells += [" / ".join(s.text() for s in power(rule, replace(kind, shift=x), sizes)) for x in SHIFTS]
        yield f"| {name} | {' | '.join(cells)} |"


def young_table(sizes: Sizes) -> Iterator[str]:
    """How often tonight's rule fires by chance, by the nights and nodes of the level."""
    yield f"Tonight beyond its level by chance, percent of nights; {100 * NOMINAL:.2f} are meant."
    yield ""
    yield "| nights before | one node | two nodes | three nodes |"
    yield "|---|---|---|---|"
    repeats = 10 * sizes.power
    for nights in (7, 10, 15, 30):
        random = np.random.default_rng([SEED, 7, nights])
        cells = (Share(fires(nights, nodes, repeats, random), repeats).text(1) for nodes in (1, 2, 3))
        yield f"| {nights} | {' | '.join(cells)} |"


def gains_table(sizes: Sizes) -> Iterator[str]:
    """How often a fall is found after a gain of GAIN_NIGHTS nights that nobody accepted."""
    yield f"A gain of {GAIN_NIGHTS} nights that nobody accepted, then a fall back, noise 1 %: found in the first night"
    yield "/ within 3 / 14. False alarms: regressions during the gain."
    yield ""
    yield "| gain | pairs | false alarms | found |"
    yield "|---|---|---|---|"
    for gain in (0.03, 0.05, 0.10):
        for has_pairs in (True, False):
            kind = replace(BASE, shift=-gain, lasts=GAIN_NIGHTS)
            rows = _ours(has_pairs)(kind, sizes.power, GAIN_NIGHTS + 14, 8)
            before, after = ([row[:GAIN_NIGHTS] for row in rows], [row[GAIN_NIGHTS:] for row in rows])
            false = Share(sum(map(sum, before)), sum(map(len, before)))
            shares = " / ".join(found_within([row[:n] for row in after]).text() for n in (1, 3, 14))
            yield f"| {gain:.0%} | {'yes' if has_pairs else 'no'} | {false.text(2)} | {shares} |"


def fleets_table(sizes: Sizes) -> Iterator[str]:
    """The exit codes and pairs of nights in which all series have a new driver, and the slower builds behind it."""
    yield f"{sizes.fleet_series} series under a new driver, the first {FLEET_NIGHTS} nights, percent. Red: exit 4."
    yield "Pairs: in the first night / the second / a later one. Found: in the first night / within ten."
    yield ""
    yield "| driver | red nights | fleets with a red night | pairs | slower builds found |"
    yield "|---|---|---|---|---|"
    for name, kind in FLEETS.items():
        red, pairs, found_builds = [], [], list[list[bool]]()
        for fleet in range(sizes.fleets):
            random = np.random.default_rng([SEED, 6, fleet])
            world = simulated(kind, sizes.fleet_series, kind.start + FLEET_NIGHTS, random)
            reports = list(fleet_reports(world, random))
            red.append([exit_code(report.findings) == GateFailed.exit_code for report in reports])
            pairs.append([sum(finding.pairs for finding in report.findings) for report in reports])
            worse = [{f.series for f in report.findings if f.word == "regression"} for report in reports]
            found_builds += [[f"s{i}" in night for night in worse] for i in range(kind.fallen or 0)]
        nights = Share(sum(map(sum, red)), sum(map(len, red)))
        spent = [np.mean([counts[place] for counts in pairs]) for place in (slice(1), slice(1, 2), slice(2, None))]
        cells = [nights.text(1), found_within(red).text(), " / ".join(f"{mean_pairs:.0f}" for mean_pairs in spent)]
        first = [row[:1] for row in found_builds]
        cells.append(" / ".join(found_within(rows).text() for rows in (first, found_builds)) if found_builds else "")
        yield f"| {name} | {' | '.join(cells)} |"


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
        values = np.exp(simulated(kind, series, kind.start + nights, _random(kind, stream)).observed)
        alarms_by_night = [rule(values, night) for night in range(kind.start, kind.start + nights)]
        return [[bool(night[i]) for night in alarms_by_night] for i in range(series)]

    return alarms


def _ours(has_pairs: bool) -> Alarms:
    def alarms(kind: WorldKind, series: int, nights: int, stream: int) -> list[list[bool]]:
        gated = _gated(kind, series, nights, stream, has_pairs)
        ran = [[night for night in row if night.word] for row in gated]
        return [[night.word == "regression" for night in row] for row in ran if row]

    return alarms


def _quiet(kind: WorldKind, sizes: Sizes) -> list[Night]:
    """Return the nights that had a run, of series without a change in the software."""
    gated = _gated(kind, sizes.quiet_series, sizes.quiet_nights, 4)
    return [night for series in gated for night in series if night.word]


def _pairs_each(nights: list[Night]) -> float:
    return sum(night.pairs for night in nights) / len(nights)


def _gated(kind: WorldKind, series: int, nights: int, stream: int, has_pairs: bool = True) -> list[list[Night]]:
    random = _random(kind, stream)
    return judged_nights(simulated(kind, series, kind.start + nights, random), random, has_pairs)


def _random(kind: WorldKind, stream: int) -> np.random.Generator:
    """Return the same numbers for every rule, and others for every noise and tail."""
    return np.random.default_rng([SEED, stream, round(kind.deviation * 1e4), kind.tail or 0])


TABLES: dict[str, Callable[[Sizes], Iterator[str]]] = {
    "rules": power_table,
    "noise": own_table,
    "later": later_table,
    "steps": steps_table,
    "worlds": worlds_table,
    "young": young_table,
    "gains": gains_table,
    "fleets": fleets_table,
    "speed": speed_line,
}

if __name__ == "__main__":
    main()

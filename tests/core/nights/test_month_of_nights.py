"""A month of nights in a store: recorded real runs with events injected, reported as what they are.

Every record is the real run of two ranks. Its figures are scaled by the night's event and by seeded noise of 1 %.
Pairs are scaled alike: both builds share what befalls the machine that night, and the new build alone has the fault.
Null pairs are stored as a night stores them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import pytest
from levelfield.nights.gate import judge_night
from levelfield.nights.gate_input import GateInput
from levelfield.nights.stored_nights import gate_input
from levelfield.series.judgement import Pairs
from levelfield.specs.record import NULL_PURPOSES, GatedFigure, RunRecord
from levelfield.store.database import Store
from stored_records import real_record

FIRST, NIGHTS, NOISE = date(2026, 9, 1), 30, 0.01
BROKEN_NIGHT = 13  # all series 15 % slower in this night: the machine, not the builds
QUIET = ("a/a 1", "a/a 2", "a/a 3")


@dataclass(frozen=True)
class Fault:
    """What happens to a series from a night on. cost: of the build in tokens/s. memory: of the build.

    last: the last night of it. driver_cost: what a new driver brings. arm: what the new side of pairs costs any build.
    """

    night: int
    cost: float = 0.0
    memory: float = 0.0
    last: int = NIGHTS
    verdict: str = "aligned"
    word: str = "valid"
    driver_cost: float | None = None
    arm: float = 0.0
    is_missing: bool = False
    node: str | None = None


FAULTS = {
    **dict.fromkeys(QUIET, Fault(NIGHTS)),
    "2 % slower": Fault(18, cost=0.02),
    "5 % slower": Fault(18, cost=0.05),
    "10 % slower": Fault(18, cost=0.10),
    "5 % more memory": Fault(18, memory=0.05),
    "biased loss": Fault(18, last=18, verdict="different"),
    "killed": Fault(18, last=18, word="failed"),
    "new driver": Fault(18, driver_cost=0.06),
    "5 % behind a driver": Fault(18, cost=0.05, driver_cost=-0.05),
    "harmless driver": Fault(18, driver_cost=0.0),
    "slow arm": Fault(18, driver_cost=0.0, arm=0.03),
    "left out": Fault(18, last=18, is_missing=True),
    "slow node": Fault(18, node="sha256:" + "b" * 64),
}


def night_name(number: int) -> str:
    return (FIRST + timedelta(days=number)).isoformat()


def has(fault: Fault, number: int) -> bool:
    return fault.night <= number <= fault.last


@dataclass(frozen=True)
class Month:
    """Records of all nights, and pairs of any of them."""

    real: RunRecord
    seed: int = 15

    def record(self, name: str, number: int, build: Fault | None, pair: int = -1, arm: float = 0.0) -> RunRecord:
        """The run of a series in a night. build: the fault that its code has. arm: what its side of a pair costs."""
        fault = FAULTS[name]
        part = NOISE / math.sqrt(2)  # half of the variance is the night's, which the runs of its pairs share
        source = random.Random(f"{self.seed} {name} {number} {pair} {build is None}")
        around = random.Random(f"{self.seed} {name} {number}").gauss(0, part) + 0.15 * (number == BROKEN_NIGHT)
        if has(fault, number):
            around += (fault.driver_cost or 0.0) + (0.04 if fault.node else 0.0)
        slower = math.exp(source.gauss(0, part) + around + arm + (build.cost if build else 0.0))
        series = self.real.series.model_copy(update={"case": name.replace(" ", "-").replace("%", "percent")})
        conditions = self.real.conditions
        driver = {"driver": f"560 of {name}" if fault.driver_cost is not None and has(fault, number) else "550"}
        speed, memory = self.real.tokens_per_second_per_device, self.real.memory_bytes
        assert speed and memory
        return self.real.model_copy(
            update={
                "run_id": f"{night_name(number)}_{series.case}_{pair}_{build is None}",
                "content": f"sha256:{night_name(number)} {name} {pair} {build is None}",
                "subject": self.real.subject.model_copy(update={"commit": f"{number:040d}"}),
                "began": f"{night_name(number)}T02:00:00+00:00",
                "purpose": "nightly",
                "night": night_name(number),
                "entry": f"month/{name}",
                "series": series,
                "conditions": conditions.model_copy(update={"software": {**conditions.software, **driver}}),
                "node": fault.node if fault.node and has(fault, number) else self.real.node,
                "evidence": "sealed",
                "word": fault.word if has(fault, number) else "valid",
                "verdict": fault.verdict if has(fault, number) else "aligned",
                "tokens_per_second_per_device": speed / slower,
                "memory_bytes": memory * (1 + (build.memory if build else 0.0)),
                "joules_per_token": None,
            }
        )

    def night(self, number: int) -> Iterator[RunRecord]:
        for name, fault in FAULTS.items():
            if not (fault.is_missing and has(fault, number)):
                yield self.record(name, number, fault if has(fault, number) else None)

    def runs_of_pairs(self, label: str, number: int, is_null: bool) -> Iterator[tuple[RunRecord, RunRecord]]:
        name = next(n for n in FAULTS if label.startswith(n.replace(" ", "-").replace("%", "percent") + ":"))
        fault = FAULTS[name] if has(FAULTS[name], number) else None
        for pair in range(200, 207) if is_null else range(7):
            a = self.record(name, number, fault if is_null else None, pair)
            yield a, self.record(name, number, fault, pair + 100, fault.arm if fault else 0.0)


@dataclass
class PairSources:
    """What a gate of a night may run: pairs, and null pairs, which go to the store."""

    month: Month
    store: Store
    gate: GateInput
    number: int

    def pairs(self, series: str, figure: GatedFigure) -> Pairs:
        runs = self.month.runs_of_pairs(self.gate.label(series), self.number, is_null=False)
        return [(getattr(a, figure), getattr(b, figure)) for a, b in runs]

    def nulls(self, series: str, figure: GatedFigure) -> Iterator[tuple[float | None, float | None]]:
        for pair in self.month.runs_of_pairs(self.gate.label(series), self.number, is_null=True):
            purposes = zip(pair, NULL_PURPOSES, strict=True)
            self.store.add(run.model_copy(update={"purpose": purpose}) for run, purpose in purposes)
            yield getattr(pair[0], figure), getattr(pair[1], figure)


@pytest.fixture(scope="module")
def words(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], set[str]]:
    """The words of the gate, but `no change` and `new series`, by series and night."""
    month = Month(real_record(recorded))
    words: dict[tuple[str, int], set[str]] = {}
    with Store.open(str(tmp_path_factory.mktemp("month") / "results.sqlite")) as store:
        for number in range(NIGHTS):
            store.add(month.night(number))
            digests = {s.series.case: s.digest for s in store.series()}
            entries = {f"month/{n}": digests[n.replace(" ", "-").replace("%", "percent")] for n in FAULTS}
            store.add_expected_entries(night_name(number), "month", entries)
            gate = gate_input(store, night_name(number), "month")
            sources = PairSources(month, store, gate, number)
            report = judge_night(gate, sources.pairs, sources.nulls)
            for finding in report.findings:
                store.add_finding(report.night, finding.model_dump(mode="json"))
                name = next((n for n, d in entries.items() if d == finding.series), finding.label)
                if finding.word not in ("no change", "new series"):
                    words.setdefault((name.removeprefix("month/"), number), set()).add(finding.word)
    return words


def words_of_nights(words: dict[tuple[str, int], set[str]], name: str) -> dict[int, set[str]]:
    """Return the words about a series by night, without the broken night."""
    return {number: ones for (series, number), ones in words.items() if series == name and number != BROKEN_NIGHT}


@pytest.mark.parametrize("name", QUIET)
def test_nights_without_a_fault_raise_no_alarm(words: dict[tuple[str, int], set[str]], name: str) -> None:
    """Pairs leave some suspicions open, which is no alarm."""
    assert set().union(*words_of_nights(words, name).values()) <= {"inconclusive"}


@pytest.mark.parametrize(
    ("name", "word", "night_of"),
    [
        ("5 % slower", "regression", True),
        ("10 % slower", "regression", True),
        ("5 % more memory", "regression", True),
        ("biased loss", "training differs", True),
        ("killed", "invalid run", True),
        ("new driver", "environment step", False),
        ("5 % behind a driver", "regression", True),
        ("left out", "missing", True),
        ("2 % slower", "regression", False),
    ],
)
def test_an_event_is_reported_as_what_it_is(
    words: dict[tuple[str, int], set[str]], name: str, word: str, night_of: bool
) -> None:
    """Promised within some nights: a fall of 2 %, a driver on one series. Nothing else is said of the series."""
    by_night, fault = words_of_nights(words, name), FAULTS[name]
    assert set().union(*by_night.values()) <= {word, "inconclusive"}, by_night
    alarms = sorted(number for number, ones in by_night.items() if word in ones)
    assert alarms and fault.night <= alarms[0] <= fault.night + (0 if night_of else 6), by_night


def test_a_driver_without_effect_is_none(words: dict[tuple[str, int], set[str]]) -> None:
    assert set().union(*words_of_nights(words, "harmless driver").values()) <= {"inconclusive"}


def test_a_slow_arm_is_a_finding_about_the_arms_and_no_regression(words: dict[tuple[str, int], set[str]]) -> None:
    assert set().union(*words_of_nights(words, "slow arm").values()) <= {"inconclusive"}
    nights = [
        number for (name, number), ones in words.items() if ones == {"biased arms"} and name.startswith("pairs on")
    ]
    assert nights and min(nights) == FAULTS["slow arm"].night


def test_a_slow_node_is_no_regression_of_the_build(words: dict[tuple[str, int], set[str]]) -> None:
    assert "regression" not in set().union(*words_of_nights(words, "slow node").values())


def test_a_broken_night_is_named_and_is_no_regression(words: dict[tuple[str, int], set[str]]) -> None:
    by_series = {series: ones for (series, number), ones in words.items() if number == BROKEN_NIGHT}
    assert by_series and set().union(*by_series.values()) == {"bad night"}, by_series

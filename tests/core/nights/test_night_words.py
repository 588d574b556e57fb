"""What a night says, word for word: tests/core/golden/nights.txt holds the sentences of the gate and of refusals."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from compared_records import record
from gate_points import at, conditions, day, nights, point, series
from levelfield.errors import LevelfieldError
from levelfield.nights.baselines import LevelEvidence, baseline_event, step_event
from levelfield.nights.bisection import find_first_bad
from levelfield.nights.build_pairs import Arm, paired_records
from levelfield.nights.gate import GateReport, judge_night
from levelfield.nights.gate_input import GateInput
from levelfield.nights.machine_control import slow_rate_reason
from levelfield.nights.nightly import read_state
from levelfield.nights.series_history import figure_histories, history_lines
from levelfield.run.builds import CommitBuild
from levelfield.run.turns import PairProgress, abba_order
from levelfield.series.findings import Finding
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import Conditions, GatedFigure, Point

GOLDEN = Path(__file__).parents[1] / "golden" / "nights.txt"
TOKENS: GatedFigure = "tokens_per_second_per_device"
NOW = at(40, 9)


def document_of(digest: str) -> Conditions:
    return conditions(software={"driver": "550" if digest == "c1" else "560"})


def gate_night(points: dict[str, list[Point]], night: int, **expected: str | None) -> GateInput:
    documents = {name: series(case=name, micro_batch=4 if name == "T" else 8) for name in points}
    entries = {f"suite/{name}": planned for name, planned in expected.items()}
    return GateInput(day(night), points, documents, expected_entries=entries, find_conditions=document_of)


def reports() -> Iterator[GateReport]:
    """Yield what the gate finds in planted nights: a fall, a gain, a step, a node, a young series, what is missing."""
    quiet = nights(40, 0.002)

    def pairs(name: str, figure: GatedFigure) -> list[tuple[float, float]]:
        return [(1000.0 + i, 900.0 + i) for i in range(7)]

    fallen = [*quiet, point(40, 900.0)]
    yield judge_night(gate_night({"S": fallen}, 40))
    yield judge_night(gate_night({"S": fallen}, 40), pairs)
    yield judge_night(gate_night({"S": fallen}, 40), pairs, max_pairs=0)
    yield judge_night(gate_night({"S": [*quiet, *(point(40 + i, 1100.0 + i) for i in range(2))]}, 41))
    driver = [point(40 + i, 940.0 + i, conditions="c2") for i in range(2)]
    yield judge_night(gate_night({"S": [*quiet, *driver]}, 41), lambda name, figure: "the accepted build cannot run")
    yield judge_night(gate_night({f"S{n}": [*quiet, *driver] for n in range(4)}, 41))
    others = {f"N{n}": [*nights(40, 0.002), point(40)] for n in range(3)}
    elsewhere = {name: [p.model_copy(update={"node": "n2"}) for p in points] for name, points in others.items()}
    yield judge_night(gate_night({**{f"S{n}": fallen for n in range(3)}, **elsewhere}, 40))
    yield judge_night(gate_night({"S": nights(5)}, 4))
    ran = {"S": quiet, "T": [point(40, entry="suite/s")], "U": [*quiet, point(40, word="failed")]}
    yield judge_night(gate_night(ran, 40, s="S", new=None, u="U"))
    yield judge_night(gate_night({"S": quiet, "V": [*quiet, point(40, verdict="diverged")]}, 40))


def refusals(tmp_path: Path) -> Iterator[str]:
    """Yield the sentences of what is refused."""
    worse = Finding(series="S", label="S", figure=TOKENS, word="regression", run_id="run008", pairs=5)
    doubt = Finding(series="S", label="S", figure=TOKENS, word="inconclusive", run_id="run009")
    ten, steps = tuple(nights(10)), (point(3, conditions="c1"), point(4, conditions="c2"), point(5, conditions="c2"))
    evidence = [
        *(LevelEvidence("S", tuple(nights(2))), LevelEvidence("S", ten, (worse, doubt))),
        *(
            LevelEvidence("S", ten, named_runs=("other",)),
            LevelEvidence("S", (point(0, word="failed"),), named_runs=("run000",)),
        ),
        LevelEvidence("S", steps, named_runs=tuple(p.run_id for p in steps)),
    ]
    state, folder = tmp_path / "nightly_s_n.json", tmp_path / "checkout"
    state.write_text('{"schema": "levelfield.night/1", "night": 3}')
    arms = [Arm(name, CommitBuild("a" * 40, folder), ()) for name in "ab"]
    moved = [record(1, commit="a" * 40), record(2, commit="b" * 40)]
    faults: list[Callable[[], object]] = [
        lambda: baseline_event(LevelEvidence("S", ten), "ann", "  ", NOW),
        lambda: step_event("S", nights(5), "ann", "driver", NOW),
        lambda: find_first_bad(range(4), lambda build: "unknown"),
        lambda: read_state(state),
        lambda: next(paired_records(arms, 1, tmp_path, moved[0].series, lambda name, paths: moved[0], moved)),
    ]
    for entry in evidence:
        faults.append(lambda entry=entry: baseline_event(entry, "ann", "why", NOW))  # type: ignore[misc]
    for fault in faults:
        with pytest.raises(LevelfieldError) as error:
            fault()
        yield str(error.value).replace(str(tmp_path), "FOLDER")


def parts_of(finding: Finding) -> tuple[str, str, str]:
    return finding.word, finding.label, finding.detail


def progress() -> list[str]:
    """Return what is said of four pairs, each run of 30 s, the first of which an earlier start made."""
    lines: list[str] = []
    now = iter(range(0, 10**6, 30))
    arms = list(chain.from_iterable(abba_order(4)))
    records = {"a": record(rate=1000.0), "b": record(rate=800.0)}
    keep = PairProgress(TOKENS, lines.append, clock=lambda: float(next(now))).wrap_store_run(
        lambda arm, paths: records[arm], [records[arms[0]]]
    )
    for arm in arms[1:]:
        keep(arm, RunPaths(Path("x")))
    return lines


def test_the_sentences_of_a_night_are_those_of_the_golden_file(tmp_path: Path) -> None:
    sentences = []
    for report in reports():
        sentences += ["", report.first_line, *(": ".join(filter(None, parts_of(f))) for f in report.findings)]
    inputs = gate_night({"S": [*nights(40, 0.002), *(point(40 + i, 900.0, conditions="c2") for i in range(9))]}, 49)
    history = figure_histories(inputs, "S", "~")
    control = slow_rate_reason([{"copy": 100.0}] * 7, {"copy": 80.0})
    sentences += ["", *refusals(tmp_path), "", *progress(), "", str(control), *history_lines(history[0], chart=True)]
    text = "\n".join([*sentences, ""])
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()

"""Random stores through every door: `compare`, a matrix and the first page have the same runs, ratios and words."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, product
from typing import Any

import pytest
from compared_records import other_use, repeats, with_result
from levelfield.compare import matrix as matrix_module
from levelfield.compare import ranking as ranking_module
from levelfield.compare import series_runs
from levelfield.compare.comparison import Comparison, compare
from levelfield.compare.matrix import (
    ColumnRatio,
    MatrixCell,
    ResultMatrix,
    Training,
    column_cell,
    make_matrix,
    training_of,
)
from levelfield.compare.ranking import TOKENS, RankedBar
from levelfield.compare.ratios import Ratio, mean_ratio
from levelfield.compare.series_runs import ChosenRuns, recent_runs
from levelfield.compare.sides import ComparedSide, exclusion_reason, side_of, tuning_of
from levelfield.errors import UsageError
from levelfield.pages import first_view as first_view_module
from levelfield.pages.content import read_content
from levelfield.pages.first_view import FirstView, first_view, read_trainings
from levelfield.pages.series_history import InMemoryStore
from levelfield.specs.record import RunRecord, Series
from levelfield.studies import compared_runs
from levelfield.studies.compared_runs import BundleRuns, runs_of_side

STORES, FRAMEWORKS = 60, ("torch", "jax")
OTHER_WORK = "sha256:" + "7" * 64
WORKS, CORPORA = ("sha256:" + "1" * 64, "sha256:" + "5" * 64), ("sha256:" + "2" * 64, "sha256:" + "6" * 64)
TRAININGS = list(product(WORKS, CORPORA))
Place = tuple[str, str, str, str, str]  # case, work, corpus, framework and tuning


@dataclass(frozen=True)
class Command:
    """The repeats of a command, and what they have in common."""

    hour: int  # since 20 November
    runs: tuple[RunRecord, ...]
    tuning: str
    micro_batch: int
    training: tuple[str, str]  # work, corpus
    place: tuple[str, str]  # node, variables
    counts: bool
    is_disturbed: bool


@dataclass(frozen=True)
class RandomStore:
    commands: dict[str, list[Command]]  # by framework, the oldest first
    trials: list[RunRecord]

    @property
    def runs(self) -> list[RunRecord]:
        return [run for commands in self.commands.values() for c in commands for run in c.runs] + self.trials

    @property
    def has_peak(self) -> bool:
        return any(c.tuning == "peak" for commands in self.commands.values() for c in commands)


class StoredRuns(BundleRuns):
    """Records in a list, in the place of a bundle."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self._records = {record.run_id: record for record in records}


def commanded(rng: random.Random, framework: str, hour: int, **changes: Any) -> list[RunRecord]:
    """The repeats of a command, with a name and a date by its hour."""
    tuning, disturbed = changes.pop("tuning", "base"), changes.pop("disturbed", False)
    speeds = [rng.uniform(80, 120) for _ in range(changes.pop("repeats"))]
    began = f"2026-11-{20 + hour // 24:02}T{hour % 24:02}"
    runs = []
    for number, run in enumerate(repeats(*speeds, framework=framework, **changes)):
        offset = 0 if framework == "torch" else 30
        name = f"{began.replace('-', '')}{number:02}{offset:02}Z_{run.series.case}_{framework}"
        run = run.model_copy(
            update={"run_id": name, "content": name, "began": f"{began}:{number:02}:{offset:02}+00:00"}
        )
        chosen = {"env": "user"} if tuning == "peak" else {}
        run = with_result(run, tuning={"word": tuning, "chosen": chosen})
        runs.append(with_result(run, other_use=other_use(1.7 if disturbed else 0.0, 2)))
    return runs


def random_store(seed: int) -> RandomStore:
    rng = random.Random(seed)
    commands: dict[str, list[Command]] = {framework: [] for framework in FRAMEWORKS}
    trainings = rng.choice((TRAININGS[:1], TRAININGS[:1], TRAININGS[:2], TRAININGS[:1] * 2 + TRAININGS))
    for framework in FRAMEWORKS:
        for hour in sorted(rng.sample(range(96), rng.randint(1, 4))):
            tuning, micro_batch = rng.choice(("base", "base", "base", "peak")), rng.choice((8, 8, 8, 4))
            variables, node = rng.choice(({}, {}, {"OMP": "1"})), rng.choice(("node-1", "node-1", "node-1", "node-2"))
            ended = rng.choice(({}, {}, {}, {"verdict": "different"}, {"word": "failed"}))
            disturbed = rng.random() < 0.2
            work, corpus = rng.choice(trainings)
            runs = commanded(
                rng, framework, hour, repeats=rng.choice((1, 2, 3, 3, 4)), tuning=tuning, disturbed=disturbed,
                micro_batch=micro_batch, variables=variables, node=node, work=work, corpus=corpus, **ended,
            )  # fmt: skip
            place = node, str(variables)
            training = work, corpus
            commands[framework].append(
                Command(hour, tuple(runs), tuning, micro_batch, training, place, not ended, disturbed)
            )
    trials: list[RunRecord] = []
    for case, change in (("gpt+steps14", {}), ("llama", {"verdict": "not checked"}), ("qwen", {})):
        if rng.random() < 0.3:
            for framework in FRAMEWORKS:
                count = 3 if case == "qwen" else 1
                trials += commanded(rng, framework, 97, repeats=count, case=case, work=OTHER_WORK, **change)
    return RandomStore(commands, trials)


def expected_runs(commands: Sequence[Command]) -> list[str]:
    """Return the ids of the runs that stand for a series and tuning, by the commands of these; empty without one."""
    good = [command for command in commands if command.counts]
    quiet = [command for command in good if not command.is_disturbed] or good
    if not quiet:
        return []
    newest = quiet[-1]

    def group(command: Command) -> list[str]:
        if len(command.runs) >= 3:
            return [run.run_id for run in command.runs]
        like = [c for c in quiet if c.place == command.place and is_near(c.runs, command.runs[-1])]
        return [run.run_id for c in like for run in c.runs if is_near([run], command.runs[-1])]

    of_node = [c for c in reversed(quiet) if c.place[0] == newest.place[0] and is_near(c.runs, newest.runs[-1])]
    return sorted(next((ids for c in of_node if len(ids := group(c)) >= 3), group(newest)))


def is_near(runs: Sequence[RunRecord], newest: RunRecord) -> bool:
    moments = [datetime.fromisoformat(run.began) for run in (runs[-1], newest)]
    return abs(moments[0] - moments[1]) <= timedelta(days=1)


def same(first: Ratio | None, second: Ratio | None) -> bool:
    """Whether two ratios are one, seen from either side."""
    if first is None or second is None or first.value is None or second.value is None:
        return (first and first.value) == (second and second.value)
    if sorted(first.reason.split()) != sorted(second.reason.split()):  # it names the base's runs first
        return False
    for one in (first, first.inverse):
        pairs = [(one.value, second.value), (one.low, second.low), (one.high, second.high)]
        if one.standing == second.standing and all(a == (b and pytest.approx(b)) for a, b in pairs):
            return True
    return False


def disagreements(store: RandomStore) -> Iterator[str]:
    """Yield in what the doors differ from each other and from the rule."""
    source, results = StoredRuns(store.runs), InMemoryStore(store.runs)
    content = read_content(results)
    histories = {digest: runs.points for digest, runs in content.series.items()}
    latest = [run for series in source.series() for run in recent_runs(source.newest_runs(series))]
    table = make_matrix(latest, "framework", histories=histories)
    view = first_view(read_trainings(content, results), TOKENS, histories)
    of_page, cells = bars_of(view), cells_of(table)
    if len({row.label for row in table.rows}) < len(table.rows):
        yield f"rows of one name: {[row.label for row in table.rows]}"
    if cells.keys() != of_page.keys():
        yield f"matrix has {[*cells]}, page has {[*of_page]}"
        return
    sides: dict[Place, ComparedSide] = {}
    for place, cell in cells.items():
        assert cell.side
        ids = ids_of(cell.side)
        if ids != ids_of(of_page[place].contender.side):
            yield f"{place}: matrix and page take other runs"
        case, work, corpus, framework, tuning = place
        micro_batch = cell.side.first.series.micro_batch
        of_framework = [c for c in store.commands[framework] if c.training == (work, corpus)]
        of_series = [command for command in of_framework if command.micro_batch == micro_batch]
        has_base = any(command.counts and command.tuning == "base" for command in of_series)
        if case != "gpt" or (tuning == "peak" and has_base):
            continue
        expected = expected_runs([command for command in of_series if command.tuning == tuning])
        sides[place] = side_of(
            framework, runs_of_side(source, f"gpt:{framework} mb{micro_batch} work={work} corpus={corpus}").runs
        )
        if not ids == ids_of(sides[place]) == expected:
            yield f"{place}: matrix has {ids}, compare {ids_of(sides[place])}, expected {expected}"
    for (work, corpus), tuning in product(TRAININGS, ("base", "peak")):
        places: list[Place] = [("gpt", work, corpus, framework, tuning) for framework in FRAMEWORKS]
        if all(place in sides for place in places):
            outcome = compare([sides[place] for place in places], histories)
            bars, of_matrix = [of_page[place] for place in places], [cells[place].ratio for place in places]
            yield from differing_ratios(outcome, bars, of_matrix, table.columns[0] == f"{FRAMEWORKS[0]} {tuning}")
    if not store.has_peak and len(table.ratios) == 1 and not same(view.lead, table.ratios[0].ratio):
        yield f"page says {view.lead}, matrix says {table.ratios[0].ratio}"


def bars_of(view: FirstView) -> dict[Place, RankedBar]:
    bars: dict[Place, RankedBar] = {}
    for bar in (bar for training in view.trainings for bar in training.ranking.bars):
        who, series = bar.contender, bar.contender.side.first.series
        bars[series.case, series.work, series.corpus, who.framework, who.tuning] = bar
    return bars


def cells_of(table: ResultMatrix) -> dict[Place, MatrixCell]:
    """Return the measured cells."""
    cells: dict[Place, MatrixCell] = {}
    for (row, column), cell in table.cells.items():
        if cell.value:
            framework, tuning = column.split()
            cells[row.training.case, row.training.work, row.training.corpus, framework, tuning] = cell
    return cells


def ids_of(side: ComparedSide) -> list[str]:
    return sorted(run.run_id for run in side.counted)


def differing_ratios(
    outcome: Comparison, bars: Sequence[RankedBar], of_matrix: Sequence[Ratio | None], is_against_first: bool
) -> Iterator[str]:
    """Yield where the ratio of two sides is another one on the page or in the matrix, as far as they have it."""
    if not outcome.comparability.is_comparable:
        yield f"compare says {outcome.comparability.unequal}, the matrix has both"
        return
    (ratio,) = outcome.figures[0].ratios
    to_best = [bar.ratio for bar in bars if bar.ratio is not None]
    if len(to_best) == 1 and not same(ratio, to_best[0]):
        yield f"compare says {ratio}, page says {to_best}"
    if is_against_first and not same(ratio, of_matrix[1]):
        yield f"compare says {ratio}, matrix says {of_matrix}"


def test_every_door_has_the_same_runs_ratios_and_words() -> None:
    for seed in range(STORES):
        assert [*disagreements(random_store(seed))] == [], f"store {seed}"


def newest_series(runs: Sequence[RunRecord], histories: Any, duels: Any = ()) -> Any:
    newest = max((run for run in runs if exclusion_reason(run) is None), key=lambda run: run.began, default=runs[-1])
    return column_cell([run for run in runs if run.series == newest.series], histories, duels)


def joined(series: Series) -> Training:
    return training_of(series)._replace(work="", corpus="")


PLANTED = Ratio(1.0, None, None, "inconclusive", "planted")
FAULTS: dict[str, tuple[object, str, object]] = {
    "base and peak are one side": (series_runs, "tuning_of", lambda record: "base"),
    "a day has no end": (series_runs, "is_within_a_day", lambda first, second: True),
    "a day holds one run": (series_runs, "is_within_a_day", lambda first, second: False),
    "one run is enough": (series_runs, "MIN_RUNS", 1),
    "a training that differs counts": (series_runs, "series_exclusion_reason", exclusion_reason),
    "a disturbed run counts": (series_runs, "quiet_runs", list),
    "nodes and conditions are joined": (series_runs, "is_same_build", lambda a, b: tuning_of(a) == tuning_of(b)),
    "a label takes every run": (compared_runs, "labelled_runs", lambda records: ChosenRuns(tuple(records))),
    "a matrix takes the newest series": (matrix_module, "column_cell", newest_series),
    "a page takes the newest series": (first_view_module, "column_cell", newest_series),
    "a matrix joins trainings of one name": (matrix_module, "training_of", joined),
    "a page joins trainings of one name": (first_view_module, "training_of", joined),
    "a page reads one run": (first_view_module, "recent_runs", lambda newest: islice(newest, 1)),
    "a page has other ratios": (ranking_module, "side_ratio", lambda quantity, side, base: PLANTED),
    "a trial is in the mean of a matrix": (
        matrix_module,
        "column_ratio",
        lambda column, base, pairs: ColumnRatio(column, base, mean_ratio([p.values for p in pairs]), len(pairs)),
    ),
}


SHOWING = (29, 46, 19, 13)  # stores that show most of the faults; without a fault they are of no use


@pytest.fixture(scope="module")
def stores() -> list[RandomStore]:
    return [random_store(seed) for seed in dict.fromkeys((*SHOWING, *range(STORES)))]


# These are seen late, in the last stores.
COSTLY = (
    "base and peak are one side",
    "a day has no end",
    "a day holds one run",
    "one run is enough",
    "a disturbed run counts",
    "a trial is in the mean of a matrix",
)


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=[pytest.mark.thorough] if name in COSTLY else []) for name in FAULTS]
)
def test_a_planted_fault_is_seen(fault: str, stores: list[RandomStore], monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, wrong = FAULTS[fault]
    monkeypatch.setattr(module, name, wrong)
    with suppress(UsageError):  # a side without a run
        assert any(True for store in stores for _ in disagreements(store))

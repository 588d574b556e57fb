"""The conclusion of a duel is stored, and each way to compare both sides shows it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from compared_records import mfu_row, other_use, record, with_result
from levelfield.cli.main import main
from levelfield.compare.comparison import compare, duel_conclusions
from levelfield.compare.matrix import make_matrix
from levelfield.compare.ranking import TOKENS
from levelfield.compare.ratios import Ratio
from levelfield.compare.sides import side_of
from levelfield.errors import LevelfieldError
from levelfield.measure.other_use import HostUse
from levelfield.pages import page_rendering
from levelfield.pages.content import read_content
from levelfield.pages.first_view import first_view, read_trainings
from levelfield.pages.series_history import InMemoryStore
from levelfield.run.quiet import QuietWait
from levelfield.specs.prices import Prices
from levelfield.specs.record import RunRecord, StoreEvent
from levelfield.specs.run_figures import MFU_NAME
from levelfield.store.database import Store
from levelfield.studies.duels import DuelOutcome, conclusion, duel_json, duel_looks, run_duel
from pydantic import ValidationError

AT = "2026-11-23T00:00:00+00:00"
# The pairs differ by far more than B from A: independent runs decide nothing.
DRIFTING = [(1000.0, 901.0), (2000.0, 1800.0), (4000.0, 3604.0)]


def fought(speeds: list[tuple[float, float]] = DRIFTING, busy_run: int | None = None) -> DuelOutcome:
    """A duel of these speeds. busy_run: the number of a run in which others used 1.7 of 2 cores."""
    runs: list[RunRecord] = []

    def start(arm: str, number: int) -> RunRecord:
        framework = {"a": "torch", "b": "jax"}[arm]
        run = record(len(runs) + 1, speeds[number - 1]["ab".index(arm)], framework=framework)
        use = {"other_use": other_use(1.7 if len(runs) + 1 == busy_run else 0.0, 2)}
        runs.append(with_result(run, repeat=number, **use))
        return runs[-1]

    quiet = QuietWait(pytest.fail, lambda: HostUse(0.0, 2))
    return run_duel(["gpt:torch --env X=/home/me", "gpt:jax"], duel_looks(len(speeds), 1.0), start, quiet)


def runs_of(outcome: DuelOutcome) -> tuple[list[RunRecord], list[RunRecord]]:
    a, b = zip(*outcome.pairs, strict=True)
    return list(a), list(b)


def stated(outcome: DuelOutcome) -> StoreEvent:
    event = outcome.event(AT)
    assert event is not None
    return event


Door = Callable[[list[RunRecord], list[RunRecord], list[StoreEvent]], Ratio | None]


def by_compare(a: list[RunRecord], b: list[RunRecord], events: list[StoreEvent]) -> Ratio | None:
    return compare([side_of("A", a), side_of("B", b)], duels=duel_conclusions(events)).figures[0].ratios[0]


def by_turned_compare(a: list[RunRecord], b: list[RunRecord], events: list[StoreEvent]) -> Ratio | None:
    return by_compare(b, a, events) and by_compare(b, a, events).inverse  # type: ignore[union-attr]


def by_matrix(a: list[RunRecord], b: list[RunRecord], events: list[StoreEvent]) -> Ratio | None:
    matrix = make_matrix([*a, *b], "framework", duels=duel_conclusions(events))
    (cell,) = [cell.ratio for cell in matrix.cells.values() if cell.ratio]
    assert matrix.ratios[0].ratio == cell, "the mean over one row is that row"
    return cell.inverse if matrix.columns[0].startswith("jax") else cell


def by_page(a: list[RunRecord], b: list[RunRecord], events: list[StoreEvent]) -> Ratio | None:
    results = InMemoryStore([*a, *b], events)
    content = read_content(results)
    page = first_view(read_trainings(content, results), TOKENS, {}, duel_conclusions(content.events))
    return page.lead.inverse if page.lead and page.overall.rows[0].column == "torch" else page.lead


DOORS = [by_compare, by_turned_compare, by_matrix, by_page]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("busy_run", [None, 2])
def test_each_way_to_compare_gives_the_ratio_of_the_duel(door: Door, busy_run: int | None) -> None:
    """Also where a disturbed run of it is left out of the side's other figures."""
    outcome = fought(busy_run=busy_run)
    ratio = door(*runs_of(outcome), [stated(outcome)])
    assert ratio and ratio.low and ratio.high and outcome.ratio.low and outcome.ratio.high
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx(
        (outcome.ratio.value, outcome.ratio.low, outcome.ratio.high)
    )
    assert (ratio.standing, ratio.pairs, ratio.reason) == ("lower", 3, outcome.ratio.reason)
    assert ratio.reason.startswith("by pairs: ")
    without = door(*runs_of(outcome), [])
    assert without and without.pairs is None and without.standing != "lower"


@pytest.mark.parametrize("door", DOORS)
def test_a_duel_holds_for_its_own_runs_alone(door: Door) -> None:
    outcome, later = fought(), fought([(1000.0, 990.0), (1000.0, 991.0), (1000.0, 989.0)])
    a, b = runs_of(outcome)
    for runs in ((a[:2], b), (a, [b[0], b[1], replace_run(b[2])])):
        ratio = door(*runs, [stated(outcome)])
        assert ratio and ratio.pairs is None
    edited = stated(outcome).model_copy(update={"data": {**stated(outcome).data, "ratio": 1.5, "high": 1.6}})
    ratio = door(a, b, [edited])
    assert ratio and ratio.pairs is None, "it is not the ratio of these runs"
    ratio = door(a, b, [stated(outcome), stated(later)])
    assert ratio and ratio.value == pytest.approx(outcome.ratio.value), "the other duel has other speeds"


RENT = Prices.model_validate({"currency": "EUR", "chips": {"X1": {"per": "device", "rent": 2.0}}})
OWN = {"capital": 10_000, "years": 4, "utilisation": 0.5, "power_per_kwh": 0.1, "pue": 1.2}
OWNED = Prices.model_validate({"currency": "EUR", "chips": {"X1": {"per": "device", "own": OWN}}})


def with_mfu(side: list[RunRecord], per_speed: float) -> list[RunRecord]:
    rates = [run.tokens_per_second_per_device or 0.0 for run in side]
    uses = [mfu_row(per_speed * rate, peak_tflops=100.0) for rate in rates]
    return [with_result(run, utilisation=[use]) for run, use in zip(side, uses, strict=True)]


def ratios_of(a: list[RunRecord], b: list[RunRecord], event: StoreEvent, prices: Prices) -> dict[str, Ratio]:
    outcome = compare([side_of("A", a), side_of("B", b)], prices=prices, duels=duel_conclusions([event]))
    return {figure.quantity.column.name: figure.ratios[0] for figure in outcome.figures}


def test_what_follows_from_the_speed_alone_is_by_pairs_too() -> None:
    """MFU and rent are a constant of the side times the speed, or over it: 1.5 times as many FLOPs on side B."""
    outcome = fought()
    a, b = runs_of(outcome)
    ratios = ratios_of(with_mfu(a, 1e-4), with_mfu(b, 1.5e-4), stated(outcome), RENT)
    speed = outcome.ratio
    assert speed.value and speed.low and speed.high
    mfu, cost = ratios[MFU_NAME], ratios["cost_per_million_tokens"]
    assert (mfu.value, mfu.low, mfu.high) == pytest.approx((1.5 * speed.value, 1.5 * speed.low, 1.5 * speed.high))
    assert (cost.value, cost.low, cost.high) == pytest.approx((1 / speed.value, 1 / speed.high, 1 / speed.low))
    assert (mfu.pairs, mfu.standing, cost.pairs, cost.standing) == (3, "higher", 3, "higher")


def test_what_has_more_in_it_than_the_speed_is_not_by_pairs() -> None:
    """Energy, a price with the energy in it, and an MFU of which one run refers to another peak."""
    outcome = fought()
    a, b = runs_of(outcome)
    ratios = ratios_of([*with_mfu(a[:2], 1e-4), *with_mfu(a[2:], 1.1e-4)], with_mfu(b, 1e-4), stated(outcome), OWNED)
    assert ratios["tokens_per_second_per_device"].pairs == 3
    others = {name: ratio.pairs for name, ratio in ratios.items() if name != "tokens_per_second_per_device"}
    assert {MFU_NAME, "joules_per_token", "cost_per_million_tokens"} <= others.keys() and not any(others.values())


def replace_run(run: RunRecord) -> RunRecord:
    return run.model_copy(update={"run_id": f"{run.run_id}x", "content": "sha256:" + "e" * 64})


def test_a_mean_over_trainings_counts_a_duel_by_its_pairs() -> None:
    """By hand: two equal ratios, one by pairs, one by a duel with a width of nothing, have half of the pairs' width."""
    outcome = fought()
    a, b = runs_of(outcome)
    other = [[run.model_copy(update={"series": run.series.model_copy(update={"case": "other"}),
                                     "run_id": f"{run.run_id}o", "content": f"sha256:{n:064x}"})
              for n, run in enumerate(side, first)] for side, first in ((a, 900), (b, 950))]  # fmt: skip
    event = stated(outcome)
    data = {**event.data, "pairs": [[x.run_id, y.run_id] for x, y in zip(*other, strict=True)]}
    data |= {"low": outcome.ratio.value, "high": outcome.ratio.value}
    duels = duel_conclusions([event, event.model_copy(update={"id": "other", "data": data})])
    mean = make_matrix([*a, *b, *other[0], *other[1]], "framework", duels=duels).ratios[0].ratio
    assert mean.low and mean.high and outcome.ratio.low and outcome.ratio.high
    assert math.log(mean.high / mean.low) == pytest.approx(math.log(outcome.ratio.high / outcome.ratio.low) / 2)


def test_a_conclusion_names_the_load_of_a_disturbed_machine() -> None:
    quiet, loud = fought(), fought(busy_run=3)
    for text in (conclusion(loud), loud.ratio.reason, str(duel_json(loud)["duel"]["disturbed"]), stated(loud).why):
        assert "up to 1.7 of 2 cores" in text
    assert "disturbed" not in conclusion(quiet) + quiet.ratio.reason and duel_json(quiet)["duel"]["disturbed"] is None


def test_a_conclusion_has_no_words_of_the_user() -> None:
    assert "/home/me" in conclusion(fought()) and "/home/me" not in stated(fought()).model_dump_json()


def test_two_pairs_are_no_conclusion() -> None:
    outcome = fought()
    stopped = replace(outcome, pairs=outcome.pairs[:2], ruling=replace(outcome.ruling, pairs=2))
    assert stopped.event(AT) is None


@pytest.mark.parametrize("change", [{"ratio": -1.0}, {"pairs": [["a"]]}, {"word": "won"}, {"more": 1}])
def test_a_damaged_conclusion_is_no_event(change: dict[str, object]) -> None:
    event = stated(fought())
    with pytest.raises((ValidationError, LevelfieldError)):
        StoreEvent.model_validate({**event.model_dump(), "data": {**event.data, **change}})


def test_a_store_carries_it_to_commands_pages_and_another_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = fought()
    file, moved = str(tmp_path / "r.sqlite"), str(tmp_path / "moved.sqlite")
    with Store.open(file) as store:
        store.add([run for side in runs_of(outcome) for run in side])
        store.add_event(stated(outcome))
    ends = f"[{outcome.ratio.low:.4f}, {outcome.ratio.high:.4f}]"

    def printed(*words: str) -> str:
        capsys.readouterr()
        assert main([*words]) == 0
        return " ".join(capsys.readouterr().out.split())

    sides = ("compare", "gpt:torch", "gpt:jax", "--store", file)
    assert ends in (text := printed(*sides)) and "by pairs" in text
    matrix_words = ("compare", "--matrix", "framework", "--store", file)
    text = printed(*matrix_words)
    assert any(ratio.ends in text for ratio in (outcome.ratio, outcome.ratio.inverse)) and "by pairs" in text
    for words in (sides, matrix_words):
        assert '"pairs": 3' in json.dumps(json.loads(printed(*words, "--json")))
    printed("report", "pages", str(tmp_path / "site"), "--store", file)
    assert page_rendering.translate("en", "by-pairs", pairs=3) in (tmp_path / "site/index.html").read_text()
    printed("store", "check", "--store", file)
    printed("store", "export", "--store", file, "--output", str(tmp_path / "x.jsonl"))
    printed("store", "import", str(tmp_path / "x.jsonl"), "--store", moved)
    with Store.open(moved) as store:
        assert store.events() == [stated(outcome)]

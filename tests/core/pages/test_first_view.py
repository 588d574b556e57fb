"""The first page: which chip, by how much, how sure; and no bar or ratio that misleads, whatever a run is like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from compared_records import figure, mfu_row, other_use, record, repeats, with_result
from levelfield.catalog.registry import Registry
from levelfield.compare.comparison import compare
from levelfield.compare.ranking import TOKENS, Metric, TrustPart, metrics, trust_parts
from levelfield.compare.ratios import SideValues
from levelfield.compare.sides import side_of
from levelfield.pages.content import read_content
from levelfield.pages.first_view import (
    MAX_AXIS_OVER_LONGEST,
    MAX_BARS,
    DrawnBar,
    FirstView,
    first_view,
    planned_intensity,
    read_trainings,
)
from levelfield.pages.page_building import build_pages
from levelfield.pages.series_history import InMemoryStore
from levelfield.predict.pass_timing import memory_traffic_bytes
from levelfield.predict.setup import training_setup
from levelfield.specs.layout import Layout
from levelfield.specs.prices import Prices
from levelfield.specs.record import RunRecord
from levelfield.specs.tuning import Tuning
from seeded_nights import SeededNights

MFU, ENERGY = metrics()[1:]
QUIET = {"other_use": other_use(0.1, 64), "certificate": {"holds": True}}


def three(rate: float, first: int, spread: float = 0.002, **changes: Any) -> list[RunRecord]:
    """Three repeats about a rate; `more` is added to their results."""
    more = {**QUIET, **changes.pop("more", {})}
    runs = repeats(rate * (1 - spread), rate * (1 + spread), rate, first=first, **{"scale": "full", **changes})
    return [with_result(run, **more) for run in runs]


FAST, SLOW = three(1000, 1, chip="X1"), three(500, 4, chip="Z9")


def view(records: Sequence[RunRecord], metric: Metric = TOKENS) -> FirstView:
    results = InMemoryStore(records)
    content = read_content(results)
    histories = {digest: runs.points for digest, runs in content.series.items()}
    return first_view(read_trainings(content, results), metric, histories)


def bars(seen: FirstView, place: int = 0) -> dict[str, DrawnBar]:
    return {bar.ranked.contender.chip: bar for bar in seen.trainings[place].best_bars}


def test_the_answer_names_the_chip_the_ratio_and_its_interval_as_compare_does() -> None:
    seen = view([*SLOW, *FAST])
    expected = compare([side_of("A", SLOW), side_of("B", FAST)]).figures[0].ratios[0]
    assert [row.column for row in seen.overall.rows] == ["acme X1", "acme Z9"] and seen.is_decided
    assert seen.lead and seen.lead.value == pytest.approx(2.0)
    assert seen.lead.low == pytest.approx(expected.low)
    assert seen.lead.high == pytest.approx(expected.high)
    assert seen.lead.standing == expected.standing == "higher"


def test_less_energy_is_better_and_its_bars_are_in_that_order() -> None:
    seen = view([*three(1000, 1, joules=0.9), *three(500, 4, chip="Z9", joules=0.3)], ENERGY)
    assert [*bars(seen)] == ["acme Z9", "acme X1"] and seen.overall.rows[0].column == "acme Z9"
    assert seen.lead and seen.lead.value == pytest.approx(1 / 3) and seen.is_decided
    assert bars(seen)["acme X1"].length_percent > 99 and bars(seen)["acme Z9"].length_percent == pytest.approx(
        33.3, abs=0.2
    )


def test_the_bar_of_mfu_ends_at_the_peak_of_the_chip() -> None:
    bar = bars(view([*three(1000, 1, mfu=0.4)], MFU))["acme X1"]
    assert bar.length_percent == 40.0
    assert bar.achieved_and_peak is None  # the achieved FLOP/s of this run were not recorded


def test_a_bar_has_its_interval_from_repeats_and_from_the_nights_of_its_series() -> None:
    nights = [record(n, 1000.0 + n % 3, began=f"2026-11-{n:02}T10:00:00Z") for n in range(1, 12)]
    of_nights, of_repeats = (bars(view(runs))["acme X1"].ranked for runs in (nights, FAST))
    assert of_nights.low and of_nights.high and of_nights.low < of_nights.value < of_nights.high
    assert of_repeats.low and of_repeats.low < 1000 < (of_repeats.high or 0)
    alone = bars(view(nights[:3]))["acme X1"].ranked
    assert (alone.low, alone.high) == (None, None)


def test_one_run_a_side_gives_a_word_and_no_number() -> None:
    seen = view([record(1, 1000.0), record(2, 213.0, chip="Z9")])
    assert seen.lead and seen.lead.standing == "inconclusive" and seen.lead.low is None and not seen.is_decided
    assert bars(seen)["acme Z9"].ranked.ratio.label == "inconclusive"  # type: ignore[union-attr]
    assert seen.trust_counts["repeats"] == 0


def test_a_difference_within_noise_makes_nobody_the_best() -> None:
    seen = view([*three(1000, 1, 0.02), *three(1001, 4, 0.02, chip="Z9")])
    assert seen.lead and seen.lead.standing == "within noise"
    assert not seen.is_decided and not seen.trainings[0].is_decided


# -- what must not mislead


@pytest.mark.parametrize(
    "change",
    [{"evidence": "tampered"}, {"evidence": "unsealed"}, {"word": "oom", "failure": "oom"}, {"verdict": "different"}],
    ids=str,
)
def test_a_run_that_does_not_count_has_no_bar_and_is_named(change: dict[str, Any]) -> None:
    wrong = [run.model_copy(update=change) for run in FAST]
    seen = view([*wrong, *SLOW])
    assert [*bars(seen)] == ["acme Z9"] and seen.lead is None
    (absent,) = seen.trainings[0].training_contenders.absent
    assert absent.chip == "acme X1" and absent.state


def test_a_speed_that_is_not_that_of_all_devices_gives_no_bar() -> None:
    speed = {**FAST[0].stored_result.content["throughput"], "tokens_per_second": 1.0}
    seen = view([*(with_result(run, throughput=speed) for run in FAST), *SLOW])
    assert [*bars(seen)] == ["acme Z9"] and seen.lead is None
    assert [run.state for run in seen.trainings[0].training_contenders.absent] == ["contradictory"]


def test_the_last_run_that_counts_stands_in_where_a_newer_one_does_not() -> None:
    worse = record(9, 9000.0, scale="full", word="oom", failure="oom")
    assert bars(view([*FAST, worse]))["acme X1"].ranked.value == pytest.approx(1000.0, rel=1e-5)


@pytest.mark.parametrize(
    "change",
    [{"scale": "smoke"}, {"work": "sha256:" + "9" * 64}, {"corpus": "sha256:" + "9" * 64}, {"precision": "bf16"},
     {"device_is": "host share"}],
    ids=str,
)  # fmt: skip
def test_runs_of_another_scale_or_work_are_in_no_training_with_others(change: dict[str, Any]) -> None:
    seen = view([*FAST, *three(500, 4, **{"chip": "Z9", **change})])
    assert len(seen.trainings) == 2 and seen.lead is None
    assert all(len(training.best_bars) == 1 for training in seen.trainings)


@pytest.mark.parametrize("change", [{"window": (11, 29)}, {"formulas": ("palm/2",)}], ids=str)
def test_a_side_that_compare_would_refuse_has_no_bar_and_the_field_is_named(change: dict[str, Any]) -> None:
    seen = view([*FAST, *three(900, 4, chip="Y"), *three(5000, 7, chip="Z9", **change)])
    assert [*bars(seen)] == ["acme X1", "acme Y"], "the fastest differs from most others"
    (unranked,) = seen.trainings[0].ranking.unranked
    assert unranked.contender.chip == "acme Z9" and next(iter(change)) in unranked.reason


def test_the_largest_use_by_other_programs_is_named() -> None:
    def quiet(*used: float | None) -> TrustPart:
        runs = [with_result(run, other_use=other_use(cores, 2)) for run, cores in zip(FAST, used, strict=True)]
        return next(part for part in trust_parts(side_of("A", runs), SideValues((1.0,))) if part.name == "quiet")

    assert "1.1 of 2" in quiet(0.585, 0.239, 1.084).detail
    assert not quiet(0.585, 0.239, 1.084).holds
    assert quiet(0.585, 0.139, 1.084).holds  # of the quiet run alone
    assert quiet(0.0, 0.01, 0.0).holds and quiet(1.0, None, 0.0).detail == "not recorded"


def test_one_more_run_of_the_day_joins_the_repeats_before_it() -> None:
    (more,) = repeats(990.0, first=9, chip="X1", scale="full")
    later = more.model_copy(update={"began": "2026-11-25T10:00:00+00:00"})
    counts = [bars(view([*FAST, *SLOW, run]))["acme X1"].ranked.values.values for run in (more, later)]
    speeds = [run.tokens_per_second_per_device or 0.0 for run in FAST]
    assert sorted(counts[0]) == sorted([*speeds, 990.0])
    assert counts[1] == (990.0,)


def test_a_figure_that_one_of_the_repeats_lacks_has_no_bar() -> None:
    runs = three(500, 4, chip="Z9")
    energy = {**runs[0].stored_result.content["energy"], "joules_per_token": figure(None, "J/token", "no reading")}
    lacking = with_result(runs[0], energy=energy)
    seen = view([*FAST, lacking, *runs[1:]], ENERGY)
    assert [*bars(seen)] == ["acme X1"] and [u.reason for u in seen.trainings[0].ranking.unranked] == ["no reading"]


def test_a_missing_framework_is_named_and_the_mean_says_how_many() -> None:
    both = [*FAST, *SLOW, *three(1000, 11, case="b"), *three(250, 14, case="b", chip="Z9")]
    alone = [
        *three(9000, 21, case="c"),
        *[r.model_copy(update={"word": "failed"}) for r in three(1, 24, case="c", chip="Z9")],
    ]
    seen = view([*both, *alone])
    assert seen.lead and seen.lead.value == pytest.approx(math.sqrt(2 * 4))
    assert (seen.overall.rows[1].trainings, seen.overall.trainings) == (2, 3)
    [third] = [
        drawn.training_contenders for drawn in seen.trainings if drawn.training_contenders.example.series.case == "c"
    ]
    assert [run.state for run in third.absent] == ["failed"]


def test_chips_that_share_no_training_have_no_ratio() -> None:
    seen = view([*FAST, *three(500, 4, case="other", chip="Z9")])
    assert seen.lead is None and seen.overall.left_out == ("acme Z9",)


def test_smoke_is_the_answer_only_where_nothing_ran_at_full_scale() -> None:
    smoke = [*three(9000, 11, scale="smoke"), *three(100, 14, scale="smoke", chip="Z9")]
    assert view(smoke).scale == "smoke"
    mixed = view([*smoke, *FAST, *SLOW])
    assert mixed.scale == "full" and mixed.lead and mixed.lead.value == pytest.approx(2.0)


def test_frameworks_are_compared_where_all_ran_on_one_chip() -> None:
    seen = view([*FAST, *three(2000, 4, framework="jax")])
    assert not seen.overall.is_by_chip and seen.only_chip == "acme X1"
    assert [row.column for row in seen.overall.rows] == ["jax", "torch"]


def test_chips_stand_by_the_framework_that_both_have_and_the_others_are_listed() -> None:
    seen = view([*FAST, *three(2000, 11, framework="jax"), *SLOW])
    assert bars(seen)["acme X1"].ranked.contender.framework == "torch"
    assert [bar.ranked.contender.framework for bar in seen.trainings[0].listed_bars] == ["jax", "torch", "torch"]
    assert bars(seen)["acme X1"].length_percent > 99, "a bar of the folded list does not shorten those of the chart"
    assert [bar.length_percent for bar in seen.trainings[0].listed_bars] == pytest.approx([99.5, 49.8, 24.9])


@pytest.mark.parametrize(
    ("part", "more", "detail"),
    [
        ("quiet", {"other_use": other_use(9.0, 64)}, "up to 9.0 of 64"),
        ("quiet", {"other_use": None}, "not recorded"),
        ("certified", {"certificate": {"holds": False, "reason": "none was looked for"}}, "none was looked for"),
        ("certified", {"certificate": None}, "not recorded"),
    ],
)
def test_a_part_of_the_trust_that_is_missing_says_why(part: str, more: dict[str, Any], detail: str) -> None:
    (bar,) = bars(view(three(1000, 1, more=more))).values()
    [lacking] = [trust_part for trust_part in bar.ranked.contender.trust if not trust_part.holds]
    assert lacking.name == part and detail in lacking.detail and bar.trust_count == 4


def on_h100(**changes: Any) -> RunRecord:
    """A run of llama3_8b that achieved 400 of 989.4 TFLOP/s, as recorded."""
    work = Registry().case("llama3_8b").work("full").fingerprint()
    training = {"case": "llama3_8b", "scale": "full", "precision": "bf16", "chip": "H100-SXM5-80GB", "work": work}
    run = record(1, 8000.0, **{**training, "vendor": "nvidia", "device_is": "gpu", **changes})
    return with_result(run, utilisation=[mfu_row(0.4, achieved_tflops=400.0, peak_tflops=989.4)])


def test_the_planned_intensity_is_the_models_flops_over_the_planners_bytes() -> None:
    """By hand: 400e12 / 8000 = 5e10 FLOPs a token, 8 sequences of 8,192 tokens; ridge 989.4e12 over the bandwidth."""
    intensity, registry = planned_intensity(on_h100(), Registry()), Registry()
    constants = registry.planner_constants("torch")
    assert intensity and constants
    setup = training_setup(registry.case("llama3_8b").work("full"), Tuning(micro_batch=8), False, constants.keeping)
    assert intensity.flops_per_byte == pytest.approx(
        5e10 * 8 * 8192 / memory_traffic_bytes(setup, constants.pace_on(False))
    )
    assert intensity.ridge == pytest.approx(989.4e12 / 3.35e12, rel=0.01)
    split = planned_intensity(on_h100(layout=Layout(tensor=8), devices=8), registry)
    assert (
        split and split.flops_per_byte < intensity.flops_per_byte
    )  # each rank of a tensor group has less to compute for each byte


@pytest.mark.parametrize(
    "change", [{"work": "sha256:" + "9" * 64}, {"case": "none"}, {"framework": "unknown"}], ids=str
)
def test_what_the_planner_does_not_know_has_no_intensity(change: dict[str, str]) -> None:
    assert planned_intensity(on_h100(**change), Registry()) is None


@pytest.mark.parametrize("achieved", [None, 0.0, -1.0])
def test_without_achieved_flops_there_is_no_intensity(achieved: float | None) -> None:
    run = with_result(on_h100(), utilisation=[mfu_row(0.4, achieved_tflops=achieved)])
    assert planned_intensity(run, Registry()) is None


def test_the_intensity_is_marked_as_planned_and_stands_by_mfu_alone(tmp_path: Path) -> None:
    build_pages(InMemoryStore([on_h100()]), tmp_path, Registry())
    page = (tmp_path / "by-mfu.html").read_text()
    for part in ("planned, not measured", "400.0 of 989.4 TFLOP/s", "ridge of the chip 295"):
        assert part in page
    assert "FLOP/byte" not in (tmp_path / "index.html").read_text()


# -- what somebody new could take for another thing


def test_two_bars_divide_to_the_headline_also_where_a_median_would_not() -> None:
    skewed = [*repeats(1000.0, 1010.0, 4000.0, chip="X1"), *repeats(500.0, 510.0, 520.0, first=4, chip="Z9")]
    seen = view(skewed)
    first, second = (bar.ranked for bar in seen.trainings[0].best_bars)
    assert seen.lead and seen.lead.value == pytest.approx(first.value / second.value)
    assert first.value == pytest.approx((1000 * 1010 * 4000) ** (1 / 3)) and first.value > 1500, "its median is 1010"
    assert first.low and first.high and first.low * first.high == pytest.approx(first.value**2), "the interval is of it"


def test_what_is_counted_is_what_is_good() -> None:
    """By hand: one of two sides has changed files; beside the best there is one side, which did not run in turn."""
    seen = view([*FAST, *three(500, 4, chip="Z9", is_dirty=True)])
    assert seen.clear_counts == {"source": (1, 2), "run order": (0, 1)}
    best_alone = view([*three(1000, 1, is_dirty=True), *three(500, 4, chip="Z9")])
    assert best_alone.clear_counts["source"] == (1, 2), "unchanged files are no caution beside a best with changed ones"


def test_the_large_word_is_what_differs_between_the_bars() -> None:
    by_framework = view([*FAST, *three(2000, 4, framework="jax")]).trainings[0]
    assert [(bar.name, bar.subtitle) for bar in by_framework.best_bars] == [("jax", "acme X1"), ("torch", "acme X1")]
    by_chip = view([*FAST, *SLOW, *three(2000, 11, framework="jax")]).trainings[0]
    assert [(bar.name, bar.subtitle) for bar in by_chip.best_bars] == [("acme X1", "torch"), ("acme Z9", "torch")]
    assert [bar.name.rpartition(" ")[::2] for bar in by_chip.listed_bars] == [
        ("acme X1", "jax"), ("acme X1", "torch"), ("acme Z9", "torch"),
    ]  # fmt: skip


def test_a_wide_interval_is_clipped_and_does_not_shorten_the_bars() -> None:
    wide, other = view([*three(1000, 1, 0.5), *three(900, 4, chip="Z9")]).trainings[0].best_bars
    assert (
        wide.ranked.high
        and wide.ranked.high > MAX_AXIS_OVER_LONGEST * wide.ranked.value
        and wide.is_clipped
        and wide.high_percent == 100.0
    )
    assert wide.length_percent == pytest.approx(100 / MAX_AXIS_OVER_LONGEST, abs=0.1) and not other.is_clipped
    (narrow, *_) = view([*FAST, *SLOW]).trainings[0].best_bars
    assert narrow.high_percent == 100.0 and not narrow.is_clipped and narrow.length_percent > 99


def tuned(runs: list[RunRecord], word: str, **chosen: str) -> list[RunRecord]:
    tuning = {"word": word, "chosen": chosen}
    return [with_result(run, tuning=tuning) for run in runs]


def test_base_and_peak_have_a_bar_each_and_the_faster_one_stands_for_the_chip() -> None:
    base = tuned(three(1000, 1), "base")
    peak = tuned(three(1300, 4, micro_batch=4), "peak", micro_batch="the user")
    slower = tuned(three(1200, 7, micro_batch=2), "peak", micro_batch="the user")
    other = tuned(three(500, 11, chip="Z9"), "base")
    (drawn,) = view([*base, *peak, *slower, *other]).trainings
    assert [(bar.name, bar.subtitle) for bar in drawn.best_bars] == [
        ("acme X1", "torch tuned"),
        ("acme Z9", "torch base"),
    ]
    values = [(bar.name, bar.subtitle, round(bar.ranked.value)) for bar in drawn.listed_bars]
    names = ("acme X1 tuned", 1300), ("acme X1 base", 1000), ("acme Z9 base", 500)
    assert values == [(name, "torch", value) for name, value in names]
    assert ("tuning", "base") in drawn.best_bars[1].cautions and view([*base, *other]).clear_counts.get(
        "tuning"
    ) is None


def test_a_failed_setting_is_named_only_where_the_chip_and_framework_have_no_other() -> None:
    failed = [run.model_copy(update={"word": "oom"}) for run in three(1, 11, micro_batch=64)]
    assert view([*tuned(three(1000, 1), "peak"), *failed]).trainings[0].training_contenders.absent == ()
    assert [run.state for run in view([*SLOW, *failed]).trainings[0].training_contenders.absent] == ["oom"]


def test_an_unchecked_training_is_not_aligned() -> None:
    (bar,) = bars(view(three(1000, 1, verdict="unchecked"))).values()
    assert [part.name for part in bar.ranked.contender.trust if not part.holds] == ["aligned"]


def test_a_page_of_many_trainings_says_how_many_it_leaves_out() -> None:
    cases = [f"c{n}" for n in range(MAX_BARS // 2 + 3)]
    fast = [record(1, 1000, case=case, run_id=f"a {case}") for case in cases]
    seen = view([*fast, *(record(1, 900, case=case, chip="Z9", run_id=f"b {case}") for case in cases)])
    assert (len(seen.trainings), seen.left_out_count) == (MAX_BARS // 2, 3)


def test_the_page_says_the_answer_in_both_languages(tmp_path: Path) -> None:
    build_pages(InMemoryStore([*FAST, *SLOW]), tmp_path, Registry())
    english, chinese = ((tmp_path / name).read_text() for name in ("index.html", "zh/index.html"))
    for part in ("acme X1 trains 2.00 times as fast as acme Z9", "<b>decided</b>", "0.50, 95 % interval 0.50 to 0.50"):
        assert part in english
    assert "Z9 的 2.00" in chinese
    energy = (tmp_path / "by-energy.html").read_text()
    assert "acme X1 needs" in energy or "No significant difference" in energy


def test_the_cost_is_a_switch_only_with_prices(tmp_path: Path) -> None:
    """By hand: 2 an hour at 500 tokens/s are 2 / 3600 / 500 * 1e6 = 1.1111; at 3.6 and 1000 tokens/s exactly 1."""
    rents = {"X1": {"per": "device", "rent": 3.6}, "Z9": {"per": "device", "rent": 2.0}}
    prices = Prices.model_validate({"currency": "EUR", "chips": rents})
    seen = view([*FAST, *SLOW], metrics(prices)[-1])
    assert [bar.ranked.value for bar in bars(seen).values()] == pytest.approx([1.0, 1.1111], rel=1e-4)
    assert seen.lead and seen.lead.value == pytest.approx(0.9) and seen.is_decided
    build_pages(InMemoryStore([*FAST, *SLOW]), tmp_path / "without", Registry())
    assert not (tmp_path / "without/by-cost.html").exists()
    assert "by-cost" not in (tmp_path / "without/index.html").read_text()
    build_pages(InMemoryStore([*FAST, *SLOW]), tmp_path / "with", Registry(), prices=prices)
    page = (tmp_path / "with/by-cost.html").read_text()
    for part in ("acme X1 costs 0.90 times", "EUR/M tokens", "1.111 "):
        assert part in page


@pytest.mark.parametrize("priced", [("X1", "Z9"), ("Other",)])
def test_the_page_of_costs_has_the_prices_and_a_missing_one_is_named(priced: tuple[str, ...], tmp_path: Path) -> None:
    owned = {"capital": 1e5, "years": 4, "utilisation": 0.5, "power_per_kwh": 0.2, "pue": 1.5}
    chips = dict(zip(priced, ({"per": "device", "rent": 3.6}, {"per": "node", "own": owned}), strict=False))
    build_pages(
        InMemoryStore([*FAST, *SLOW]), tmp_path, Registry(),
        prices=Prices.model_validate({"currency": "EUR", "chips": chips}),
    )  # fmt: skip
    for language in ("", "zh/"):
        if priced == ("Other",):
            page = (tmp_path / language / "index.html").read_text()
            assert "chip &#39;X1&#39;" in page and "among Other" in page
            continue
        page = (tmp_path / language / "by-cost.html").read_text()
        different = "different things" if not language else "价格所含不同"
        for part in ("X1: rent of 3.6 EUR", "rent per device, with all power", "owned, per node", different):
            assert part in page


@pytest.mark.parametrize(
    ("changes", "english", "chinese"),
    [
        (
            {"devices": 2, "layout": Layout(data=2)},
            "acme X1 and acme Z9 ran on different numbers of devices",
            "设备数量不同",
        ),
        ({"work": "sha256:" + "9" * 64}, "acme X1 and acme Z9 ran no case in common", "没有共同的用例"),
    ],
)
def test_a_chip_beside_others_of_another_training_is_not_called_alone(
    changes: dict[str, Any], english: str, chinese: str, tmp_path: Path
) -> None:
    build_pages(InMemoryStore([*FAST, *three(900, 7, chip="Z9", **changes)]), tmp_path, Registry())
    page, zh = ((tmp_path / name).read_text() for name in ("index.html", "zh/index.html"))
    assert english in page and "has nothing to compare with" not in page
    assert chinese in zh and "没有可比较的对象</h1>" not in zh
    build_pages(InMemoryStore(FAST), tmp_path / "alone", Registry())
    assert "nothing to compare with" in (tmp_path / "alone/index.html").read_text()


def test_a_chip_without_a_price_has_no_bar() -> None:
    prices = Prices.model_validate({"currency": "EUR", "chips": {"X1": {"per": "device", "rent": 3.6}}})
    seen = view([*FAST, *SLOW], metrics(prices)[-1])
    (unranked,) = seen.trainings[0].ranking.unranked
    assert [*bars(seen)] == ["acme X1"] and "Z9" in unranked.reason and seen.lead is None


def test_a_metric_that_no_run_has_is_no_link(tmp_path: Path) -> None:
    build_pages(InMemoryStore(three(1000, 1, joules=None)), tmp_path, Registry())
    page = (tmp_path / "index.html").read_text()
    assert not (tmp_path / "by-energy.html").exists() and "Energy: no" in page


def test_a_red_night_is_named_on_the_first_page(tmp_path: Path) -> None:
    build_pages(SeededNights(series=6, nights=20).results(), tmp_path, Registry())
    page = (tmp_path / "index.html").read_text()
    assert 'id="night"' in page and "a person" in page

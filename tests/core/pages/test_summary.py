"""The one page of a comparison: its sentence in every case, which side it names, and what it leaves out."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any

import pytest
from compared_records import point, repeats
from levelfield.compare.comparison import Histories, compare
from levelfield.compare.sides import side_of
from levelfield.errors import UsageError
from levelfield.pages.summary_page import MOST_SIDES, Summary, sides_of_case, summary
from levelfield.report.sheets import as_markdown
from levelfield.specs.layout import Layout
from levelfield.specs.prices import Prices
from levelfield.specs.record import RunRecord

NONE: Histories = {}


def page(*sides: list[RunRecord]) -> Summary:
    return summary(compare([side_of("AB"[i], runs) for i, runs in enumerate(sides)], NONE), NONE)


def torch(*rates: float, **more: Any) -> list[RunRecord]:
    return repeats(*rates, **more)


def paddle(*rates: float, **more: Any) -> list[RunRecord]:
    return repeats(*rates, first=10, framework="paddle", **more)


@pytest.mark.parametrize("is_turned", [False, True])
def test_the_sentence_names_the_faster_side_whichever_is_the_base(is_turned: bool) -> None:
    """By hand: means 1000 and 400, so 2.50; half = 2.7764 x sqrt(2 x 0.01^2 / 3) = 0.0227, so 2.44 to 2.56.

    The interval is against the base, as the ratio of the table.
    """
    sides = torch(1000, 1010, 990), paddle(400, 404, 396)
    found = page(*(sides[::-1] if is_turned else sides))
    rests = "torch over X1 with paddle: 2.50, 95 % interval 2.44 to 2.56."
    if not is_turned:
        rests = "paddle over X1 with torch: 0.40, 95 % interval 0.39 to 0.41."
    assert found.sentence == f"X1 with torch trains 2.50 times as fast as X1 with paddle. X1 with {rests}"
    assert math.isclose(max(bar.part for bar in found.bars if bar.name == "X1 with paddle") * 1000, 400, rel_tol=0.03)


def test_a_small_difference_has_the_digits_that_show_it() -> None:
    found = page(torch(1000, 1000.1, 999.9), paddle(1010, 1010.1, 1009.9))
    assert found.sentence.startswith("X1 with paddle trains 1.010 times as fast as X1 with torch. ")
    assert found.sentence.endswith("95 % interval 1.008 to 1.012.")


def test_noise_is_no_verdict() -> None:
    found = page(torch(1000, 1100, 900), paddle(1003, 1100, 900))
    assert found.sentence.startswith("X1 with paddle and X1 with torch cannot be told apart by throughput. ")
    assert found.rows[1][-1].endswith("within noise")


def test_one_run_a_side_is_inconclusive_and_says_what_decides() -> None:
    found = page(torch(1000), paddle(400))
    assert found.sentence.startswith("It cannot be told yet whether X1 with torch or X1 with paddle is better by ")
    assert "There is no interval: too few runs" in found.sentence and found.rows[1][-1] == "0.400 inconclusive"
    assert any(line.startswith("To decide: run_benchmarks.py compare duel ") for line in found.certainty)
    assert [bar.low for bar in found.bars] == [None, None]


def test_other_work_has_no_ratio() -> None:
    found = page(torch(1000, 1010, 990), paddle(400, 404, 396, work="sha256:" + "9" * 64))
    assert found.sentence == "Not comparable: work must hold or be equal on both sides, so no ratio is stated."
    assert found.rows == (("X1 with torch", "-"), ("X1 with paddle", "-"))


def test_a_side_whose_runs_all_failed_has_no_ratio_and_no_noise() -> None:
    failed = repeats(400, word="failed", framework="paddle")
    nights = {failed[0].series.fingerprint(): [point(failed[0], run_id=f"night{n}") for n in range(5)]}
    sides = [side_of("A", torch(1000)), side_of("B", failed)]
    found = summary(compare(sides, nights), nights)
    assert found.sentence.startswith("Not comparable") and found.rows[1] == ("X1 with paddle", "-")


def test_cautions_stand_on_the_page() -> None:
    found = page(torch(1000, 1010, 990), paddle(400, 404, 396, verdict="unchecked", is_dirty=True))
    text = "\n".join(found.certainty)
    assert "Caution, alignment: aligned | unchecked (only `aligned` says" in text
    assert "training unchecked" in text and "No field asks for caution" not in text


def test_sides_of_one_name_have_letters() -> None:
    found = page(torch(1000, 1010, 990), torch(900, 909, 891, first=10, micro_batch=4))
    assert [row[0] for row in found.rows] == ["A (X1 with torch)", "B (X1 with torch)"]


def test_a_case_has_the_fastest_series_of_each_chip_and_framework() -> None:
    records = [
        *torch(1000, 1010, 990),
        *torch(1200, 1210, 1190, first=4, micro_batch=4),
        *paddle(400, 404, 396),
        *repeats(5000, first=20, framework="paddle", work="sha256:" + "9" * 64),
        *repeats(9000, first=30, framework="jax", evidence="unsealed"),
        *repeats(800, first=40, framework="jax"),
    ]
    with pytest.raises(UsageError, match="found 1 chip and framework"):
        sides_of_case(records)  # the fastest one did other work, so it stands alone
    sides, left_out = sides_of_case([r for r in records if r.tokens_per_second_per_device != 5000])
    assert [side.first.series.framework for side in sides] == ["torch", "jax", "paddle"] and left_out == 0
    assert [len(side.counted) for side in sides] == [3, 1, 3] and sides[0].first.series.micro_batch == 4


def test_a_run_that_failed_stays_in_its_side_of_a_case() -> None:
    failed = repeats(390, first=13, word="failed", framework="paddle")
    sides, _ = sides_of_case([*torch(1000, 1010, 990), *paddle(400, 404, 396), *failed])
    assert [(len(side.counted), len(side.runs)) for side in sides] == [(3, 3), (3, 4)]
    found = "\n".join(summary(compare(sides, NONE), NONE).certainty)
    assert "X1 with paddle: 3 of 4" in found and failed[0].run_id in found


def test_the_page_names_every_run_and_cuts_nothing_but_in_the_html() -> None:
    many = (
        repeats(*(1000.0 + n for n in range(12)), first=1),
        repeats(*(400.0 + n for n in range(12)), first=30, framework="paddle"),
    )
    found = page(*many)
    assert all(run.run_id in line for runs, line in zip(many, found.runs, strict=True) for run in runs)
    assert all("…" not in line for line in (*found.certainty, *found.runs))
    html = found.html(datetime(2026, 1, 1, tzinfo=timezone.utc))
    assert many[0][0].run_id in html and many[0][-1].run_id not in html and "…" in html


def test_a_page_has_room_for_few_sides_and_says_how_many_are_left_out() -> None:
    many = [r for i in range(9) for r in repeats(1000.0 - i, first=i + 1, framework=f"f{i}")]
    sides, left_out = sides_of_case(many)
    assert (len(sides), left_out) == (MOST_SIDES, 3)
    found = summary(compare(sides, NONE), NONE, left_out)
    assert any(line.startswith("3 slower chips or frameworks are left out") for line in found.certainty)
    with pytest.raises(UsageError, match="found 7 sides, expected at most 6"):
        summary(compare([side_of(str(i), [each]) for i, each in enumerate(many[:7])], NONE), NONE)


def test_the_page_in_chinese_has_no_english_but_what_was_recorded() -> None:
    sides = torch(1000, 1010, 990), paddle(400, 404, 396, verdict="unchecked", is_dirty=True)
    found = summary(compare([side_of("AB"[i], runs) for i, runs in enumerate(sides)], NONE), NONE, 2, "zh")
    assert found.sentence.startswith("X1 配 torch 的训练速度是 X1 配 paddle 的 2.50 倍。")
    assert (
        "X1 配 paddle 比 X1 配 torch：0.40，95 % 区间 0.39 至 0.41" in found.sentence
        and found.header[1] == "词元/秒/设备"
    )
    text = as_markdown(found.sheets())
    english = ("Caution", "Valid", "interval", "geometric", "only `aligned`", "### runs", "times as fast")
    assert not [words for words in english if words in text] and "只有 aligned 表示训练与参考一致" in text


def test_a_figure_is_the_mean_that_the_ratio_is_of() -> None:
    found = page(torch(1000, 1010, 4000), paddle(400, 404, 396))
    shown = [float(row[1].split()[0].replace(",", "")) for row in found.rows]
    assert shown[1] / shown[0] == pytest.approx(float(found.rows[1][-1].split()[0]), abs=0.001)
    assert found.bars[0].shown == found.rows[0][1].split()[0] == "1,592.7"


def test_markdown_shows_hostile_names_as_text() -> None:
    found = page(torch(1000, 1010, 990), repeats(400, 404, 396, first=10, framework="<img src=x>|`a`"))
    text = as_markdown(found.sheets())
    assert "<img" not in text and "&lt;img src=x>\\|" in text and "### How sure" in text


def test_other_devices_and_layouts_stand_on_the_page() -> None:
    one, two = repeats(1000, 1010, 990), repeats(900, 909, 891, first=10, devices=2, layout=Layout(data=2), chip="Y1")
    for language, said in (("en", "Nodes x devices. X1"), ("zh", "节点数 x 每节点设备数：X1")):
        found = summary(compare([side_of("A", one), side_of("B", two)]), NONE, language=language)
        text = "\n".join(found.certainty)
        assert said in text and "1 x 2" in text and "DP2TP1PP1" in text
    assert "Nodes x devices" not in "\n".join(page(torch(1000, 1010, 990), paddle(400, 404, 396)).certainty)


def test_a_page_with_prices_has_the_costs_and_why_one_is_missing() -> None:
    prices = Prices.model_validate({"currency": "EUR", "chips": {"X1": {"per": "device", "rent": 3.6}}})
    sides = [side_of("A", torch(1000, 1010, 990)), side_of("B", repeats(500, 505, 495, first=10, chip="Y1"))]
    found = summary(compare(sides, NONE, prices=prices), NONE)
    assert (
        found.header[-2] == "EUR per 1e6 tokens" and found.rows[0][-2].startswith("1.000") and found.rows[1][-2] == "-"
    )
    text = "\n".join(found.certainty)
    assert "Price: X1: rent of 3.6 EUR an hour per device, with power." in text
    assert "No cost of Y1 with torch: found no price of chip 'Y1' among X1." in text

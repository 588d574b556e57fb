"""The one page of a comparison: its sentence in every case, which side it names, and what it leaves out."""

from __future__ import annotations

import math
from typing import Any

import pytest
from compared_records import repeats
from levelfield.compare.comparison import Histories, compare
from levelfield.compare.sides import side_of
from levelfield.compare.summary import MOST_SIDES, Summary, sides_of_case, summary
from levelfield.errors import UsageError
from levelfield.report.sheets import as_markdown
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
    """By hand: means 1000 and 400, so 2.50; half = 2.7764 x sqrt(2 x 0.01^2 / 3) = 0.0227, so 2.44 to 2.56."""
    sides = torch(1000, 1010, 990), paddle(400, 404, 396)
    found = page(*(sides[::-1] if is_turned else sides))
    assert found.sentence == (
        "X1 with torch is 2.50 times as fast as X1 with paddle: tokens per second and device, "
        "95 % interval 2.44 to 2.56."
    )
    assert math.isclose(max(bar.part for bar in found.bars if bar.name == "X1 with paddle") * 1000, 400, rel_tol=0.03)


def test_a_small_difference_is_said_in_percent() -> None:
    found = page(torch(1000, 1000.1, 999.9), paddle(1010, 1010.1, 1009.9))
    assert found.sentence.startswith("X1 with paddle is 1.0 % faster than X1 with torch: ")
    assert found.sentence.endswith("95 % interval +0.8 % to +1.2 %.")


def test_noise_is_no_verdict() -> None:
    found = page(torch(1000, 1100, 900), paddle(1003, 1100, 900))
    assert found.sentence.startswith("No difference between X1 with paddle and X1 with torch can be told from noise: ")
    assert found.rows[1][-1].endswith("within noise")


def test_one_run_a_side_is_inconclusive_and_says_what_decides() -> None:
    found = page(torch(1000), paddle(400))
    assert found.sentence.startswith("Inconclusive: X1 with torch measured 2.50 times as fast as X1 with paddle, but ")
    assert "expected at least 3 of each side" in found.sentence
    assert any(line.startswith("To decide: run_benchmarks.py compare duel ") for line in found.certainty)
    assert [bar.low for bar in found.bars] == [None, None]


def test_other_work_has_no_ratio() -> None:
    found = page(torch(1000, 1010, 990), paddle(400, 404, 396, work="sha256:" + "9" * 64))
    assert found.sentence == "Not comparable: work must hold or be equal on both sides, so no ratio is stated."
    assert found.rows == (("X1 with torch", "-"), ("X1 with paddle", "-"))


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


def test_a_page_has_room_for_few_sides_and_says_how_many_are_left_out() -> None:
    many = [r for i in range(9) for r in repeats(1000.0 - i, first=i + 1, framework=f"f{i}")]
    sides, left_out = sides_of_case(many)
    assert (len(sides), left_out) == (MOST_SIDES, 3)
    found = summary(compare(sides, NONE), NONE, left_out)
    assert any(line.startswith("3 slower chips or frameworks are left out") for line in found.certainty)
    with pytest.raises(UsageError, match="found 7 sides, expected at most 6"):
        summary(compare([side_of(str(i), [each]) for i, each in enumerate(many[:7])], NONE), NONE)


def test_markdown_shows_hostile_names_as_text() -> None:
    found = page(torch(1000, 1010, 990), repeats(400, 404, 396, first=10, framework="<img src=x>|`a`"))
    text = as_markdown(found.sheets())
    assert "<img" not in text and "&lt;img src=x>\\|" in text and "### how sure" in text

"""The chart of strong scaling: its numbers, its places, and what stands in none."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from compared_records import record
from levelfield.catalog.registry import Registry
from levelfield.pages.case_view import ScalingChart, scaling_charts
from levelfield.pages.content import read_content
from levelfield.pages.page_building import build_pages
from levelfield.pages.series_history import InMemoryStore, summary_of
from levelfield.specs.layout import Layout
from levelfield.specs.record import RunRecord

RATES = {1: 1000.0, 2: 900.0, 4: 800.0}


def on(devices: int, rate: float, number: int = 0, **changes: Any) -> RunRecord:
    layout = changes.pop("layout", Layout(data=devices))
    return record(number or devices, rate, devices=devices, nodes=devices, layout=layout, **changes)


def charts(*records: RunRecord) -> tuple[ScalingChart, ...]:
    content = read_content(InMemoryStore(list(records)))
    return scaling_charts([(runs, summary_of(runs)) for runs in content.series.values()])


def test_speed_up_and_efficiency_are_against_the_smallest() -> None:
    (chart,) = charts(*(on(n, rate) for n, rate in RATES.items()))
    assert [(p.devices, p.nodes) for p in chart.points] == [(1, 1), (2, 2), (4, 4)]
    assert [p.efficiency for p in chart.points] == [1.0, 0.9, 0.8]
    assert [p.speed_up for p in chart.points] == [1.0, pytest.approx(1.8), pytest.approx(3.2)]
    first, second, third = chart.points
    assert first.x == 44 and third.x == 348 and second.x == pytest.approx(196), "devices stand on a logarithmic axis"
    assert first.y == 206 > second.y > third.y > chart.ideal_y == 12
    assert [text for text, _ in chart.ticks] == ["1", "2", "4"]
    assert [text for text, _ in chart.token_ticks] == ["1k", "2k", "4k"], "of all devices, on the same lines"
    assert [y for _, y in chart.token_ticks] == [y for _, y in chart.ticks]


def test_tokens_are_of_all_devices_where_the_smallest_has_several() -> None:
    """By hand: 2 devices of 12,345 are 24,690, and twice that with twice the devices at the ideal."""
    (chart,) = charts(on(2, 12345.0), on(4, 12345.0))
    assert [text for text, _ in chart.token_ticks] == ["24.7k", "49.4k"]


def test_the_fastest_layout_of_a_number_counts() -> None:
    slow = on(2, 500.0, number=7, layout=Layout(tensor=2))
    (chart,) = charts(on(1, 1000.0), slow, on(2, 900.0))
    assert [p.tokens_per_second_per_device for p in chart.points] == [1000.0, 900.0]


@pytest.mark.parametrize(
    "change",
    [{"framework": "paddle"}, {"chip": "Y2"}, {"precision": "bf16"}, {"work": "sha256:" + "5" * 64}, {"word": "oom"}],
)
def test_what_is_another_training_is_in_no_chart(change: dict[str, Any]) -> None:
    assert charts(on(1, 1000.0), on(2, 900.0, **change)) == ()


@pytest.mark.parametrize("rate", [0.0, -1.0, None])
def test_a_speed_that_is_none_is_left_out(rate: float | None) -> None:
    assert charts(on(1, 1000.0), on(2, 900.0).model_copy(update={"tokens_per_second_per_device": rate})) == ()


def test_a_slow_down_and_a_speed_up_beyond_the_ideal_stay_in_the_picture() -> None:
    (chart,) = charts(on(1, 1000.0), on(2, 10.0), on(4, 5000.0))
    assert all(0 <= p.y <= 240 and math.isfinite(p.y) for p in chart.points)
    assert chart.points[2].y == 12 < chart.ideal_y


def test_the_page_has_the_chart_and_the_table(tmp_path: Path) -> None:
    build_pages(InMemoryStore([on(n, rate) for n, rate in RATES.items()]), tmp_path / "site", Registry())
    for page, title in (("case-*.html", "Strong scaling"), ("zh/case-*.html", "强扩展")):
        (path,) = (tmp_path / "site").glob(page)
        text = path.read_text(encoding="utf-8")
        assert title in text and text.count("<circle") == 6 and "<title>4: 3,200.0</title>" in text and "80.0 %" in text
        assert not re.search(r"<svg[^>]*style=", text), "the policy allows no style in the page"


def test_a_case_on_one_number_of_devices_has_no_chart(tmp_path: Path) -> None:
    build_pages(InMemoryStore([on(2, 900.0)]), tmp_path / "site", Registry())
    (path,) = (tmp_path / "site").glob("case-*.html")
    assert 'class="scaling"' not in path.read_text(encoding="utf-8")

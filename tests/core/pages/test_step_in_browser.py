"""The parts of a step on the page of a run: amounts, files, one step by rank."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.pages.page_building import build_pages
from levelfield.pages.series_history import InMemoryStore
from levelfield.specs.record import RunRecord
from levelfield.specs.step_parts import StepParts
from levelfield.store.run_traces import step_trace
from page_visits import DESKTOP, PHONE, axe, fits, unfold, watched
from seeded_nights import SeededNights
from test_saved_charts import SVG, saved, table_of

LIGHT, DARK_PHONE = ("", DESKTOP), ("zh/", {**PHONE, "color_scheme": "dark"})
ATTACK = "<img src=x onerror=alert(1)>"


def parts(
    run_id: str, mlp: float = 6.0, again: float = 0.0, waits: float = 1.0, where: str = "layers.0.mlp"
) -> StepParts:
    """A step of two ranks: mlp, all-reduce, waiting. again: of mlp what is repeated."""

    def ms(mean: float) -> dict[str, float]:
        return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}

    step = mlp + again + 2.0 + waits
    place = {"part": "mlp", "where": where, "count": 1.0}
    places = [{**place, "phase": "forward", "ms": mlp}, {**place, "phase": "recompute", "ms": again}]
    of_rank = {"stage": 0, "step": ms(step), "parts": [], "places": places}
    return StepParts.model_validate(
        {
            "run_id": run_id, "framework": "torch", "profiler": "k", "device": "processor", "recorded_steps": 3,
            "step": ms(step),
            "overhead": {"plain_ms": ms(step), "recorded_ms": ms(step), "ratio": 0.02, "low": 0.01, "high": 0.03},
            "parts": [
                {"part": "mlp", "time": ms(mlp + again), "recompute_ms": again},
                {"part": "all-reduce", "time": ms(2.0), "overlapped_ms": 3.0},
                {"part": "waiting for another rank", "time": ms(waits)},
            ],
            "ranks": [{"rank": 0, **of_rank, "waited_for": [{"rank": 1, "ms": waits}]}, {"rank": 1, **of_rank}],
            "late": [{"rank": 1, "waited_ms": waits, "part": "mlp", "where": where, "longer_ms": 0.5}],
            "alone": {
                "parts": [{"part": "mlp", "in_place_ms": mlp, "alone_ms": 2.5, "allowed_ms": 1.25, "share": 0.97},
                          {"part": "all-reduce", "in_place_ms": 5.0, "alone_ms": 4.5}],
                "peak": f"1 TFLOP/s, {where}", "findings": [f"mlp takes 3.5 ms more in place ({where})"],
                "missing": [f"not repeated alone: {where}"],
            },
            "warnings": [f"attention by math: 31% of the step ({where})"],
            "timeline": {"ms": step, "parts": ["mlp", "all-reduce"],
                         "lines": [{"rank": 0, "cells": "aaaaAAbbb "}, {"rank": 1, "cells": " aaaaabbbb"}]},
        }
    )  # fmt: skip


def with_step(record: RunRecord, step: StepParts) -> RunRecord:
    assert record.traces is not None
    return record.model_copy(update={"traces": record.traces.model_copy(update={"step": step_trace(step, str)})})


def wide(calm: RunRecord) -> RunRecord:
    """The first run of a series, with one recorded step, kernels and variables of CUDA with long names and values."""
    ms = {"mean": 9.0, "low": None, "high": None}
    name = f"void at::native::elementwise_kernel<128, 2, {'std::array<char*, 3ul>, ' * 20}>"
    kernel = {"part": "mlp", "name": name, "kind": "product", "dtype": "bf16", "count": 1.0, "ms": 6.0}
    content = parts("wide").model_dump(mode="json")
    parts_of_one = [{**part, "time": {**ms, "mean": part["time"]["mean"]}} for part in content["parts"]]
    content |= {"recorded_steps": 1, "step": ms, "parts": parts_of_one, "kernels": [kernel]}
    variables = {"NVIDIA_REQUIRE_CUDA": "brand=tesla,driver>=535,driver<536 " * 60, "CUDA_HOME": "/usr/local/cuda"}
    conditions = calm.conditions.model_copy(update={"variables": variables})
    series = calm.series.model_copy(update={"work": "sha256:wide"})
    record = calm.model_copy(update={"run_id": "wide", "series": series, "conditions": conditions})
    telemetry = {**calm.telemetry, "memory_used_bytes_max": 3.5 * 2**30}
    return with_step(record.model_copy(update={"telemetry": telemetry}), StepParts.model_validate(content))


@pytest.fixture(scope="module")
def pair() -> tuple[StepParts, StepParts]:
    return parts("a"), parts("b", mlp=4.04, again=1.5, waits=3.3)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, pair: tuple[StepParts, StepParts]) -> tuple[Path, list[str]]:
    """Three runs with recorded steps, the third's with an attack, and one without."""
    folder = tmp_path_factory.mktemp("step") / "site"
    calm = list(SeededNights(series=1, nights=4, faults=False).records())
    steps = (*pair, parts("c", where=ATTACK))
    recorded = [with_step(record, step) for record, step in zip(calm, steps, strict=False)]
    build_pages(InMemoryStore([*recorded, calm[3], wide(calm[0])]), folder, Registry())
    return folder, [*(record.run_id for record in calm), "wide"]


def address(site: Path, run: str) -> str:
    """A run as an address names it."""
    (history,) = (path for path in (site / "data").glob("history-*.js") if f'"{run}"' in path.read_text())
    return f"{history.stem.removeprefix('history-')}/{run}"


def open_step(page: Any, site: Path, run: str, folder: str = "") -> None:
    page.goto("about:blank")  # else the page before stays drawn while this one is read
    page.goto(f"file://{site}/{folder}run.html#{address(site, run)}")
    page.wait_for_selector("#run[data-drawn]")


# test_pages_in_browser.py has this page of a dark phone, without these parts.
@pytest.mark.parametrize(
    ("language", "options"),
    [pytest.param(*LIGHT, id="light"), pytest.param(*DARK_PHONE, id="dark phone", marks=pytest.mark.thorough)],
)
def test_the_page_is_right_by_axe_and_fits(browser: Any, site: Any, language: str, options: Any) -> None:
    folder, runs = site
    with watched(browser, **options) as page:
        open_step(page, folder, runs[1], language)
        assert page.locator("#step .strips").count() == 2 and fits(page) and axe(page) == []


# A phone has less room.
@pytest.mark.parametrize(
    ("language", "options"),
    [pytest.param(*LIGHT, id="light", marks=pytest.mark.thorough), pytest.param(*DARK_PHONE, id="dark phone")],
)
def test_long_names_and_values_leave_the_others_whole(browser: Any, site: Any, language: str, options: Any) -> None:
    with watched(browser, **options) as page:
        open_step(page, site[0], "wide", language)
        unfold(page.locator("#step details").last)
        kind, name = (page.locator("td", has_text=text).first for text in ("product", "elementwise_kernel"))
        assert name.inner_text().startswith("elementwise_kernel<128") and name.inner_text().endswith("...")
        field = page.locator(".pairs td", has_text="variables.NVIDIA_REQUIRE_CUDA")
        lines = "e => e.querySelector('span').getClientRects().length"
        assert (kind.evaluate(lines), field.evaluate(lines) <= 2) == (1, True)
        value = field.locator("xpath=following-sibling::td").locator("span")
        assert len(value.inner_text()) <= 201 and len(value.get_attribute("title")) > 2000
        assert fits(page) and axe(page) == []


def test_a_first_run_with_one_recorded_step_says_so(browser: Any, site: Any) -> None:
    with watched(browser) as page:
        open_step(page, site[0], "wide")
        text = page.locator("main").inner_text()
        for part in ("9.00 ms, of one step", "This is the first run of its series"):
            assert part in text
        assert "up to 0" not in text and "95 %" not in table_heads(page)
        assert rows_of(page, "memory_used_gib_max") == ["memory_used_gib_max", "3.50"]
        open_step(page, site[0], site[1][1])
        assert "95 %" in table_heads(page) and "to 1 valid" in page.locator("main").inner_text()


def table_heads(page: Any) -> list[str]:
    return [text.strip("↕ ") for text in page.locator("#step th").all_inner_texts()]


def rows_of(page: Any, name: str) -> list[str]:
    cells: list[str] = page.locator("tr", has_text=name).first.locator("td").all_inner_texts()
    return cells


def test_the_bar_the_table_and_the_files_have_the_same_amounts(browser: Any, site: Any, pair: Any) -> None:
    folder, runs = site
    step = pair[1]
    with watched(browser) as page:
        open_step(page, folder, runs[1])
        section = page.locator("#step")
        text = section.inner_text()
        for part in (
            "attention by math: 31% of the step",
            "Recording changed them by +2.0 % (95 %: +1.0 %",
            "Others wait 3.3 ms for rank 1: its mlp in layers.0.mlp takes 0.5 ms more than its peers'.",
            "mlp takes 3.5 ms more in place (layers.0.mlp)",
            "Peak: 1 TFLOP/s, layers.0.mlp",
        ):
            assert part in text
        widths = (
            section.locator(".strips")
            .first.locator("tr")
            .first.locator("rect")
            .evaluate_all("all => all.map(r => ['class', 'width', 'height'].map(name => r.getAttribute(name)))")
        )
        share = 1000 / step.step.mean
        assert [(name, height) for name, _, height in widths] == [
            ("s-mlp", "10"), ("s-mlp", "5"), ("s-all-reduce", "10"), ("s-waiting-for-another-rank", "10"),
        ]  # fmt: skip
        assert [float(width) for _, width, _ in widths] == pytest.approx(
            [4.04 * share, 1.5 * share, 2 * share, 3.3 * share], abs=0.02
        )
        colours = section.locator(".strips rect").evaluate_all("all => all.map(r => getComputedStyle(r).fill)")
        channels = {tuple(re.findall(r"\d+", colour)) for colour in colours}
        assert len(channels) == 3 and ("0", "0", "0") not in channels  # which is a part without a colour
        table = page.locator("#step table:not(.strips)").first
        texts_of_rows = "all => all.map(r => [...r.cells].map(c => c.textContent))"
        cells = table.locator("tbody tr").evaluate_all(texts_of_rows)
        assert cells[0] == ["mlp", "5.54", "±0.10", "51.1 %", "1.50", ""]
        assert cells[-1] == ["step", "10.84", "±0.10", "100.0 %", "1.50", "3.00"]
        apart = section.locator("table:not(.strips)").nth(1).locator("tbody tr")
        assert apart.evaluate_all(texts_of_rows) == [
            ["all-reduce", "5.00", "4.50", "?", "100 %"], ["mlp", "4.04", "2.50", "1.25", "97 %"],
        ]  # fmt: skip
        name, content = saved(page, section.locator("figure").first, "CSV")
        assert name == f"{runs[1]}_step-parts.csv" and table_of(content)[2] == [
            "all-reduce",
            "2",
            "1.9",
            "2.1",
            "0",
            "3",
            "5",
            "4.5",
            "",
        ]
        root = ElementTree.fromstring(saved(page, section.locator("figure").first, "SVG")[1])
        texts = {text.text for text in root.iter(f"{SVG}text")}
        labels = {"Step time by category", "mlp 51.1 %", "10.84 ms"}
        assert labels <= texts


@pytest.mark.thorough
def test_one_step_by_rank_is_drawn_and_saved(browser: Any, site: Any) -> None:
    folder, runs = site
    with watched(browser) as page:
        open_step(page, folder, runs[0])
        figure = page.locator("#step figure").nth(1)
        lines = table_of(saved(page, figure, "CSV")[1])
        assert lines[1:] == [
            ["0", "0", "3.6", "mlp", "no"], ["0", "3.6", "5.4", "mlp", "yes"], ["0", "5.4", "8.1", "all-reduce", "no"],
            ["1", "0.9", "5.4", "mlp", "no"], ["1", "5.4", "9", "all-reduce", "no"],
        ]  # fmt: skip
        root = ElementTree.fromstring(saved(page, figure, "SVG")[1])
        assert {"rank 0", "rank 1", "mlp", "all-reduce"} <= {text.text for text in root.iter(f"{SVG}text")}


def test_an_ordinary_run_has_no_step_and_hostile_places_are_text(browser: Any, site: Any) -> None:
    folder, runs = site
    with watched(browser) as page:
        open_step(page, folder, runs[3])
        assert page.locator("#step").count() == 0
        open_step(page, folder, runs[2])
        assert page.locator("main img").count() == 0 and ATTACK in page.locator("#step").inner_text()

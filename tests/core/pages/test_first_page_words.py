"""The words of the first page: how sure is the interval alone, and what counts sides, runs or neighbours says so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from compared_records import mfu_row, repeats, step_times, with_result
from levelfield.catalog.registry import Registry
from levelfield.pages.page_building import build_pages
from levelfield.pages.series_history import InMemoryStore
from levelfield.specs.record import RunRecord

TREND = "trend: step time drifts by -22.5% over the window (p = 4e-07)"


def with_steps(runs: Sequence[RunRecord], *flags: list[str] | None) -> list[RunRecord]:
    """Return the runs with the flags of their step times; None: they were not checked."""
    flagged = []
    for run, run_flags in zip(runs, flags, strict=True):
        step = {**step_times(0.5, *run_flags or ()), "unchecked": "too few steps" if run_flags is None else None}
        speed = {**run.stored_result.content["throughput"], "step_seconds": step}
        flagged.append(with_result(run, throughput=speed))
    return flagged


def set_measured_peak(runs: Sequence[RunRecord], peak: float) -> list[RunRecord]:
    return [with_result(run, utilisation=[mfu_row(0.4, peak_tflops=peak)]) for run in runs]


def torch(*rates: float, **more: Any) -> list[RunRecord]:
    return repeats(*rates, **more)


def jax(*rates: float, first: int = 10, **more: Any) -> list[RunRecord]:
    return repeats(*rates, first=first, framework="jax", **more)


def pages(folder: Path, *records: RunRecord) -> dict[str, str]:
    """The pages by their names, without marks and with one space between words."""
    build_pages(InMemoryStore(records), folder, Registry())
    texts = {}
    for name in ("index.html", "by-mfu.html", "zh/index.html"):
        body = (folder / name).read_text().partition("<main")[2]
        texts[name] = " ".join(re.sub(r"<[^>]*>", " ", body).split())
    return texts


@pytest.mark.parametrize(
    ("sides", "text"),
    [
        (
            (*torch(1000, 1010, 990), *jax(400, 404, 396)),
            "How sure decided the interval excludes 1 (equal) Fit to be compared 5 checks: 4 ok",
        ),
        (
            (*torch(1000, 1100, 900), *jax(990, 1100, 900)),
            "How sure not decided the interval includes 1 (equal) Fit to be compared 5 checks: 4 ok",
        ),
        (
            (*torch(1000), *jax(400)),
            "How sure not decided no interval Fit to be compared 5 checks: 3 ok",
        ),
        (torch(1000, 1010, 990), "How sure nothing to compare with Fit to be compared 5 checks: 4 ok"),
    ],
    ids=["decided", "within noise", "one run", "alone"],
)
def test_how_sure_is_the_interval_alone(sides: Sequence[RunRecord], text: str, tmp_path: Path) -> None:
    assert text in pages(tmp_path, *sides)["index.html"]


def test_the_chinese_page_says_how_sure_too(tmp_path: Path) -> None:
    texts = pages(tmp_path, *torch(1000, 1100, 900), *jax(990, 1100, 900))
    assert "尚无定论 区间包含" in texts["zh/index.html"] and "可否比较 5 项检查" in texts["zh/index.html"]
    assert "Welch" in texts["index.html"] and "compare duel" in texts["index.html"]  # which test gave the interval


def test_the_interval_has_its_value_and_the_direction_of_the_table(tmp_path: Path) -> None:
    """By hand: half = 2.7764 x sqrt(2 x 0.01^2 / 3) = 0.0227 of 0.4, so 0.39 to 0.41."""
    page = pages(tmp_path, *jax(400, 404, 396), *torch(1000, 1010, 990))["index.html"]
    search_layouts, _, table = page.partition("Against the best")
    for part in ("2.50 times", "jax / torch: 0.40,", "0.39 to 0.41"):
        assert part in search_layouts
    assert "0.40 0.39–0.41" in table


def test_other_peaks_are_named_beside_mfu_alone(tmp_path: Path) -> None:
    sides = *set_measured_peak(torch(1000, 1010, 990), 100.0), *set_measured_peak(jax(400, 404, 396), 90.0)
    texts = pages(tmp_path, *sides)
    assert re.search(r"same.peak.0.of.1.against", texts["by-mfu.html"]) and "other peaks" in texts["by-mfu.html"]
    guide = texts["index.html"].index("How to read this")
    assert "peak" not in texts["index.html"][:guide]


def test_what_stands_against_the_first_says_so_and_what_is_of_a_side_does_not(tmp_path: Path) -> None:
    page = pages(tmp_path, *torch(1000, 1010, 990), *jax(400, 404, 396, is_dirty=True))["index.html"]
    assert re.search(r"unchanged.files.1.of.2.interleaved.runs.0.of.1.against", page)


def test_runs_whose_step_times_drift_are_counted(tmp_path: Path) -> None:
    """By hand: one of torch's three drifts; one of jax's was not checked; the other two are steady: 4 of 5."""
    sides = (*with_steps(torch(1000, 1010, 990), [], [TREND], []), *with_steps(jax(400, 404, 396), [], None, []))
    page = pages(tmp_path / "some", *sides)["index.html"]
    counts = re.findall(r"steady (\d) of (\d) runs", page)
    assert counts[0] == ("4", "5")
    _, side = re.findall(r"checks: (?:\d|all) ok[^.]*?steady (\d) of (\d) runs", page)
    assert side == ("2", "3")  # of the side that has one, and of no other
    assert "steady" not in pages(tmp_path / "none", *torch(1000, 1010, 990))["index.html"]  # not known is no zero


@pytest.mark.parametrize("cases", [("gpt",), ("gpt", "other")], ids=["one", "two"])
def test_the_bars_over_all_trainings_are_left_out_where_there_is_one(tmp_path: Path, cases: tuple[str, ...]) -> None:
    runs: list[RunRecord] = []
    for place, case in enumerate(cases):
        runs += torch(1000, 1010, 990, first=1 + 20 * place, case=case)
        runs += jax(400, 404, 396, first=10 + 20 * place, case=case)
    page = pages(tmp_path, *runs)["index.html"]
    shows_means = len(cases) > 1
    assert bool(re.search(r"Geometric.mean.over.the.2.of.2.cases", page)) is shows_means
    assert not re.search(r"1.of.1.cases", page)
    assert ('id="means"' in (tmp_path / "index.html").read_text()) is shows_means
    assert len(re.findall(r"mean.of.3.runs", page)) == 2 * len(cases)

"""The page that compares two runs opens with two different ones, whatever the store holds; and a link names its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compared_records import repeats
from levelfield.catalog.registry import Registry
from levelfield.compare.comparability import cautions
from levelfield.compare.sides import side_of
from levelfield.pages.page_building import build_pages
from levelfield.pages.results import GivenRuns
from levelfield.specs.record import RunRecord
from page_visits import histories, watched

TORCH = repeats(1000, 1010, 990)
OTHER_CASE = repeats(700, first=20, case="aaa")
WIDER = repeats(900, first=30, micro_batch=4)
JAX = repeats(400, 404, first=10, framework="jax")


def opened(browser: Any, folder: Path, records: list[RunRecord], address: str = "") -> tuple[list[str], str]:
    """The chosen series' labels and runs, and the text of the page."""
    build_pages(GivenRuns(records), folder, Registry())
    with watched(browser) as page:
        page.goto(f"file://{folder}/compare.html{address}")
        page.wait_for_selector("#comparison[data-drawn]")
        chosen = page.evaluate("[...document.querySelectorAll('select')].map(s => s.selectedOptions[0]?.textContent)")
        return chosen, page.locator("#comparison").inner_text()


@pytest.mark.parametrize(
    ("records", "labels"),
    [
        ([*TORCH, *WIDER, *OTHER_CASE, *JAX], ("aaa:torch", "gpt:")),  # the case of A has one series only
        ([*TORCH, *WIDER, *JAX], ("gpt:jax", "gpt:torch")),
        ([*TORCH, *OTHER_CASE], ("aaa:torch", "gpt:torch")),
    ],
    ids=["alone in its case", "another framework", "another case"],
)
def test_two_series_are_chosen_beforehand(
    browser: Any, tmp_path: Path, records: list[RunRecord], labels: tuple[str, str]
) -> None:
    (first, _, second, _), text = opened(browser, tmp_path, records)
    assert first.startswith(labels[0]) and second.startswith(labels[1]) and first != second
    assert "same run" not in text and "Choose" not in text and "B / A" in text


def test_another_framework_of_the_case_comes_before_another_setting(browser: Any, tmp_path: Path) -> None:
    paddle = repeats(500, first=40, framework="paddle")
    slow = repeats(300, first=50, framework="jax", micro_batch=4)
    (first, _, second, _), _ = opened(browser, tmp_path, [*JAX, *slow, *paddle])
    assert first.startswith("gpt:jax") and second.startswith("gpt:paddle")


@pytest.mark.parametrize(("key", "name"), [("tokens", "tokens read"), ("initial_weights", "initial weights")])
def test_runs_that_read_or_began_with_other_values_are_not_comparable(
    browser: Any, tmp_path: Path, key: str, name: str
) -> None:
    def done(records: list[RunRecord], value: str) -> list[RunRecord]:
        identity = {"tokens": "1ed0eef911710476", "initial_weights": "sha256:7ffd", key: value}
        return [each.model_copy(update={"result": {**each.result, "identity": identity}}) for each in records]

    no_ratio = "404.0\t990.0\t–"  # of the throughput
    _, text = opened(browser, tmp_path / "equal", [*done(TORCH, "1"), *done(JAX, "1")])
    assert no_ratio not in text and name not in text
    _, text = opened(browser, tmp_path / "other", [*done(TORCH, "1"), *done(JAX, "2")])
    assert no_ratio in text and name in text
    _, text = opened(browser, tmp_path / "unknown", [*done(TORCH, "1"), *JAX])
    assert no_ratio not in text and name not in text


def test_of_one_series_the_newest_run_is_b_and_the_one_before_is_a(browser: Any, tmp_path: Path) -> None:
    (first, run, second, other), text = opened(browser, tmp_path / "three", TORCH)
    assert first == second and run.endswith("1,010.0") and other.endswith("990.0") and "same run" not in text
    assert "same run" in opened(browser, tmp_path / "one", TORCH[:1])[1]


def test_a_link_that_names_one_run_twice_is_kept(browser: Any, tmp_path: Path) -> None:
    build_pages(GivenRuns([*TORCH, *JAX]), tmp_path, Registry())
    slug = histories(tmp_path)[0]
    run = JAX[-1].run_id
    (first, _, second, _), text = opened(browser, tmp_path, [*TORCH, *JAX], f"#{slug}/{run}/{slug}/{run}")
    assert first == second and "same run" in text


BUSY = {"other_use": {"devices": [], "host_in_window": {"value": 40.0}, "host_cores": 64}}
OF_RESULT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "other programs": (BUSY, {}),
    "peak of MFU": ({"utilisation": [{"kind": "MFU", "formula": "palm/1", "value": 0.4, "peak_tflops": 50.0}]}, {}),
    "tuning": ({"tuning": {"word": "peak"}}, {"tuning": {"word": "base"}}),
    "attention kernel": ({"attention_kernel": {"name": "flash"}}, {"attention_kernel": {"name": "math"}}),
    "fp8 library": ({"fp8_library": {"name": "torchao"}}, {"fp8_library": {"name": "transformer_engine"}}),
}


def named_cautions(browser: Any, folder: Path, one: RunRecord, two: RunRecord) -> set[str]:
    """The fields that call for caution on the page, which says `nothing calls for caution` where there is none."""
    _, text = opened(browser, folder, [one, two])
    found = {line.split("\t")[0] for line in text.splitlines() if "calls for caution" in line and "\t" in line}
    assert ("nothing calls for caution" in text) is not found
    return found


def test_what_calls_for_caution_is_what_compare_says(browser: Any, tmp_path: Path) -> None:
    def pair(here: dict[str, Any], there: dict[str, Any], **changes: Any) -> tuple[RunRecord, RunRecord]:
        one, two = JAX[0], repeats(1000, first=30, node="node-2", **changes)[0]
        return tuple(  # type: ignore[return-value]
            run.model_copy(update={"result": {**run.result, **more}}) for run, more in ((one, here), (two, there))
        )

    for name, (here, there) in OF_RESULT.items():
        one, two = pair(here, there)
        expected = {field.name for field in cautions([side_of("A", [one]), side_of("B", [two])])}
        assert name in expected and named_cautions(browser, tmp_path / name.replace(" ", "-"), one, two) == expected
    one, two = pair(BUSY, BUSY, framework="paddle")
    assert named_cautions(browser, tmp_path / "both", one, two) == {"node", "other programs"}
    assert "run order" in named_cautions(browser, tmp_path / "turns", JAX[0], TORCH[0])
    quiet = JAX[0], repeats(1000, first=30, node="node-1", began=JAX[0].began)[0]
    assert named_cautions(browser, tmp_path / "quiet", *quiet) == set()

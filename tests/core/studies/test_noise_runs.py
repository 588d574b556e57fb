"""The runs that measure noise vary the micro-batch both ways, as far as the global batch divides."""

from __future__ import annotations

import pytest
from levelfield.catalog.registry import Registry
from levelfield.studies.variations import variation_entries
from plans import PLUGINS, make_plan


@pytest.mark.parametrize(
    ("scale", "micro_batch", "accumulation", "sizes"),
    [
        ("full", 4, 2, {2, 8}),
        ("full", 4, 8, {2, 8}),
        ("full", 4, 1, {2}),
        ("full", 3, 1, set()),
        ("smoke", 1, 8, {8}),
        ("smoke", 4, 8, {2, 32}),
        ("smoke", 3, 2, {6}),
        ("smoke", 3, 1, set()),
    ],
)
def test_the_micro_batch_is_halved_and_made_larger(
    scale: str, micro_batch: int, accumulation: int, sizes: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "1")
    registry = Registry([PLUGINS])
    plan = make_plan(registry, "tiny:fake:F1")
    tuning = plan.tuning.model_copy(update={"micro_batch": micro_batch})
    varied = plan.model_copy(update={"tuning": tuning, "accumulation": accumulation, "scale": scale})
    entries = variation_entries(registry, varied)
    assert {e.request.choice.micro_batch for e in entries} - {None} == sizes
    assert any(e.request.choice.threads == 1 for e in entries)


@pytest.mark.parametrize(
    ("case", "layouts"),
    [("llama3_8b", {"DP2", "TP2", "PP2", "DP2SH1SP2"}), ("llama3_8b_fp8", {"DP2", "PP2", "DP2SH1SP2"})],
)
def test_a_layout_that_the_framework_refuses_for_the_work_is_left_out(case: str, layouts: set[str]) -> None:
    registry = Registry()
    plan = make_plan(registry, f"{case}:torch:cpu", scale="smoke")
    assert {entry.request.choice.layout for entry in variation_entries(registry, plan)} - {None} == layouts

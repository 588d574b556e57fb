"""Below fp32 a run is aligned only where a layer shows the precision that was planned; else it is consistent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.errors import GateFailed
from levelfield.judge.admission import check_admissible
from levelfield.judge.promotion import add_bf16_gradients
from levelfield.judge.verdict import reference_curve, unproven_precision
from levelfield.measure.alignment import TrainingCurve
from levelfield.measure.weights import WHOLE_GRADIENT
from levelfield.plan.resolution import records_window_gradients
from levelfield.specs.base import load
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_content
from levelfield.specs.reference import Reference
from plans import make_plan

ROOT = Path(__file__).resolve().parents[3]
WINDOW = range(11, 41)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry()


def planned(registry: Registry, case: str) -> Plan:
    return make_plan(registry, f"{case}:torch:cpu:1:1", scale="smoke")


def stored(name: str, **changes: object) -> Reference:
    content = load(Reference, ROOT / "configs" / "references" / f"{name}.json").model_dump()
    return Reference.model_validate(content | changes)


GROUPS = {step: {WHOLE_GRADIENT: 1.0, "embedding.weight": 1.0} for step in WINDOW}
RUN = TrainingCurve(40, {})


@pytest.mark.parametrize(
    ("case", "records"),
    [("gpt3_6.7B_bf16", True), ("llama3_8b_fp8", True), ("gpt3_6.7B", False), ("mixtral_8x7b", False)],
)
def test_every_step_of_the_window_is_recorded_below_fp32(case: str, records: bool, registry: Registry) -> None:
    plan = planned(registry, case)
    steps = job_content(plan, RunPaths(Path("/run")))["gradient_steps"]
    assert plan.window_gradients is records
    assert steps == ([1, 2, 10, *WINDOW] if records else [1, 2, 10])


def test_the_smoke_scale_alone_records_the_window(registry: Registry) -> None:
    plan = make_plan(registry, "gpt2_small:torch:A100-SXM4-80GB:1:1", scale="full", may_lack_hardware=True)
    assert plan.work.training.precision != "fp32" and not plan.window_gradients


def test_a_reference_without_the_window_shows_nothing(registry: Registry) -> None:
    plan = planned(registry, "gpt3_6.7B_bf16")
    reference = stored("gpt3_6.7B_bf16_smoke_bf16", window={})
    reason = str(unproven_precision(plan, RUN, reference))
    assert [word for word in ("in bf16:", "the window;", "promote") if word not in reason] == [], reason
    older = plan.model_copy(update={"window_gradients": False})
    assert unproven_precision(older, RUN, reference) is None
    assert unproven_precision(plan, RUN, stored("gpt3_6.7B_bf16_smoke_bf16", window=GROUPS)) is None


def test_a_run_in_fp8_differs_from_bf16_as_its_reference_does(registry: Registry) -> None:
    plan = planned(registry, "llama3_8b_fp8")
    reference = stored("llama3_8b_fp8_smoke_fp8", in_bf16={})
    fp8 = reference.gradients[1]
    assert "in bf16" in str(unproven_precision(plan, RUN, reference))
    with_twin = add_bf16_gradients(reference, plan, map(registry.reference, sorted(registry.references)))
    bf16 = with_twin.in_bf16
    assert set(bf16) == set(fp8) and bf16 != fp8

    def reason(norms: Mapping[str, float]) -> str | None:
        return unproven_precision(plan, TrainingCurve(40, {}, gradients={1: norms}), with_twin)

    def part_of_the_way(part: float) -> dict[str, float]:
        return {name: bf16[name] ** (1 - part) * fp8[name] ** part for name in fp8}

    assert reason(fp8) is None
    assert "lie 0%" in str(reason(bf16))
    assert "lie 25%" in str(reason(part_of_the_way(0.25)))
    assert reason(part_of_the_way(0.75)) is None
    assert reason({}) is not None


def test_only_a_reference_in_fp8_takes_the_gradients_of_another(registry: Registry) -> None:
    plan = planned(registry, "llama3_8b_bf16")
    reference = registry.reference("llama3_8b_bf16_smoke_bf16")
    assert add_bf16_gradients(reference, plan, [reference]) is reference
    fp8, plan = registry.reference("llama3_8b_fp8_smoke_fp8"), planned(registry, "llama3_8b_fp8")
    others = [registry.reference("gpt3_6.7B_bf16_smoke_bf16"), registry.reference("llama3_8b_smoke_fp32")]
    assert add_bf16_gradients(fp8, plan, others) is fp8
    without = fp8.model_copy(update={"gradients": {}})
    assert add_bf16_gradients(without, plan, map(registry.reference, sorted(registry.references))) is without


def test_a_mixture_would_record_its_routing_too_and_records_no_window(registry: Registry) -> None:
    for case, records in (("mixtral_8x7b", False), ("gpt3_6.7B", True)):
        work = registry.case(case).work("smoke")
        training = work.training.model_copy(update={"precision": "bf16"})
        assert records_window_gradients("smoke", work.model_copy(update={"training": training})) is records


def test_the_first_rows_with_the_window_are_held_to_its_ceiling() -> None:
    """Rows of before it are many, and one row of it alone says too little."""
    reference = stored("gpt3_6.7B_bf16_smoke_bf16")
    first = next(row for row in reference.noise if "1 threads" in row.changed)
    rows = [row if row is first else row.model_copy(update={"window": {}}) for row in reference.noise]
    older, curve = reference.model_copy(update={"noise": tuple(rows)}), reference_curve(reference)
    result: Any = SimpleNamespace(run_id="another", framework=reference.framework)

    def admitted(factor: float) -> None:
        window = {
            step: {group: norm * factor for group, norm in norms.items()} for step, norms in curve.window_norms.items()
        }
        check_admissible(older, replace(curve, window_norms=window), result)

    admitted(1.2)
    with pytest.raises(GateFailed, match="window"):
        admitted(1.6)

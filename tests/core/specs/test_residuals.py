"""How far a plan may be off, by the published runs nearest to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from levelfield.specs.residuals import COVERAGE, NEAREST_RUNS, Residual, RunKind, plan_error, read_residuals

KIND = RunKind("nvidia", "H100", "torch", "bf16", False)


def runs(count: int, kind: RunKind, ratio: float = 1.0) -> list[Residual]:
    """So many runs of a kind: the published speed rises by a hundredth from one to the next."""
    return [Residual(f"r{n}", "a", kind, ratio + n / 100, 2 * ratio + n / 50) for n in range(count)]


def test_the_interval_is_of_the_nearest_runs() -> None:
    near, far = runs(NEAREST_RUNS, KIND), runs(100, KIND._replace(framework="megatron"), ratio=9.0)
    error = plan_error([*far, *near], KIND, False)
    assert error is not None and error.nearest_runs == NEAREST_RUNS and error.same_runs == NEAREST_RUNS
    assert [error.low, error.high] == pytest.approx([1.0, 1 + (NEAREST_RUNS - 1) / 100])
    of_program = plan_error(near, KIND, True)
    assert of_program is not None and of_program.low == 2.0 and of_program.high == pytest.approx(2 * error.high)
    one_short = plan_error([*near[1:], *far], KIND, False)
    assert one_short is not None and one_short.high > 9, "runs of another framework fill it up, all that are as near"
    assert one_short.nearest_runs == NEAREST_RUNS - 1 + 100


def test_other_chips_are_nearer_than_other_precisions_and_these_than_other_makers_and_kinds_of_model() -> None:
    others = [
        KIND._replace(chip="H200"),
        KIND._replace(precision="fp16", chip="H200"),
        KIND._replace(precision="fp8", chip="H200"),
        KIND._replace(framework="megatron"),
        KIND._replace(vendor="amd", framework="megatron"),
        KIND._replace(is_mixture=True),
    ]
    for n, nearer in enumerate(others[:-1]):
        farther = [run for kind in others[n + 1 :] for run in runs(NEAREST_RUNS, kind, ratio=9.0)]
        error = plan_error([*farther, *runs(NEAREST_RUNS, nearer)], KIND, False)
        if nearer.vendor == "amd":
            assert error is not None and error.high > 9, "another maker's program is as far as a mixture"
        else:
            assert error is not None and error.high < 2, nearer


def test_an_interval_leaves_out_as_many_at_each_end() -> None:
    many = runs(199, KIND)
    error = plan_error(many, KIND, False)
    assert error is not None
    outside = sum(not error.low <= run.over_framework <= error.high for run in many)
    assert outside == pytest.approx((1 - COVERAGE) * 200, abs=3) and outside % 2 == 0
    assert plan_error([], KIND, False) is None


def test_the_median_error_is_of_runs_that_differ_in_the_chip_alone() -> None:
    rows = [*runs(1, KIND._replace(chip="H200"), ratio=0.5), *runs(40, KIND._replace(precision="fp8"))]
    error = plan_error(rows, KIND, False)
    assert error is not None and (error.median_error, error.same_runs, error.vendor_runs) == (1.0, 1, 41)
    unlike = plan_error(rows, KIND._replace(vendor="amd"), False)
    assert unlike is not None and (unlike.median_error, unlike.same_runs, unlike.vendor_runs) == (None, 0, 0)


def test_a_file_that_is_missing_has_no_rows(tmp_path: Path) -> None:
    assert read_residuals(tmp_path / "residuals.csv") == ()

"""The table of what works where: from declarations and recorded runs, and what a changed record does to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from levelfield.catalog.code_basis import training_code_digest
from levelfield.catalog.registry import Registry
from levelfield.catalog.support import LAYOUTS, SHORT_HEADINGS, State, layout_column, support_rows
from levelfield.cli.show_frameworks_command import support_lines
from levelfield.errors import DocumentError
from levelfield.specs.base import dump
from levelfield.specs.layout import Layout
from levelfield.specs.recorded_runs import Difference, LayoutRuns, MatrixRun, ReferenceNoise

FAKE = Path(__file__).parents[1] / "plugins" / "models" / "fake"
RIGHT = Difference(
    first_loss=0.0, loss=2e-7, grad_norm=1e-5, parameter_norm=1e-5, total_norm=1e-7, same_weights=True, same_tokens=True
)


def run_of(layout: str = "DP2", difference: Difference | None = RIGHT) -> MatrixRun:
    place = {"DP2": Layout(data=2), "TP2": Layout(tensor=2)}[layout]
    return MatrixRun(
        date="2026-01-01",
        commit=None,
        code=training_code_digest(*Registry([FAKE.parents[1]]).implementation_of_label("fake"), "cpu"),
        name=layout,
        family="gpt",
        precision="fp32",
        layout=place,
        steps=40,
        difference=difference,
    )


def cells(folder: Path, *runs: MatrixRun, precision: str = "fp32") -> dict[str, State]:
    """The row of GPT of the implementation `fake` with these runs recorded."""
    home = folder / "models" / "fake"
    shutil.copytree(FAKE, home)
    if runs:
        tested = LayoutRuns(framework="fake", version="1.2.3", device_kind="cpu", machine="a machine", runs=runs)
        (home / "tested.json").write_text(dump(tested))
    table = [row for row in support_rows(Registry([folder])) if row.framework == "fake"]
    return next(row.cells for row in table if (row.family, row.precision) == ("gpt", precision))


def test_without_a_record_nothing_is_tested(tmp_path: Path) -> None:
    states = cells(tmp_path)
    assert (states.pop("CP"), states.pop("EP")) == ("-", "-")  # which its manifest does not offer
    assert set(states.values()) == {"written"}


def test_a_passed_run_makes_its_own_cell_tested_and_no_other(tmp_path: Path) -> None:
    states = cells(tmp_path, run_of())
    assert {key for key, state in states.items() if state == "tested"} == {"DP"}


def test_what_only_an_accelerator_offers_needs_the_chip(tmp_path: Path) -> None:
    assert set(cells(tmp_path, run_of(), precision="fp16").values()) == {"chip", "-"}


@pytest.mark.parametrize(
    "change",
    [
        {"loss": 2e-5},
        {"first_loss": 2e-6},
        {"grad_norm": 2e-4},
        {"parameter_norm": 2e-4},
        {"total_norm": 2e-5},
        {"loss": None},
        {"parameter_norm": None},
        {"same_weights": False},
        {"same_tokens": False},
    ],
    ids=str,
)
def test_a_run_that_is_beyond_a_limit_does_not_pass(change: dict[str, float | None]) -> None:
    assert run_of().passed and not run_of(difference=RIGHT.model_copy(update=change)).passed


def test_one_run_that_does_not_pass_fails_the_cell(tmp_path: Path) -> None:
    wrong = run_of(difference=RIGHT.model_copy(update={"loss": 2e-5}))
    assert cells(tmp_path, run_of(), wrong)["DP"] == "fails"


def test_a_run_that_did_not_end_fails_the_cell(tmp_path: Path) -> None:
    assert cells(tmp_path, run_of("TP2", difference=None))["TP"] == "fails"


def test_sixteen_bits_are_held_to_their_own_limits() -> None:
    coarse = RIGHT.model_copy(update={"first_loss": 1e-4, "loss": 1e-3, "grad_norm": 0.02, "parameter_norm": 0.5})
    assert coarse.is_within_limits("bf16") and not coarse.is_within_limits("fp32")
    assert not coarse.model_copy(update={"loss": 6e-3}).is_within_limits("bf16")


NOISE = ReferenceNoise(first_loss=1e-9, loss=1e-5, grad_norm=1e-6, parameter_norm=1e-6)


@pytest.mark.parametrize(
    ("change", "noise", "passes"),
    [
        ({"loss": 2e-5}, None, False),
        ({"loss": 2e-5}, NOISE, True),  # twice its own noise
        ({"loss": 5e-5}, NOISE, False),
        ({"first_loss": 2e-6}, NOISE, False),  # the loss is noisy, the first one is not
        ({"grad_norm": 2e-4}, NOISE, False),
        ({"parameter_norm": 3e-4}, NOISE, False),
        ({"parameter_norm": 3e-4}, NOISE.model_copy(update={"parameter_norm": 1e-4}), True),
        ({"loss": None}, NOISE, False),
        ({"same_weights": False}, NOISE, False),
        ({"loss": 0.01}, NOISE.model_copy(update={"loss": 1.0}), False),  # a chaotic shape shows nothing
        ({"loss": 2e-4}, NOISE.model_copy(update={"loss": 1e-4}), True),
        ({"total_norm": 2e-5}, NOISE.model_copy(update={"grad_norm": 1.0}), False),  # no arithmetic explains it
    ],
    ids=str,
)
def test_limits_are_scaled_by_the_shape_s_own_noise(
    change: dict[str, float], noise: ReferenceNoise | None, passes: bool
) -> None:
    assert run_of(difference=RIGHT.model_copy(update=change)).model_copy(update={"noise": noise}).passed == passes


@pytest.mark.parametrize(("loss", "word"), [(2e-5, "tested"), (5e-5, "fails")])
def test_a_cell_has_what_passes_by_the_shape_s_own_noise(loss: float, word: State, tmp_path: Path) -> None:
    run = run_of(difference=RIGHT.model_copy(update={"loss": loss})).model_copy(update={"noise": NOISE})
    assert cells(tmp_path, run)["DP"] == word


@pytest.mark.parametrize("noise", [float("nan"), float("inf")])
def test_a_noise_that_is_no_number_is_no_record(noise: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        ReferenceNoise(first_loss=noise, loss=1e-5, grad_norm=1e-4)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    home = tmp_path / "models" / "fake"
    shutil.copytree(FAKE, home)
    (home / "tested.json").write_text(json.dumps({"schema": "levelfield.tested/2", "runs": []}))
    with pytest.raises(DocumentError, match=r"tested\.json"):
        list(support_rows(Registry([tmp_path])))


def test_only_a_mixture_has_experts_to_divide_and_a_refused_layout_is_not_offered() -> None:
    by = {(row.framework, row.family, row.precision): row.cells for row in support_rows(Registry())}
    assert by["megatron", "llama", "fp32"]["EP"] == "-"
    assert by["megatron", "mixture", "fp32"]["EP"] != "-"
    tensor = {key for key in LAYOUTS if "tensor" in LAYOUTS[key]}
    refused = {key for key in LAYOUTS if by["megatron", "mixture", "fp32"][key] == "-"} & tensor
    assert refused == {"TP", "DPxTP", "TPxPP"}
    assert "-" not in [by["torch", "mixture", "fp32"][key] for key in tensor]


def test_a_precision_that_the_framework_refuses_for_a_layout_or_a_mixture_is_not_offered() -> None:
    cells = {(row.family, row.precision): row.cells for row in support_rows(Registry()) if row.framework == "torch"}
    assert set(cells["mixture", "fp8"].values()) == {"-"}
    assert {key for key, state in cells["gpt", "fp8"].items() if state == "-"} >= {"TP", "TP+SP", "DPxTP", "TPxPP"}
    assert cells["gpt", "fp8"]["DP"] != "-"


def test_a_layout_has_the_column_of_what_it_divides() -> None:
    assert layout_column(Layout()) == "one"
    assert layout_column(Layout(data=2, sharding_degree=2, sharding_stage=3)) == "Z3"
    assert layout_column(Layout(tensor=2, sequence_parallel=True)) == "TP+SP"
    assert layout_column(Layout(pipeline=2, tensor=2)) == "TPxPP"
    assert (
        layout_column(Layout(data=2, sharding_degree=2, sharding_stage=1, tensor=2)) is None
    )  # no column says so much


def test_the_table_fits_80_columns() -> None:
    lines = "\n".join(support_lines(list(support_rows(Registry())))).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[3:] == [SHORT_HEADINGS.get(key, key) for key in LAYOUTS]

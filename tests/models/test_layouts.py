"""Every framework trains the same curve as torch in one process; minutes, in many processes over gloo."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layouts
import pytest
from layouts import (
    LONG_STEPS,
    MODELS,
    SINGLE,
    Curve,
    compare,
    first_steps,
    planted,
    script_of,
    shallow,
    small_job,
    train,
)
from levelfield.catalog.registry import Registry
from levelfield.specs.base import load
from levelfield.specs.recorded_runs import LayoutRuns
from levelfield.testing.framework_kit.small_jobs import enlarge_vocabulary
from matrix import (
    VARIANTS,
    PlannedRun,
    difference,
    left_to_thorough,
    matrix,
    noise_of,
    reduced,
)
from trainings.frameworks_page import PAGE, all_runs, counting, page
from trainings.rehearsed_page import REHEARSED, REHEARSED_ROWS, rehearsed_page, rehearsed_rows

pytestmark = [pytest.mark.layouts, pytest.mark.torch]


def thorough(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.thorough)


# Forward and backward, and two updates with what was kept. What shows later only is for the long runs, one of each.
STEPS = 3
FRAMEWORKS = tuple(Registry().frameworks)
LONG = [next(asked for asked in reduced() if asked.framework == framework) for framework in FRAMEWORKS]
LATER = left_to_thorough(reduced())
# Of some frameworks these show little that torch's, deepspeed's or other tests of the framework do not.
SIMILAR = {
    "deepspeed": ("ZeRO 1, DP4",),
    "megatron": ("accumulation 1", "ZeRO 1, DP4", "recompute full of 1 layer", "TP2 sequence parallel"),
    "oneflow": ("accumulation 1",),
    "paddle": ("accumulation 1", "ZeRO 1, DP4"),
}
LATER += [a for a in reduced() if a.variant.name in SIMILAR.get(a.framework, ())]


@pytest.mark.parametrize(
    "asked", [pytest.param(a, marks=[pytest.mark.thorough] if a in LATER else []) for a in reduced()], ids=str
)
def test_same_curve_as_torch_in_one_process(
    asked: PlannedRun, torch_of: Callable[[dict[str, Any]], Curve], interpreter_of: Callable[[str], Path]
) -> None:
    """In few steps, and with two layers where no more stages divide them; the long runs have all of both."""
    whole, model = asked in LONG, MODELS[asked.family]
    if not whole and asked.variant.layout.get("pipeline", 1) == 1:
        model = shallow(model)
    right = torch_of(small_job(model, SINGLE, LONG_STEPS if whole else STEPS))
    found = difference(asked, interpreter_of(asked.framework), right, model)
    assert found.is_within_limits(), found


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        thorough("torch", "DP2"),
        thorough("torch", "TP2 x PP2"),
        thorough("megatron", "TP2"),
        ("megatron", "ZeRO 1, DP2 x PP2"),
        thorough("paddle", SINGLE.name),
        thorough("paddle", "TP2"),
        thorough("paddle", "DP2 x PP2"),
        thorough("oneflow", SINGLE.name),
        thorough("oneflow", "TP2"),
        ("oneflow", "PP2"),
    ],
)
def test_learned_positions_biases_and_a_tied_head_in_llama(
    framework: str, name: str, interpreter_of: Callable[[str], Path], torch_of: Callable[[dict[str, Any]], Curve]
) -> None:
    """What FlagPerf's command trains."""
    changes = {"positions": "learned", "rope_base": None, "bias": True, "tied_embeddings": True}
    model = {**shallow(MODELS["llama"]), **changes}
    curve = train(small_job(model, VARIANTS[name], STEPS), script_of(framework), interpreter_of(framework))
    found = compare(curve, torch_of(small_job(model, SINGLE, STEPS)))
    assert found.is_within_limits(), found


ENDS_HERE = {"paddle", "megatron"}  # the first one's own loss hides it


@pytest.mark.parametrize("framework", [name if name in ENDS_HERE else thorough(name) for name in FRAMEWORKS])
def test_weights_that_become_infinite_end_the_training(framework: str, interpreter_of: Callable[[str], Path]) -> None:
    """Paddle's loss alone does not show it: of logits that are not numbers it is ln(vocabulary size)."""
    job = small_job(shallow(MODELS["gpt"]), SINGLE, STEPS)
    job["training"]["schedule"].update(peak_lr=1e30, min_lr=1e29, warmup_steps=1)
    with pytest.raises(RuntimeError, match="non-finite: step 2: the loss is nan"):
        train(job, script_of(framework), interpreter_of(framework))


CLIP_HERE = {"deepspeed", "megatron"}  # their packages' own norms on a processor are not used
OTHERS = [name for name in FRAMEWORKS if name != "torch"]


@pytest.mark.parametrize("framework", [name if name in CLIP_HERE else thorough(name) for name in OTHERS])
def test_the_norm_of_a_million_elements_is_added_up_exactly(
    framework: str, interpreter_of: Callable[[str], Path], torch_of: Callable[[dict[str, Any]], Curve]
) -> None:
    """torch's norm in float32 is wrong by 2e-5 here on a processor, and what clips by it."""
    job = small_job(enlarge_vocabulary(MODELS["gpt"]), SINGLE, 2)
    found = compare(train(job, script_of(framework), interpreter_of(framework)), torch_of(job))
    assert found.grad_norm is not None
    assert found.parameter_norm is not None
    assert found.grad_norm < 1e-6 and found.parameter_norm < 1e-5, found


# Blocks are traced and differentiated as torch.compile does; the generated code is torch's own, in `make thorough`.
BACKEND = """
import functools, torch
def told(graph, inputs):
    open({path!r}, "w").close()
    return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)
torch.compile = functools.partial(torch.compile, backend=told)
"""


def test_compiled_blocks_train_the_same_curve(tmp_path: Path, torch_of: Callable[[dict[str, Any]], Curve]) -> None:
    model = shallow(MODELS["llama"])
    job = small_job(model, VARIANTS["compile"], STEPS)
    traced = tmp_path / "a block was traced"
    script = planted(tmp_path, "torch", BACKEND.format(path=str(traced)))
    difference = compare(train(job, script), torch_of(small_job(model, SINGLE, STEPS)))
    assert difference.is_within_limits(), difference
    assert traced.exists()


@pytest.mark.parametrize("framework", [thorough("paddle"), "oneflow"])
def test_five_layers_over_two_stages(
    framework: str, interpreter_of: Callable[[str], Path], torch_of: Callable[[dict[str, Any]], Curve]
) -> None:
    """A remainder: the first stage has three blocks, the last two."""
    model = {**MODELS["gpt"], "layers": 5}
    curve = train(small_job(model, VARIANTS["PP2"], STEPS), script_of(framework), interpreter_of(framework))
    found = compare(curve, torch_of(small_job(model, SINGLE, STEPS)))
    assert found.is_within_limits(), found


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        thorough("paddle", SINGLE.name),
        thorough("paddle", "TP2"),  # test_paddle.py trains it with dropout too
        thorough("paddle", "PP2"),
        ("megatron", "TP2 sequence parallel"),
        thorough("oneflow", SINGLE.name),
        ("oneflow", "TP2"),
        thorough("oneflow", "DP2 x TP2"),  # four ranks wait busily for each other
        thorough("oneflow", "PP2"),
    ],
)
def test_dropout_changes_the_curve_and_repeats_itself(
    framework: str, name: str, interpreter_of: Callable[[str], Path], torch_of: Callable[[dict[str, Any]], Curve]
) -> None:
    model = {**shallow(MODELS["gpt"]), "hidden_dropout": 0.1, "attention_dropout": 0.1}
    job, run = small_job(model, VARIANTS[name], STEPS), (script_of(framework), interpreter_of(framework))
    curve = train(job, *run)
    assert train(job, *run) == curve
    found = compare(curve, torch_of(small_job(shallow(MODELS["gpt"]), SINGLE, STEPS)))
    assert found.loss is not None
    assert not found.loss < 1e-5


# ---- the curves that others are compared with


def test_a_curve_is_computed_once_for_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Callable[[str], Curve]
) -> None:
    right = reference("gpt")
    trained: list[dict[str, Any]] = []

    def record_job(job: dict[str, Any]) -> Curve:
        trained.append(job)
        return right

    monkeypatch.setattr(layouts, "train", record_job)
    job, other = small_job(MODELS["gpt"], SINGLE), small_job(MODELS["gpt"], SINGLE, seed=8)
    assert [layouts.torch_curve(each, tmp_path) for each in (job, job, other)] == [right] * 3
    assert trained == [job, other]


def test_the_first_steps_of_a_curve_are_those_of_a_short_run(reference: Callable[[str], Curve]) -> None:
    assert train(small_job(MODELS["gpt"], SINGLE, 3)) == first_steps(reference("gpt"), 3)


# ---- what is written down


@pytest.mark.parametrize("framework", sorted(Registry().frameworks))
def test_the_recorded_runs_are_those_of_the_matrix_for_the_version_in_use_and_passed(framework: str) -> None:
    """All of some precisions: what was not run of this code stays `new` in the table."""
    implementation, folder = Registry().implementation(framework)
    tested = load(LayoutRuns, folder / "tested.json")
    assert (tested.framework, tested.version) == (framework, implementation.version)
    recorded = [(run.family, run.precision, run.name) for run in tested.runs]
    run_in = tuple(p for p in implementation.precisions["cpu"] if any(precision == p for _, precision, _ in recorded))
    asked = [(a.family, a.precision, a.variant.name) for a in matrix(framework, run_in)]
    assert recorded == asked
    assert [run for run in tested.runs if not run.passed] == []


def test_the_page_is_made_from_the_files() -> None:
    assert PAGE.read_text() == page(Registry()), "run `python tools/matrix.py --docs`"


def test_the_page_of_rehearsals_is_made_from_its_file() -> None:
    assert REHEARSED.read_text() == rehearsed_page(Registry()), "run `python tools/matrix.py --docs`"
    assert REHEARSED_ROWS.read_text() == rehearsed_rows(Registry()), "run `python tools/matrix.py --docs`"


def test_the_page_says_how_many_runs_count() -> None:
    runs: list[list[str | None]] = [[None, None], [None, "changed"], ["changed", "changed"]]
    said = [counting(faults) for faults in runs]
    assert said == ["all", "1 of 2", "none"]


def test_every_recorded_run_is_a_row_of_the_csv() -> None:
    found = list(csv.DictReader(io.StringIO(all_runs(Registry()))))
    assert {row["framework"] for row in found} == set(Registry().frameworks)
    for framework in Registry().frameworks:
        tested = load(LayoutRuns, script_of(framework).with_name("tested.json"))
        own = [row for row in found if (row["framework"], row["version"]) == (framework, tested.version)]
        assert [(row["family"], row["precision"], row["run"]) for row in own] == [
            (run.family, run.precision, run.name) for run in tested.runs
        ]
        assert all(row["passed"] == "yes" and float(row["loss"]) < 5e-3 for row in own)


NOISY = {**MODELS["gpt"], "init_std": 0.2}  # large weights carry each rounding further
NOISY_STEPS = 20


@pytest.mark.thorough
def test_an_honest_run_of_a_noisy_shape_passes_by_its_own_noise_and_a_fault_does_not(
    torch_of: Callable[[dict[str, Any]], Curve], tmp_path: Path
) -> None:
    reference = torch_of(small_job(NOISY, SINGLE, NOISY_STEPS))
    noise = noise_of(NOISY, reference)
    honest = compare(train(small_job(NOISY, VARIANTS["TP2"], NOISY_STEPS)), reference)
    assert not honest.is_within_limits(), honest
    assert honest.is_within_limits(noise=noise), (honest, noise)
    fault = "from step import optimizer\nright = optimizer.make_adamw\n"
    fault += "optimizer.make_adamw = lambda parameters, training: right([(p, 2) for p, _ in parameters], training)"
    wrong = compare(train(small_job(NOISY, SINGLE, NOISY_STEPS), planted(tmp_path, "torch", fault)), reference)
    assert not wrong.is_within_limits(noise=noise), wrong

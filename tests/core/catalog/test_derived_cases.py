"""Derived cases: `tiny+steps6`, and cases from a file of their own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from levelfield.catalog.lookup import find_reference
from levelfield.catalog.registry import Registry
from levelfield.catalog.tuning_changes import tuning_rows
from levelfield.errors import DocumentError, UsageError
from levelfield.specs.case import SCALES, Scale
from levelfield.specs.derivation import Derivation, split_name
from plans import PLUGINS, make_plan

ALL = Derivation(steps=20, sequence_length=64, global_batch=16, seed=9)


def test_the_name_holds_the_changes_and_gives_them_back() -> None:
    assert split_name("gpt3_6.7B" + ALL.suffix) == ("gpt3_6.7B", ALL)
    assert ALL.suffix == "+steps20+seq64+batch16+seed9"
    assert split_name("gpt3_6.7B") == ("gpt3_6.7B", Derivation())


@pytest.mark.parametrize("name", ["a+", "a+steps", "a+steps2+steps3", "a+layers3", "a+steps-3", "a+3steps"])
def test_an_unknown_change_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(
        UsageError, match=re.escape(", ".join(f"+{word}N" for word in ("steps", "seq", "batch", "seed")))
    ):
        split_name(name)


@pytest.mark.parametrize("name", ["gpt3_6.7B+steps1", "gpt3_6.7B+seq1", "gpt3_6.7B+batch0"])
def test_a_number_that_no_case_can_have_is_refused(name: str) -> None:
    with pytest.raises(DocumentError, match=r"case 'gpt3_6\.7B"):
        Registry().case(name)


@pytest.mark.parametrize("scale", SCALES)
def test_both_scales_have_the_changes_and_nothing_else_changes(scale: Scale) -> None:
    before, after = Registry().case("gpt3_6.7B"), Registry().case("gpt3_6.7B" + ALL.suffix)
    base, work = before.work(scale), after.work(scale)
    assert {name: getattr(work.training, name) for name in Derivation.model_fields} == ALL.model_dump()
    assert work.data.seed == 9 and work.data.model_copy(update={"seed": base.data.seed}) == base.data
    originals = {name: getattr(base.training, name) for name in Derivation.model_fields}
    assert work.training.model_copy(update=originals) == base.training
    assert (work.model, work.limits) == (base.model, base.limits)
    assert after.fingerprint() != before.fingerprint() and work.fingerprint() != base.fingerprint()


@pytest.mark.parametrize("steps", [2, 3, 5, 12, 40, 100, 500])
@pytest.mark.parametrize("scale", SCALES)
def test_the_window_ends_with_the_last_step(scale: Scale, steps: int) -> None:
    was = Registry().case("gpt3_6.7B").work(scale)
    work = Registry().case(f"gpt3_6.7B+steps{steps}").work(scale)
    assert work.window.last_step == steps and 2 <= work.window.first_step <= was.window.first_step
    assert all(step < work.window.first_step for step in work.evidence.gradient_steps)
    shorter = steps < was.training.steps
    fraction = work.acceptance.final_loss_below_fraction
    assert fraction == (1.0 if shorter else was.acceptance.final_loss_below_fraction)


def test_the_same_numbers_are_the_same_work() -> None:
    was = Registry().case("gpt3_6.7B")
    assert Registry().case("gpt3_6.7B+seed42").work("smoke") == was.work("smoke")


def test_a_derived_case_has_no_reference_of_the_case_that_it_came_from() -> None:
    registry = Registry()
    assert find_reference(registry, make_plan(registry, "gpt3_6.7B:torch:cpu")) is not None
    derived = make_plan(registry, "gpt3_6.7B+steps20:torch:cpu")
    assert find_reference(registry, derived) is None
    assert derived.case == "gpt3_6.7B+steps20"
    (deviation,) = derived.deviations
    assert re.search(r"\bgpt3_6\.7B:.*\b20$", deviation)


def test_tuning_rows_stay_while_a_step_has_the_same_tokens() -> None:
    registry = Registry([PLUGINS])
    rows = tuning_rows(registry, "fake", "tiny")
    assert tuning_rows(registry, "fake", "tiny+steps9+seed3") == rows != ()
    assert tuning_rows(registry, "fake", "tiny+batch8") == ()
    assert tuning_rows(registry, "fake", "tiny+seq8") == ()


# ---- a file of its own


def test_a_case_may_come_from_a_file_of_its_own(tmp_path: Path) -> None:
    file = Path(shutil.copy(PLUGINS / "configs/cases/tiny.yaml", tmp_path / "tiny.yaml"))
    assert Registry(case_files=[file]).case("tiny").name == "tiny"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("gpt3_6.7B.yaml", "", "two files claim the case 'gpt3_6.7B'"),
        ("mine.yaml", None, "--case-file .*mine.yaml: no such file; expected a document of schema levelfield.case/1"),
        ("mine.yaml", "name: mine\n", "mine.yaml"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, file: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(UsageError, match=message):
        Registry(case_files=[tmp_path / file]).case(file.removesuffix(".yaml"))

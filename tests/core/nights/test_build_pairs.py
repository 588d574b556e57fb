"""The arms of pairs plan the same containers again, and each of their runs is said with what it leaves to do."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from compared_records import record, with_result
from levelfield.catalog.registry import Registry
from levelfield.nights.build_pairs import Arm, ArmFailed, case_arguments, paired_records
from levelfield.run.builds import CommitBuild
from levelfield.run.turns import PairProgress, abba_order
from levelfield.specs.paths import RunPaths
from plans import make_plan


@pytest.mark.parametrize("image", ["other:1", None])
def test_the_arms_take_the_image_that_the_user_names_and_no_other(image: str | None) -> None:
    """Without one each build takes the image of its own vendor's file."""
    plan = make_plan(Registry(), "gpt3_6.7B:torch:cpu:1:1", scale="smoke", runtime="docker", base_image=image or "a:1")
    assert plan.container
    if image is None:
        recipe = plan.container.image
        vendors_image = recipe.model_copy(
            update={"base": recipe.base.model_copy(update={"source": "the vendor's file"})}
        )
        plan = plan.model_copy(update={"container": plan.container.model_copy(update={"image": vendors_image})})
    words = case_arguments(plan)
    assert ("--base-image" in words) == (image is not None)
    assert words[words.index("--runtime") + 1] == "docker"
    assert image is None or words[words.index("--base-image") + 1] == image


def test_arms_without_containers_name_none() -> None:
    words = case_arguments(make_plan(Registry(), "gpt3_6.7B:torch:cpu:1:1", scale="smoke"))
    assert not {"--base-image", "--runtime"} & set(words)


def test_arms_name_a_graph_only_where_there_is_one() -> None:
    """The accepted build may be older than the option."""
    plan = make_plan(Registry(), "gpt2_small:torch:H100:1:1", scale="smoke", may_lack_hardware=True, graph=True)
    assert "--graph" in case_arguments(plan)
    plain = plan.model_copy(update={"tuning": plan.tuning.model_copy(update={"graph": False})})
    assert not any("graph" in word for word in case_arguments(plain))


def lines_of(rates: dict[str, float], done: int = 0, **more: Any) -> list[str]:
    """The lines of four pairs of these rates, each run of 30 s; `done` runs were made by an earlier start."""
    lines: list[str] = []
    now = iter(range(0, 10**6, 30))
    arms = list(chain.from_iterable(abba_order(4)))
    records = {arm: record(rate=rate or 1.0, **more) for arm, rate in rates.items()}
    records = {arm: run if rates[arm] else with_result(run, throughput=None) for arm, run in records.items()}
    progress = PairProgress("tokens_per_second_per_device", lines.append, clock=lambda: float(next(now)))
    keep = progress.wrap_store_run(lambda arm, paths: records[arm], [records[arm] for arm in arms[:done]])
    for arm in arms[done:]:
        assert keep(arm, RunPaths(Path("x"))) is records[arm]
    return lines


def times(line: str) -> list[str]:
    return re.findall(r"\d+:\d\d", line)


def test_each_run_of_a_pair_is_said_with_the_difference_so_far_and_the_time_left() -> None:
    lines = lines_of({"a": 1000.0, "b": 800.0})
    assert "1,000.0 tokens/s/device;" in lines[0] and times(lines[0]) == ["2:30", "6:30"]
    assert lines[1].startswith("run 2 ") and "-20.0 %" in lines[1] and len(lines) == 8
    assert lines[5].startswith("run 6 ") and "3 pairs;" in lines[5] and times(lines[5]) == ["4:00"]


def test_the_runs_of_an_earlier_start_count_and_take_no_time() -> None:
    lines = lines_of({"a": 1000.0, "b": 800.0}, done=3)
    assert lines[0].startswith("run 4 ") and "2 pairs;" in lines[0] and times(lines[0]) == ["1:00", "5:00"]


def test_a_run_without_a_figure_is_said_by_its_word_and_is_in_no_mean() -> None:
    (first, *_), last = lines_of({"a": 0.0, "b": 800.0}, word="failed")[:2], lines_of({"a": 0.0, "b": 800.0})[-1]
    assert " failed; " in first and " % in " not in last


@pytest.mark.parametrize(("commit", "fails"), [("a" * 40, False), ("b" * 40, True), (None, False)])
def test_a_run_of_another_commit_than_its_arm_ends_the_pairs(commit: str | None, fails: bool, tmp_path: Path) -> None:
    """A checkout that was moved since the night ran would be measured in the night's name."""
    arms = [Arm(name, CommitBuild("a" * 40, tmp_path), ()) for name in "ab"]
    done = [record(1, commit="a" * 40), record(2, commit=commit)]
    pairs = paired_records(arms, 1, tmp_path, done[0].series, lambda arm, paths: pytest.fail("ran"), done)
    if fails:
        with pytest.raises(ArmFailed, match=r"b{12},.* a{12}:"):
            next(pairs)
    else:
        assert next(pairs) == tuple(done)

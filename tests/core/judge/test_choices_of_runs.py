"""A mixture's reference holds the choices of experts; runs follow them, and what they record of it is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from levelfield.catalog.registry import Registry
from levelfield.errors import UsageError
from levelfield.judge.collector import collect
from levelfield.judge.promotion import make_reference, promoted_reference
from levelfield.plan.resolution import routing_choices_for
from levelfield.rundir.directory import read_plan, write_json
from levelfield.specs.base import dump
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import ChoicesPlan, Plan, job_content
from levelfield.specs.reference import Reference
from levelfield.specs.result import Result, Status
from levelfield.worker.choices import digest_of, packed
from plans import PLUGINS, make_plan
from recorded_runs import record_run, seal_again

MIXTURES = Path(__file__).parents[1] / "mixtures"
SHAPE = (12, 2, 8, 8, 2)  # steps, mixtures, global batch, sequence, chosen
CHOICES = np.random.default_rng(3).random((*SHAPE[:-1], 4)).argsort(-1)[..., :2]
LAYERS = (1, 2)


def lines_of(rank: int, follows: str | None, **changes: Any) -> list[dict[str, Any]]:
    """What a rank writes that records its own choices, or follows others."""
    lines: list[dict[str, Any]] = [{"event": "choices", "follows": follows}]
    for step in range(1, SHAPE[0] + 1):
        for number, layer in enumerate(LAYERS):
            place = {"step": step, "layer": layer}
            if follows is None:
                lines.append({"event": "chosen", **place, "experts": packed(CHOICES[step - 1, number], 4)})
            else:
                values = {"choices": 64, "changed": 0, "margin": 0.0, "gates": 1.0}
                lines.append({"event": "compared", **place, **values, **changes})
    return lines


def write(run: RunPaths, rank: int, lines: list[dict[str, Any]]) -> None:
    path = run.events / f"rank{rank}.choices.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "20260102T030405Z_tiny_mixture_fake_fake_abcdef")
    record_run(paths, MIXTURES, "tiny_mixture")
    return paths


def following(run: RunPaths, reference: Reference, **changes: Any) -> Result:
    """Make the run one that followed the reference, and collect it."""
    assert reference.choices is not None
    follows = digest_of(reference.choices)
    plan = read_plan(run).model_copy(update={"choices": ChoicesPlan(follows=follows, known=reference.choices)})
    run.plan.write_text(dump(plan))
    write_json(run.job, job_content(plan, run))
    run.reference.write_text(dump(reference))
    for rank in (0, 1):
        write(run, rank, lines_of(rank, follows, **(changes if rank else {})))
    seal_again(run)
    return collect(run)


@pytest.fixture
def reference(run: RunPaths) -> Reference:
    write(run, 0, lines_of(0, None))
    seal_again(run)
    return make_reference(run, "the test")


def routing(result: Result) -> tuple[bool | None, str]:
    layer = next(layer for layer in result.alignment.layers if layer.name == "routing")
    return layer.passed, layer.detail


def test_a_reference_holds_the_choices_of_its_run(reference: Reference) -> None:
    assert reference.choices == packed(CHOICES, 4)


def test_a_run_that_recorded_no_choices_or_not_all_is_not_promoted(run: RunPaths) -> None:
    with pytest.raises(UsageError, match=r"experts.*--case tiny_mixture:fake:fake:1:1"):
        promoted_reference(run, "the test", None, is_forced=False)
    write(run, 0, lines_of(0, None)[:-1])
    seal_again(run)
    with pytest.raises(UsageError, match=r"experts.*--case tiny_mixture:fake:fake:1:1"):
        promoted_reference(run, "the test", None, is_forced=False)


def test_a_run_that_follows_is_judged_by_its_own_choices(run: RunPaths, reference: Reference) -> None:
    result = following(run, reference)
    assert result.status == Status(word="valid")
    passed, detail = routing(result)
    assert passed is True
    assert [word for word in ("followed;", "0 of 3,072") if word not in detail] == [], detail
    # one that followed is a reference with the same choices
    assert promoted_reference(run, "again", None, is_forced=False).choices == reference.choices


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"margin": 1e-3, "changed": 1}, "the widest margin 1.0e-03 at step 1 layer 1, limit 3e-05"),
        ({"gates": 1.000002}, "gates are off by 2.0e-06"),
        ({"changed": 20}, "most at step 1: 40, limit 8"),
    ],
)
def test_own_choices_beyond_rounding_are_different(
    run: RunPaths, reference: Reference, changes: dict[str, Any], words: str
) -> None:
    result = following(run, reference, **changes)
    assert result.status == Status(word="valid")
    assert routing(result)[0] is False and words in routing(result)[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"choices": 63}, "choices: step 1, layer 1: 127 own choices, expected 128"),
        ({"margin": "nan"}, "margin nan"),
        ({"layer": 0}, "recorded twice"),
        ({"changed": 1.5}, "a compared event is damaged"),
        ({"gates": None}, "a compared event is damaged"),
    ],
)
def test_a_damaged_record_is_invalid(run: RunPaths, reference: Reference, changes: dict[str, Any], words: str) -> None:
    status = following(run, reference, **changes).status
    assert status.word == "invalid" and words in "; ".join(status.reasons)


def test_a_rank_that_follows_other_choices_than_planned_is_invalid(run: RunPaths, reference: Reference) -> None:
    following(run, reference)
    write(run, 1, lines_of(1, "sha256:" + 64 * "0"))
    seal_again(run)
    (reason,) = collect(run).status.reasons
    assert reason.startswith("choices: rank 1 ")
    assert "sha256:000000000000," in reason
    assert reason.endswith(f"planned {digest_of(str(reference.choices))[:19]}")


def test_a_run_that_says_nothing_of_choices_is_compared_by_its_counts(run: RunPaths, reference: Reference) -> None:
    following(run, reference)
    for rank in (0, 1):
        (run.events / f"rank{rank}.choices.jsonl").unlink()
    seal_again(run)
    assert collect(run).status.word == "valid"
    passed, detail = routing(collect(run))
    assert passed is True
    assert detail.startswith("0 of 3,072 ")


# ---- which choices a run follows


def plan_of(monkeypatch: pytest.MonkeyPatch, devices: int, scale: str = "smoke") -> Plan:
    monkeypatch.setenv("FAKE_DEVICES", str(devices))
    registry = Registry(sorted({PLUGINS, MIXTURES}))
    return make_plan(registry, f"tiny_mixture:fake:F1:1:{devices}", scale=scale)


def test_a_run_of_the_same_work_and_tokens_follows(
    run: RunPaths, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    for devices in (1, 2):
        plan = plan_of(monkeypatch, devices)
        choices = routing_choices_for(plan, reference)
        assert choices == ChoicesPlan(follows=digest_of(str(reference.choices)), known=reference.choices)
        chosen = plan.model_copy(update={"choices": choices})
        assert job_content(chosen, run)["choices"] == {"known": reference.choices}
        assert "known" not in json.loads(dump(chosen))["choices"]  # plan.json is read for every list of runs


def test_other_work_follows_nothing_and_one_process_records_its_own(
    reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(monkeypatch, 1)
    other = reference.model_copy(update={"identity": reference.identity.model_copy(update={"work": "sha256:other"})})
    assert routing_choices_for(plan, other) is None
    assert (
        routing_choices_for(plan, None)
        == ChoicesPlan(follows=None)
        == routing_choices_for(plan, of_an_older_version(reference))
    )
    assert routing_choices_for(plan_of(monkeypatch, 2), None) is None
    assert routing_choices_for(plan_of(monkeypatch, 1, scale="full"), None) == ChoicesPlan(follows=None)


def of_an_older_version(reference: Reference) -> Reference:
    """The reference as an older version has it."""
    return reference.model_copy(update={"choices": None})


def test_a_dense_model_has_no_choices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "1")
    plan = make_plan(Registry([PLUGINS]), "tiny:fake:F1:1:1", scale="smoke")
    assert routing_choices_for(plan, None) is None and "choices" not in job_content(plan, RunPaths(tmp_path))

"""Mixtures that follow known choices of experts: every layout takes the right ones for its own tokens.

The known choices are random. Whatever a router would choose, the experts of each token are given, so a layout that
takes those of other tokens trains another curve.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from layouts import (
    MODELS,
    SINGLE,
    Curve,
    Variant,
    compare,
    compare_routing,
    events,
    launch,
    planted,
    read_curve,
    script_of,
    shallow,
    small_job,
)
from levelfield.testing.framework_kit.layout_checks import random_expert_choices
from levelfield.worker.choices import packed
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch, pytest.mark.thorough]
STEPS = 2
MODEL = shallow(MODELS["mixture"])
GROUPED = {
    **MODEL,
    "experts": {
        **MODEL["experts"], "count": 8,
        "router": {**MODEL["experts"]["router"], "scores": "sigmoid", "scale": 2.5, "bias_rate": 0.01,
                   "groups": {"count": 2, "chosen": 1}},
    },
}  # fmt: skip
KINDS = {"mixture": MODEL, "grouped": GROUPED}
SEQUENCE = {"tensor": 2, "sequence_parallel": True}
TORCH = ("DP2", "EP2 of DP4", "PP2", "CP2", "TP2 sequence parallel", "ZeRO 3, DP2", "recompute full", "accumulation 1")
MEGATRON = {
    "EP2": Variant("EP2", {"data": 2, "expert": 2}),
    "TP2 sequence parallel": Variant("TP2 sequence parallel", SEQUENCE, micro_batch=1),
    "PP2, recompute full": Variant("PP2, recompute full", {"pipeline": 2}, recompute="full"),
}


def followed(kind: str, variant: Variant, script: Path | None = None, python: Path | None = None) -> Any:
    """The curve, and what the ranks compared: the choices and those that differ, by step and layer."""
    job = small_job(KINDS[kind], variant, STEPS)
    job["choices"] = {"known": packed(random_expert_choices(job), KINDS[kind]["experts"]["count"])}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ends = launch(job, folder, script, python)
        assert not any(end.returncode for end in ends), ends[0].output[-3000:]
        ranks = range(len(ends))
        curve = read_curve([events(folder, rank) for rank in ranks])
        compared: dict[tuple[int, int], list[int]] = {}
        for path in folder.glob("rank*.choices.jsonl"):
            for line in map(json.loads, path.read_text().splitlines()[1:]):
                found = compared.setdefault((line["step"], line["layer"]), [0, 0])
                found[0], found[1] = found[0] + line["choices"], found[1] + line["changed"]
                assert line["margin"] > 1e-3  # no near ties: these are not its own choices
    return curve, compared


@pytest.fixture(scope="module")
def right() -> Any:
    return functools.cache(lambda kind: followed(kind, SINGLE))


def assert_same(found: tuple[Curve, Any], expected: tuple[Curve, Any]) -> None:
    (curve, compared), (reference, known) = found, expected
    difference = compare(curve, reference)
    assert difference.parameter_norm is not None
    assert difference.is_within_limits() and difference.parameter_norm <= 1e-5, difference
    assert compare_routing(curve, reference)[1] == 0
    assert compared == known


@pytest.mark.parametrize("kind", KINDS)
def test_the_experts_take_the_tokens_of_the_known_choices(kind: str, right: Any) -> None:
    curve, compared = right(kind)
    job = small_job(KINDS[kind], SINGLE, STEPS)
    for step, layers in enumerate(random_expert_choices(job), start=1):
        counts = [int((layers[0] == expert).sum()) for expert in range(KINDS[kind]["experts"]["count"])]
        assert list(curve.experts[step][1]) == counts
    assert sorted(compared) == [(1, 1), (2, 1)]
    assert all(choices == 8 * 32 * 2 and changed > choices / 10 for choices, changed in compared.values())


@pytest.mark.parametrize("name", TORCH)
def test_a_layout_of_torch_follows_those_of_its_own_tokens(name: str, right: Any) -> None:
    assert_same(followed("mixture", VARIANTS[name]), right("mixture"))


def test_selection_bias_and_groups_choose_nothing_where_choices_are_known(right: Any) -> None:
    assert_same(followed("grouped", VARIANTS["EP2 of DP4"]), right("grouped"))


@pytest.mark.parametrize("name", MEGATRON)
def test_a_layout_of_megatron_follows_those_of_its_own_tokens(name: str, right: Any, interpreter_of: Any) -> None:
    found = followed("mixture", MEGATRON[name], script_of("megatron"), interpreter_of("megatron"))
    assert_same(found, right("mixture"))


SHIFTED = """
from levelfield.worker.choices import ChoiceRecord
right = ChoiceRecord.known
ChoiceRecord.known = lambda self, step, layer: right(self, step, layer)[:, :, ::-1].copy()
"""


def test_choices_of_other_tokens_are_seen(tmp_path: Path, right: Any) -> None:
    """The test of the tests: places reversed, with the same counts of tokens."""
    found = followed("mixture", SINGLE, planted(tmp_path, "torch", SHIFTED))
    with pytest.raises(AssertionError):
        assert_same(found, right("mixture"))

"""A value that changes nothing, written or left out: equal work, equal digests, and no framework refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from changed_documents import written
from levelfield.catalog.lookup import find_selection
from levelfield.catalog.registry import Registry
from levelfield.errors import NotHere
from levelfield.specs.base import load
from levelfield.specs.case import SCALES, Case
from levelfield.specs.derivation import Derivation
from levelfield.specs.selector import Selector
from plans import ROOT

LLAMA = ROOT / "configs/cases/llama3_8b.yaml"  # 4096 over 32 heads; at smoke scale 256 over 8
MIXTRAL = ROOT / "configs/cases/mixtral_8x7b.yaml"  # 2 of 8 experts; at smoke scale 2 of 4
YARN = {"kind": "yarn", "factor": 1, "original_length": 64, "beta_fast": 32, "beta_slow": 1}
IDLE: list[tuple[Path, dict[str, Any]]] = [
    (LLAMA, {"model.head_dim": 128, "smoke.model.head_dim": 32}),
    (LLAMA, {"model.embedding_scale": 1}),
    (LLAMA, {"model.residual_scale": 1, "model.logit_scale": 1}),
    (LLAMA, {"model.sliding_window": 8192}),
    (LLAMA, {"model.rope_scaling": {"kind": "linear", "factor": 1}}),
    (LLAMA, {"model.rope_scaling": YARN}),
    (LLAMA, {"model.qkv_bias": False, "model.norm_place": "before", "model.query_key_norm": False}),
    (LLAMA, {"window.disturbance_limit": 0.1}),
    (MIXTRAL, {"model.experts.capacity_factor": 4}),
    (MIXTRAL, {"model.experts.router.groups": {"count": 2, "chosen": 2}}),
    (MIXTRAL, {"model.experts.router.z_loss": 0, "model.experts.shared": 0}),
]
WORKING: list[tuple[Path, dict[str, Any]]] = [
    (LLAMA, {"model.head_dim": 128, "smoke.model.head_dim": 48}),  # the smoke scale has the part
    (LLAMA, {"model.head_dim": 64, "smoke.model.head_dim": 32}),
    (LLAMA, {"model.embedding_scale": 2}),
    (LLAMA, {"model.residual_scale": 0.5}),
    (LLAMA, {"model.logit_scale": 0.5}),
    (LLAMA, {"model.attention_scale": 0.5}),
    (LLAMA, {"model.sliding_window": 8191}),
    (LLAMA, {"model.rope_scaling": {"kind": "linear", "factor": 2}}),
    (LLAMA, {"model.rope_scaling": {**YARN, "magnitude": 2}}),
    (MIXTRAL, {"model.experts.capacity_factor": 3.9}),
]


def changed(folder: Path, source: Path, change: dict[str, Any]) -> Case:
    return load(Case, written(folder, change, source))


@pytest.mark.parametrize(("source", "change"), IDLE, ids=lambda value: str(value)[:40])
def test_what_changes_nothing_is_not_part_of_the_work(tmp_path: Path, source: Path, change: dict[str, Any]) -> None:
    plain, case = load(Case, source), changed(tmp_path, source, change)
    assert [case.work(scale) for scale in SCALES] == [plain.work(scale) for scale in SCALES]
    assert [case.work(s).fingerprint() for s in SCALES] == [plain.work(s).fingerprint() for s in SCALES]
    assert (case.fingerprint(), case.parts) == (plain.fingerprint(), plain.parts)


@pytest.mark.parametrize(("source", "change"), WORKING, ids=lambda value: str(value)[:40])
def test_what_does_something_at_a_scale_stays(tmp_path: Path, source: Path, change: dict[str, Any]) -> None:
    plain, case = load(Case, source), changed(tmp_path, source, change)
    assert case.fingerprint() != plain.fingerprint() and case.work("full") == case.written_work("full")
    assert set(case.parts) > set(plain.parts)


def test_no_framework_refuses_a_head_of_the_default_width(tmp_path: Path) -> None:
    for width, is_refused in ((32, False), (48, True)):
        path = written(tmp_path, {"name": "case", "model.head_dim": 128, "smoke.model.head_dim": width}, LLAMA)
        registry = Registry(case_files=[path])
        for framework in ("jax", "paddle", "oneflow"):
            selector = Selector(case="case", framework=framework, target="cpu")
            if is_refused:
                with pytest.raises(NotHere, match=rf"^{framework} .*\bhead_dim\b"):
                    find_selection(registry, selector)
            else:
                find_selection(registry, selector)


def test_a_longer_sequence_brings_a_window_to_bear(tmp_path: Path) -> None:
    """8,192 of 8,192 tokens change nothing; of 16,384 they do."""
    case = changed(tmp_path, LLAMA, {"model.sliding_window": 8192})
    assert case.work("full").model.sliding_window is None
    assert Derivation(sequence_length=16384).apply_to(case).work("full").model.sliding_window == 8192


def test_a_part_that_the_smoke_scale_leaves_out_stays_out_of_a_derived_case(tmp_path: Path) -> None:
    change = {"model.rope_scaling": {"kind": "linear", "factor": 2}, "smoke.model": {"rope_scaling": "none"}}
    path = written(tmp_path, change, LLAMA)
    path.write_text(path.read_text().replace("rope_scaling: none", "rope_scaling: null"))
    case = load(Case, path)
    assert case.work("smoke").model.rope_scaling is None
    assert Derivation(seed=7).apply_to(case).work("smoke").model.rope_scaling is None

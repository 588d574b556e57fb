"""Megatron-Core trains what torch trains, in one process and in each layout; minutes, in many processes over gloo."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from layouts import MODELS, ROOT, SINGLE, Curve, Variant, compare, events, job_of, launch, train

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

TRAIN = ROOT / "models" / "megatron" / "train.py"
SEQUENCE = {"tensor": 2, "sequence_parallel": True}
ZERO = {"data": 2, "sharding_stage": 1, "sharding_degree": 2}
VARIANTS = (
    SINGLE,
    Variant("accumulation 1", micro_batch=8),
    Variant("recompute selective", recompute="selective"),
    Variant("recompute full", recompute="full"),
    Variant("DP2", {"data": 2}),
    Variant("distributed optimizer, DP2", ZERO),
    Variant("TP2", {"tensor": 2}),
    Variant("TP2 sequence parallel", SEQUENCE),
    Variant("PP2", {"pipeline": 2}),
    Variant("TP2 x PP2", {"tensor": 2, "pipeline": 2}),
    Variant("DP2 x TP2", {"data": 2, "tensor": 2}),
    Variant("DP2 x PP2", {"data": 2, "pipeline": 2}),
    Variant("distributed optimizer, DP2 x TP2 sequence parallel", {**ZERO, **SEQUENCE}),
    Variant("distributed optimizer, DP2 x PP2", {**ZERO, "pipeline": 2}),
    Variant("TP2 sequence parallel x PP2, recompute full", {**SEQUENCE, "pipeline": 2}, recompute="full"),
    Variant("PP4", {"pipeline": 4}),
)
BY_NAME = {variant.name: variant for variant in VARIANTS}
# every variant in one of the families by turns, and the first in both; all of them in both were measured
RUNS = [(family, SINGLE) for family in sorted(MODELS)]
RUNS += [(family, variant) for family, variant in zip(itertools.cycle(sorted(MODELS)), VARIANTS[1:], strict=False)]
FAULTY = """
import sys
sys.path.insert(0, {folder!r})
from levelfield.worker import run
from train import main
def faulty(job, recorder):
{fault}
    main(job, recorder)
run(faulty)
"""


@pytest.fixture(scope="module")
def python(interpreter_of) -> Path:
    return interpreter_of("megatron")


@pytest.fixture(scope="module")
def reference():
    """torch's curve of a family, in one process."""
    curves: dict[str, Curve] = {}

    def of(family: str) -> Curve:
        if family not in curves:
            curves[family] = train(job_of(MODELS[family], SINGLE))
        return curves[family]

    return of


def planted(folder: Path, fault: str) -> Path:
    """train.py with `fault`, some lines of Python, run before it starts."""
    path = folder / "faulty.py"
    lines = "\n".join("    " + line for line in fault.strip().splitlines())
    path.write_text(FAULTY.format(folder=str(TRAIN.parent), fault=lines))
    return path


@pytest.mark.parametrize(("family", "variant"), RUNS, ids=lambda value: getattr(value, "name", value))
def test_same_curve_as_torch(family, variant, reference, python):
    found = compare(train(job_of(MODELS[family], variant), TRAIN, python), reference(family))
    assert found.within(), found


@pytest.mark.parametrize("layout", ["TP2", "distributed optimizer, DP2 x PP2"])
def test_same_curve_with_learned_positions_and_biases_in_llama(layout, python):
    """What FlagPerf's command trains: Llama's norms and SwiGLU with learned positions, biases and a tied head."""
    changes = {"positions": "learned", "rope_base": None, "bias": True, "tied_embeddings": True}
    model = {**MODELS["llama"], **changes}
    found = compare(train(job_of(model, BY_NAME[layout], 10), TRAIN, python), train(job_of(model, SINGLE, 10)))
    assert found.within(), found


@pytest.mark.parametrize(
    ("precision", "layout"), [("bf16", "distributed optimizer, DP2"), ("bf16", "TP2 x PP2"), ("fp16", SINGLE.name)]
)
def test_sixteen_bits_stay_near_fp32_and_start_from_the_same_weights(precision, layout, reference, python):
    scale = {"loss_scale": {"initial": 256.0, "growth_interval": 1000}} if precision == "fp16" else {}
    job = job_of(MODELS["gpt"], BY_NAME[layout], precision=precision, **scale)
    found = compare(train(job, TRAIN, python), reference("gpt"))
    assert found.same_weights and found.same_tokens
    assert 0 < found.loss < 5e-3
    assert 0 < found.grad_norm < 0.1


def test_an_overflow_in_fp16_skips_the_step_and_training_goes_on(tmp_path, python):
    scale = {"loss_scale": {"initial": 2.0**26, "growth_interval": 4}}
    job = job_of(MODELS["gpt"], BY_NAME["distributed optimizer, DP2"], 14, precision="fp16", **scale)
    assert [end.returncode for end in launch(job, tmp_path, TRAIN, python)] == [0, 0]
    steps = [event for event in events(tmp_path, 0) if event["event"] == "step"]
    skipped = [event["skipped"] for event in steps]
    assert skipped[0] and not skipped[-1]
    assert steps[0]["grad_norm"] is None
    for before, after in itertools.pairwise(steps):
        assert after["loss_scale"] / before["loss_scale"] in ((0.5,) if before["skipped"] else (1.0, 2.0))
    assert steps[-1]["loss"] < steps[0]["loss"]


def test_dropout_trains_and_repeats_itself(python):
    model = {**MODELS["gpt"], "hidden_dropout": 0.1, "attention_dropout": 0.1}
    job = job_of(model, BY_NAME["TP2 sequence parallel"], 4)
    curve = train(job, TRAIN, python)
    assert train(job, TRAIN, python) == curve
    assert curve.losses != train(job_of(MODELS["gpt"], SINGLE, 4), TRAIN, python).losses


@pytest.mark.parametrize(
    ("family", "layout"), [("gpt", "TP2 x PP2"), ("llama", "distributed optimizer, DP2 x TP2 sequence parallel")]
)
def test_saved_weights_are_torchs(family, layout, tmp_path, python):
    for name, variant, script, interpreter in (
        ("torch", SINGLE, None, None),
        ("megatron", BY_NAME[layout], TRAIN, python),
    ):
        (tmp_path / name).mkdir()
        job = {**job_of(MODELS[family], variant, 3), "save_weights_dir": str(tmp_path / name)}
        assert not any(end.returncode for end in launch(job, tmp_path, script, interpreter))
    saved = {path.name for path in (tmp_path / "torch").iterdir()}
    assert saved == {path.name for path in (tmp_path / "megatron").iterdir()}
    for name in saved:
        one, other = (np.load(tmp_path / run / name) for run in ("torch", "megatron"))
        np.testing.assert_allclose(one, other, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("family", sorted(MODELS))
def test_captured_tensors_are_torchs(family, tmp_path, python):
    for name, script, interpreter in (("torch", None, None), ("megatron", TRAIN, python)):
        job = job_of(MODELS[family], SINGLE, 2)
        job["capture"] = {"step": 2, "folder": str(tmp_path / name)}
        assert [end.returncode for end in launch(job, tmp_path, script, interpreter)] == [0]
    captured = {path.name for path in (tmp_path / "torch").iterdir()}
    assert {"embedding.npy", "layers.3.npy", "final_norm.npy", "logits.npy"} < captured
    assert captured == {path.name for path in (tmp_path / "megatron").iterdir()}
    for name in captured:
        one, other = (np.load(tmp_path / run / name) for run in ("torch", "megatron"))
        assert np.linalg.norm(one - other) < 1e-4 * max(np.linalg.norm(one), 1e-4), name


# ---- planted faults


def differs(folder, python, reference, fault, family="gpt", layout=SINGLE.name, steps=10):
    curve = train(job_of(MODELS[family], BY_NAME[layout], steps), planted(folder, fault), python)
    right = reference(family)
    cut = {name: getattr(right, name)[:steps] for name in ("losses", "grad_norms", "tokens", "token_checksums")}
    return compare(curve, dataclasses.replace(right, **cut))


def test_query_key_and_value_one_after_another_are_seen(tmp_path, reference, python):
    """Rows of [Q; K; V] as Megatron does not keep them: checksums cannot see it, as they read what was written."""
    fault = """
import canonical
canonical.Correspondence.groups = lambda self, module: 1
"""
    found = differs(tmp_path, python, reference, fault)
    assert found.same_weights
    assert found.parameter_norm > 1e-3
    assert not found.within()


def test_gate_and_up_exchanged_are_seen(tmp_path, reference, python):
    fault = """
import canonical
canonical.MODULES["mlp.linear_fc1"] = (("mlp.up", "mlp.gate"), 0)
canonical.Correspondence.present = lambda self, names: ("head",) if names == ("head",) else names
"""
    found = differs(tmp_path, python, reference, fault, family="llama")
    assert found.same_weights
    assert not found.within()


def test_weight_decay_on_norms_and_biases_is_seen(tmp_path, reference, python):
    """Megatron's own trap: without its scheduler every parameter decays."""
    fault = """
import parallelize
def set_rates(optimizer, learning_rate, weight_decay):
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = learning_rate, weight_decay
parallelize.set_rates = set_rates
"""
    found = differs(tmp_path, python, reference, fault, steps=40)
    assert found.loss > 1e-5
    assert not found.within()


def test_a_sequence_parallel_norm_that_is_not_summed_is_seen(tmp_path, reference, python):
    fault = """
import local_norm
made = local_norm.LocalNorm.__new__
def unmarked(cls, config, **arguments):
    norm = made(cls, config, **arguments)
    for parameter in norm.parameters():
        parameter.sequence_parallel = False
    return norm
local_norm.LocalNorm.__new__ = unmarked
"""
    found = differs(tmp_path, python, reference, fault, layout="TP2 sequence parallel")
    assert found.parameter_norm > 1e-2
    assert not found.within()


def test_the_framework_says_what_it_is(tmp_path, python):
    launch(job_of(MODELS["gpt"], SINGLE, 2), tmp_path, TRAIN, python)
    said = next(event for event in events(tmp_path, 0) if event["event"] == "framework")
    assert (said["name"], said["version"]) == ("megatron", "0.16.1")
    assert said["details"]["layers"] == "local"

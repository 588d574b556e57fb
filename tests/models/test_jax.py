"""JAX trains what torch trains, ends as it should, and drops the same in every layout; minutes of compilation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from layouts import MODELS, SINGLE, Curve, compare, events, first_steps, script_of, small_job, train
from levelfield.run.launchers.launched_ranks import find_free_port
from levelfield.specs.case import Precision
from levelfield.specs.recorded_runs import Difference
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

TRAIN = script_of("jax")
PATIENCE_SECONDS = 240  # many ranks compile on busy cores


FRAMEWORK = "jax"


# ---- layouts beside those of the matrix

FURTHER = (
    "recompute full", "recompute selective", "accumulation 1", "ZeRO 1, DP2", "ZeRO 2, DP2", "ZeRO 3, DP2", "TP2",
    "DP2 x TP2", "ZeRO 3 over 2 of DP4",
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", FURTHER)
@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_same_curve_as_torch(
    family: str, name: str, precision: Precision, python: Path, reference: Callable[[str], Curve]
) -> None:
    job = small_job(MODELS[family], VARIANTS[name], 10, precision=precision)
    found = compare(train(job, TRAIN, python), first_steps(reference(family), 10))
    assert found.is_within_limits(precision), found


# ---- what the comparison sees


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        # a norm's gradient stays that of this rank's part of the sequence
        ("import layers\nright = layers.rms_norm\n"
         "layers.rms_norm = lambda x, w, e: right(x, layers.vary(w, ('tensor',)) * 1.01, e)", "first_loss"),
        ("import program\nright = program.square_sums\n"
         "program.square_sums = lambda g, n: right(g, n) * 1.01", "grad_norm"),
        ("import optimizer, program\nright = program.adamw\n"
         "program.adamw = lambda s, held, *rest: right(s, (*held[:3], True), *rest)", "loss"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_seen(
    fault: str, seen: str, tmp_path: Path, python: Path, differs: Callable[..., Difference]
) -> None:
    found = differs(tmp_path, "jax", python, fault, family="llama", variant=VARIANTS["TP2 sequence parallel"])
    assert not found.is_within_limits() and getattr(found, seen) > 1e-6


# ---- sums in bf16

BIAS_GRADIENT = """
import jax, numpy
from jax import numpy as jnp
from layers import add_bias
upstream = numpy.random.default_rng(0).normal(0.05, 1, (4096, 8)).astype(jnp.bfloat16)
expected = upstream.astype(float).sum(0)
for add in (add_bias, lambda y, b: y + b):
    loss = lambda b: jnp.sum(add(jnp.zeros_like(upstream), b) * upstream, dtype=jnp.float32)
    gradient = jax.grad(loss)(jnp.zeros(8, jnp.bfloat16))
    print(max(abs(numpy.asarray(gradient, float) / expected - 1)))
"""


def test_the_gradient_of_a_bias_is_summed_in_float32(python: Path) -> None:
    """XLA sums in bf16 on a processor what is added in bf16. One rounding of the sum is at most 2^-8."""
    command: list[str | Path] = [python, "-c", BIAS_GRADIENT]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(TRAIN.parent)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    ours, added_in_bf16 = map(float, ran.stdout.split())
    assert ours < 2**-8 < added_in_bf16


FUSED = """
from types import SimpleNamespace
import attention
import jax
import jax.numpy as jnp

DEVICES = {
    "A100": ("PJRT cuda 12090", "8.0"), "V100": ("PJRT cuda 12090", "7.0"), "H100": ("PJRT cuda 12090", "9.0"),
    "MI300X": ("PJRT rocm 70000", "gfx942"),
}
jax.default_backend = lambda: "gpu"
for name, (version, capability) in DEVICES.items():
    device = SimpleNamespace(client=SimpleNamespace(platform_version=version), compute_capability=capability)
    jax.local_devices = lambda: [device]
    for size, dtype in ((128, jnp.bfloat16), (256, jnp.bfloat16), (100, jnp.bfloat16), (128, jnp.float32)):
        if attention.has_cudnn_kernel(jnp.zeros((1, 8, 2, size), dtype)):
            print(name, size)
"""


def test_cudnn_s_attention_is_for_the_chips_and_heads_that_it_has(python: Path) -> None:
    """The devices are made up: none of them is here."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(TRAIN.parent)}
    ran = subprocess.run([python, "-c", FUSED], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["A100 128", "H100 128", "H100 256"]


# ---- dropout, by keys


RANDOM = {**MODELS["gpt"], "layers": 2, "hidden_dropout": 0.2, "attention_dropout": 0.1}


@pytest.mark.thorough
def test_every_layout_drops_the_same(python: Path, reference: Callable[[str], Curve]) -> None:
    alone = train(small_job(RANDOM, SINGLE, 3), TRAIN, python)
    for name in ("DP2", "TP2 sequence parallel", "recompute full"):
        found = compare(train(small_job(RANDOM, VARIANTS[name], 3), TRAIN, python), alone)
        assert found.is_within_limits(), (name, found)
    again = train(small_job(RANDOM, SINGLE, 3, seed=8), TRAIN, python)
    assert again.losses != alone.losses


@pytest.mark.thorough
def test_dropout_changes_the_curve(python: Path, reference: Callable[[str], Curve]) -> None:
    model = {**MODELS["gpt"], "hidden_dropout": 0.1, "attention_dropout": 0.1}
    found = compare(train(small_job(model, SINGLE, 3), TRAIN, python), first_steps(reference("gpt"), 3))
    assert found.loss is not None
    assert found.loss > 1e-4


# ---- ends


def started(job: dict[str, Any], folder: Path, python: Path, ranks: int = 2) -> list[subprocess.Popen[bytes]]:
    """Ranks as processes of their own, which a signal reaches."""
    path = folder / "job.json"
    path.write_text(json.dumps({**job, "events_dir": str(folder)}))
    common = {
        **os.environ, "LEVELFIELD_JOB": str(path), "PYTHONPATH": str(TRAIN.parents[2] / "platform"),
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port()),
    }  # fmt: skip
    return [
        subprocess.Popen(
            [str(python), str(TRAIN)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]


def trained_until(step: int, folder: Path, ranks: int = 2) -> None:
    """Return when every rank has recorded `step`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        files = [folder / f"rank{rank}.jsonl" for rank in range(ranks)]
        if all(path.exists() and f'"step":{step},' in path.read_text() for path in files):
            return
        time.sleep(0.05)
    raise TimeoutError(f"no step {step} in {folder}")


@pytest.mark.thorough
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_ends_the_others(killed: int, tmp_path: Path, python: Path) -> None:
    ranks = started(small_job(MODELS["gpt"], VARIANTS["DP2"], 100_000), tmp_path, python)
    try:
        trained_until(2, tmp_path)
        ranks[killed].kill()
        assert ranks[1 - killed].wait(PATIENCE_SECONDS) != 0
        assert events(tmp_path, 1 - killed)[-1]["event"] != "end"
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.thorough
def test_sigterm_ends_a_rank(tmp_path: Path, python: Path) -> None:
    """JAX's own service would take it for a notice, and go on."""
    ranks = started(small_job(MODELS["gpt"], VARIANTS["DP2"], 100_000), tmp_path, python)
    try:
        trained_until(2, tmp_path)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        assert ranks[0].wait(PATIENCE_SECONDS) == -signal.SIGTERM
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()

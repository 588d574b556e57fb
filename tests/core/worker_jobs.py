"""Jobs for the worker's tests: small, whole, and changed by keyword."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from levelfield.worker import load_job
from levelfield.worker.job import Job

PLATFORM = Path(__file__).parents[2] / "platform"

MODEL = dict(
    family="gpt", layers=2, hidden_size=16, ffn_hidden_size=64, heads=4, kv_heads=4, vocab_size=1000,
    positions="learned", rope_base=None, norm="layernorm", norm_eps=1e-5, activation="gelu", bias=True,
    tied_embeddings=True, hidden_dropout=0.0, attention_dropout=0.0, init_std=0.02, scaled_residual_init=True,
)  # fmt: skip
LLAMA = dict(
    MODEL, family="llama", kv_heads=2, positions="rope", rope_base=5e5, norm="rmsnorm", activation="swiglu",
    bias=False, tied_embeddings=False,
)  # fmt: skip
OPTIMIZER = dict(name="adamw", beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
SCHEDULE = dict(style="cosine", peak_lr=1.2e-4, min_lr=1.2e-5, warmup_steps=188, decay_steps=136314880)


def document(**changes: Any) -> dict[str, Any]:
    """job.json as a dictionary; `changes` replace or, for mappings, update its keys."""
    job: dict[str, Any] = {
        "schema": "levelfield.job/1",
        "run_id": "r",
        "case": "tiny",
        "scale": "smoke",
        "model": dict(MODEL),
        "training": dict(
            steps=4, sequence_length=32, global_batch=8, precision="fp32", seed=42, schedule=SCHEDULE,
            optimizer=OPTIMIZER, loss_scale=None, gradient_clip=1.0,
        ),
        "data": dict(seed=7, shuffle=True, split=[998, 1, 1], alphabet=64, branching=4),
        "corpus": {"kind": "synthetic"},
        "layout": dict(
            data=1, tensor=1, pipeline=1, sequence_parallel=False, sharding_stage=0, sharding_degree=1,
        ),
        "tuning": dict(micro_batch=2, threads=None, recompute="none", compile=False, attention="sdpa"),
        "accumulation": 4,
        "device": "cpu",
        "backend": "gloo",
        "preload": [],
        "gradient_steps": [],
        "capture": None,
        "events_dir": "/nowhere",
        "save_weights_dir": None,
    }  # fmt: skip
    for key, value in changes.items():
        job[key] = {**(job.get(key) or {}), **value} if isinstance(value, dict) else value
    return job


def make_job(folder: Path, **changes: Any) -> Job:
    path = folder / "job.json"
    path.write_text(json.dumps(document(**{"events_dir": str(folder), **changes})))
    return load_job(str(path))


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "LEVELFIELD_JOB": str(folder / "job.json"), "PYTHONPATH": str(PLATFORM)}


def run_main(folder: Path, body: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    """Run `body` as main(job, recorder) in a process of its own."""
    make_job(folder, **changes)
    lines = "\n".join("    " + line for line in body.splitlines())
    script = f"from levelfield.worker import *\nimport os, sys, time\ndef main(job, recorder):\n{lines}\nrun(main)\n"
    return subprocess.run(
        [sys.executable, "-c", script], env=environment(folder), capture_output=True, text=True, timeout=60
    )


def events(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"rank{rank}.jsonl").read_text().splitlines()]

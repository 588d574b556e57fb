#!/usr/bin/env python3
"""models/jax against a plain JAX training loop of the same shape, on this processor, in one run.

Each has a process of its own, compiles once, and both step in turn: forward, backward, clipping to 1.0, AdamW, in fp32
or with bf16 compute over fp32 weights. The plain loop is what a user of JAX writes: one jitted step, a Python loop over
the layers, jax.nn's attention, optax's rules written out. Each figure is the median over the turns; the ratio is the
plain loop's time over ours, turn by turn, so a slow moment hits both. `compile` is each side's time to its first step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levelfield.worker.job import Job

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "models" / "jax"), str(ROOT / "platform"), str(ROOT / "benchmarks" / "loops")]

# hidden, layers, vocabulary, sequence, micro-batch, dtype
SHAPES = ((256, 4, 1024, 128, 8, "fp32"), (512, 4, 8192, 256, 4, "fp32"), (512, 4, 8192, 256, 4, "bf16"))
FIELDS = ("hidden", "layers", "vocabulary", "sequence", "batch", "dtype")
WARM_UP = 2
SIDES = ("ours", "plain")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9, help="steps of each that count (default %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        serve_steps(json.loads(options.one))
        return
    shapes = ((32, 1, 64, 16, 2, "fp32"),) if options.quick else SHAPES
    rows = []
    for values in shapes:
        shape = dict(zip(FIELDS, values, strict=True))
        rows.append(measure({**shape, "threads": options.threads}, 1 if options.quick else options.turns))
        if not options.json:
            print(text(rows[-1]), flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))


def measure(task: dict[str, Any], turns: int) -> dict[str, Any]:
    sides = {name: Side({**task, "side": name}) for name in SIDES}
    try:
        first = {name: side.step() for name, side in sides.items()}
        for side in sides.values():
            for _ in range(WARM_UP):
                side.step()
        times = [tuple(side.step() for side in sides.values()) for _ in range(turns)]
    finally:
        for side in sides.values():
            side.end()
    ours, plain = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(plain_seconds / our_seconds for our_seconds, plain_seconds in times)
    compiled = {f"{name}_first_seconds": seconds for name, seconds in first.items()}
    return {"shape": name_of(task), "ours_ms": ours * 1e3, "plain_ms": plain * 1e3, "ratio": ratio, **compiled}


def name_of(task: dict[str, Any]) -> str:
    return f"h{task['hidden']} v{task['vocabulary']} s{task['sequence']} b{task['batch']} {task['dtype']}"


def text(row: dict[str, Any]) -> str:
    times = f"ours {row['ours_ms']:.0f} ms, plain {row['plain_ms']:.0f} ms, ratio {row['ratio']:.2f}"
    return f"{row['shape']}: {times}; compile {row['ours_first_seconds']:.1f} s, {row['plain_first_seconds']:.1f} s"


class Side:
    """A process that does a step when it reads a line, and answers with the step's seconds."""

    def __init__(self, task: dict[str, Any]) -> None:
        argv = [str(interpreter()), __file__, "--one", json.dumps(task)]
        pipe = subprocess.PIPE
        environment = {**os.environ, "NPROC": str(task["threads"])}
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)

    def step(self) -> float:
        assert self.process.stdin and self.process.stdout and self.process.stderr
        try:
            print("step", file=self.process.stdin, flush=True)
            return float(self.process.stdout.readline())
        except (BrokenPipeError, ValueError):
            sys.exit(f"a side failed:\n{self.process.stderr.read()[-2000:]}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def interpreter() -> Path:
    """JAX's environment, made as for a run."""
    from levelfield.catalog.registry import Registry
    from levelfield.plan.environment import plan_environment
    from levelfield.run.runtimes.environments import use_environment

    implementation, _folder = Registry().implementation("jax")
    plan = plan_environment(
        implementation, "cpu", implementation.requirements["cpu"].environment_packages(), None, "process"
    )
    with use_environment(plan, lambda text: print(text, file=sys.stderr)):
        return Path(plan.python)


def serve_steps(task: dict[str, Any]) -> None:
    step = None
    for _line in sys.stdin:
        begin = time.perf_counter()
        step = step or {"ours": ours, "plain": plain}[task["side"]](task)
        step()
        print(time.perf_counter() - begin, flush=True)


def task_job(task: dict[str, Any]) -> Job:
    """A GPT with tied embeddings, in one process with one micro-batch, as a training has it."""
    from levelfield.worker.job import Job, parse

    hidden = task["hidden"]
    model = {
        "family": "gpt", "layers": task["layers"], "hidden_size": hidden, "ffn_hidden_size": 4 * hidden,
        "heads": hidden // 32, "kv_heads": hidden // 32, "vocab_size": task["vocabulary"],
        "positions": "learned", "rope_base": None, "norm": "layernorm", "norm_eps": 1e-5, "activation": "gelu_tanh",
        "bias": True, "tied_embeddings": True, "hidden_dropout": 0.0, "attention_dropout": 0.0, "init_std": 0.02,
        "scaled_residual_init": True,
    }  # fmt: skip
    training = {
        "steps": 10**6, "sequence_length": task["sequence"], "global_batch": task["batch"], "precision": task["dtype"],
        "optimizer": {"name": "adamw", "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "gradient_clip": 1.0, "seed": 1, "loss_scale": None,
        "schedule": {"style": "cosine", "peak_lr": 1e-4, "min_lr": 1e-5, "warmup_steps": 0, "decay_steps": 10**6},
    }  # fmt: skip
    layout = {"data": 1, "tensor": 1, "pipeline": 1, "sequence_parallel": False, "sharding_stage": 0}
    tuning = {"micro_batch": task["batch"], "recompute": "none", "threads": task["threads"], "compile": False}
    content = {
        "run_id": "benchmark", "case": "benchmark", "scale": "full",
        "model": model, "training": training, "tuning": {**tuning, "attention": "sdpa"},
        "data": {"seed": 1, "shuffle": True, "split": [1.0, 0.0, 0.0], "alphabet": 32, "branching": 4},
        "corpus": {"kind": "synthetic"}, "layout": {**layout, "sharding_degree": 1}, "accumulation": 1,
        "gradient_steps": [], "capture": None, "device": "cpu", "backend": "", "preload": [], "events_dir": "",
        "save_weights_dir": None,
    }  # fmt: skip
    return parse(Job, content, "job")


def tokens_of(task: dict[str, Any]) -> Any:
    import numpy as np

    shape = (1, task["batch"], task["sequence"] + 1)
    return np.random.default_rng(0).integers(0, task["vocabulary"], shape)


def ours(task: dict[str, Any]) -> Any:
    from device import configure
    from levelfield.worker import coordinates
    from levelfield.worker.batches import Batch
    from training import Trainer

    job, tokens = task_job(task), tokens_of(task)
    configure(job)
    trainer = Trainer(job, coordinates(job))
    batch = Batch(1, tokens[..., :-1], tokens[..., 1:], tokens=0, checksum=0)

    def step() -> None:
        trainer.launch(batch)
        trainer.finish(batch)

    return step


def plain(task: dict[str, Any]) -> Any:
    from plain_jax import step_of

    return step_of(task, tokens_of(task)[0].astype("int32"))


if __name__ == "__main__":
    main()

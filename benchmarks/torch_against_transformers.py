#!/usr/bin/env python3
"""models/torch against HuggingFace transformers: a training step of the same shape on this processor or device.

Each has a process of its own and both step in turn: forward, backward, clipping to 1.0, fused AdamW, in fp32
or with bf16 compute over fp32 weights (autocast there). `compiled` is ours only: the tuning `compile`. Each
figure is the median over the turns; the ratio is transformers' time over ours, turn by turn, so a slow moment
hits both. With `--device cuda` theirs is compiled too where ours is, and memory is what is allocated there, else the
resident peak of each process. `of peak`: matmul FLOPs (causal half of attention)
against the best rate of plain products in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("models/torch", "platform", "tests")]

# family, hidden, layers, vocabulary, sequence, micro-batch, dtype, compiled
SHAPES = (
    ("gpt", 256, 4, 1024, 128, 8, "fp32", False),
    ("gpt", 512, 4, 8192, 256, 4, "fp32", False),
    ("gpt", 512, 4, 8192, 256, 4, "fp32", True),
    ("gpt", 768, 4, 16384, 256, 4, "fp32", False),
    ("gpt", 512, 4, 8192, 256, 4, "bf16", False),
    ("gpt", 768, 4, 16384, 256, 4, "bf16", True),
    ("gpt", 768, 4, 50257, 512, 2, "fp32", False),
    ("gpt", 768, 4, 50257, 512, 2, "bf16", True),
    ("llama", 256, 4, 1024, 128, 8, "fp32", False),
    ("llama", 512, 4, 8192, 256, 4, "fp32", False),
    ("llama", 512, 4, 8192, 256, 4, "fp32", True),
    ("llama", 768, 4, 16384, 256, 4, "fp32", False),
    ("llama", 512, 4, 8192, 256, 4, "bf16", False),
    ("llama", 768, 4, 16384, 256, 4, "bf16", True),
    ("llama", 768, 4, 32000, 512, 2, "fp32", True),
    ("llama", 768, 4, 32000, 512, 2, "bf16", True),
)
# On a device of 80 GB, where each turn's two trainers are at the same time
DEVICE_SHAPES = (
    ("gpt", 768, 12, 50304, 1024, 8, "bf16", False),
    ("gpt", 768, 12, 50304, 1024, 8, "bf16", True),
    ("gpt", 2048, 12, 50304, 2048, 4, "bf16", False),
    ("gpt", 2048, 12, 50304, 2048, 4, "bf16", True),
    ("llama", 4096, 2, 128256, 4096, 1, "bf16", False),
    ("llama", 4096, 2, 128256, 4096, 1, "bf16", True),
)
QUICK = (("gpt", 64, 2, 128, 32, 2, "fp32", False), ("llama", 128, 2, 128, 32, 2, "fp32", False))
WARM_UP = 3
PRODUCT_SIZE = {"cpu": 1024, "cuda": 8192}
FIELDS = ("family", "hidden", "layers", "vocabulary", "sequence", "batch", "dtype", "compile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9, help="steps of each that count (default %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", choices=tuple(PRODUCT_SIZE), default="cpu", help="default: %(default)s")
    parser.add_argument("--only", help="shapes whose name contains this")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.turns = 1
    if arguments.one:
        one(json.loads(arguments.one))
        return
    if not arguments.json:
        print(f"{'shape':<38} {'ours':>9} {'theirs':>9} {'ratio':>6} {'of peak':>8} {'memory':>7}")
    rows = []
    shapes = QUICK if arguments.quick else DEVICE_SHAPES if arguments.device == "cuda" else SHAPES
    for shape in (dict(zip(FIELDS, values, strict=True)) for values in shapes):
        if arguments.only and arguments.only not in name_of(shape):
            continue
        rows.append(measure(shape, arguments))
        if not arguments.json:
            print(text(rows[-1]), flush=True)
    print(json.dumps(rows, indent=2) if arguments.json else "memory: our peak over theirs; aims: ratio at least 1.00,")
    if not arguments.json:
        print("1.10 with the best tuning, memory at most 1.00")


def name_of(shape: dict[str, Any]) -> str:
    compiled = " compiled" if shape["compile"] else ""
    sizes = f"h{shape['hidden']} v{shape['vocabulary']} s{shape['sequence']} b{shape['batch']}"
    return f"{shape['family']} {sizes} {shape['dtype']}{compiled}"


def measure(shape: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Two processes, of which one works at a time: each has its own settings and its own memory."""
    task = {**shape, "threads": arguments.threads, "device": arguments.device}
    trainers = {who: Trainer({**task, "who": who}) for who in ("ours", "theirs")}
    try:
        for _ in range(WARM_UP):
            for trainer in trainers.values():  # at the same time: the first step may compile
                trainer.tell("step")
            for trainer in trainers.values():
                trainer.answer()
        turns = [[trainer.ask("step") for trainer in trainers.values()] for _ in range(arguments.turns)]
        peaks = {who: trainer.ask("peak") for who, trainer in trainers.items()}
        product = statistics.median(trainers["ours"].ask("product") for _ in range(5))
    finally:
        for trainer in trainers.values():
            trainer.end()
    own = statistics.median(seconds for seconds, _ in turns)
    return {
        "shape": name_of(shape),
        "ours_ms": own * 1e3,
        "theirs_ms": statistics.median(seconds for _, seconds in turns) * 1e3,
        "ratio": statistics.median(theirs / ours for ours, theirs in turns),
        "of_peak": flops(task) / own / (2 * PRODUCT_SIZE[arguments.device] ** 3 / product),
        "memory_ratio": peaks["ours"] / peaks["theirs"],
    }


class Trainer:
    """A process that does a step, or a product, or tells its peak memory, when asked; it answers with one number."""

    def __init__(self, task: dict[str, Any]) -> None:
        argv = [sys.executable, __file__, "--one", json.dumps(task)]
        self.name, pipe = f"{task['who']} of {name_of(task)}", subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def ask(self, what: str) -> float:
        self.tell(what)
        return self.answer()

    def tell(self, what: str) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):  # the answer says why
            print(what, file=self.process.stdin, flush=True)

    def answer(self) -> float:
        assert self.process.stdout and self.process.stderr
        try:
            return float(self.process.stdout.readline())
        except ValueError:
            sys.exit(f"{self.name} failed:\n{self.process.stderr.read()[-2000:]}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def text(row: dict[str, Any]) -> str:
    return (
        f"{row['shape']:<38} {row['ours_ms']:>6.0f} ms {row['theirs_ms']:>6.0f} ms {row['ratio']:>6.2f} "
        f"{row['of_peak']:>7.0%} {row['memory_ratio']:>7.2f}"
    )


def one(task: dict[str, Any]) -> None:
    import torch

    torch.set_num_threads(task["threads"])
    step = {"ours": ours, "theirs": theirs}[task["who"]](task)
    is_cpu = task["device"] == "cpu"
    answers = {
        "step": lambda: timed(step, task["device"]),
        "product": lambda: timed_product(task["dtype"], task["device"]),
        "peak": resident_peak if is_cpu else torch.cuda.max_memory_allocated,
    }
    for line in sys.stdin:
        print(answers[line.strip()](), flush=True)


def resident_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timed(step: Any, device: str) -> float:
    import torch

    begin = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def timed_product(dtype: str, device: str) -> float:
    """Best of a few products of square matrices: what this processor or device reaches at this moment."""
    import torch

    kind, size = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype], PRODUCT_SIZE[device]
    left, right = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    return min(timed(lambda: left @ right, device) for _ in range(5))


def model_of(task: dict[str, Any]) -> dict[str, Any]:
    gpt, hidden = task["family"] == "gpt", task["hidden"]
    return {
        "family": task["family"],
        "layers": task["layers"],
        "hidden_size": hidden,
        "ffn_hidden_size": 4 * hidden if gpt else hidden * 8 // 3 // 64 * 64,
        "heads": hidden // 64,
        "kv_heads": hidden // 64 if gpt else hidden // 128,
        "vocab_size": task["vocabulary"],
        "positions": "learned" if gpt else "rope",
        "rope_base": None if gpt else 10000.0,
        "norm": "layernorm" if gpt else "rmsnorm",
        "norm_eps": 1e-5,
        "activation": "gelu_tanh" if gpt else "swiglu",
        "bias": gpt,
        "tied_embeddings": gpt,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "init_std": 0.02,
        "scaled_residual_init": True,
    }


def flops(task: dict[str, Any]) -> float:
    """Of one step, by the platform's own `megatron` formula."""
    from levelfield.measure.flops import flops_per_token
    from levelfield.specs.architecture import Model

    model, length = Model.model_validate(model_of(task)), task["sequence"]
    return task["batch"] * length * flops_per_token("megatron", model, length)


def job_of(task: dict[str, Any]) -> SimpleNamespace:
    """The job as a training reads it: what the file leaves out has its default there, also what comes later."""
    from levelfield.worker import load_job
    from levelfield.worker.job import SCHEMA

    training = {
        "steps": 10**6,
        "sequence_length": task["sequence"],
        "global_batch": task["batch"],
        "precision": task["dtype"],
        "optimizer": {"name": "adamw", "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "schedule": {"style": "cosine", "peak_lr": 1e-4, "min_lr": 1e-5, "warmup_steps": 0, "decay_steps": 10**6},
        "loss_scale": None,
        "gradient_clip": 1.0,
        "seed": 1,
    }
    layout = {"data": 1, "tensor": 1, "pipeline": 1, "sequence_parallel": False}
    tuning = {"micro_batch": task["batch"], "recompute": "none", "compile": task["compile"], "attention": "sdpa"}
    content = {
        "schema": SCHEMA,
        "model": model_of(task),
        "training": training,
        "layout": {**layout, "sharding_stage": 0, "sharding_degree": 1},
        "tuning": tuning,
        "accumulation": 1,
        "gradient_steps": [],
        "capture": None,
        "device": task["device"],
        "backend": {"cpu": "gloo", "cuda": "nccl"}[task["device"]],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(content, file)
        file.flush()
        return load_job(file.name)


def tokens_of(task: dict[str, Any]) -> Any:
    import torch

    shape = (task["batch"], task["sequence"] + 1)
    return torch.randint(0, task["vocabulary"], shape, generator=torch.Generator().manual_seed(0))


def ours(task: dict[str, Any]) -> Any:
    from device import open_device
    from levelfield.worker import coordinates
    from training import Trainer

    job, tokens = job_of(task), tokens_of(task)[None]
    trainer = Trainer(job, coordinates(job), open_device(job))
    batch = SimpleNamespace(
        step=1, inputs=tokens[..., :-1].numpy().copy(), targets=tokens[..., 1:].numpy().copy(), tokens=0, checksum=0
    )

    def step() -> None:
        trainer.launch(batch)
        trainer.finish(batch)

    return step


def theirs(task: dict[str, Any]) -> Any:
    import torch
    from huggingface_classes import hf_config
    from levelfield.specs.architecture import Model
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**hf_config(Model.model_validate(model_of(task)), task["sequence"]))
    device = task["device"]
    model, tokens = AutoModelForCausalLM.from_config(config).to(device).train(), tokens_of(task)[:, :-1].to(device)
    wide = [p for p in model.parameters() if p.dim() > 1]
    narrow = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": wide, "weight_decay": 0.1}, {"params": narrow, "weight_decay": 0.0}]
    compiled = torch.compile(model) if task["compile"] and device == "cuda" else model
    adamw = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=task["dtype"] == "bf16"):
            loss = compiled(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    return step


if __name__ == "__main__":
    main()

"""One trainer of benchmarks/torch_step.py in a process of its own: it answers each line of its input with JSON.

All do the same work: tokens to the device, forward, backward, clipping to a norm of 1, fused AdamW. A step is launched
as a whole; loss and norm are read at its end, which is its only wait.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from levelfield.worker.job import Job

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [str(ROOT / folder) for folder in ("models/torch", "platform", "tools", "benchmarks/loops")]
LAUNCHES = ("kernel", "product", "graph")  # the stand-in's words for what a device would run
NEEDS = {"liger": ("triton", "liger_kernel", "transformers"), "transformers": ("transformers",)}


class Step(NamedTuple):
    """launch: starts a step and returns what `read` turns into its loss and gradient norm, for which it waits."""

    launch: Callable[[], Any]
    read: Callable[[Any], tuple[float, float]]


def main() -> None:
    task, answers = json.loads(sys.argv[1]), sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints is no answer
    sys.path[:0] = FOLDERS
    import torch

    torch.set_num_threads(task["threads"])
    torch.manual_seed(1)  # an eager step and one as a CUDA graph begin with the same weights
    if pretended():
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans its kernels for a real device
    step = TRAINERS[task["who"]](task)
    questions = {
        "step": lambda: timed(step),
        "launches": lambda: launches(step, task["device"]),
        "peak_bytes": lambda: peak_bytes(task["device"]),
        "device_bytes": lambda: torch.cuda.mem_get_info()[1],
        "product_rate": lambda: product_rate(task["dtype"], task["device"], task["probe_seconds"]),
    }
    for line in sys.stdin:
        print(json.dumps(questions[line.strip()]()), file=answers, flush=True)


def why_not(who: str, task: dict[str, Any]) -> str | None:
    """Return why this trainer cannot run the task, or None. Imports nothing."""
    missing = [name for name in NEEDS.get(who, ()) if importlib.util.find_spec(name) is None]
    if missing:
        return f"this Python has no {' and no '.join(missing)}"
    if who == "liger" and task["device"] == "cpu":
        return "liger-kernel's kernels are for accelerators"
    if who == "liger" and task["family"] == "gpt":
        return "liger-kernel has no kernels for transformers' gpt2"
    if who == "liger" and task["compile"] and pretended():
        return "liger-kernel's cross-entropy reads the targets from the device, and a pretended one has none"
    return None


def timed(step: Step) -> dict[str, float]:
    """One step: seconds until it was launched, and until its figures were here.

    On a pretended device these are processor time, which other programs on this machine lengthen less.
    """
    now = time.process_time if pretended() else time.perf_counter
    begin = now()
    running = step.launch()
    launched = now()
    loss, norm = step.read(running)
    return {"seconds": now() - begin, "host_seconds": launched - begin, "loss": loss, "norm": norm}


def pretended() -> str | None:
    """Return the chip of the stand-in for CUDA where it is loaded (tools/standin), else None."""
    key = getattr(ctypes.CDLL(None), "levelfield_pretended", None)
    if key is None:
        return None
    key.restype = ctypes.c_char_p
    return key().decode()


def launches(step: Step, device: str) -> int | None:
    """How often the host starts work on the device in a step. A CUDA graph counts once; copies do not count."""
    if device == "cpu":
        return None
    return pretended_launches(step) if pretended() else device_launches(step)


def pretended_launches(step: Step) -> int:
    library = ctypes.CDLL(None)
    library.standin_reset()
    running = step.launch()
    with tempfile.NamedTemporaryFile() as file:
        if library.standin_dump(file.name.encode()):
            raise OSError(f"{file.name}: the stand-in's books cannot be written")
        entries = json.loads(Path(file.name).read_text())["entries"]
    step.read(running)
    return sum(count for kind, _, count, *_ in entries if kind in LAUNCHES)


def device_launches(step: Step) -> int:
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as record:
        step.read(step.launch())
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        record.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    return len({event["args"]["correlation"] for event in events if event.get("cat") == "kernel"})


def peak_bytes(device: str) -> int:
    import torch

    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return torch.cuda.max_memory_allocated()


def product_rate(dtype: str, device: str, seconds: float) -> float | None:
    """FLOP/s of the best plain product here, by the faster library of those that torch has; None where none is real."""
    if pretended():
        return None
    import torch
    from levelfield.worker import best_product_rate
    from peak import DTYPES, ways

    def arranged(*shape: int) -> Any:
        return ways(device, DTYPES[dtype], *shape)

    wait = None if device == "cpu" else lambda _: torch.cuda.synchronize()
    return best_product_rate(arranged, device, seconds, wait)["tflops"] * 1e12


def model_of(task: dict[str, Any]) -> dict[str, Any]:
    gpt, hidden = task["family"] == "gpt", task["hidden"]
    # Llama 3 8B's block is 4096 wide; narrower ones are for processors
    wide = {"heads": 32, "kv_heads": 8, "ffn_hidden_size": 14336}
    narrow = {"heads": hidden // 64, "kv_heads": hidden // 128, "ffn_hidden_size": hidden * 8 // 3 // 64 * 64}
    of_gpt = {"heads": hidden // 64, "kv_heads": hidden // 64, "ffn_hidden_size": 4 * hidden}
    return {
        "family": task["family"],
        "layers": task["layers"],
        "hidden_size": hidden,
        **(of_gpt if gpt else wide if hidden == 4096 else narrow),
        "vocab_size": task["vocabulary"],
        "positions": "learned" if gpt else "rope",
        "rope_base": None if gpt else 500000.0,
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


def tokens_of(task: dict[str, Any]) -> Any:
    import torch

    shape = (task["batch"], task["sequence"] + 1)
    return torch.randint(0, task["vocabulary"], shape, generator=torch.Generator().manual_seed(0))


# -- ours
def task_job(task: dict[str, Any]) -> Job:
    """The job as a training has it, without the parts that came after the first cases."""
    from levelfield.worker.job import Job, parse

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
    tuning |= {"graph": task["graph"], "threads": None}
    content = {
        "run_id": "benchmark",
        "case": "benchmark",
        "scale": "full",
        "model": model_of(task),
        "training": training,
        "layout": {**layout, "sharding_stage": 0, "sharding_degree": 1},
        "tuning": tuning,
        "data": {"seed": 1, "shuffle": True, "split": [1.0, 0.0, 0.0], "alphabet": 32, "branching": 4},
        "corpus": {"kind": "synthetic"},
        "accumulation": 1,
        "gradient_steps": [],
        "capture": None,
        "device": task["device"],
        "backend": {"cpu": "gloo", "cuda": "nccl"}[task["device"]],
        "preload": [],
        "events_dir": "",
        "save_weights_dir": None,
    }
    return parse(Job, content, "job")


def ours(task: dict[str, Any]) -> Step:
    import torch
    from device import open_device
    from levelfield.worker import Initializer, coordinates
    from levelfield.worker.batches import Batch
    from parallelism.parallelize import check
    from training import Trainer

    Initializer.array = leave_out_matrices(Initializer.array)  # type: ignore[method-assign]
    job, tokens = task_job(task), tokens_of(task)[None]
    check(job)
    trainer = Trainer(job, coordinates(job), open_device(job))
    for parameter in trainer.model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=job.model.init_std)
    inputs, targets = tokens[..., :-1].numpy().copy(), tokens[..., 1:].numpy().copy()
    batch = Batch(0, inputs, targets, tokens=0, checksum=0)

    def launch() -> None:
        nonlocal batch
        batch = batch._replace(step=batch.step + 1)
        trainer.launch(batch)

    def read(_: None) -> tuple[float, float]:
        facts = trainer.finish(batch)
        return facts["loss"], facts["grad_norm"]

    return Step(launch, read)


def leave_out_matrices(array: Callable[..., Any]) -> Callable[..., Any]:
    """`Initializer.array` that leaves matrices zero: generating them on the host takes longer than all steps."""
    import numpy as np

    def some(self: Any, name: str, shape: Any, *more: Any) -> Any:
        return np.zeros(shape, np.float32) if len(shape) > 1 else array(self, name, shape, *more)

    return some


# -- peers
def transformers(task: dict[str, Any]) -> Step:
    from transformers import AutoModelForCausalLM

    return huggingface(task, AutoModelForCausalLM)


def liger(task: dict[str, Any]) -> Step:
    from liger_kernel.transformers import AutoLigerKernelForCausalLM

    # torch.compile has no code for the sums of Liger's joined head and loss; its cross-entropy alone it takes
    apart = {"fused_linear_cross_entropy": False, "cross_entropy": True} if task["compile"] else {}
    return huggingface(task, AutoLigerKernelForCausalLM, **apart)


def huggingface(task: dict[str, Any], maker: Any, **options: Any) -> Step:
    import torch
    from huggingface_classes import hf_config
    from levelfield.specs.architecture import Model
    from transformers import AutoConfig, masking_utils

    if pretended() and not task["compile"]:  # it would read from the device that no sequences are packed
        masking_utils.find_packed_sequence_indices = lambda position_ids: None
    config = AutoConfig.for_model(**hf_config(Model.model_validate(model_of(task)), task["sequence"]))
    with torch.device(task["device"]):
        model = maker.from_config(config, **options).train()
    tokens, compiled = tokens_of(task)[:, :-1], compiled_if_wanted(model, task)
    return peer(task, model, (tokens,), lambda ids: compiled(input_ids=ids, labels=ids, use_cache=False).loss)


def plain(task: dict[str, Any]) -> Step:
    import torch
    from plain_torch import PlainModel

    with torch.device(task["device"]):
        model = PlainModel(model_of(task), task["sequence"])
    tokens = tokens_of(task)
    return peer(task, model, (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()), compiled_if_wanted(model, task))


def compiled_if_wanted(model: Any, task: dict[str, Any]) -> Any:
    """The whole model compiled where ours is compiled, with CUDA graphs where ours is a CUDA graph."""
    import torch

    return torch.compile(model, mode="reduce-overhead" if task["graph"] else None) if task["compile"] else model


def peer(task: dict[str, Any], model: Any, tokens: tuple[Any, ...], loss_of: Callable[..., Any]) -> Step:
    import torch

    device, matrices = task["device"], [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
    host_tokens = tokens if device == "cpu" else [tensor.pin_memory() for tensor in tokens]

    def launch() -> tuple[Any, Any]:
        device_tokens = [tensor.to(device, non_blocking=True) for tensor in host_tokens]
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device, torch.bfloat16, enabled=task["dtype"] == "bf16"):
            loss = loss_of(*device_tokens)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        return loss.detach(), norm

    def read(figures: tuple[Any, Any]) -> tuple[float, float]:
        loss, norm = torch.stack(figures).tolist()
        return loss, norm

    return Step(launch, read)


TRAINERS: dict[str, Callable[[dict[str, Any]], Step]] = {
    "ours": ours, "transformers": transformers, "liger": liger, "plain": plain,
}  # fmt: skip

if __name__ == "__main__":
    main()

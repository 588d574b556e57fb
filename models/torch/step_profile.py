"""Steps recorded by torch's profiler (Kineto), with the part of each module in them. DeepSpeed's trainings share it.

Only a training that is asked to explain its step imports this file. Nothing here stays on the model: hooks and wrapped
methods are put on for one step and taken off after it. docs/explain.md says what the spans mean.
"""

import contextlib
import functools
import gzip
import hashlib
import os
import re
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

# torch's own record_function is an operation, and selective recomputation wants the same operations twice
Span = getattr(torch._C._profiler, "_RecordFunctionFast", record_function)

# The part that each module of model/decoder.py belongs to, by the end of its name; the longest end counts.
PARTS = {
    "embedding": "embedding",
    "position": "embedding",
    "attention": "elementwise",  # what it does besides its products and its core: the rotation
    "attention.query": "attention projections",
    "attention.key": "attention projections",
    "attention.value": "attention projections",
    "attention.output": "attention projections",
    "mlp": "mlp",
    "head": "head and loss",
}
MIXTURE = {"mlp.router": "router", "mlp.experts": "experts", "mlp.shared": "experts", "mlp": "router"}
LATENT = ("query_down", "query_up", "latent_down", "latent_up", "key_up", "value_up")
# What a record names besides: the host and the path of its file
NAMES = re.compile(rb'("(?:host_name|traceName)": ")[^"]*"')
# Methods of a training that are a part by themselves: (the path to the method, the part)
METHODS = (
    ("optimizer.take_gradients", "optimizer"),
    ("optimizer.step", "optimizer"),
    ("optimizer.drop_gradients", "optimizer"),
    ("optimizer.squares", "gradient clipping"),
    ("reduce", "gradient clipping"),
    ("clip", "gradient clipping"),
    ("casts.make", "elementwise"),
    ("model.embed", "embedding"),
    ("model.scores", "head and loss"),  # also where the embedding is the head
    ("engine.step", "optimizer"),
    ("engine.optimizer.scaled_global_norm", "gradient clipping"),
    ("engine.optimizer.unscale_and_clip_grads", "gradient clipping"),
)


def open_profile(job, trainer):
    return TorchProfile(job, trainer)


class TorchProfile:
    """One rank's recorded steps. levelfield.worker.step_profile says what each method is for."""

    def __init__(self, job, trainer):
        self.job, self.trainer, self.kept = job, trainer, []

    def align(self):
        if self.job.device != "cpu":
            torch.get_device_module(self.job.device).synchronize()
        if self.job.world_size > 1:
            dist.barrier()

    @contextlib.contextmanager
    def recording(self, number):
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.job.device == "cuda" else [])]
        with contextlib.ExitStack() as stack:
            # the arguments' shapes give the dtypes of what a kernel computed
            recorded = stack.enter_context(profile(activities=activities, record_shapes=True))
            self.align()  # the profiler's start takes another time on each rank
            stack.enter_context(named_parts(self.trainer, bool(self.job.tuning.compile)))
            yield
        self.kept.append((number, recorded))

    def span(self, name):
        return Span(f"lf/{name}")

    def save(self, folder, most_bytes):
        files, left_out = {}, []
        for number, recorded in self.kept:
            path = Path(folder) / f"rank{self.job.rank}.step{number}.json.gz"
            if digest := write(recorded, path, most_bytes):
                files[path.name] = digest
            else:
                left_out.append(path.name)
        self.kept.clear()
        return {"files": files, "left_out": left_out, "profiler": f"Kineto of torch {torch.__version__}"}


def write(recorded, path, most_bytes):
    """Write a record compressed, with the number of its node in place of names and paths. Returns the file's sha256;
    None for a larger one, which is not kept."""
    plain = path.with_suffix("")
    recorded.export_chrome_trace(str(plain))
    try:
        with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=3) as target:
            for line in source:
                target.write(NAMES.sub(named_by_number, line))
    finally:
        plain.unlink()
    if path.stat().st_size > most_bytes:
        path.unlink()
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()


def named_by_number(found):
    return found[1] + os.environ.get("NODE_RANK", "0").encode() + b'"'


@contextlib.contextmanager
def named_parts(trainer, compiled):
    """While the context lasts, each module and each method with a part is a span `lf/PART/NAME` in the record."""
    model, put = trainer.model, []
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            part = part_of(name, module)
            inside = compiled and name.startswith("layers.") and name.count(".") > 1
            if part is None or inside:  # hooks inside of a compiled block would compile it again
                continue
            stack.enter_context(spanned(module, f"lf/{part}/{name}"))
            if hasattr(module, "attend"):
                core = f"lf/attention core/{name}"
                stack.enter_context(replaced(module, "attend", core))
        for path, part in METHODS:
            *owners, method = path.split(".")
            owner = functools.reduce(lambda found, each: getattr(found, each, None), owners, trainer)
            if callable(getattr(owner, method, None)):
                stack.enter_context(replaced(owner, method, f"lf/{part}/{path}"))
        yield put


def part_of(name, module):
    """The part of a module; None of one that is only a container."""
    ends = {**PARTS, **(MIXTURE if hasattr(module, "tally") or ".mlp." in name else {})}
    last = name.rsplit(".", 1)[-1]
    if last in LATENT:
        return "attention projections"
    if "norm" in last:
        return "elementwise"
    found = [end for end in ends if name == end or name.endswith(f".{end}")]
    if not found and name.count(".") == 1 and name.startswith("layers."):
        return "elementwise"  # a block by itself adds up
    return ends[max(found, key=len)] if found else None


@contextlib.contextmanager
def spanned(module, name):
    """A span around each forward pass of the module."""
    spans = []

    def begin(_module, _inputs):
        spans.append(Span(name))
        spans[-1].__enter__()

    def end(_module, _inputs, _output):
        spans.pop().__exit__(None, None, None)

    hooks = [
        module.register_forward_pre_hook(begin, prepend=True),
        module.register_forward_hook(end, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def replaced(owner, method, name):
    """A span around each call of a method of one object."""
    had, own = method in vars(owner), getattr(owner, method)

    @functools.wraps(own)
    def call(*arguments, **named):
        with Span(name):
            return own(*arguments, **named)

    setattr(owner, method, call)
    try:
        yield
    finally:
        setattr(owner, method, own) if had else delattr(owner, method)

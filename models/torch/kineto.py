"""Steps recorded by torch's profiler (Kineto), with the part of each module in them, for every framework on torch.

Only a training that is asked to explain its step imports this file. Nothing here stays on a model: hooks and wrapped
methods are put on for one step and taken off after it. docs/explain.md says what the spans mean.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from pathlib import Path

import torch
import torch.distributed as dist
from levelfield.worker.job import Job
from levelfield.worker.step_profile import replaced
from repeats import measure
from torch.profiler import ProfilerActivity, profile, record_function

# torch's own record_function is an operation, and selective recomputation wants the same operations twice
Span = getattr(torch._C._profiler, "_RecordFunctionFast", record_function)

# What a record names besides: the host and the path of its file
NAMES = re.compile(rb'("(?:host_name|traceName)": ")[^"]*"')


class TorchProfile:
    """One rank's recorded steps. levelfield.worker.step_profile says what each method is for.

    modules: (name, part, module) of each module with a part. methods: (the path from the trainer to one, its part).
    """

    profiler = f"Kineto of torch {torch.__version__}"

    def __init__(self, job: Job, trainer, scratch, modules, methods):
        self.job, self.trainer, self.scratch, self.methods = job, trainer, scratch, methods
        self.kept: list[tuple[int, Path]] = []  # a recorded step and its file
        self.modules = as_compiled(modules) if job.tuning.compile else modules

    def align(self):
        if self.job.device != "cpu":
            torch.get_device_module(self.job.device).synchronize()
        if self.job.world_size > 1:
            dist.barrier()

    @contextlib.contextmanager
    def recording(self, number):
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.job.device == "cuda" else [])]
        with contextlib.ExitStack() as stack:
            # The types and sizes of arguments: noting them slows what allocates memory, GELU by half. So one step that
            # does not count has them for the others.
            recorded = stack.enter_context(profile(activities=activities, record_shapes=number == 0))
            self.align()  # the profiler's start takes another time on each rank
            self.name_parts(stack)
            yield
        # Now, because the next record takes over the memory of this one's kernels: they then have no time.
        path = self.scratch / f"trace{number}.json"
        recorded.export_chrome_trace(str(path))
        self.kept.append((number, path))

    def name_parts(self, stack):
        """Until the stack is left, each module and each method with a part is a span `lf/PART/NAME` in the record."""
        for name, part, module in self.modules:
            stack.enter_context(spanned(module, f"lf/{part}/{name}"))
            if hasattr(module, "attend"):
                stack.enter_context(around(module, "attend", f"lf/attention core/{name}"))
        for path, part in self.methods:
            *owners, method = path.split(".")
            owner = functools.reduce(member, owners, self.trainer)
            if callable(getattr(owner, method, None)):
                stack.enter_context(around(owner, method, f"lf/{part}/{path}"))

    def span(self, name):
        return Span(f"lf/{name}")

    def alone(self, step):
        """A compiled block has no operations of torch that could be repeated."""
        if self.job.tuning.compile:
            return {"left_out": ["compiled blocks"]}
        self.align()
        on = self.job.device
        return measure(torch.device(on, None if on == "cpu" else torch.get_device_module(on).current_device()), step)

    def traces(self):
        """The number of the node stands in place of names and paths."""
        for number, path in self.kept:
            with path.open("rb") as source:
                yield number, (NAMES.sub(named_by_number, line) for line in source)


def as_compiled(modules):
    """Without what is inside of a compiled block: hooks there would compile it again, and its kernels join modules. So
    which part the work of a block is nobody says."""
    parts = [entry for entry in modules if not entry[0].startswith("layers.") or entry[0].count(".") == 1]
    return [(name, "unexplained" if name.startswith("layers.") else part, module) for name, part, module in parts]


def named_by_number(match):
    return match[1] + os.environ.get("NODE_RANK", "0").encode() + b'"'


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


def around(owner, method, name):
    """A span around each call of a method of one object, until the context is left."""
    original = getattr(owner, method)

    @functools.wraps(original)
    def call(*arguments, **options):
        with Span(name):
            return original(*arguments, **options)

    return replaced(owner, method, call)


def member(owner, name):
    """An attribute, or an item of a list by its number; None where there is none."""
    return owner[int(name)] if name.isdecimal() else getattr(owner, name, None)

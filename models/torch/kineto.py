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
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from levelfield.worker.job import Job
from levelfield.worker.step_profile import replaced
from repeats import measure
from torch.profiler import ProfilerActivity, profile, record_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    Entry = tuple[str, str, nn.Module]  # a module's name, its part and itself

# torch's own record_function is an operation, and selective recomputation wants the same operations twice
Span = getattr(torch._C._profiler, "_RecordFunctionFast", record_function)

# What a record names besides: the host and the path of its file
NAMES = re.compile(rb'("(?:host_name|traceName)": ")[^"]*"')


class TorchProfile:
    """One rank's recorded steps. levelfield.worker.step_profile says what each method is for.

    modules: (name, part, module) of each module with a part. methods: (the path from the trainer to one, its part).
    """

    profiler = f"Kineto of torch {torch.__version__}"

    def __init__(
        self,
        job: Job,
        trainer: Any,
        scratch: Path,
        modules: Sequence[Entry],
        methods: Sequence[tuple[str, str]],
    ) -> None:
        self.job, self.trainer, self.scratch, self.methods = job, trainer, scratch, methods
        self.recorded_files: list[tuple[int, Path]] = []  # a recorded step and its file
        self.modules = outside_compiled_blocks(modules) if job.tuning.compile else modules

    def align(self) -> None:
        if self.job.device != "cpu":
            torch.get_device_module(self.job.device).synchronize()
        if self.job.world_size > 1:
            dist.barrier()

    @contextlib.contextmanager
    def recording(self, number: int) -> Iterator[None]:
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
        self.recorded_files.append((number, path))

    def name_parts(self, stack: contextlib.ExitStack) -> None:
        """Record each module and each method that has a part as a span `lf/PART/NAME`, until the stack is left."""
        for name, part, module in self.modules:
            stack.enter_context(module_spans(module, f"lf/{part}/{name}"))
            if hasattr(module, "attend"):
                stack.enter_context(method_spans(module, "attend", f"lf/attention core/{name}"))
        for path, part in self.methods:
            *owners, method = path.split(".")
            owner = functools.reduce(member, owners, self.trainer)
            if callable(getattr(owner, method, None)):
                stack.enter_context(method_spans(owner, method, f"lf/{part}/{path}"))

    def span(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return Span(f"lf/{name}")

    def alone(self, step: Callable[[], object]) -> dict[str, Any]:
        """Run one step more and return what its operations take alone.

        A compiled block has no operations of torch that could be repeated.
        """
        if self.job.tuning.compile:
            return {"left_out": ["compiled blocks"]}
        self.align()
        on = self.job.device
        return measure(torch.device(on, None if on == "cpu" else torch.get_device_module(on).current_device()), step)  # type: ignore[arg-type]

    def traces(self) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield each recorded step and the lines of its record, with the node's number in place of names and paths."""
        for number, path in self.recorded_files:
            with path.open("rb") as source:
                yield number, (NAMES.sub(use_node_number, line) for line in source)


def outside_compiled_blocks(modules: Sequence[Entry]) -> list[Entry]:
    """Return the modules without those inside of a compiled block, whose work has no part.

    Hooks there would compile the block again, and its kernels join modules.
    """
    parts = [entry for entry in modules if not entry[0].startswith("layers.") or entry[0].count(".") == 1]
    return [(name, "unexplained" if name.startswith("layers.") else part, module) for name, part, module in parts]


def use_node_number(match: re.Match[bytes]) -> bytes:
    return match[1] + os.environ.get("NODE_RANK", "0").encode() + b'"'


@contextlib.contextmanager
def module_spans(module: nn.Module, name: str) -> Iterator[None]:
    """Record a span around each forward pass of the module while the context lasts."""
    spans: list[Any] = []

    def begin(_module: nn.Module, _inputs: object) -> None:
        spans.append(Span(name))
        spans[-1].__enter__()

    def end(_module: nn.Module, _inputs: object, _output: object) -> None:
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


def method_spans(owner: object, method: str, name: str) -> contextlib.AbstractContextManager[None]:
    """Record a span around each call of a method of one object, until the context is left."""
    original = getattr(owner, method)

    @functools.wraps(original)
    def call(*arguments, **options):  # type: ignore[no-untyped-def]
        with Span(name):
            return original(*arguments, **options)

    return replaced(owner, method, call)


def member(owner: Any, name: str) -> Any:
    """Return an attribute, or an item of a list by its number; None where there is none."""
    return owner[int(name)] if name.isdecimal() else getattr(owner, name, None)

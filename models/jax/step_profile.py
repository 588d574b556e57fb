"""Steps recorded by JAX's profiler, with the part of each of XLA's operations.

Only a training that is asked to explain its step imports this file. The training's own program stays as it is: for the
recorded steps it is compiled once more, from the same functions in named scopes. Scopes change the names in a program
and nothing else. An operation of the record has the name of an instruction; the compiled program tells its scope.
docs/explain.md says what a record holds.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import attention
import decoder
import jax
import numpy as np
import program
from jax import numpy as jnp
from jax.experimental import multihost_utils
from levelfield.worker.step_profile import replaced
from sharding import Sharding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from levelfield.worker.architecture import Model
    from levelfield.worker.job import Job
    from training import Trainer

    Computation = Callable[..., Any]
    Operation = dict[str, str]  # what a record says of an operation

BLOCKS = "layers.*"  # one program serves all layers: a place is that of every layer
# What is put in a scope: (owner, function, part, place).
SCOPES = (
    (program.Program, "gradients", "elementwise", "gradients"),  # also what the loops over rows copy
    (decoder.Decoder, "embed", "embedding", "embedding"),
    (decoder.Decoder, "block", "elementwise", BLOCKS),
    (decoder.Decoder, "rotary", "elementwise", f"{BLOCKS}.attention"),
    (decoder.Decoder, "head_loss", "head and loss", "head"),
    (decoder, "attention", "elementwise", f"{BLOCKS}.attention"),  # what it does besides its products and its core
    (attention, "mix", "attention core", f"{BLOCKS}.attention"),
    (decoder, "mlp", "mlp", f"{BLOCKS}.mlp"),
    (Sharding, "step_weights", "elementwise", "casts"),
    (Sharding, "layer_weights", "elementwise", "casts"),
    (Sharding, "outer_weights", "elementwise", "casts"),
    (program.Program, "square_shares", "gradient clipping", "norm"),
    (program, "clip_gradients", "gradient clipping", "clip"),
    (program, "adamw", "optimizer", "optimizer.step"),
)
SCOPE = re.compile(r"lf:([^:/()]+):([^:/()]*)")
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%(?P<name>[^ ]+) = (?P<shape>.*?) (?P<opcode>[\w-]+)\((?P<rest>.*)$")
COMPUTATION = re.compile(r"^(?:ENTRY )?%([^ ]+) \(.*\{$")
CALLS = re.compile(r"calls=%([^ ,)}]+)")
OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
MESSAGE_GROUPS = re.compile(
    r"replica_groups=(?:\{(?P<list>\{[\d,{}]*\})\}|\[(?P<shape>[\d,]+)\]<=\[(?P<of>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?)"
)
PRODUCTS = ("dot", "convolution")
CONTROL = ("while", "call", "conditional")  # their bodies are operations by themselves
MESSAGES = {  # by XLA's name, the name that is recorded
    "all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all", "collective-permute": "send", "collective-broadcast": "broadcast",
}  # fmt: skip
END_PREFIX = "end: "
TYPES = {"f32": "float", "f64": "double", "bf16": "c10::BFloat16", "f16": "c10::Half"}  # as torch names them


def open_profile(job: Job, trainer: Trainer, scratch: Path) -> JaxProfile:
    return JaxProfile(job, trainer, scratch)


class JaxProfile:
    """One rank's recorded steps. levelfield.worker.step_profile says what each method is for."""

    profiler = f"XLA's of jax {jax.__version__}"

    def __init__(self, job: Job, trainer: Trainer, scratch: Path) -> None:
        self.job, self.trainer, self.scratch = job, trainer, scratch
        self.recorded_folders: list[tuple[int, Path]] = []
        self.scoped_step: jax.stages.Compiled | None = None

    def align(self) -> None:
        jax.block_until_ready(self.trainer.state)
        if self.job.world_size > 1:
            multihost_utils.sync_global_devices("levelfield")

    @contextlib.contextmanager
    def recording(self, number: int) -> Iterator[None]:
        if self.scoped_step is None:
            self.scoped_step = compile_in_scopes(self.trainer)
        folder = self.scratch / str(number)
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # its calls would slow the host down
        options.enable_hlo_proto = False
        plain_step = self.trainer.step
        self.trainer.step = self.scoped_step
        try:
            with jax.profiler.trace(folder, profiler_options=options):
                self.align()  # the profiler's start takes another time on each rank
                yield
        finally:
            self.trainer.step = plain_step
        self.recorded_folders.append((number, folder))

    def span(self, name: str) -> AbstractContextManager[Any]:
        annotation: AbstractContextManager[Any] = jax.profiler.TraceAnnotation(f"lf/{name}")
        return annotation

    def traces(self) -> Iterator[tuple[int, list[bytes]]]:
        if self.scoped_step is None:
            return
        operations = read_operations(self.scoped_step.as_text(), self.job.rank)
        for number, folder in self.recorded_folders:
            (source,) = folder.glob("plugins/profile/*/*.xplane.pb")
            trace = make_trace(jax.profiler.ProfileData.from_file(str(source)), operations)
            yield number, [json.dumps(trace).encode()]


# ---- the program with names


def compile_in_scopes(trainer: Trainer) -> jax.stages.Compiled:
    """Compile the training's program with its functions in named scopes. The functions are as before afterwards."""
    job = trainer.job
    shape = (job.accumulation, job.tuning.micro_batch, job.training.sequence_length)
    rows = jnp.zeros(shape, "int32")
    with contextlib.ExitStack() as stack:
        for owner, name, part, place in SCOPES:
            stack.enter_context(replaced(owner, name, add_scope(getattr(owner, name), part, place)))
        stack.enter_context(replaced(attention, "named_linear", scope_linear(attention.named_linear)))
        stack.enter_context(replaced(decoder, "norm", scope_norm(decoder.norm)))
        return trainer.program.compile_step(trainer.state, trainer.program.batch((rows, rows)), trainer.step_inputs(1))


def scope(part: str, place: str) -> AbstractContextManager[Any]:
    named_scope: AbstractContextManager[Any] = jax.named_scope(f"lf:{part}:{place}")
    return named_scope


def add_scope(function: Computation, part: str, place: str) -> Computation:
    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with scope(part, place):
            return function(*arguments)

    return call


def scope_norm(norm: Computation) -> Computation:
    def call(model: Model, x: jax.Array, weights: Mapping[str, jax.Array], name: str, *samples: Any) -> jax.Array:
        with scope("elementwise", name if name == "final_norm" else f"{BLOCKS}.{name}"):
            return norm(model, x, weights, name, *samples)

    return call


def scope_linear(linear: Computation) -> Computation:
    """Return the products of attention in scopes by the names of their layers."""

    def call(name: str, *arguments: Any, **options: Any) -> jax.Array:
        with scope("attention projections", f"{BLOCKS}.{name}"):
            return linear(name, *arguments, **options)

    return call


# ---- the operations of the compiled program


class Instruction(NamedTuple):
    """rest: its operands and attributes. op_name: the path of scopes that it came from. calls: a fusion's inside."""

    name: str
    opcode: str
    shape: str
    rest: str
    op_name: str
    calls: str


def read_operations(text: str, rank: int) -> dict[str, Operation]:
    """Return what a record says of each operation of a compiled program, by the name of its instruction."""
    computations: dict[str, list[Instruction]] = {}
    for line in text.splitlines():
        if head := COMPUTATION.match(line):
            instructions = computations.setdefault(head[1], [])
        elif match := INSTRUCTION.match(line):
            rest = match["rest"]
            op_name, calls = (pattern.search(rest) for pattern in (OP_NAME, CALLS))
            origin = (op_name[1] if op_name else "", calls[1] if calls else "")
            instructions.append(Instruction(match["name"], match["opcode"], match["shape"], rest, *origin))
    operations = {
        instruction.name: describe_operation(instruction, computations, rank)
        for instruction in itertools.chain(*computations.values())
    }
    return {name: operation for name, operation in operations.items() if operation}


def describe_operation(
    instruction: Instruction, computations: Mapping[str, Sequence[Instruction]], rank: int
) -> Operation | None:
    """Return the part, place, phase and type of an operation, or a message's kind and ranks; None for a loop."""
    if instruction.opcode in CONTROL:
        return None
    if message := next((kind for kind in MESSAGES if instruction.opcode.startswith(kind)), None):
        group = message_ranks(instruction.rest, rank)
        return {"message": instruction.name, "Collective name": MESSAGES[message], "Process Group Ranks": str(group)}
    main = main_instruction(instruction, computations)
    short = re.sub(r"[.\d]+$", "", instruction.name)
    scopes = SCOPE.findall(main.op_name)
    if not scopes:
        return {"name": short}
    kind = "product" if main.opcode in PRODUCTS else main.op_name.rsplit("/", 1)[-1]
    kind = f"softmax's {kind}" if scopes[-1][0] == "attention core" and kind in ("exp", "reduce_max") else kind
    is_repeated = "rematted_computation" in main.op_name
    return {
        "name": f"{short}: {kind}",
        "part": scopes[-1][0],
        "where": scopes[-1][1],
        "phase": "recompute" if is_repeated else "backward" if "transpose(" in main.op_name else "forward",
        "dtype": TYPES.get(main.shape.partition("[")[0].strip("("), ""),
    }


def main_instruction(instruction: Instruction, computations: Mapping[str, Sequence[Instruction]]) -> Instruction:
    """Return the instruction by which a fusion is placed: its product, else its root, else the last one in a scope."""
    scoped = [inner for inner in computations.get(instruction.calls, ()) if SCOPE.search(inner.op_name)]
    products = [inner for inner in scoped if inner.opcode in PRODUCTS]
    if products or not SCOPE.search(instruction.op_name):
        return (products or scoped or [instruction])[-1]
    return instruction


def message_ranks(attributes: str, rank: int) -> list[int]:
    """Return the ranks that a message joins, as XLA writes them: {{0,1},{2,3}}, or [2,2]<=[4] for numbers in rows."""
    match = MESSAGE_GROUPS.search(attributes)
    if match is None:
        return []
    groups: list[list[int]]
    if match["list"] is not None:
        groups = [[int(number) for number in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", match["list"])]
    else:
        shape, dimensions, order = (
            [int(number) for number in (match[name] or "").split(",") if number] for name in ("shape", "of", "order")
        )
        numbers = np.arange(math.prod(dimensions)).reshape(dimensions)
        groups = numbers.transpose(order or None).reshape(shape).tolist()
    return next((group for group in groups if rank in group), [])


# ---- the record


def make_trace(recorded: jax.profiler.ProfileData, operations: Mapping[str, Operation]) -> dict[str, Any]:
    """Return a record in Chrome's format: spans of the host, and XLA's operations."""
    planes = list(recorded.planes)
    facts = {name: value for plane in planes for name, value in plane.stats}
    lines = [
        (line, "/device:" in plane.name)
        for plane in planes
        for line in plane.lines
        if line.name.startswith("Stream") or "/device:" not in plane.name  # a device's other lines repeat its streams
    ]
    threads = [[(event, dict(event.stats)) for event in line.events] for line, _ in lines]
    # a thread hands an operation to others and goes on: an event of its own marks the operation's end
    operation_ends = {
        stats.get("_c"): event.start_ns
        for pairs in threads
        for event, stats in pairs
        if event.name.startswith(END_PREFIX)
    }
    events = [
        trace_event(event, stats, thread, on_device, operations, operation_ends)
        for thread, (pairs, (_, on_device)) in enumerate(zip(threads, lines, strict=True))
        for event, stats in pairs
    ]
    return {
        "traceEvents": [event for event in events if event],
        "baseTimeNanoseconds": facts.get("profile_start_time", 0),
        "host_name": os.environ.get("NODE_RANK", "0"),
    }


def trace_event(
    event: Any,
    stats: Mapping[str, Any],
    thread: int,
    on_device: bool,
    operations: Mapping[str, Operation],
    operation_ends: Mapping[Any, int],
) -> dict[str, Any] | None:
    """Return an event of the record; None for what is neither a span nor an operation of the step."""
    operation = operations.get(stats.get("hlo_op", ""))
    if operation is None and not event.name.startswith("lf/"):
        return None
    end = max(event.start_ns + event.duration_ns, operation_ends.get(stats.get("_p"), 0))
    common = {"ph": "X", "pid": 0, "tid": thread, "ts": event.start_ns / 1e3, "dur": (end - event.start_ns) / 1e3}
    if operation is None:
        return {**common, "cat": "cpu_op", "name": event.name}
    name = event.name if on_device else operation.get("name", event.name)
    return {**common, "cat": "kernel" if on_device else "cpu_kernel", "name": name, "args": operation}

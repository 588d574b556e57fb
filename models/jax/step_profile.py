"""Steps recorded by JAX's profiler, with the part of each of XLA's operations.

Only a training that is asked to explain its step imports this file. The training's own program stays as it is: for the
recorded steps it is compiled once more, from the same functions in named scopes. Scopes change the names in a program
and nothing else. An operation of the record has the name of an instruction; the compiled program tells its scope.
docs/explain.md says what a record holds.
"""

import contextlib
import functools
import itertools
import json
import math
import os
import re
from typing import NamedTuple

import attention
import decoder
import jax
import numpy as np
import program
from jax.experimental import multihost_utils
from levelfield.worker.step_profile import replaced
from sharding import Sharding

BLOCKS = "layers.*"  # one program serves all layers: a place is that of every layer
# What is put in a scope: (owner, function, part, place).
SCOPES = (
    (program.Program, "gradients", "elementwise", "gradients"),  # also what the loops over rows copy
    (decoder.Decoder, "embed", "embedding", "embedding"),
    (decoder.Decoder, "block", "elementwise", BLOCKS),
    (decoder.Decoder, "rotary", "elementwise", f"{BLOCKS}.attention"),
    (decoder.Decoder, "head_loss", "head and loss", "head"),
    (attention, "mix", "attention core", f"{BLOCKS}.attention"),
    (decoder, "mlp", "mlp", f"{BLOCKS}.mlp"),
    (Sharding, "step_weights", "elementwise", "casts"),
    (Sharding, "layer_weights", "elementwise", "casts"),
    (Sharding, "end_weights", "elementwise", "casts"),
    (program.Program, "shares", "gradient clipping", "norm"),
    (program, "clipped", "gradient clipping", "clip"),
    (program, "adamw", "optimizer", "optimizer.step"),
)
SCOPE = re.compile(r"lf:([^:/()]+):([^:/()]*)")
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%(?P<name>[^ ]+) = (?P<shape>.*?) (?P<opcode>[\w-]+)\((?P<rest>.*)$")
HEAD = re.compile(r"^(?:ENTRY )?%([^ ]+) \(.*\{$")
CALLS = re.compile(r"calls=%([^ ,)}]+)")
OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
GROUPS = re.compile(
    r"replica_groups=(?:\{(?P<list>\{[\d,{}]*\})\}|\[(?P<shape>[\d,]+)\]<=\[(?P<of>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?)"
)
PRODUCTS = ("dot", "convolution")
CONTROL = ("while", "call", "conditional")  # their bodies are operations by themselves
MESSAGES = {  # by XLA's name, the name that is recorded
    "all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all", "collective-permute": "send", "collective-broadcast": "broadcast",
}  # fmt: skip
END = "end: "
TYPES = {"f32": "float", "f64": "double", "bf16": "c10::BFloat16", "f16": "c10::Half"}  # as torch names them


def open_profile(job, trainer, scratch):
    return JaxProfile(job, trainer, scratch)


class JaxProfile:
    """One rank's recorded steps. levelfield.worker.step_profile says what each method is for."""

    profiler = f"XLA's of jax {jax.__version__}"

    def __init__(self, job, trainer, scratch):
        self.job, self.trainer, self.scratch, self.kept, self.named = job, trainer, scratch, [], None

    def align(self):
        jax.block_until_ready(self.trainer.state)
        if self.job.world_size > 1:
            multihost_utils.sync_global_devices("levelfield")

    @contextlib.contextmanager
    def recording(self, number):
        if self.named is None:
            self.named = compiled_with_names(self.trainer)
        folder = self.scratch / str(number)
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # its calls would slow the host down
        options.enable_hlo_proto = False
        own = self.trainer.step
        self.trainer.step = self.named
        try:
            with jax.profiler.trace(folder, profiler_options=options):
                self.align()  # the profiler's start takes another time on each rank
                yield
        finally:
            self.trainer.step = own
        self.kept.append((number, folder))

    def span(self, name):
        return jax.profiler.TraceAnnotation(f"lf/{name}")

    def traces(self):
        operations = operations_of(self.named.as_text(), self.job.rank)
        for number, recorded in self.kept:
            (source,) = recorded.glob("plugins/profile/*/*.xplane.pb")
            trace = trace_of(jax.profiler.ProfileData.from_file(str(source)), operations)
            yield number, [json.dumps(trace).encode()]


# ---- the program with names


def compiled_with_names(trainer):
    """The training's program, compiled with its functions in named scopes. The functions are as before afterwards."""
    job = trainer.job
    shape = (job.accumulation, job.tuning.micro_batch, job.training.sequence_length)
    rows = program.jnp.zeros(shape, "int32")
    with contextlib.ExitStack() as stack:
        for owner, name, part, place in SCOPES:
            stack.enter_context(replaced(owner, name, scoped(getattr(owner, name), part, place)))
        names = {}  # of the weights of the layer that is traced, by their identity
        stack.enter_context(replaced(decoder, "attention", scoped_attention(decoder.attention, names)))
        stack.enter_context(replaced(attention, "linear", scoped_linear(attention.linear, names)))
        stack.enter_context(replaced(decoder, "norm", scoped_norm(decoder.norm)))
        return trainer.program.compiled(trainer.state, trainer.program.batch((rows, rows)), trainer.numbers(1))


def scope(part, place):
    return jax.named_scope(f"lf:{part}:{place}")


def scoped(own, part, place):
    @functools.wraps(own)
    def call(*arguments):
        with scope(part, place):
            return own(*arguments)

    return call


def scoped_norm(own):
    def call(model, x, weights, name):
        with scope("elementwise", name if name == "final_norm" else f"{BLOCKS}.{name}"):
            return own(model, x, weights, name)

    return call


def scoped_attention(own, names):
    """Attention besides its products and its core."""

    def call(model, x, weights, *others):
        names.update({id(weight): name for name, weight in weights.items()})
        with scope("elementwise", f"{BLOCKS}.attention"):
            return own(model, x, weights, *others)

    return call


def scoped_linear(own, names):
    """The products of attention, each by the name of its weight."""

    def call(x, weight, bias=None):
        with scope("attention projections", f"{BLOCKS}.{names[id(weight)].removesuffix('.weight')}"):
            return own(x, weight, bias)

    return call


# ---- what the compiled program tells of its operations


class Instruction(NamedTuple):
    """rest: its operands and attributes. op_name: the path of scopes that it came from. calls: a fusion's inside."""

    name: str
    opcode: str
    shape: str
    rest: str
    op_name: str
    calls: str


def operations_of(text, rank):
    """What a record says of each operation of a compiled program, by the name of its instruction."""
    inside = {}
    for line in text.splitlines():
        if head := HEAD.match(line):
            of_computation = inside.setdefault(head[1], [])
        elif found := INSTRUCTION.match(line):
            rest = found["rest"]
            op_name, calls = (pattern.search(rest) for pattern in (OP_NAME, CALLS))
            named = (op_name[1] if op_name else "", calls[1] if calls else "")
            of_computation.append(Instruction(found["name"], found["opcode"], found["shape"], rest, *named))
    found = {each.name: operation_of(each, inside, rank) for each in itertools.chain(*inside.values())}
    return {name: operation for name, operation in found.items() if operation}


def operation_of(instruction, inside, rank):
    """The part, place, phase and type of an operation, or a message's kind and ranks; None of a loop."""
    if instruction.opcode in CONTROL:
        return None
    if message := next((kind for kind in MESSAGES if instruction.opcode.startswith(kind)), None):
        group = group_of(instruction.rest, rank)
        return {"message": instruction.name, "Collective name": MESSAGES[message], "Process Group Ranks": str(group)}
    told = telling(instruction, inside)
    short = re.sub(r"[.\d]+$", "", instruction.name)
    scopes = SCOPE.findall(told.op_name)
    if not scopes:
        return {"name": short}
    kind = "product" if told.opcode in PRODUCTS else told.op_name.rsplit("/", 1)[-1]
    kind = f"softmax's {kind}" if scopes[-1][0] == "attention core" and kind in ("exp", "reduce_max") else kind
    again = "rematted_computation" in told.op_name
    return {
        "name": f"{short}: {kind}",
        "part": scopes[-1][0],
        "where": scopes[-1][1],
        "phase": "recompute" if again else "backward" if "transpose(" in told.op_name else "forward",
        "dtype": TYPES.get(told.shape.partition("[")[0].strip("("), ""),
    }


def telling(instruction, inside):
    """The instruction that tells where a fusion belongs: its product, else its root, else the last one in a scope."""
    scoped = [each for each in inside.get(instruction.calls, ()) if SCOPE.search(each.op_name)]
    products = [each for each in scoped if each.opcode in PRODUCTS]
    if products or not SCOPE.search(instruction.op_name):
        return (products or scoped or [instruction])[-1]
    return instruction


def group_of(attributes, rank):
    """The ranks that a message joins, as XLA writes them: {{0,1},{2,3}}, or [2,2]<=[4] for numbers in rows."""
    found = GROUPS.search(attributes)
    if found is None:
        return []
    if found["list"] is not None:
        groups = [[int(each) for each in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", found["list"])]
    else:
        shape, dimensions, order = (
            [int(each) for each in (found[name] or "").split(",") if each] for name in ("shape", "of", "order")
        )
        numbers = np.arange(math.prod(dimensions)).reshape(dimensions)
        groups = numbers.transpose(order or None).reshape(shape).tolist()
    return next((group for group in groups if rank in group), [])


# ---- the record


def trace_of(recorded, operations):
    """A record in Chrome's format, from a jax.profiler.ProfileData: spans of the host, and XLA's operations."""
    planes = list(recorded.planes)
    facts = {name: value for plane in planes for name, value in plane.stats}
    lines = [
        (line, "/device:" in plane.name)
        for plane in planes
        for line in plane.lines
        if line.name.startswith("Stream") or "/device:" not in plane.name  # a device's other lines repeat its streams
    ]
    seen = [[(event, dict(event.stats)) for event in line.events] for line, _ in lines]
    # a thread hands an operation to others and goes on: an event of its own marks the operation's end
    ends = {facts.get("_c"): event.start_ns for each in seen for event, facts in each if event.name.startswith(END)}
    events = [
        written(event, facts, thread, of_device, operations, ends)
        for thread, (each, (_, of_device)) in enumerate(zip(seen, lines, strict=True))
        for event, facts in each
    ]
    return {
        "traceEvents": [event for event in events if event],
        "baseTimeNanoseconds": facts.get("profile_start_time", 0),
        "host_name": os.environ.get("NODE_RANK", "0"),
    }


def written(event, facts, thread, of_device, operations, ends):
    """An event of the record; None of what is neither a span nor an operation of the step."""
    told = operations.get(facts.get("hlo_op"))
    if told is None and not event.name.startswith("lf/"):
        return None
    end = max(event.start_ns + event.duration_ns, ends.get(facts.get("_p"), 0))
    common = {"ph": "X", "pid": 0, "tid": thread, "ts": event.start_ns / 1e3, "dur": (end - event.start_ns) / 1e3}
    if told is None:
        return {**common, "cat": "cpu_op", "name": event.name}
    name = event.name if of_device else told.get("name", event.name)
    return {**common, "cat": "kernel" if of_device else "cpu_kernel", "name": name, "args": told}

"""Steps recorded by Paddle's profiler, with the part of each layer in them.

Only a training that is asked to explain its step imports this file. Hooks and wrapped functions are put on for one step
and taken off after it. A node of the backward pass belongs to the layer that made it: the order in which Paddle runs
them is computed from the graph, and compared with the record by names. The record is as docs/explain.md says.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
from typing import TYPE_CHECKING, Any

import paddle
import paddle.distributed as dist
from decoder import Block, Embedding, FinalNorm, Head, Positions
from levelfield.worker.step_profile import replaced
from paddle.base import core
from paddle.nn import functional
from paddle.profiler import Profiler, ProfilerTarget, RecordEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from levelfield.worker.job import Job
    from paddle import nn
    from training import Trainer

    Function = Callable[..., Any]
    Event = dict[str, Any]
    Order = Iterable[tuple[str, str | None]]  # (kind, name of the layer) of each node of a backward pass

END_LAYERS = ((Embedding, "embedding", "embedding"), (Positions, "embedding", "position"),
        (FinalNorm, "elementwise", "final_norm"), (Head, "head and loss", "head"))  # fmt: skip
# Of a block: (layer, part). A block and attention by themselves add up and rotate.
BLOCK_LAYERS = (
    ("attention_norm", "elementwise"), ("attention", "elementwise"), ("mlp_norm", "elementwise"), ("mlp", "mlp"),
    ("attention.query", "attention projections"), ("attention.key", "attention projections"),
    ("attention.value", "attention projections"), ("attention.output", "attention projections"),
)  # fmt: skip
# Methods and functions that are a part by themselves: (the path from the trainer, part, place)
METHODS = (
    ("loss", "head and loss", "loss"),
    ("optimizer.step", "optimizer", "optimizer.step"),
    ("optimizer.clear_grad", "optimizer", "optimizer.clear_grad"),
    ("clip._dygraph_clip", "gradient clipping", "clip"),
)
MESSAGES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send",
    "recv",
    "reduce",
    "scatter",
)
BACKWARD_PREFIX, NODE_PREFIX, GRADIENT_SUM_NODE = "backward/", "Global_", "GradNodeAccumulation"
DEVICE_CATEGORIES = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "CudaRuntime": "cuda_runtime"}


def open_profile(job: Job, trainer: Trainer, scratch: Path) -> PaddleProfile:
    return PaddleProfile(job, trainer, scratch)


class PaddleProfile:
    """One rank's recorded steps. levelfield.worker.step_profile says what each method is for."""

    profiler = f"Paddle's of paddle {paddle.__version__}"

    def __init__(self, job: Job, trainer: Trainer, scratch: Path) -> None:
        self.job, self.trainer, self.scratch = job, trainer, scratch
        self.records: list[tuple[int, Path, list[Order]]] = []
        self.parts = layer_parts(trainer.runner)

    def align(self) -> None:
        if self.job.device != "cpu":
            paddle.device.synchronize()
        if self.job.world_size > 1:
            dist.barrier()

    @contextlib.contextmanager
    def recording(self, number: int) -> Iterator[None]:
        targets = [ProfilerTarget.CPU, *([ProfilerTarget.GPU] if self.job.device == "gpu" else [])]
        recorder = Profiler(targets=targets, on_trace_ready=lambda _: None)
        recorder.start()
        try:
            self.align()  # the profiler's start takes another time on each rank
            with contextlib.ExitStack() as stack:
                orders = self.name_parts(stack)
                yield
        finally:
            recorder.stop()
        path = self.scratch / f"{number}.json"
        recorder.export(str(path), "json")
        self.records.append((number, path, orders))

    def name_parts(self, stack: contextlib.ExitStack) -> list[Order]:
        """Make layers, methods and messages spans of the record until the stack is left. Return the orders of the
        backward passes, which are filled meanwhile."""
        names = Names()
        stack.enter_context(replaced(core.eager, "run_backward", names.backward(core.eager.run_backward)))
        for layer, part, place in self.parts:
            stack.enter_context(names.layer_spans(layer, part, place))
            if isinstance(layer, Embedding):  # where it is the head as well
                stack.enter_context(
                    replaced(layer, "logits", names.wrap_in_span(layer.logits, "head and loss", "head"))
                )
        attend = names.wrap_in_span(functional.scaled_dot_product_attention, "attention core", None)
        stack.enter_context(replaced(functional, "scaled_dot_product_attention", attend))
        for path, part, place in METHODS:
            *owners, method = path.split(".")
            owner = functools.reduce(getattr, owners, self.trainer)
            stack.enter_context(replaced(owner, method, names.wrap_in_span(getattr(owner, method), part, place)))
        pipeline = getattr(self.trainer.runner, "_layers", None)
        if loss_functions := getattr(pipeline, "_loss_fn", None):
            loss_functions = [names.wrap_in_span(loss, "head and loss", "loss") for loss in loss_functions]
            stack.enter_context(replaced(pipeline, "_loss_fn", loss_functions))
        for kind in MESSAGES if self.job.backend == "gloo" else ():
            stack.enter_context(replaced(core.ProcessGroup, kind, wrap_message(getattr(core.ProcessGroup, kind), kind)))
        return names.orders

    def span(self, name: str) -> AbstractContextManager[Any]:
        event: AbstractContextManager[Any] = RecordEvent(f"lf/{name}")
        return event

    def traces(self) -> Iterator[tuple[int, list[bytes]]]:
        sums_gradients = self.job.backend == "gloo" and self.job.layout.data > 1
        for number, source, orders in self.records:
            trace = make_trace(json.loads(source.read_text())["traceEvents"], orders, sums_gradients)
            yield number, [json.dumps(trace).encode()]


def layer_parts(runner: nn.Layer) -> list[tuple[nn.Layer, str, str]]:
    """Return (layer, part, place) of each layer with a part."""
    parts = []
    for layer in runner.sublayers():
        parts += [(layer, part, place) for kind, part, place in END_LAYERS if isinstance(layer, kind)]
        if isinstance(layer, Block):
            place = f"layers.{layer.index}"
            parts.append((layer, "elementwise", place))
            for path, part in BLOCK_LAYERS:
                parts.append((functools.reduce(getattr, path.split("."), layer), part, f"{place}.{path}"))
    return parts


class Names:
    """Puts spans around layers and functions, and finds the layer of each node of the backward pass.

    What lies between two layers belongs to what is around both: it is named when the second layer begins.
    """

    def __init__(self) -> None:
        self.open_spans: list[tuple[str, RecordEvent]] = []
        # with the nodes themselves: a pointer is used again when its node is gone
        self.nodes: dict[int, tuple[str, Any]] = {}
        self.makers: dict[str, Any] = {}  # the node that made a tensor, by the tensor's name
        self.orders: list[Order] = []

    def begin(self, part: str, place: str | None, inputs: Any) -> None:
        outer = self.open_spans[-1][0] if self.open_spans else ""
        if outer:
            self.claim(inputs, outer)
        # the core of attention has the place of the attention that calls it
        name = f"{part}/{place or outer.partition('/')[2]}"
        self.open_spans.append((name, RecordEvent(f"lf/{name}")))
        self.open_spans[-1][1].begin()

    def end(self, outputs: Any) -> None:
        name, event = self.open_spans.pop()
        self.claim(outputs, name)
        event.end()

    def claim(self, tensors: Any, name: str) -> None:
        """Name the nodes behind the tensors that have no name yet."""
        waiting = self.maker_nodes(tensors)
        while waiting:
            node = waiting.pop()
            if node.node_ptr() not in self.nodes:
                self.nodes[node.node_ptr()] = (name, node)
                waiting += next_nodes(node)

    def maker_nodes(self, tensors: Any) -> list[Any]:
        """Return the nodes that made the tensors. A tensor whose memory a pipeline has freed has lost its node."""
        made = [tensor for tensor in flat_tensors(tensors) if tensor.grad_fn is not None]
        self.makers.update({tensor.name: tensor.grad_fn for tensor in made})
        return [self.makers[tensor.name] for tensor in flat_tensors(tensors) if tensor.name in self.makers]

    def backward(self, run: Function) -> Function:
        """Return run_backward with a span that has the number of its order."""

        def call(tensors: Any, *others: Any) -> Any:
            self.orders.append(self.order(self.maker_nodes(tensors)))
            with RecordEvent(f"{BACKWARD_PREFIX}{len(self.orders) - 1}"):
                return run(tensors, *others)

        return call

    def order(self, first: Sequence[Any]) -> list[tuple[str, str | None]]:
        """Return (kind, name of the layer) of each node, as Paddle runs them: a sum of gradients at once, others in
        turn."""
        arrivals: collections.Counter[int] = collections.Counter()
        waiting, visited = list(first), set()
        while waiting:
            node = waiting.pop()
            if node.node_ptr() not in visited:
                visited.add(node.node_ptr())
                arrivals.update(source.node_ptr() for source in next_nodes(node))
                waiting += next_nodes(node)
        order, ready = [], collections.deque(first)
        while ready:
            node = ready.popleft()
            name, _ = self.nodes.get(node.node_ptr(), (None, None))
            order.append((node.name(), name))
            for source in next_nodes(node):
                arrivals[source.node_ptr()] -= 1
                if not arrivals[source.node_ptr()]:
                    (ready.appendleft if GRADIENT_SUM_NODE in source.name() else ready.append)(source)
        return order

    @contextlib.contextmanager
    def layer_spans(self, layer: nn.Layer, part: str, place: str) -> Iterator[None]:
        hooks = [
            layer.register_forward_pre_hook(lambda _, inputs: self.begin(part, place, inputs)),
            layer.register_forward_post_hook(lambda _, _inputs, outputs: self.end(outputs)),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def wrap_in_span(self, function: Function, part: str, place: str | None) -> Function:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            self.begin(part, place, arguments)
            outputs: Any = ()
            try:
                outputs = function(*arguments, **options)
            finally:
                self.end(outputs)
            return outputs

        return call


def next_nodes(node: Any) -> list[Any]:
    return [source for source in node.next_functions if source is not None]


def flat_tensors(values: Any) -> list[paddle.Tensor]:
    """Return the tensors among nested lists and tuples."""
    if isinstance(values, paddle.Tensor):
        return [values]
    return [tensor for value in values for tensor in flat_tensors(value)] if isinstance(values, (list, tuple)) else []


def wrap_message(function: Function, kind: str) -> Function:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with RecordEvent(f"gloo:{kind}"):
            return function(*arguments, **options)

    return call


# ---- the record


def make_trace(recorded: Sequence[Event], orders: Sequence[Order], sums_gradients: bool) -> dict[str, Any]:
    """Return a record as docs/explain.md says, from Paddle's.

    sums_gradients: whether data-parallel ranks sum gradients by gloo.
    """
    spans = [span for span in map(plain_span, recorded) if span is not None]
    events = sorted(spans, key=lambda event: (event["ts"], -event["dur"]))
    begin = next(event for event in recorded if event.get("ph") == "X")
    return {
        "traceEvents": list(trace_events(events, [collections.deque(order) for order in orders], sums_gradients)),
        "baseTimeNanoseconds": round((begin["ts"] - microseconds(begin, "start_time")) * 1e3),
        "host_name": os.environ.get("NODE_RANK", "0"),
    }


def trace_events(
    events: Iterable[Event], orders: Sequence[collections.deque[tuple[str, str | None]]], sums_gradients: bool
) -> Iterator[Event]:
    passes: list[Event] = []  # the backward passes that are open
    node: Event | None = None  # the last one
    for event in events:
        name = event["name"]
        passes = [span for span in passes if event["ts"] < span["ts"] + span["dur"]]
        if name.startswith(BACKWARD_PREFIX):
            passes.append(event)
        elif name.startswith(NODE_PREFIX):
            node = event
            event["name"] = f"autograd::engine::evaluate_function: {name[len(NODE_PREFIX) :]}"
            order = orders[int(passes[-1]["name"][len(BACKWARD_PREFIX) :])] if passes else None
            event["args"] = place_node(name[len(NODE_PREFIX) :], order)
        elif is_exchange(event, node) and sums_gradients and node:
            # Paddle's own exchange: it divides the gradients and sums them over the ranks, before the node ends
            yield {**node, "name": "gloo:all_reduce", "args": {}}
        category, name = categorise(event)
        if category:
            yield {**event, "cat": category, "name": name}


def place_node(kind: str, order: collections.deque[tuple[str, str | None]] | None) -> dict[str, str]:
    """Return the part and the place of the node that comes next; none where another kind of node was expected."""
    expected, name = order.popleft() if order else (None, None)
    if GRADIENT_SUM_NODE in kind and expected == kind:
        return {}  # the sum of a gradient belongs to the node that computed it
    if expected != kind and order:
        order.clear()
    part, _, place = name.partition("/") if name and expected == kind else ("unexplained", "", kind)
    return {"part": part, "where": place}


def is_exchange(event: Event, node: Event | None) -> bool:
    """Return whether the event begins the exchange of a gradient inside of the node that has summed it."""
    is_scale = event["name"] == "scale kernel launch"
    return bool(is_scale and node and GRADIENT_SUM_NODE in node["name"] and is_inside(event, node))


def is_inside(event: Event, outer: Event) -> bool:
    return bool(outer["ts"] <= event["ts"] < outer["ts"] + outer["dur"])


def plain_span(event: Event) -> Event | None:
    """Return an event with its plain name and exact times; None for what is no span of time."""
    if event.get("ph") != "X":
        return None
    start, end = microseconds(event, "start_time"), microseconds(event, "end_time")
    thread = str(event["tid"]).partition("(")[0]  # Python and C++ are one thread
    common = {"ph": "X", "pid": 0, "tid": thread, "ts": start, "dur": end - start, "cat": event["cat"]}
    return {**common, "name": event["name"].rpartition("[")[0], "args": event.get("args", {})}


def microseconds(event: Event, key: str) -> float:
    return float(event["args"][key].partition(" ")[0])


def categorise(event: Event) -> tuple[str | None, str | None]:
    """Return (category, name) of an event of the record; (None, None) for one that it leaves out."""
    name, category = event["name"], event["cat"]
    if name.startswith(("lf/", "gloo:", "autograd::")):
        return "cpu_op", name
    if category in DEVICE_CATEGORIES:
        event["args"] = {"correlation": event["args"].get("correlation id")}
        return DEVICE_CATEGORIES[category], name
    for kind, before, after in (("Operator", "", " dygraph"), ("OperatorInner", "Local_", ""),
                                ("DygraphKernelLaunch", "", " kernel launch")):  # fmt: skip
        if category == kind and name.startswith(before) and name.endswith(after):
            return "cpu_op", f"paddle::{name[len(before) : len(name) - len(after)]}"
    return None, None

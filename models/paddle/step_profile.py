"""Steps recorded by Paddle's profiler, with the part of each layer in them.

Only a training that is asked to explain its step imports this file. Hooks and wrapped functions are put on for one step
and taken off after it. A node of the backward pass belongs to the layer that made it: the order in which Paddle runs
them is computed from the graph, and compared with the record by names. The record is as docs/explain.md says.
"""

import collections
import contextlib
import functools
import json
import os

import attention
import paddle
import paddle.distributed as dist
from decoder import Block, Embedding, FinalNorm, Head, Positions
from levelfield.worker.step_profile import replaced
from paddle.base import core
from paddle.profiler import Profiler, ProfilerTarget, RecordEvent

ENDS = ((Embedding, "embedding", "embedding"), (Positions, "embedding", "position"),
        (FinalNorm, "elementwise", "final_norm"), (Head, "head and loss", "head"))  # fmt: skip
# Of a block: (layer, part). A block and attention by themselves add up and rotate.
INSIDE = (
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
BACKWARD, NODE, SUMS = "backward/", "Global_", "GradNodeAccumulation"
DEVICE = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "CudaRuntime": "cuda_runtime"}


def open_profile(job, trainer, scratch):
    return PaddleProfile(job, trainer, scratch)


class PaddleProfile:
    """One rank's recorded steps. levelfield.worker.step_profile says what each method is for."""

    profiler = f"Paddle's of paddle {paddle.__version__}"

    def __init__(self, job, trainer, scratch):
        self.job, self.trainer, self.scratch, self.kept = job, trainer, scratch, []
        self.parts = layer_parts(trainer.runner)

    def align(self):
        if self.job.device != "cpu":
            paddle.device.synchronize()
        if self.job.world_size > 1:
            dist.barrier()

    @contextlib.contextmanager
    def recording(self, number):
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
        self.kept.append((number, path, orders))

    def name_parts(self, stack):
        """Until the stack is left, layers, methods and messages are spans of the record."""
        names = Names()
        stack.enter_context(replaced(core.eager, "run_backward", names.backward(core.eager.run_backward)))
        for layer, part, place in self.parts:
            stack.enter_context(names.spanned(layer, part, place))
            if isinstance(layer, Embedding):  # where it is the head as well
                stack.enter_context(replaced(layer, "logits", names.around(layer.logits, "head and loss", "head")))
        core_of = names.around(attention.functional.scaled_dot_product_attention, "attention core", None)
        stack.enter_context(replaced(attention.functional, "scaled_dot_product_attention", core_of))
        for path, part, place in METHODS:
            *owners, method = path.split(".")
            owner = functools.reduce(getattr, owners, self.trainer)
            stack.enter_context(replaced(owner, method, names.around(getattr(owner, method), part, place)))
        pipeline = getattr(self.trainer.runner, "_layers", None)
        if losses := getattr(pipeline, "_loss_fn", None):
            named = [names.around(loss, "head and loss", "loss") for loss in losses]
            stack.enter_context(replaced(pipeline, "_loss_fn", named))
        for kind in MESSAGES if self.job.backend == "gloo" else ():
            stack.enter_context(replaced(core.ProcessGroup, kind, message(getattr(core.ProcessGroup, kind), kind)))
        return names.orders

    def span(self, name):
        return RecordEvent(f"lf/{name}")

    def traces(self):
        sums = self.job.backend == "gloo" and self.job.layout.data > 1
        for number, source, orders in self.kept:
            trace = trace_of(json.loads(source.read_text())["traceEvents"], orders, sums)
            yield number, [json.dumps(trace).encode()]


def layer_parts(runner):
    """(layer, part, place) of each layer with a part."""
    found = []
    for layer in runner.sublayers():
        found += [(layer, part, place) for kind, part, place in ENDS if isinstance(layer, kind)]
        if isinstance(layer, Block):
            place = f"layers.{layer.index}"
            found.append((layer, "elementwise", place))
            found += [(member(layer, path), part, f"{place}.{path}") for path, part in INSIDE]
    return found


def member(owner, path):
    return functools.reduce(getattr, path.split("."), owner)


class Names:
    """Puts spans around layers and functions, and knows whose each node of the backward pass is.

    What lies between two layers belongs to what is around both: it is named when the second layer begins.
    """

    def __init__(self):
        # nodes are kept: a pointer is used again when its node is gone
        self.open, self.nodes, self.made, self.orders = [], {}, {}, []

    def begin(self, part, place, inputs):
        outer = self.open[-1] if self.open else None
        if outer is not None:
            self.claim(inputs, outer[0])
        # the core of attention has the place of the attention that calls it
        name = f"{part}/{place or outer[0].partition('/')[2]}"
        self.open.append((name, RecordEvent(f"lf/{name}")))
        self.open[-1][1].begin()

    def end(self, outputs):
        name, event = self.open.pop()
        self.claim(outputs, name)
        event.end()

    def claim(self, tensors, name):
        """Name the nodes behind the tensors that have no name yet."""
        waiting = self.nodes_of(tensors)
        while waiting:
            node = waiting.pop()
            if node.node_ptr() not in self.nodes:
                self.nodes[node.node_ptr()] = (name, node)
                waiting += following(node)

    def nodes_of(self, tensors):
        """The nodes that made the tensors. One whose memory a pipeline has freed knows its own no more."""
        found = {each.name: each.grad_fn for each in flat(tensors) if each.grad_fn is not None}
        self.made.update(found)
        return [self.made[each.name] for each in flat(tensors) if each.name in self.made]

    def backward(self, own):
        """run_backward, with a span that has the number of its order."""

        def call(tensors, *others):
            self.orders.append(self.order(self.nodes_of(tensors)))
            with RecordEvent(f"{BACKWARD}{len(self.orders) - 1}"):
                return own(tensors, *others)

        return call

    def order(self, first):
        """(kind, name of the layer) of each node, as Paddle runs them: a sum of gradients at once, others in turn."""
        arrivals, waiting, seen = collections.Counter(), list(first), set()
        while waiting:
            node = waiting.pop()
            if node.node_ptr() not in seen:
                seen.add(node.node_ptr())
                arrivals.update(each.node_ptr() for each in following(node))
                waiting += following(node)
        found, ready = [], collections.deque(first)
        while ready:
            node = ready.popleft()
            found.append((node.name(), self.nodes.get(node.node_ptr(), (None,))[0]))
            for each in following(node):
                arrivals[each.node_ptr()] -= 1
                if not arrivals[each.node_ptr()]:
                    (ready.appendleft if SUMS in each.name() else ready.append)(each)
        return found

    @contextlib.contextmanager
    def spanned(self, layer, part, place):
        hooks = [
            layer.register_forward_pre_hook(lambda _, inputs: self.begin(part, place, inputs)),
            layer.register_forward_post_hook(lambda _, _inputs, outputs: self.end(outputs)),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def around(self, own, part, place):
        @functools.wraps(own)
        def call(*arguments, **named):
            self.begin(part, place, arguments)
            try:
                outputs = own(*arguments, **named)
            except BaseException:
                outputs = ()
                raise
            finally:
                self.end(outputs)
            return outputs

        return call


def following(node):
    return [each for each in node.next_functions if each is not None]


def flat(values):
    if isinstance(values, paddle.Tensor):
        return [values]
    return [each for value in values for each in flat(value)] if isinstance(values, (list, tuple)) else []


def message(own, kind):
    @functools.wraps(own)
    def call(*arguments, **named):
        with RecordEvent(f"gloo:{kind}"):
            return own(*arguments, **named)

    return call


# ---- the record


def trace_of(recorded, orders, sums):
    """A record as docs/explain.md says, from Paddle's. sums: whether data-parallel ranks sum gradients by gloo."""
    events = sorted((own for own in map(plain, recorded) if own), key=lambda each: (each["ts"], -each["dur"]))
    begin = next(each for each in recorded if each.get("ph") == "X")
    return {
        "traceEvents": list(written(events, [collections.deque(order) for order in orders], sums)),
        "baseTimeNanoseconds": round((begin["ts"] - microseconds(begin, "start_time")) * 1e3),
        "host_name": os.environ.get("NODE_RANK", "0"),
    }


def written(events, orders, sums):
    passes, node = [], None  # the backward passes that are open, and the last node
    for event in events:
        name = event["name"]
        passes = [each for each in passes if event["ts"] < each["ts"] + each["dur"]]
        if name.startswith(BACKWARD):
            passes.append(event)
        elif name.startswith(NODE):
            node = event
            event["name"] = f"autograd::engine::evaluate_function: {name[len(NODE) :]}"
            event["args"] = told(
                name[len(NODE) :], orders[int(passes[-1]["name"][len(BACKWARD) :])] if passes else None
            )
        elif name == "scale kernel launch" and sums and node and SUMS in node["name"] and inside(event, node):
            # Paddle's own exchange: it divides the gradients and sums them over the ranks, before the node ends
            yield {**node, "name": "gloo:all_reduce", "args": {}}
        cat, name = written_as(event)
        if cat:
            yield {**event, "cat": cat, "name": name}


def told(kind, order):
    """Whose the node is that comes next; of nobody where another kind of node was expected."""
    expected, name = order.popleft() if order else (None, None)
    if SUMS in kind and expected == kind:
        return {}  # the sum of a gradient belongs to the node that computed it
    if expected != kind and order:
        order.clear()
    part, _, place = name.partition("/") if name and expected == kind else ("unexplained", "", kind)
    return {"part": part, "where": place}


def inside(event, outer):
    return outer["ts"] <= event["ts"] < outer["ts"] + outer["dur"]


def plain(event):
    """An event by its own name and exact times; None of what is no span of time."""
    if event.get("ph") != "X":
        return None
    start, end = microseconds(event, "start_time"), microseconds(event, "end_time")
    thread = str(event["tid"]).partition("(")[0]  # Python and C++ are one thread
    common = {"ph": "X", "pid": 0, "tid": thread, "ts": start, "dur": end - start, "cat": event["cat"]}
    return {**common, "name": event["name"].rpartition("[")[0], "args": event.get("args", {})}


def microseconds(event, key):
    return float(event["args"][key].partition(" ")[0])


def written_as(event):
    """(category, name) of an event of the record; (None, None) of one that it leaves out."""
    name, cat = event["name"], event["cat"]
    if name.startswith(("lf/", "gloo:", "autograd::")):
        return "cpu_op", name
    if cat in DEVICE:
        event["args"] = {"correlation": event["args"].get("correlation id")}
        return DEVICE[cat], name
    for kind, before, after in (("Operator", "", " dygraph"), ("OperatorInner", "Local_", ""),
                                ("DygraphKernelLaunch", "", " kernel launch")):  # fmt: skip
        if cat == kind and name.startswith(before) and name.endswith(after):
            return "cpu_op", f"paddle::{name[len(before) : len(name) - len(after)]}"
    return None, None

"""The timeline of one recorded step of one rank: the events of a trace as consecutive slices of time without a gap.

The events are those of Chrome's trace format as Kineto writes them, with the spans `lf/PART/NAME` of the framework's
module `step_profile` (docs/explain.md). With kernels in the trace, the device's timeline is divided; without, the
thread of the processor that runs the step is the device. Times are in milliseconds from the start of the step.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from levelfield.specs.step_parts import COMMUNICATION, PARTS

Event = Mapping[str, Any]
Operation = tuple[str, str, tuple[tuple[int, ...], ...]]  # its name, the type of its numbers, the sizes of its tensors
SPAN_PREFIX = "lf/"
UNEXPLAINED, HOST, INPUT, ATTENTION_CORE, ELEMENTWISE = "unexplained", "host", "input", "attention core", "elementwise"
GARBAGE_COLLECTION = "garbage collection"
_BACKWARD_PREFIX = "autograd::engine::evaluate_function: "
_FSDP_PREFIX = "FSDP::"  # what FSDP2 does in the context of a module: copies into and out of messages
ATTENTION_OPERATION = re.compile(
    r"scaled_dot_product|flash_attn|_flash_attention|_efficient_attention|fused_attn", re.I
)
_MESSAGE_KINDS = (
    (re.compile(r"reduce[_-]?scatter", re.I), "reduce-scatter"),
    (re.compile(r"all[_-]?gather", re.I), "all-gather"),
    (re.compile(r"all[_-]?reduce", re.I), "all-reduce"),
    (re.compile(r"all[_-]?to[_-]?all", re.I), "all-to-all"),
    (re.compile(r"send|recv", re.I), "send/receive"),
    (re.compile(r"broadcast|barrier|gather|scatter|reduce", re.I), "other messages"),
)
_MESSAGE_KERNEL = re.compile(r"nccl|rccl|hccl", re.I)
_GLOO_PREFIX = "gloo:"  # a message of gloo, on a thread of its own
_GLOO_NAMES = {
    "reduce-scatter": "all_reduce",
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "all-to-all": "all_to_all",
}
_MESSAGE_OPERATION = re.compile(r"^(c10d|_c10d_functional(_autograd)?)::|^record_param_comms")
_WAIT_OPERATION = "wait_tensor"  # of _c10d_functional: it only waits
_LATE_END_SHARE = 0.1  # a message may seem to end later than the wait for it, by this part of the wait
_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_RUNTIME_CATEGORY = "cpu_kernel"  # an operation on a runtime's own threads
_LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "hip_runtime")
_RECORDED_ARGUMENTS = ("Input type", "Input Dims", "Concrete Inputs")


class Context(NamedTuple):
    """What a thread does at one time."""

    part: str | None = None  # None where no span or operation names one
    where: str = ""  # a module or a method
    phase: str = "forward"  # or backward, or recompute
    operation: str = ""  # the innermost one; empty between operations
    kind: str = ""  # of the message that the thread is handing over
    dtype: str = ""
    is_backward: bool = False
    is_repeated: bool = False  # within an operation that was repeated alone


class Slice(NamedTuple):
    """A piece of the step."""

    start: float
    end: float
    part: str
    where: str = ""
    phase: str = "forward"
    operation: str = ""
    dtype: str = ""
    message: int | None = None  # the index in `Timeline.messages` of the message that it waits for
    is_repeated: bool = False  # it belongs to an operation that was repeated alone

    @property
    def ms(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Message:
    """A collective, or one end of a message between two ranks."""

    kind: str
    start: float
    end: float
    size: str = ""
    direction: str = ""
    peer: int = -1  # for a message between two ranks: the other rank in its group
    ranks: tuple[int, ...] = ()  # the group; empty where the trace does not name it


@dataclass(frozen=True)
class Timeline:
    """One recorded step of one rank."""

    origin_ns: int  # when the step began, by the clock of the node
    ms: float
    slices: tuple[Slice, ...]
    messages: tuple[Message, ...]
    host: str
    has_device: bool  # kernels of a device were seen
    kernels: tuple[Slice, ...] = ()
    calls: tuple[tuple[str, Operation], ...] = ()  # of operations that were repeated alone, with their parts


class _HostEvent(NamedTuple):
    """An event of a thread, in milliseconds of the trace."""

    start: float
    end: float
    name: str
    category: str
    args: Mapping[str, Any]


class _HostPiece(NamedTuple):
    """A time in which a thread of the host does one thing."""

    start: float
    end: float
    context: Context


def build_timeline(trace: Mapping[str, Any], repeated: Collection[Operation] = ()) -> Timeline:
    """Return the recorded step of a trace. Raises ValueError where the trace holds no step.

    repeated: the operations that were repeated alone.
    """
    events = [event for event in trace.get("traceEvents", ()) if event.get("ph") == "X" and "dur" in event]
    if damaged := next((event for event in events if not 0 <= event["ts"] + event["dur"] < math.inf), None):
        raise ValueError(f"event {str(damaged.get('name'))[:60]!r}: found ts {damaged['ts']} and dur {damaged['dur']}")
    step = next((event for event in events if event.get("name") == f"{SPAN_PREFIX}step"), None)
    if step is None:
        raise ValueError(
            f"found {len(events)} events and none named '{SPAN_PREFIX}step', expected the span of one step"
        )
    begin, end = step["ts"] / 1e3, (step["ts"] + step["dur"]) / 1e3
    kernel_events = [event for event in events if event.get("cat") == "kernel"]
    if kernel_events and not any(event["dur"] for event in kernel_events):
        raise ValueError(f"found {len(kernel_events)} kernels of the device without a time: the profiler lost them")
    threads = _events_by_thread(events)
    walk = _ThreadWalk(repeated)
    pieces = {tid: walk.pieces(threads[tid]) for tid in sorted(threads, key=lambda tid: tid != step["tid"])}
    host = [piece for piece in pieces[step["tid"]] if piece.end > begin and piece.start < end]
    kernels = _kernels(events, walk.launched)
    messages = sorted(_messages(events, threads, walk.launched), key=lambda message: message.start)
    messages = [message for message in messages if message.end > begin and message.start < end]
    if kernels:
        slices = _device_slices(kernels, messages, host, begin, end)
    else:
        slices = _processor_slices(host, messages, begin, end)
    shifted, shifted_kernels = (
        tuple(piece._replace(start=piece.start - begin, end=piece.end - begin) for piece in timed)
        for timed in (slices, kernels)
    )
    return Timeline(
        origin_ns=int(trace.get("baseTimeNanoseconds", 0)) + round(begin * 1e6),
        ms=end - begin,
        slices=shifted,
        messages=tuple(replace(m, start=m.start - begin, end=m.end - begin) for m in messages),
        host=str(trace.get("host_name", "")),
        has_device=any(event.get("cat") in _DEVICE_CATEGORIES for event in events),
        kernels=shifted_kernels,
        calls=tuple(
            (part, call) for thread, at, part, call in walk.calls if begin <= at < end and (kernels or thread == 1)
        ),
    )


def add_arguments(trace: Event, argument_trace: Event) -> Event:
    """Add to the trace the types and sizes of arguments that another step recorded, and return it.

    The n-th calls of an operation on a thread match where both steps call it equally often. So do messages of gloo,
    which has many threads. Recording arguments slows a step, so a framework may do it in a step that does not count.
    """
    noted_calls = _calls_by_operation(argument_trace)
    for key, calls in _calls_by_operation(trace).items():
        recorded_calls = noted_calls.get(key, ())
        if len(recorded_calls) == len(calls):
            for call, other in zip(calls, recorded_calls, strict=True):
                args = other.get("args") or {}
                call["args"] = {
                    **{name: args[name] for name in _RECORDED_ARGUMENTS if name in args},
                    **(call.get("args") or {}),
                }
    return trace


def _calls_by_operation(trace: Event) -> dict[tuple[Any, str], list[dict[str, Any]]]:
    """Return the operations of a trace by thread and name, and gloo's messages by name, in their order."""
    calls = defaultdict(list)
    for event in trace.get("traceEvents", ()):
        name = event.get("name", "")
        is_message = name.startswith(_GLOO_PREFIX)
        if "ts" in event and (is_message or event.get("cat") == "cpu_op"):
            calls[None if is_message else event.get("tid"), name].append(event)
    return {key: sorted(calls, key=lambda event: event["ts"]) for key, calls in calls.items()}


def _events_by_thread(events: Sequence[Event]) -> dict[Any, list[_HostEvent]]:
    """Return the events of each thread of the host, outer ones first. Gloo's messages are none: they overlap."""
    threads = defaultdict(list)
    for event in events:
        category, name = event.get("cat", ""), event["name"]
        if category in ("cpu_op", "user_annotation", *_LAUNCH_CATEGORIES) and not name.startswith(_GLOO_PREFIX):
            start = event["ts"] / 1e3
            args = event.get("args") or {}
            threads[event["tid"]].append(_HostEvent(start, start + event["dur"] / 1e3, name, category, args))
    return {tid: sorted(thread, key=lambda event: (event.start, -event.end)) for tid, thread in threads.items()}


class _ThreadWalk:
    """Walks through the threads of a trace: the step's own first, since backward passes refer to its operations.

    launched: the context in which each kernel was launched, by correlation.
    calls: thread number, start, part and operation of each call that was repeated alone.
    """

    def __init__(self, repeated: Collection[Operation] = ()) -> None:
        self.launched: dict[Any, Context] = {}
        self.calls: list[tuple[int, float, str, Operation]] = []
        self._threads, self._repeated = 0, repeated
        self._forward: dict[int, Context] = {}  # by the sequence number of the operation
        self._last = Context()

    def pieces(self, events: Sequence[_HostEvent]) -> list[_HostPiece]:
        """Return what a thread does at every time, without a gap between its first and its last event."""
        pieces: list[_HostPiece] = []
        stack: list[tuple[_HostEvent, Context]] = []
        at = events[0].start if events else 0.0
        self._threads += 1
        for event in (*events, None):  # None: after the last one, which ends all that are left
            start = math.inf if event is None else event.start
            while stack and stack[-1][0].end <= start:
                ended, context = stack.pop()
                if ended.end > at:
                    pieces.append(_HostPiece(at, ended.end, context))
                    at = ended.end
            if event is None:
                break
            outer = stack[-1][1] if stack else Context()
            if start > at:
                pieces.append(_HostPiece(at, start, outer))
                at = start
            if event.category in _LAUNCH_CATEGORIES:
                self.launched[event.args.get("correlation")] = outer
            else:
                stack.append((event, self._context(event, outer)))
        return pieces

    def _context(self, event: _HostEvent, outer: Context) -> Context:
        if event.name.startswith(SPAN_PREFIX):
            # a span of the framework's, `PART/NAME`, or of the host's, such as `input`
            part, slash, where = event.name[len(SPAN_PREFIX) :].partition("/")
            phase = "recompute" if outer.is_backward and slash else outer.phase
            if part in PARTS and slash:
                return Context(part, where, phase, is_backward=outer.is_backward)
            if part in (INPUT, GARBAGE_COLLECTION):
                return Context(INPUT if part == INPUT else HOST, part, outer.phase, operation=part)
            return outer._replace(operation="")
        if event.name.startswith(_BACKWARD_PREFIX):
            context = _stated_context(event.args)
            context = context or self._forward.get(event.args.get("Sequence number", -1), self._last)
            self._last = context._replace(phase="backward", is_backward=True, operation="", kind="", is_repeated=False)
            return self._last
        if event.name.startswith(_FSDP_PREFIX):
            return outer._replace(part=ELEMENTWISE, where="copies of messages", operation="")
        if event.category == "user_annotation":
            return outer
        if _MESSAGE_OPERATION.search(event.name):
            return outer._replace(
                operation=event.name, kind="" if _WAIT_OPERATION in event.name else message_kind(event.name)
            )
        return self._operation(event, outer)

    def _operation(self, event: _HostEvent, outer: Context) -> Context:
        part = ATTENTION_CORE if ATTENTION_OPERATION.search(event.name) else outer.part
        # a node of autograd, or a function of it in Python, is no work by itself: what it calls is
        operation = event.name if "::" in event.name else outer.operation
        context = outer._replace(part=part, operation=operation, dtype=_dtype(event.args) or outer.dtype)
        if self._repeated and not outer.is_repeated and (call := _operation_key(event)) in self._repeated:
            self.calls.append((self._threads, event.start, part or UNEXPLAINED, call))
            context = context._replace(is_repeated=True)
        sequence = event.args.get("Sequence number")
        if sequence is not None and not context.is_backward:
            self._forward[sequence] = context
        elif sequence is not None and context.phase == "recompute":
            self._forward[sequence] = context._replace(is_backward=False)
        return context


def message_kind(name: str) -> str:
    """Return the kind of a message by the name of its operation or kernel."""
    return next((kind for pattern, kind in _MESSAGE_KINDS if pattern.search(name)), "other messages")


def _operation_key(event: _HostEvent) -> Operation:
    """Return the identity of an operation, as models/torch/repeats.py writes it: lists of tensors have no sizes."""
    sizes = [size for size in event.args.get("Input Dims") or () if isinstance(size, list)]
    plain = tuple(tuple(size) for size in sizes if size and not any(isinstance(part, list) for part in size))
    return event.name, _dtype(event.args), plain


def _dtype(args: Mapping[str, Any]) -> str:
    """Return the type of an operation's first argument of numbers, as torch names it."""
    types = args.get("Input type") or ()
    return next((str(dtype) for dtype in types if dtype in ("float", "double", "c10::BFloat16", "c10::Half")), "")


def _kernels(events: Sequence[Event], launched: Mapping[Any, Context]) -> list[Slice]:
    """Return the device's kernels and copies but messages, each with the context of its launch, by their start."""
    kernels = []
    for event in events:
        if event.get("cat") not in (*_DEVICE_CATEGORIES, _RUNTIME_CATEGORY) or _is_message(event):
            continue
        args = event.get("args") or {}
        context = _stated_context(args) or launched.get(args.get("correlation"), Context())
        part = ATTENTION_CORE if ATTENTION_OPERATION.search(event["name"]) else context.part
        start = event["ts"] / 1e3
        fields = (part or UNEXPLAINED, context.where, context.phase, event["name"], context.dtype, None)
        kernels.append(Slice(start, start + event["dur"] / 1e3, *fields, context.is_repeated))
    return sorted(kernels, key=lambda kernel: kernel.start)


def _stated_context(args: Mapping[str, Any]) -> Context | None:
    """Return the context that an event's own arguments state; None where they name no part."""
    part, phase = args.get("part"), args.get("phase")
    if part not in PARTS:
        return None
    phase = phase if phase in ("backward", "recompute") else "forward"
    return Context(str(part), str(args.get("where", "")), phase, dtype=str(args.get("dtype", "")))


def _is_message(event: Event) -> bool:
    return bool(_MESSAGE_KERNEL.search(event["name"]) or "message" in (event.get("args") or {}))


def _messages(
    events: Sequence[Event], threads: Mapping[Any, Sequence[_HostEvent]], launched: Mapping[Any, Context]
) -> Iterator[Message]:
    """Return the messages of this rank: kernels of a collective library, or gloo's messages with their operations."""
    operations = sorted(event for thread in threads.values() for event in thread if event.name.startswith("c10d::"))
    waiting: dict[str, list[_HostEvent]] = defaultdict(list)
    for operation in operations:
        # by gloo's own name: it reduces and scatters by an all-reduce
        kind = message_kind(operation.name)
        name = _GLOO_NAMES.get(kind) or operation.name[len("c10d::") :].rstrip("_")
        if kind == "send/receive":
            name = "send" if "send" in operation.name else "recv"
        waiting[name].append(operation)
    for event in sorted(events, key=lambda event: event["ts"]):
        name, args, start = event["name"], event.get("args") or {}, event["ts"] / 1e3
        end = start + event["dur"] / 1e3
        if event.get("cat") in (*_DEVICE_CATEGORIES, _RUNTIME_CATEGORY) and _is_message(event):
            kind = message_kind(
                str(args.get("Collective name") or launched.get(args.get("correlation"), Context()).kind or name)
            )
            size = str(args.get("message", args.get("In msg nelems", "")))
            group = str(args.get("Process Group Ranks", ""))
            ranks = tuple(map(int, re.findall(r"\d+", group))) if "..." not in group else ()  # else it is shortened
            yield Message(kind, start, end, size, ranks=ranks)
        elif name.startswith(_GLOO_PREFIX):
            # gloo sends messages of one kind in the order in which the messages were handed over
            queue = waiting[name[len(_GLOO_PREFIX) :]]
            sender = queue.pop(0) if queue and queue[0].start <= end else None
            direction = name[len(_GLOO_PREFIX) :] if message_kind(name) == "send/receive" else ""
            inputs = list(sender.args.get("Concrete Inputs", ())) if sender else []
            peer = int(inputs[2]) if direction and len(inputs) > 2 and str(inputs[2]).isdecimal() else -1
            kind = message_kind(sender.name if sender else name)
            yield Message(kind, start, end, str(args.get("Input Dims", "")), direction, peer)


def _processor_slices(host: Sequence[_HostPiece], messages: Sequence[Message], begin: float, end: float) -> list[Slice]:
    """Return the step of a thread: its operations are work; between them it waits for a message, or is the host."""
    ends = sorted((message.end, number) for number, message in enumerate(messages))
    slices = []
    for piece in host:
        start, stop, context = max(piece.start, begin), min(piece.end, end), piece.context
        is_gap = not context.operation or _WAIT_OPERATION in context.operation
        if is_gap and (number := _awaited_message(messages, ends, start, stop)) is not None:
            waited = min(messages[number].end, stop)
            slices.append(_slice_in_context(start, waited, context, messages[number].kind, number))
            start = waited
        if stop > start:
            part = HOST if is_gap else context.kind or context.part or UNEXPLAINED
            slices.append(_slice_in_context(start, stop, context, part))
    return slices


def _slice_in_context(start: float, end: float, context: Context, part: str, message: int | None = None) -> Slice:
    fields = (part, context.where, context.phase, context.operation, context.dtype, message)
    return Slice(start, end, *fields, context.is_repeated)


def _awaited_message(
    messages: Sequence[Message], ends: Sequence[tuple[float, int]], start: float, stop: float
) -> int | None:
    """Return the message that a thread without an operation waits for: the last one that ends meanwhile.

    A thread that waits goes on when its message ends. One that computes in Python seldom meets such an end. Gloo's
    thread wakes it before it notes the end, which on a busy machine may be some milliseconds later.
    """
    place = bisect_right(ends, (stop, len(messages))) - 1
    if place >= 0 and ends[place][0] > start:
        return ends[place][1]
    latest = stop + _LATE_END_SHARE * (stop - start)
    for end, number in (ends[later] for later in range(place + 1, len(ends))):
        if end > latest:
            break
        if messages[number].start < stop:  # not one that began and ended before the late note
            return number
    return None


def _device_slices(
    kernels: Sequence[Slice], messages: Sequence[Message], host: Sequence[_HostPiece], begin: float, end: float
) -> list[Slice]:
    """Return the step of a device: its kernels, messages without a kernel beside them, and otherwise the host."""
    slices, at = [], begin
    for kernel in kernels:
        if kernel.end <= at or kernel.start >= end:
            continue
        if kernel.start > at:
            slices += _slices_without_kernel(messages, host, at, kernel.start)
        start = max(kernel.start, at)
        at = min(kernel.end, end)
        slices.append(kernel._replace(start=start, end=at))
    return slices + _slices_without_kernel(messages, host, at, end)


def _slices_without_kernel(
    messages: Sequence[Message], host: Sequence[_HostPiece], start: float, end: float
) -> list[Slice]:
    """Return slices of a time without a kernel: messages in the order of their starts, and the host between them."""
    slices, at = [], start
    for number, message in enumerate(messages):
        if message.start >= end:
            break
        if message.end > at:
            slices += _idle_slices(host, at, max(at, message.start))
            first, at = max(at, message.start), min(message.end, end)
            slices.append(Slice(first, at, message.kind, message=number))
    return slices + _idle_slices(host, at, end)


def _idle_slices(host: Sequence[_HostPiece], start: float, end: float) -> list[Slice]:
    """Return slices of a time in which the device has nothing to do: the input's, or the host's, by what it does."""
    slices = []
    place = max(0, bisect_right(host, start, key=lambda piece: piece.start) - 1)
    while start < end:
        piece = host[place] if place < len(host) else _HostPiece(start, end, Context())
        stop = min(end, piece.end)
        if stop > start:
            part = INPUT if piece.context.part == INPUT else HOST
            slices.append(_slice_in_context(start, stop, piece.context, part))
            start = stop
        place += 1
    return slices


assert set(kind for _, kind in _MESSAGE_KINDS) <= set(COMMUNICATION)

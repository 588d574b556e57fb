"""What the operations of a step take when each runs alone: products, attention's core, messages and a copy.

One further step is watched, which nobody times. Then each distinct operation of it is repeated with arguments of the
same shapes, strides and types. group_rates.py, the preflight, takes its way of timing from here.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._ops import OpOverload

    Message = tuple[str, str, int, tuple[int, ...]]  # kind, type, elements, the group's ranks

BLOCKS = 3
BUDGET_SECONDS = 4.0  # for all operations of a rank, and as long again for its messages
MIN_REPEATS, MAX_REPEATS = 3, 50  # repeats; more would let the values of an update in place vanish or overflow
COPIED_BYTES = {"cpu": 2**27, "accelerator": 2**30}  # more than the caches hold
MAX_BYTES = 2**30  # of the arguments of one operation
MAX_KEPT_NUMBERS = 2**20  # of a tensor of whole numbers, whose values are used again: indices choose what is read
MESSAGES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
NO_WORK = ("profiler", "prim", "prims")
TYPES = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half"}
KINDS = {  # of a collective by its name in torch
    "allreduce_": "all-reduce",
    "_allgather_base_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "alltoall_base_": "all-to-all",
    "all_reduce": "all-reduce",
    "all_gather_into_tensor": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "all_to_all_single": "all-to-all",
}


class Shape(NamedTuple):
    """A tensor without its values, but for those of whole numbers, which may be indices."""

    size: tuple  # type: ignore[type-arg]
    stride: tuple  # type: ignore[type-arg]
    dtype: torch.dtype
    device: torch.device
    whole_numbers: object = None

    @property
    def extent(self) -> int:
        """Return the number of elements from the first to the last."""
        return 1 + sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True)) if all(self.size) else 0

    @property
    def bytes(self) -> int:
        return self.extent * self.dtype.itemsize

    def tensor(self) -> torch.Tensor:
        """Return another tensor like it, of random values between 0.1 and 1.1."""
        if self.whole_numbers is not None:
            return self.whole_numbers.clone()  # type: ignore[attr-defined, no-any-return]
        flat = torch.zeros(self.extent, dtype=self.dtype, device=self.device)
        if self.dtype.is_floating_point:
            flat.copy_(torch.rand(self.extent, device=self.device).add_(0.1))
        return flat.as_strided(self.size, self.stride)


def shape_of(tensor: object) -> object:
    """Return the Shape of a tensor; other values as they are."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    keeps_values = (
        not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) and tensor.numel() <= MAX_KEPT_NUMBERS
    )
    values = tensor.detach().clone() if keeps_values else None
    return Shape(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device, values)


class Call(NamedTuple):
    """An operation with its arguments. dims, results: (type, size) of its tensors and of those that it returns."""

    function: object
    arguments: tuple  # type: ignore[type-arg]
    dims: list  # type: ignore[type-arg]
    results: list  # type: ignore[type-arg]


class StepCalls(TorchDispatchMode):
    """The distinct operations that run while the context lasts.

    calls: [the call, how often] by what a record tells of an operation (name, type, sizes), then by all of its shapes.
    messages: (the group's name, how often) by kind, type, elements and the group's ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: defaultdict[tuple[Any, ...], dict[tuple[Any, ...], list[Any]]]
        self.messages: dict[Message, tuple[str, int]]
        self.calls, self.messages = defaultdict(dict), {}

    def __torch_dispatch__(
        self,
        function: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(tensor_type, DTensor) for tensor_type in types):
            return NotImplemented  # its own rules come first, and call operations of plain tensors
        result = function(*args, **(kwargs or {}))
        if function.namespace in MESSAGES:
            self.message(function, args)
        elif function.namespace not in NO_WORK and not is_view(function):
            self.operation(function, args, kwargs or {}, result)
        return result

    def operation(self, function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        """Count an operation. One whose values are not all plain cannot be repeated and is left out."""
        leaves = tree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors or any(isinstance(leaf, torch.ScriptObject) for leaf in leaves):
            return
        inputs = [leaf for leaf in (*args, *kwargs.values()) if isinstance(leaf, torch.Tensor)]  # a record's lists vary
        kind = next((TYPES[leaf.dtype] for leaf in inputs if leaf.dtype in TYPES), "")
        key = (function.name().split(".")[0], kind, tuple(tuple(leaf.shape) for leaf in inputs if leaf.dim()))
        variant = tuple((leaf.shape, leaf.stride(), leaf.dtype) for leaf in tensors)
        variants_by_shape = self.calls[key]
        if variant not in variants_by_shape:
            shapes = tree.tree_map(shape_of, (args, kwargs))
            results = [leaf for leaf in tree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            variants_by_shape[variant] = [Call(function, shapes, sizes(tensors), sizes(results)), 0]
        variants_by_shape[variant][1] += 1

    def message(self, function: OpOverload, args: tuple[Any, ...]) -> None:
        kind = KINDS.get(function.name().split("::")[1].split(".")[0])
        groups = [leaf for leaf in args if isinstance(leaf, torch.ScriptObject)][:1]  # and then the operation
        group: Any = next(iter(groups or [leaf for leaf in args if isinstance(leaf, str)][-1:]), None)
        tensors = [leaf for leaf in tree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        if kind and group is not None and tensors:
            largest = max(tensors, key=torch.numel)
            group_name = group if isinstance(group, str) else dist.ProcessGroup.unbox(group).group_name
            ranks = tuple(dist.get_process_group_ranks(group_of(group_name)))
            key = (kind, str(largest.dtype), largest.numel(), ranks)
            self.messages[key] = (group_name, self.messages.get(key, (group_name, 0))[1] + 1)


def is_view(function: OpOverload) -> bool:
    """Return whether an operation only returns another view of the same values."""
    return any(result.alias_info is not None and not result.alias_info.is_write for result in function._schema.returns)


def sizes(tensors: Sequence[torch.Tensor]) -> list[list[Any]]:
    return [[TYPES.get(tensor.dtype, str(tensor.dtype)), list(tensor.shape)] for tensor in tensors]


def measure(device: torch.device, step: Callable[[], object]) -> dict[str, Any]:
    """Return what the operations of one step take alone, as worker/step_profile.py records it.

    step: runs a step. All ranks do this at the same time: a rank of a processor has its share of the machine.
    """
    with StepCalls() as step_calls:
        step()
    synchronize(device)
    end = time.perf_counter() + 3 * BUDGET_SECONDS
    budget = BUDGET_SECONDS / max(1, sum(map(len, step_calls.calls.values())))
    operations: list[dict[str, Any]]
    left_out: list[str]
    timings: list[tuple[Any, int]]  # (seconds, or why there are none; how often)
    operations, left_out = [], []
    with torch.no_grad():
        for (name, kind, dims), variants in step_calls.calls.items():
            timings = [(alone(device, call, budget, end), count) for call, count in variants.values()]
            call = next(iter(variants.values()))[0]
            facts = {"name": name, "dtype": kind, "dims": dims, "given": call.dims, "results": call.results}
            if reason := next((outcome for outcome, _ in timings if isinstance(outcome, str)), None):
                left_out.append(f"{name}: {reason}")
                continue
            whole = sum(seconds * count for seconds, count in timings) / sum(count for _, count in timings)
            operations.append({**facts, "seconds": whole})
        copy_rate = copy(device)
        messages = messages_alone(device, step_calls.messages) if dist.is_initialized() else []
    return {"operations": operations, "left_out": sorted(set(left_out)), "copy": copy_rate, "messages": messages}


def alone(device: torch.device, call: Call, seconds: float, end: float) -> float | str:
    """Return the best seconds of one call of an operation, or why there are none."""
    leaves = tree.tree_leaves(call.arguments, is_leaf=is_shape)
    if sum(leaf.bytes for leaf in leaves if is_shape(leaf)) > MAX_BYTES:
        return "larger than what is repeated"
    if time.perf_counter() > end:
        return "no time was left"
    try:
        args, kwargs = tree.tree_map_only(Shape, Shape.tensor, call.arguments, is_leaf=is_shape)
        return best_seconds(device, lambda: call.function(*args, **kwargs), seconds)  # type: ignore[operator]
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return f"cannot be repeated ({type(error).__name__})"


def is_shape(value: object) -> bool:
    return isinstance(value, Shape)


def best_seconds(device: torch.device, work: Callable[[], object], seconds: float) -> float:
    """Return the shortest repeat within the seconds on a processor; on a device the kernels' time, without launches."""
    work()
    synchronize(device)
    if device.type != "cpu":
        return kernel_seconds(device, work)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < MIN_REPEATS or (time.perf_counter() < end and len(times) < MAX_REPEATS):
        times.append(block(device, work, 1))
    return min(times)


def kernel_seconds(device: torch.device, work: Callable[[], object]) -> float:
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(MIN_REPEATS):
            work()
        synchronize(device)
    return sum(event.self_device_time_total for event in recorded.key_averages()) / MIN_REPEATS / 1e6  # type: ignore[no-any-return]


def copy(device: torch.device) -> dict[str, float]:
    """Return the bytes that a copy beyond the caches reads and writes, and its seconds."""
    size = COPIED_BYTES["cpu" if device.type == "cpu" else "accelerator"]
    a, b = (torch.ones(size // 4, device=device) for _ in range(2))
    return {"bytes": 2 * size, "seconds": best_seconds(device, lambda: a.copy_(b), BUDGET_SECONDS / 10)}


def messages_alone(device: torch.device, local_messages: dict[Message, tuple[str, int]]) -> list[dict[str, Any]]:
    """Return the seconds of each distinct collective that all of its ranks have, in one order on all: so none waits."""
    dtype: Any  # its name, then itself
    results: list[dict[str, Any]]
    message_keys: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(message_keys, sorted(local_messages))
    shared = sorted({key for keys in message_keys for key in keys if all(key in message_keys[rank] for rank in key[3])})
    budget, results = BUDGET_SECONDS / max(1, len(shared)), []
    for key in shared:
        if key in local_messages:
            kind, dtype, count, ranks = key
            group_name, times = local_messages[key]
            group = group_of(group_name)
            dtype = getattr(torch, dtype.rpartition(".")[2])
            work = collective(kind, torch.ones(count, dtype=dtype, device=device), group)
            first = slowest(device, block(device, work, 1), group)
            repeats = int(min(MAX_REPEATS, max(1, budget / BLOCKS / max(first, 1e-6))))
            seconds = min(blocks(device, work, repeats))
            size = count * dtype.itemsize
            results.append({"kind": kind, "bytes": size, "ranks": list(ranks), "seconds": seconds, "count": times})
    return results


def group_of(name: str) -> dist.ProcessGroup:
    return dist.distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]  # a str with a type of its own


def collective(kind: str, whole: torch.Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    """Return what sends one message of the group. Its repeated sums overflow at most to infinity."""
    part = torch.ones_like(whole[: whole.numel() // dist.get_world_size(group)])
    return {
        "all-reduce": lambda: dist.all_reduce(whole, group=group),
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all-to-all": lambda: dist.all_to_all_single(whole, whole.clone(), group=group),
    }[kind]


def slowest(device: torch.device, seconds: float, group: dist.ProcessGroup | None = None) -> float:
    """Return the largest of all ranks' values."""
    shared = torch.tensor([seconds], device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=group)
    return shared.item()


def blocks(device: torch.device, work: Callable[[], object], repeats: int) -> list[float]:
    """Return the seconds of one call, for each of a few blocks of calls."""
    work()
    return [block(device, work, repeats) for _ in range(BLOCKS)]


def block(device: torch.device, work: Callable[[], object], repeats: int) -> float:
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronize(device)
    return (time.perf_counter() - start) / repeats


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()

"""Real counts for mixtures: kernels do nothing on a pretended device, so whole numbers are computed on the host.

Each token chooses its experts in turn, so that all experts have as many tokens.
"""

import functools

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_map

WHOLE = (torch.int64, torch.int32, torch.bool, torch.uint8, torch.int8, torch.int16)
MOST_BYTES = 2**24
# of these the device itself would read the numbers that no kernel wrote
BY_NUMBERS = ("aten::repeat_interleave", "aten::masked_select")
LIKE = ("aten::zeros_like", "aten::ones_like", "aten::full_like")  # of another tensor they take the shape only
MOVING = {"aten::_to_copy", "aten::copy_", "aten::_local_scalar_dense", "aten::item", "aten::is_pinned"}
MOVING |= {"aten::record_stream"}  # computes nothing


OBJECTS = ("send_object_list", "recv_object_list", "broadcast_object_list", "all_gather_object")
VOTES = "_warmup"  # of pipeline stages: on whether gradients are wanted


def exchange_on_host(books):
    """Have torch's exchanges of objects, and the votes of pipeline stages, work with what they send."""
    import torch.distributed as dist
    from torch.distributed.pipelining.stage import PipelineStage

    for place, names in ((dist, OBJECTS), (PipelineStage, [n for n in dir(PipelineStage) if n.startswith(VOTES)])):
        for name in names:
            setattr(place, name, counted_on_host(getattr(place, name), books))


def counted_on_host(function, books):
    @functools.wraps(function)
    def call(*arguments, **named):
        if any(isinstance(mode, HostCounts) for mode in _get_current_dispatch_mode_stack()):
            return function(*arguments, **named)  # a second mode would see what the first one does on the host
        with HostCounts(books):
            return function(*arguments, **named)

    return call


class HostCounts(TorchDispatchMode):
    """Operations on small whole numbers run on the host, and top-k choices are even.

    books: the stand-in's library. What this mode itself copies is not counted there. experts, chosen: of each
    mixture, and of each token.
    """

    def __init__(self, books, experts=None, chosen=None):
        super().__init__()
        self.books, self.experts, self.chosen = books, experts, chosen

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        named = named or {}
        name = function._schema.name
        if name in ("aten::topk", "aten::sort") and self.chosen and is_scores(arguments[0]):
            return self.even_choice(*function(*arguments, **named))
        if name == "aten::_grouped_mm":
            self.count_grouped(*arguments[:2])
        if name in BY_NUMBERS and on_small_numbers(arguments, named, ()):
            return self.fill(arguments[0], function, arguments, named)
        if name == "aten::masked_select" and on_small_numbers(arguments[1:], named, ()):
            return self.selected(*arguments)
        result = function(*arguments, **named)
        if name in MOVING or not name.startswith("aten::") or name.startswith("aten::empty") or function.is_view:
            return result
        if not on_small_numbers(() if name in LIKE else arguments, named, result):
            return result
        return self.fill(result, function, arguments, named)

    def fill(self, result, function, arguments, named):
        """Compute on the host what the kernel left out; return it in `result`, or in its place."""
        self.books.standin_quiet(1)
        try:
            there = {id(t): t for t in tree_flatten((arguments, named))[0] if isinstance(t, torch.Tensor)}
            here = {key: on_host(tensor) for key, tensor in there.items()}
            swap = lambda x: here[id(x)] if isinstance(x, torch.Tensor) else cpu_device(x)  # noqa: E731
            answer = function(*tree_map(swap, arguments), **tree_map(swap, named))
            if function._schema.name in BY_NUMBERS or (
                isinstance(result, torch.Tensor) and result.shape != answer.shape
            ):
                return answer.to(result.device)  # its size follows from the numbers
            for out, value in zip(tree_flatten(result)[0], tree_flatten(answer)[0], strict=True):
                if isinstance(out, torch.Tensor) and out.is_cuda and out.numel():
                    put(out, value)
            return result
        finally:
            self.books.standin_quiet(0)

    def selected(self, values, mask):
        """As many values as the mask has places; which they are, a kernel would say."""
        self.books.standin_quiet(1)
        many = int(on_host(mask).expand(torch.broadcast_shapes(values.shape, mask.shape)).sum())
        self.books.standin_quiet(0)
        return values.new_empty(many)

    def even_choice(self, values, indices):
        """The values as they are, and for each token the next experts in turn; the second row begins where the
        first one's chosen ones end."""
        size = self.experts if values.shape[-1] == self.chosen else values.shape[-1]
        first = torch.arange(indices[..., 0].numel()).view(*indices.shape[:-1], 1) * self.chosen
        self.books.standin_quiet(1)
        put(indices, (first + torch.arange(indices.shape[-1])) % size)
        self.books.standin_quiet(0)
        return values, indices

    def count_grouped(self, left, right):
        rows, columns = left.shape[-2] if left.dim() == 2 else left.shape[0] * left.shape[1], left.shape[-1]
        width = right.shape[-1]
        words = f"grouped rows={rows} n={width} k={columns}"
        self.books.standin_count_product(words.encode(), 2 * rows * width * columns)


def whole_storage(tensor):
    """All of what a tensor is a view of, which is copied without a kernel."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


def on_host(tensor):
    return whole_storage(tensor).cpu().as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def put(out, value):
    """Write values of the host into a tensor of any strides."""
    storage = whole_storage(out)
    here = storage.cpu()
    here.as_strided(out.size(), out.stride(), out.storage_offset()).copy_(value)
    storage.copy_(here)


def is_scores(tensor):
    return tensor.is_cuda and tensor.is_floating_point() and tensor.dim() > 1


def cpu_device(value):
    return torch.device("cpu") if isinstance(value, torch.device) else value


def on_small_numbers(arguments, named, result):
    """Whether all tensors are whole numbers, some are on a device, and all are small."""
    tensors = [t for t in tree_flatten((arguments, named, result))[0] if isinstance(t, torch.Tensor)]
    plain = all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors)
    fit = all(t.dtype in WHOLE and t.device.type != "meta" and t.nbytes <= MOST_BYTES for t in tensors)
    return bool(tensors) and plain and fit and any(t.is_cuda for t in tensors)

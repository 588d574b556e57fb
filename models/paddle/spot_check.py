"""Samples of one step for levelfield's SpotCheck: of linear layers, norms, attention and the optimizer's update."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
from attention import Attention
from decoder import Block, FinalNorm
from layers import RMSNorm
from levelfield.worker.spot_check import ROWS
from mlp import GeluMLP
from optimizer import SLICE
from paddle import nn
from paddle.distributed.fleet.meta_parallel import ColumnParallelLinear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from decoder import Piece
    from levelfield.worker import SpotCheck
    from numpy.typing import NDArray
    from optimizer import GlobalNorm, Pairs
    from paddle.optimizer import AdamW
    from parameters import LocalParameter

    Forward = Callable[[paddle.Tensor], paddle.Tensor]

NORMS = (nn.LayerNorm, RMSNorm)
PRODUCTS = (nn.Linear, ColumnParallelLinear)  # RowParallelLinear sums the products of its ranks


@contextlib.contextmanager
def sampled_passes(model: nn.Layer, check: SpotCheck) -> Iterator[None]:
    """Sample the first forward and backward pass of the layers that `check` draws, while the context lasts.

    Their modules have another `forward` until then, and no hook: in sharding stage 3 a parameter is whole between the
    hooks of its module only.
    """
    pieces = [piece for piece in model.sublayers() if isinstance(piece, (Block, FinalNorm))]
    drawn_layers = check.layers([piece.index for piece in pieces if isinstance(piece, Block)])
    passes = _Passes(check)
    with contextlib.ExitStack() as stack:
        for piece in pieces:
            if isinstance(piece, Block) and piece.index not in drawn_layers:
                continue
            for path, module in piece.named_sublayers():
                method, function = passes.replacement(piece, path, module)
                if method:
                    setattr(module, method, function)
                    stack.callback(delattr, module, method)
        yield


class _Passes:
    """Functions in the place of modules' own that sample what those compute."""

    def __init__(self, check: SpotCheck) -> None:
        self.check = check
        self.watched_products: set[str] = set()  # products whose backward pass is sampled

    def replacement(self, piece: Piece, path: str, module: nn.Layer) -> tuple[str, Callable[..., Any] | None]:
        """Return (method of the module, function in its place); an empty name where the module shows nothing."""
        name = piece.prefix + path
        if isinstance(module, NORMS):
            return "forward", self.norm(name, module)
        if isinstance(module, PRODUCTS):
            # no other layer has its input, so that the input's gradient comes from this product alone
            has_input_alone = path in ("attention.output", "mlp.down")
            has_input_alone = has_input_alone or (path == "mlp.up" and isinstance(piece.mlp, GeluMLP))
            return "forward", self.product(name, module, has_input_alone)
        if isinstance(module, Attention) and not module.dropout:
            return "attend", self.attention(name, module)
        return "", None

    def norm(self, name: str, norm: Any) -> Forward:
        forward, check = norm.forward, self.check

        def sampling(x: paddle.Tensor) -> paddle.Tensor:
            y = forward(x)
            if not check.has(name):
                rows, bias = check.rows(token_count(x)), getattr(norm, "bias", None)
                parameters = on_host(norm.weight), None if bias is None else on_host(bias)
                check.norm(name, on_host(rows_at(x, rows)), *parameters, on_host(rows_at(y, rows)))
            return y

        return sampling

    def product(self, name: str, layer: Any, has_input_alone: bool) -> Forward:
        forward, check = layer.forward, self.check
        is_whole = isinstance(layer, nn.Linear)

        def sampling(x: paddle.Tensor) -> paddle.Tensor:
            y = forward(x)
            if not check.has(name):
                rows, columns = check.rows(token_count(x)), check.places(ROWS, y.shape[-1])
                check.product(
                    name,
                    on_host(rows_at(x, rows).astype(y.dtype)),  # auto_cast rounds x within the layer
                    on_host(select(layer.weight, columns, 1)).T,  # [in, out] in Paddle
                    None if layer.bias is None else on_host(select(layer.bias, columns)),
                    on_host(select(rows_at(y, rows), columns, 1)),
                    columns if is_whole else (),
                )
            # the first run of what is recomputed has no backward pass
            has_backward = not (x.stop_gradient or y.stop_gradient)
            if is_whole and has_input_alone and has_backward and name not in self.watched_products:
                self.watched_products.add(name)
                self.watch_backward(name, layer, x, y)
            return y

        return sampling

    def watch_backward(self, name: str, layer: nn.Linear, x: paddle.Tensor, y: paddle.Tensor) -> None:
        """Sample the gradient of x, which is that of y times W, once the backward pass has it."""
        rows, columns = self.check.rows(token_count(x)), self.check.places(ROWS, x.shape[-1])
        weight = on_host(select(layer.weight, columns))  # [columns, out]
        gradients: list[NDArray[np.float32]] = []  # of y: the backward pass comes to it first

        def keep(gradient: paddle.Tensor) -> None:
            gradients.append(on_host(rows_at(gradient, rows)))

        def sample(gradient: paddle.Tensor) -> None:
            self.check.input_gradient(name, gradients[0], weight, on_host(select(rows_at(gradient, rows), columns, 1)))

        y.register_hook(keep)
        x.register_hook(sample)

    def attention(self, name: str, attention: Attention) -> Callable[..., paddle.Tensor]:
        """Sample one head of one sequence. Tensors: [batch, sequence, heads or kv_heads, head_dim]."""
        attend, check = attention.attend, self.check

        def sampling(query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor) -> paddle.Tensor:
            mixed = attend(query, key, value)
            if not check.has(name):
                (sequence,), (head,) = check.places(1, query.shape[0]), check.places(1, query.shape[2])
                places, group = check.places(ROWS, query.shape[1]), head * key.shape[2] // query.shape[2]
                check.attention(
                    name,
                    places,
                    on_host(select(query[sequence, :, head], places)),
                    on_host(key[sequence, :, group]),
                    on_host(value[sequence, :, group]),
                    on_host(select(mixed[sequence, :, head], places)),
                )
            return mixed

        return sampling


class SampledUpdate:
    """Some numbers of each parameter before the optimizer's step, and, by `finish`, after it.

    clip: sees the parameters that this rank updates, and their gradients, right before it clips these. It is not called
    in a step that the loss scale skips.
    """

    def __init__(self, check: SpotCheck, clip: GlobalNorm, optimizer: AdamW, parts: Sequence[LocalParameter]) -> None:
        self.check, self.optimizer = check, optimizer
        self.parts = {part.parameter.name: part for part in parts}
        self.sampled_parameters: list[tuple[paddle.Tensor, list[int], list[NDArray[np.float32]]]] = []
        self.other_watch, clip.watch = clip.watch, self.note  # the next step begins with another one

    def note(self, pairs: Pairs, squares: paddle.Tensor) -> None:
        self.other_watch(pairs, squares)
        for parameter, gradient in pairs:
            places = self.check.updated_places(parameter.name, parameter.size)
            before = self.values(parameter, places)
            before.insert(1, numbers_at(gradient, places))
            self.sampled_parameters.append((parameter, places, before))

    def finish(self) -> None:
        for parameter, places, before in self.sampled_parameters:
            part = self.parts[parameter.name.removeprefix(SLICE)]
            self.check.update(part.name, len(part.shape), before, self.values(parameter, places))

    def values(self, parameter: paddle.Tensor, places: list[int]) -> list[NDArray[np.float32]]:
        """Return [value, mean, square] at `places`. The optimizer makes its moments, zeros, in its first step."""
        value, moments = numbers_at(parameter, places), self.optimizer._accumulators
        states = [moments.get(moment, {}).get(parameter.name) for moment in ("moment1", "moment2")]
        return [value, *(np.zeros_like(value) if state is None else numbers_at(state, places) for state in states)]


def token_count(x: paddle.Tensor) -> int:
    """Return how many tokens x [batch, sequence, hidden] has."""
    return int(x.shape[0] * x.shape[1])


def rows_at(x: paddle.Tensor, rows: list[int]) -> paddle.Tensor:
    """Return the rows [rows, hidden] of x [batch, sequence, hidden]."""
    return select(x.detach().flatten(0, 1), rows)


def select(tensor: paddle.Tensor, places: list[int], axis: int = 0) -> paddle.Tensor:
    return paddle.index_select(tensor.detach(), paddle.to_tensor(places), axis)


def numbers_at(tensor: paddle.Tensor, places: list[int]) -> NDArray[np.float32]:
    """Return the numbers of a tensor at `places` of its memory."""
    return on_host(select(tensor.detach().flatten(), places))


def on_host(tensor: paddle.Tensor) -> NDArray[np.float32]:
    numbers: NDArray[np.float32] = tensor.detach().astype("float32").numpy()
    return numbers

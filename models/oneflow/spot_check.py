"""Samples of one step for levelfield's SpotCheck: of linear layers, norms, attention and the optimizer's update.

A tensor's local part is what this process computes: its data-parallel share of the batch, its tensor-parallel share of
the outputs.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import oneflow as flow
from attention import Attention
from layers import Columns, LayerNorm, RMSNorm, Rows
from levelfield.worker.spot_check import ROWS
from mlp import GeluMLP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from decoder import Block, Decoder
    from levelfield.worker import SpotCheck
    from numpy.typing import NDArray
    from oneflow import nn
    from optimizer import LocalAdamW

    Forward = Callable[[flow.Tensor], flow.Tensor]


@contextlib.contextmanager
def sampled_passes(model: Decoder, check: SpotCheck) -> Iterator[None]:
    """Sample the first forward and backward pass of the layers that `check` draws, while the context lasts.

    Their modules have another `forward` until then.
    """
    local_layers = [block.index for block in model.layers if block.stage.is_local]
    passes = _Passes(check)
    with contextlib.ExitStack() as stack:
        for block in (model.layers[index] for index in check.layers(local_layers)):
            for path, module in block.named_modules():
                method, function = passes.replacement(f"layers.{block.index}.{path}", module, block)
                if method:
                    setattr(module, method, function)
                    stack.callback(delattr, module, method)
        if model.last_stage.is_local:
            model.final_norm.forward = passes.norm("final_norm", model.final_norm)
            stack.callback(delattr, model.final_norm, "forward")
        yield


class _Passes:
    """Functions in the place of modules' own that sample what those compute."""

    def __init__(self, check: SpotCheck) -> None:
        self.check = check
        self.watched_products: set[str] = set()  # products whose backward pass is sampled

    def replacement(self, name: str, module: nn.Module, block: Block) -> tuple[str, Callable[..., Any] | None]:
        """Return (method of the module, function in its place); an empty name where the module shows nothing."""
        path, is_split = name.split(".", 2)[2], block.stage.tensor > 1
        if isinstance(module, (LayerNorm, RMSNorm)):
            return "forward", self.norm(name, module)
        if isinstance(module, Columns) or (isinstance(module, Rows) and not is_split):  # else a sum over processes
            # no other layer has its input, so that the input's gradient comes from this product alone
            has_input_alone = path in ("attention.output", "mlp.down")
            has_input_alone = has_input_alone or (path == "mlp.up" and isinstance(block.mlp, GeluMLP))
            return "forward", self.product(name, module, is_split, has_input_alone and not is_split)
        if isinstance(module, Attention) and not module.dropout:
            return "mix", self.attention(name, module)
        return "", None

    def norm(self, name: str, norm: Any) -> Forward:
        forward, check = norm.forward, self.check

        def sampling(x: flow.Tensor) -> flow.Tensor:
            y = forward(x)
            if not check.has(name):
                inputs, output, bias = rows_of(x), rows_of(y), getattr(norm, "bias", None)
                rows = check.rows(len(inputs))
                parameters = on_host(norm.weight), None if bias is None else on_host(bias)
                check.norm(name, inputs[rows], *parameters, output[rows])
            return y

        return sampling

    def product(self, name: str, layer: Any, is_split: bool, has_backward: bool) -> Forward:
        forward, check = layer.forward, self.check

        def sampling(x: flow.Tensor) -> flow.Tensor:
            y = forward(x)
            if not check.has(name):
                inputs, output = rows_of(x.detach().to(y.dtype)), rows_of(y)  # as autocast rounds x
                rows, columns = check.rows(len(inputs)), check.places(ROWS, output.shape[1])
                bias = None if layer.bias is None else on_host(layer.bias)[columns]
                places = () if is_split else columns
                check.product(
                    name, inputs[rows], on_host(layer.weight)[columns], bias, output[rows][:, columns], places
                )
            # the first run of what is recomputed has no backward pass
            if has_backward and x.requires_grad and y.requires_grad and name not in self.watched_products:
                self.watched_products.add(name)
                self.watch_backward(name, layer, x, y)
            return y

        return sampling

    def watch_backward(self, name: str, layer: Any, x: flow.Tensor, y: flow.Tensor) -> None:
        """Sample the gradient of x, which is that of y times W, once the backward pass has it."""
        count, size = len(rows_of(x)), x.shape[-1]
        rows, columns = self.check.rows(count), self.check.places(ROWS, size)
        weight = on_host(layer.weight)[:, columns].T.copy()  # [columns, out]
        gradients: list[NDArray[np.float32]] = []  # of y: the backward pass comes to it first

        def keep(gradient: flow.Tensor) -> None:
            gradients.append(rows_of(gradient)[rows])

        def sample(gradient: flow.Tensor) -> None:
            self.check.input_gradient(name, gradients[0], weight, rows_of(gradient)[rows][:, columns])

        y.register_hook(keep)
        x.register_hook(sample)

    def attention(self, name: str, attention: Attention) -> Callable[..., flow.Tensor]:
        """Sample one head of one sequence."""
        mix, check = attention.mix, self.check

        def sampling(query: flow.Tensor, key: flow.Tensor, value: flow.Tensor, mask: flow.Tensor) -> flow.Tensor:
            mixed = mix(query, key, value, mask)
            if not check.has(name):
                # [batch, heads or kv_heads, sequence, head_dim], and [batch, sequence, heads head_dim]
                queries, keys, values, output = (on_host(tensor) for tensor in (query, key, value, mixed))
                batch, heads, length, size = queries.shape
                (sequence,), (head,) = check.places(1, batch), check.places(1, heads)
                places, group = check.places(ROWS, length), head * keys.shape[1] // heads
                check.attention(
                    name,
                    places,
                    queries[sequence, head, places],
                    keys[sequence, group],
                    values[sequence, group],
                    output[sequence, places, head * size : (head + 1) * size],
                )
            return mixed

        return sampling


class SampledUpdate:
    """Some numbers of each parameter before the optimizer's step, and, by `finish`, after it."""

    def __init__(self, optimizer: LocalAdamW, check: SpotCheck, scale: float) -> None:
        self.optimizer, self.check = optimizer, check
        self.sampled_parameters: list[tuple[str, int, flow.Tensor, list[int], list[NDArray[np.float32]]]] = []
        for part, local in zip(optimizer.parts, optimizer.locals, strict=True):
            places = check.updated_places(part.name, local.numel())
            before = self.values(local, places)
            before.insert(1, numbers_at(local.grad, places) / np.float32(scale))
            self.sampled_parameters.append((part.name, len(part.shape), local, places, before))

    def finish(self) -> None:
        for name, dimensions, local, places, before in self.sampled_parameters:
            self.check.update(name, dimensions, before, self.values(local, places))

    def values(self, local: flow.Tensor, places: list[int]) -> list[NDArray[np.float32]]:
        """Return [value, mean, square] at `places`. The optimizer makes its moments, zeros, in its first step."""
        value, states = numbers_at(local, places), self.optimizer.adamw._state[local]
        moments = [states.get(moment) for moment in ("exp_avg", "exp_avg_sq")]
        return [value, *(np.zeros_like(value) if state is None else numbers_at(state, places) for state in moments)]


def rows_of(x: flow.Tensor) -> NDArray[np.float32]:
    """Return this process's rows [rows, hidden] of x [batch, sequence, hidden]."""
    local = on_host(x)
    return local.reshape(-1, local.shape[-1])


def on_host(tensor: flow.Tensor) -> NDArray[np.float32]:
    """Return this process's part."""
    return np.array(tensor.detach().to_local().numpy(), np.float32)


def numbers_at(tensor: flow.Tensor, places: list[int]) -> NDArray[np.float32]:
    """Return the numbers of a local tensor at `places` of its memory."""
    index = flow.tensor(places, device=tensor.device)
    return np.array(flow.index_select(tensor.detach().flatten(), 0, index).numpy(), np.float32)

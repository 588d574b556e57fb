"""Samples of one step for levelfield's SpotCheck: of linear layers, norms, attention and the optimizer's update."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker.spot_check import ROWS, UPDATED
from model.attention import Attention
from model.layers import LayerNorm, RMSNorm
from model.parameters import local_memory
from step.transfers import numbers_at, on_host
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from levelfield.worker.spot_check import SpotCheck
    from model.decoder import Decoder
    from parallelism.model_chunks import ModelChunks
    from step.optimizer import LocalAdamW
    from torch import nn


@contextlib.contextmanager
def sampled_forward(model: Decoder | ModelChunks, check: SpotCheck) -> Iterator[None]:
    """Sample the first forward pass of the layers that `check` draws, while the context lasts."""
    modules = list(model.named_modules())
    held = sorted({int(name.split(".")[1]) for name, _ in modules if name.startswith("layers.")})
    names = {name for name, _ in modules}
    drawn = {f"layers.{layer}" for layer in check.layers(held)} | {"final_norm"}
    with contextlib.ExitStack() as stack:
        for name, module in modules:
            if ".".join(name.split(".")[:2]) not in drawn:
                continue
            hook = _hook_of(module, name, check, f"{name.rpartition('.')[0]}.gate" in names)
            if hook is not None:  # before the hooks that gather or sum a rank's part
                stack.callback(module.register_forward_hook(hook, prepend=True, with_kwargs=True).remove)
            if isinstance(module, Attention) and check.has_whole_sequences:
                attend, module.attend = module.attend, _sampling_attention(module.attend, name, check)
                stack.callback(setattr, module, "attend", attend)
        yield


def _hook_of(module: nn.Module, name: str, check: SpotCheck, is_gated: bool) -> Callable[..., None] | None:
    if isinstance(module, (LayerNorm, RMSNorm)):
        return lambda layer, inputs, _options, output: _sample_norm(check, name, layer, inputs, output)
    if not hasattr(module, "in_features"):  # of Linear, or of another library's in its place
        return None

    def sample(layer: Any, inputs: tuple[Any, ...], _options: Any, output: Any) -> None:
        if _sample_product(check, name, layer, inputs, output) and _has_input_alone(layer, name, is_gated):
            _sample_input_gradient(check, name, layer, inputs[0], output)

    return sample


def _has_input_alone(module: Any, name: str, is_gated: bool) -> bool:
    """Return whether no other layer has this input, so that its gradient comes from this product alone."""
    last = ".".join(name.split(".")[2:])
    is_joint = getattr(module, "step_linear", None) is not None and len(module.step_linear.layers) > 1
    return last in ("attention.output", "mlp.down") or is_joint or (last == "mlp.up" and not is_gated)


def _sample_product(check: SpotCheck, name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> bool:
    """Sample y = x W^T + b, and return whether it was. Layers that one product computes together are one here, too."""
    outputs = output if isinstance(output, tuple) else (output,)
    is_part = any(isinstance(y, DTensor) and any(p.is_partial() for p in y.placements) for y in outputs)
    joint = getattr(module, "step_linear", None)
    layers = [module] if joint is None else joint.layers
    biases = [layer.bias for layer in layers if layer.bias is not None and layer.bias.numel()]
    if check.has(name) or (is_part and biases):  # torch divides that bias over the ranks
        return False
    x = _plain(inputs[0]).flatten(0, -2)  # [rows, in]
    parts = [_plain(y).reshape(x.shape[0], -1) for y in outputs]  # each [rows, out]
    rows = check.rows(x.shape[0])
    columns = check.places(ROWS, sum(part.shape[1] for part in parts))
    is_whole = not any(isinstance(layer.weight, DTensor) for layer in layers)
    check.product(
        name,
        on_host(x[rows]),
        on_host(torch.cat([_plain(layer.weight) for layer in layers])[columns]),
        on_host(torch.cat([_plain(bias) for bias in biases])[columns]) if biases else None,
        on_host(torch.cat([part[rows] for part in parts], -1)[:, columns]),
        columns if is_whole else (),
    )
    return True


def _sample_input_gradient(check: SpotCheck, name: str, module: Any, x: Any, output: Any) -> None:
    """Sample the gradient of x, which is that of y times W, once the backward pass has it."""
    outputs = output if isinstance(output, tuple) else (output,)
    if isinstance(x, DTensor) or any(isinstance(y, DTensor) for y in outputs) or not x.requires_grad:
        return  # a rank's part of the sum
    joint, count = getattr(module, "step_linear", None), x.flatten(0, -2).shape[0]
    layers = [module] if joint is None else joint.layers
    rows, columns = check.rows(count), check.places(ROWS, x.shape[-1])
    weight = torch.cat([_plain(layer.weight)[:, columns] for layer in layers]).t().clone()  # [columns, out]
    parts: dict[int, torch.Tensor] = {}
    for index, y in enumerate(outputs):
        y.register_hook(lambda gradient, index=index: parts.update({index: gradient.reshape(count, -1)[rows].detach()}))

    def sample(gradient: torch.Tensor) -> None:
        if len(parts) == len(outputs):
            output_gradient = torch.cat([parts[index] for index in range(len(outputs))], -1)  # [rows, out]
            input_gradient = gradient.flatten(0, -2)[rows][:, columns]
            check.input_gradient(name, on_host(output_gradient), on_host(weight), on_host(input_gradient))

    x.register_hook(sample)


def _sample_norm(check: SpotCheck, name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
    if check.has(name):
        return
    # fused/add_norm.py returns the sum that it normalised, too
    x, y = (_plain(part) for part in (output if isinstance(output, tuple) else (inputs[0], output)))
    rows = check.rows(x.flatten(0, -2).shape[0])
    bias = getattr(module, "bias", None)
    check.norm(
        name,
        on_host(x.flatten(0, -2)[rows]),
        on_host(_plain(module.weight)),
        None if bias is None else on_host(_plain(bias)),
        on_host(y.flatten(0, -2)[rows]),
    )


def _sampling_attention(attend: Callable[..., torch.Tensor], name: str, check: SpotCheck) -> Callable[..., Any]:
    def sampling(*inputs: torch.Tensor) -> torch.Tensor:
        output = attend(*inputs)
        query, key, value, mixed = (_plain(tensor) for tensor in (*inputs, output))
        if not check.has(name):
            (sequence,), (head,) = check.places(1, query.shape[0]), check.places(1, query.shape[2])
            places, group = check.places(ROWS, query.shape[1]), head * key.shape[2] // query.shape[2]
            check.attention(
                name,
                places,
                on_host(query[sequence, places, head]),
                on_host(key[sequence, :, group]),
                on_host(value[sequence, :, group]),
                on_host(mixed[sequence, places, head]),
            )
        return output

    return sampling


class SampledUpdate:
    """Some numbers of each parameter before the optimizer's step, and, by `finish`, after it."""

    def __init__(self, optimizer: LocalAdamW, check: SpotCheck, scale: float) -> None:
        self.check, self.rows = check, []
        moments = {
            id(parameter): states
            for kernel in optimizer.kernels or ()
            for parameter, *states in zip(kernel.parameters, kernel.means, kernel.squares, strict=True)
        }
        for name, whole, local in zip(optimizer.names, optimizer.parameters, optimizer.locals, strict=True):
            if id(local) in moments:
                places = torch.tensor(check.places(UPDATED, local.numel()), device=local.device)
                tensors = [local, *moments[id(local)]]
                before = [numbers_at(tensor, places) for tensor in tensors]
                before.insert(1, numbers_at(local.grad, places) / scale)
                self.rows.append((name, whole.dim(), places, tensors, before))

    def finish(self) -> None:
        for name, dimensions, places, tensors, before in self.rows:
            after = [on_host(numbers_at(tensor, places)) for tensor in tensors]
            self.check.update(name, dimensions, [on_host(tensor) for tensor in before], after)


def _plain(tensor: torch.Tensor | Any) -> torch.Tensor:
    return local_memory(tensor.detach())

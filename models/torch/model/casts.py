"""The parameters in the precision that blocks compute in, cast once a step for all of its micro-batches.

Parameters are float32. With a cast of its own each micro-batch would read all of them again, and in a pipeline every
micro-batch in flight would keep its copy. What FSDP2 gathers it casts itself, and float32 needs no copy: there a layer
computes with its parameter, cast where it is used. Layers with one input, such as query, key and value, are one product
of copies that adjoin (StepLinear). DTensors, whose layouts differ, and layers of fp8 keep a product each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence  # noqa: F401  (one is in a type comment)

    from model.decoder import Decoder
    from parallelism.model_chunks import ModelChunks


class CastLayer(nn.Module):
    """A layer that computes in its input's precision. copies: the step's copies of its parameters, by name."""

    copies = None  # type: dict[str, torch.Tensor | Any] | None

    def cast(self, name: str, dtype: torch.dtype) -> torch.Tensor | Any:
        """Return the parameter `name` in `dtype`, or None where the layer has none: the step's copy, or a new one."""
        if self.copies is None:
            parameter = self.local_parameter(name)
            return None if parameter is None else parameter.to(dtype)
        copy = self.copies[name]
        return copy if copy is None or copy.requires_grad else Borrowed.apply(self.local_parameter(name), copy)

    def cast_without_gradient(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        return self.local_parameter(name).detach().to(dtype) if self.copies is None else self.copies[name]

    def local_parameter(self, name: str) -> torch.Tensor | Any:
        """Return this rank's part of the parameter `name`, or None where the layer has none."""
        return getattr(self, name)

    def empty_copies(self, dtype: torch.dtype) -> dict[str, torch.Tensor | Any]:
        """Return memory for `copies`."""
        parameter_names = [name for name in self._parameters if self.local_parameter(name) is not None]
        empty = {name: torch.empty_like(self.local_parameter(name).detach(), dtype=dtype) for name in parameter_names}
        return {**dict.fromkeys(self._parameters), **empty}


class Borrowed(torch.autograd.Function):
    """A copy in place of its parameter, whose gradient goes to the parameter.

    The cast itself is one node for all micro-batches. It is the oldest of each one's graph, so autograd would run it
    last, and the 16-bit gradients of all layers would wait for it.
    """

    @staticmethod
    def forward(context: Any, parameter: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        context.dtype = parameter.dtype
        return copy.view_as(copy)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.to(context.dtype), None


class BorrowedVectors(torch.autograd.Function):
    """`Borrowed` of all vectors by one node: their gradients are small, so they may wait to be cast at once.

    copies: one after the other. sizes: of each.
    """

    @staticmethod
    def forward(
        context: Any, copies: torch.Tensor, sizes: list[int], *parameters: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        context.sizes = sizes
        return copies.split_with_sizes(sizes)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        casts = gradients[0].new_empty(sum(context.sizes), dtype=torch.float32).split_with_sizes(context.sizes)
        torch._foreach_copy_(casts, gradients)
        return None, None, *casts


class CastLinear(torch.autograd.Function):
    """x W^T + b by copies of W and b, in x's precision; the gradients of W and b are float32.

    x: [..., in]. weight: [out, in], the copy; of several layers, one after the other. bias: [out] or None. rows: the
    outputs of each layer. head_size: None for one output [..., out]; else each layer's, in heads [..., n, head_size].
    parameters: the layers' weights, then their biases; they only receive their gradients.
    """

    @staticmethod
    def forward(
        context: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        rows: list[int],
        head_size: int | None,
        *parameters: torch.Tensor,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        context.save_for_backward(x, weight)
        context.rows, context.has_bias = rows, bias is not None
        output = functional.linear(x, weight, bias)
        if head_size is None:
            return output
        heads = output.view(*output.shape[:-1], -1, head_size)
        return heads.split_with_sizes([count // head_size for count in rows], -2)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = context.saved_tensors
        # [rows of x, outputs of all layers]
        flat = (gradients[0] if len(gradients) == 1 else torch.cat(gradients, -2)).reshape(-1, weight.shape[0])
        x_gradient = torch.mm(flat, weight).view(x.shape) if context.needs_input_grad[0] else None
        # from here on those of the weights, then of the biases
        gradients = [float32_product(flat.t(), x.flatten(0, -2))]  # type: ignore[assignment]
        if context.has_bias:
            gradients.append(float32_sum(flat))  # type: ignore[attr-defined]
        if len(context.rows) > 1:
            gradients = [  # type: ignore[assignment]
                part for joint in gradients for part in joint.split_with_sizes(context.rows)
            ]
        return x_gradient, None, None, None, None, *gradients


class StepLinear:
    """The copies of a linear layer, or of several with one input: their rows adjoin, so one product is that of all.

    rows: the outputs of each layer.
    """

    def __init__(self, layers: Sequence[nn.Linear], dtype: torch.dtype) -> None:
        self.layers, self.rows, first = layers, [layer.out_features for layer in layers], layers[0].weight
        self.weight = torch.empty(sum(self.rows), first.shape[1], dtype=dtype, device=first.device)
        self.bias = None if layers[0].bias is None else self.weight.new_empty(sum(self.rows))
        self.parameters, self.copies = [layer.weight for layer in layers], [*self.weight.split(self.rows)]
        if self.bias is not None:
            self.parameters += [layer.bias for layer in layers]
            self.copies += self.bias.split(self.rows)

    def product(self, x: torch.Tensor, head_size: int | None = None) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Turn [..., in] into [..., outputs of all]; given a head's size, into each layer's [..., n, head_size]."""
        return CastLinear.apply(  # type: ignore[no-any-return]
            x, self.weight, self.bias, self.rows, head_size, *self.parameters
        )


class StepCasts:
    """The copies of one step. Each use of one has its own path to the float32 parameter (CastLinear, Borrowed).

    apart: the parameters that FSDP2 does not gather, where it gathers the model's others. The copies are written anew
    in each step. Their memory stays: the last gradients, when most is in use, need them in any case.
    """

    def __init__(self, model: Decoder | ModelChunks, apart: Iterable[nn.Parameter] = ()) -> None:
        apart, dtype, modules = set(apart), model.dtype, list(model.modules())
        layers = [layer for layer in modules if isinstance(layer, CastLayer)] if dtype != torch.float32 else []
        if any(isinstance(module, FSDPModule) for module in modules):
            layers = [layer for layer in layers if apart.intersection(layer.parameters(recurse=False))]
        plain = {layer for layer in layers if not any(isinstance(tensor, DTensor) for tensor in layer.parameters())}
        linears = [layer for layer in layers if layer in plain and isinstance(layer, nn.Linear)]
        groups = [group for module in modules for group in getattr(module, "joinable_layers", list)()]
        groups = [group for group in groups if set(linears).issuperset(group)]
        joined = {layer for group in groups for layer in group}
        groups += [[layer] for layer in linears if layer not in joined]
        self.linears = [StepLinear(group, dtype) for group in groups]
        self.copies = {layer: layer.empty_copies(dtype) for layer in layers if layer not in set(linears)}
        names = [(layer, name) for layer in self.copies for name in layer._parameters]
        entries = [(layer, name) for layer, name in names if layer.local_parameter(name) is not None]
        self.vectors = [
            (layer, name) for layer, name in entries if layer in plain and layer.local_parameter(name).dim() == 1
        ]
        self.vector_sizes = [len(layer.local_parameter(name)) for layer, name in self.vectors]
        if self.vectors:
            layer, name = self.vectors[0]
            self.vector_copies = self.copies[layer][name].new_empty(sum(self.vector_sizes))
            self.take_vectors(self.vector_copies.split_with_sizes(self.vector_sizes))
        pairs = [pair for linear in self.linears for pair in zip(linear.parameters, linear.copies, strict=True)]
        pairs += [(layer.local_parameter(name), self.copies[layer][name]) for layer, name in entries]
        self.sources = [local(parameter.detach()) for parameter, _ in pairs]
        self.targets = [local(copy) for _, copy in pairs]
        if self.targets:
            choose_product(self.targets[0])

    def make(self) -> None:
        """Write the copies, before the first forward pass of a step."""
        if not self.targets:
            return
        torch._foreach_copy_(self.targets, self.sources)
        if self.vectors:
            vectors = [layer.local_parameter(name) for layer, name in self.vectors]
            self.take_vectors(BorrowedVectors.apply(self.vector_copies, self.vector_sizes, *vectors))
        # straight into each layer's attributes: nn.Module's assignment asks what a value is, a millisecond for them all
        for layer, copies in self.copies.items():
            vars(layer)["copies"] = copies
        for linear in self.linears:
            vars(linear.layers[0])["step_linear"] = linear

    def drop(self) -> None:
        """Detach the copies, after the last backward pass: the optimizer changes what was cast."""
        self.take_vectors([None] * len(self.vectors))  # so that no graph of autograd stays
        for layer in self.copies:
            vars(layer)["copies"] = None
        for linear in self.linears:
            vars(linear.layers[0])["step_linear"] = None

    def take_vectors(self, copies: Sequence[torch.Tensor | None]) -> None:
        for (layer, name), copy in zip(self.vectors, copies, strict=True):
            self.copies[layer][name] = copy


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# Of 16-bit matrices, in float32; None: rounded to 16 bits before.
_product = None  # type: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None


def float32_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left @ right of 16-bit matrices, as float32.

    The product itself gives float32 where this process's device has such a one.
    """
    return (left @ right).float() if _product is None else _product(left, right)


def float32_sum(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of rows of 16 bits, as float32. A processor would first copy all of them in float32."""
    return rows.sum(0).float() if _product is None else rows.sum(0, dtype=torch.float32)


def choose_product(example: torch.Tensor) -> None:
    """Take the device of the tensor `example` for `float32_product`."""
    global _product
    if example.device.type != "cpu":
        from model import products_on_accelerators  # here: what runs on a processor does not rest on it

        _product = products_on_accelerators.float32_product(example)

"""Samples of a step's gradients for levelfield's SpotCheck, taken as the backward pass has them.

Nothing here keeps an activation: only numbers of it, until their gradients come.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from levelfield.worker.spot_check import ROWS, TOKEN_COLUMNS
from model.parameters import local_memory
from step.transfers import Copied, slices_at
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Sequence

    from levelfield.worker.spot_check import SpotCheck


class ProductGradients:
    """The gradients of one product y = x W^T, of one layer or of several that it computes together.

    y may come in several parts, `outputs`.
    """

    def __init__(self, check: SpotCheck, name: str, module: Any) -> None:
        joint = getattr(module, "step_linear", None)
        layers = [module] if joint is None else joint.layers
        self.check, self.name = check, name
        self.weights = [layer.weight for layer in layers]
        self.biases = [layer.bias for layer in layers if layer.bias is not None and layer.bias.numel()]

    def watch_input(self, x: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
        """Sample the gradient of x, which is that of y times W, once the backward pass has it."""
        if not x.requires_grad:
            return
        count = tokens_of(x)
        rows, columns = self.check.rows(count), self.check.places(ROWS, x.shape[-1])
        # [columns, out]
        weight = torch.cat([slices_at(local_memory(weight.detach()), columns, 1) for weight in self.weights]).t()
        parts = output_gradients(outputs, count, lambda gradient, _start: slices_at(gradient, rows))
        awaited = len(outputs)

        def sample(gradient: torch.Tensor) -> None:
            if len(parts) == awaited and not self.check.has(f"{self.name} backward"):
                output_gradient = torch.cat([parts[index] for index in sorted(parts)], -1)  # [rows, out]
                input_gradient = slices_at(slices_at(gradient.detach().flatten(0, -2), rows), columns, 1)
                self.check.input_gradient(self.name, *map(Copied, (output_gradient, weight, input_gradient)))

        x.register_hook(sample)

    def watch_weight(self, x: torch.Tensor, outputs: Sequence[torch.Tensor], stack: contextlib.ExitStack) -> None:
        """Sample what this micro-batch adds to the gradient of W, that of y times x, and of b, at every token."""
        if any(isinstance(weight, DTensor) or not weight.requires_grad for weight in self.weights):
            return
        sizes = [weight.shape[0] for weight in self.weights]
        places = self.check.places(TOKEN_COLUMNS, sum(sizes))  # of the outputs
        columns = self.check.places(TOKEN_COLUMNS, x.shape[-1])
        inputs = slices_at(x.detach().flatten(0, -2), columns, 1)  # [tokens, columns]
        gradients = output_gradients(
            outputs, tokens_of(x), lambda part, start: slices_at(part, within(places, start, part.shape[1]), 1)
        )
        parts: dict[tuple[str, int], torch.Tensor] = {}
        starts = {sum(sizes[:index]): index for index in range(len(sizes))}
        indices = [index for start, index in starts.items() if within(places, start, sizes[index])]
        tensors = {("weight", index): self.weights[index] for index in indices}
        if len(self.biases) == len(self.weights):
            tensors.update({("bias", index): self.biases[index] for index in indices})
        count, awaited = len(outputs), tensors.keys()

        def sample(gradient: torch.Tensor, key: tuple[str, int], here: list[int]) -> None:
            if len(gradients) < count or self.check.has(f"{self.name} weights"):
                return
            parts[key] = slices_at(gradient.detach(), here)
            if parts.keys() == awaited:
                output_parts = torch.cat([gradients[key] for key in sorted(gradients)], -1)  # [tokens, places]
                weight, bias = ([parts[key] for key in sorted(parts) if key[0] == kind] for kind in ("weight", "bias"))
                weight_gradient = slices_at(torch.cat(weight), columns, 1)  # [places, columns]
                self.check.weight_gradient(
                    self.name,
                    Copied(output_parts.t()),
                    Copied(inputs.t()),
                    Copied(weight_gradient),
                    Copied(torch.cat(bias)) if bias else None,
                )

        for start, index in starts.items():
            for key in (("weight", index), ("bias", index)):
                if key in tensors:
                    hook = partial(sample, key=key, here=within(places, start, sizes[index]))
                    stack.callback(tensors[key].register_hook(hook).remove)


def output_gradients(
    outputs: Sequence[torch.Tensor], count: int, part: Callable[[torch.Tensor, int], torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Return where `part` of each output's gradient [tokens, columns] will be; it is also given its first column."""
    parts: dict[int, torch.Tensor] = {}

    def take(gradient: torch.Tensor, index: int, start: int) -> None:
        parts.setdefault(index, part(gradient.detach().reshape(count, -1), start))

    start = 0
    for index, y in enumerate(outputs):
        if y.requires_grad:
            y.register_hook(partial(take, index=index, start=start))
        start += y.numel() // count
    return parts


def within(places: Sequence[int], start: int, size: int) -> list[int]:
    """Return those of `places` that lie in the `size` from `start` on, counted from there."""
    return [place - start for place in places if start <= place < start + size]


def rows_of_all(tensors: Sequence[torch.Tensor], rows: Sequence[int]) -> torch.Tensor:
    """Return `rows` of tensors that are thought one after the other, without a copy of them all."""
    sizes = [tensor.shape[0] for tensor in tensors]
    parts = zip(tensors, sizes, (sum(sizes[:index]) for index in range(len(sizes))), strict=True)
    return torch.cat([slices_at(tensor, within(rows, start, size)) for tensor, size, start in parts])


def rows_of(y: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return `rows` of an output, [rows, columns]. y: [batch, sequence, ...] or [tokens, columns]."""
    return slices_at(y.flatten(0, 1) if y.dim() > 2 else y, rows).flatten(1)


def tokens_of(x: torch.Tensor) -> int:
    return x.numel() // x.shape[-1]


def watch_norm(check: SpotCheck, name: str, x: torch.Tensor, y: torch.Tensor, rows: Sequence[int]) -> None:
    """Sample the gradients of a norm's output y and of its input x, which other parts of the block have, too."""
    parts: list[torch.Tensor] = []

    def sample(gradient: torch.Tensor) -> None:
        if parts and not check.has(f"{name} backward"):
            check.norm_gradient(name, Copied(parts[0]), Copied(slices_at(gradient.detach().flatten(0, -2), rows)))

    # a pipeline's stage begins with a tensor that it received, whose gradient it sends
    if x.requires_grad and not x.is_leaf and x.dim() == 3:
        y.register_hook(lambda gradient: parts.append(slices_at(gradient.detach().flatten(0, -2), rows)))
        x.register_hook(sample)


class ActivationGradients:
    """Gradients at both sides of an MLP's activation, at some columns."""

    def __init__(self, check: SpotCheck, name: str, is_gated: bool) -> None:
        self.check, self.name = check, f"{name}.activation"
        self.awaited = {"up", "gate", "down"} if is_gated else {"up", "down"}
        self.columns: list[int] = []
        # by layer: what up and gate gave, and the gradient; of down, of its input: [rows, columns]
        self.parts: dict[str, torch.Tensor] = {}
        self.gradients: dict[str, torch.Tensor] = {}

    def watch(self, layers: Sequence[str], tensor: torch.Tensor) -> None:
        """Watch the input of `down`, or the output of other layers, one after the other."""
        if self.check.has(self.name) or not tensor.requires_grad:
            return
        size, rows = tensor.shape[-1] // len(layers), self.check.rows(tokens_of(tensor))
        self.columns = self.columns or self.check.places(ROWS, size)
        for index, name in enumerate(layers):
            columns = [index * size + column for column in self.columns]
            self.parts[name] = slices_at(slices_at(tensor.detach().flatten(0, -2), rows), columns, 1)
            tensor.register_hook(partial(self._take, name=name, rows=rows, columns=columns))

    def _take(self, gradient: torch.Tensor, name: str, rows: Sequence[int], columns: Sequence[int]) -> None:
        self.gradients.setdefault(name, slices_at(slices_at(gradient.detach().flatten(0, -2), rows), columns, 1))
        if self.gradients.keys() != self.awaited or self.parts.keys() != self.awaited or self.check.has(self.name):
            return
        gate = [Copied(part["gate"]) for part in (self.parts, self.gradients)] if "gate" in self.awaited else None
        numbers = [Copied(tensor) for tensor in (self.gradients["down"], self.parts["up"], self.gradients["up"])]
        self.check.activation_gradient(self.name, numbers[0], numbers[1], numbers[2], gate)


class Head(NamedTuple):
    """The head that is sampled, and where: its number and that of its keys and values."""

    sequence: int
    query: int
    key: int
    places: list[int]


def watch_attention(
    check: SpotCheck,
    name: str,
    head: Head,
    inputs: Sequence[torch.Tensor],
    output: torch.Tensor,
    watch_unrotated: Callable[[Callable[[torch.Tensor], None]], Any] | None,
) -> None:
    """Sample the gradients of one head's queries, and of the last key and value of its group.

    inputs: query, key, value; all are [batch, sequence, heads, D]. watch_unrotated: gives a hook the gradient of the
    queries before their rotation, where there is one.
    """
    query, key, _ = inputs
    last, size = query.shape[1] - 1, query.shape[2] // key.shape[2]
    group = slice(head.key * size, (head.key + 1) * size)  # the queries of this key
    last_query = query.detach()[head.sequence, last, group].clone()
    parts: dict[str, Sequence[torch.Tensor]] = {}

    def take(gradient: torch.Tensor, part: str) -> None:
        numbers = gradient.detach()[head.sequence]
        if part in ("key", "value"):
            parts.setdefault(part, [numbers[last, head.key].clone()])
        elif part == "output":
            parts.setdefault(part, [slices_at(numbers[:, head.query], head.places), numbers[last, group].clone()])
        else:
            parts.setdefault(part, [slices_at(numbers[:, head.query], head.places)])
        if parts.keys() == awaited and not check.has(f"{name} backward"):
            (rows, last_rows), unrotated_rows = parts["output"], parts.get("unrotated")
            check.attention_gradient(
                name,
                [Copied(rows), Copied(parts["query"][0])],
                [Copied(x) for x in (last_query, last_rows, parts["key"][0], parts["value"][0])],
                None if unrotated_rows is None else Copied(unrotated_rows[0]),
            )

    tensors = dict(zip(("query", "key", "value"), inputs, strict=True)) | {"output": output}
    awaited = {*tensors} if watch_unrotated is None else {*tensors, "unrotated"}
    for part, tensor in tensors.items():
        tensor.register_hook(partial(take, part=part))
    if watch_unrotated is not None:
        watch_unrotated(partial(take, part="unrotated"))

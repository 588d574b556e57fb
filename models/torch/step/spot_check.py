"""Samples of a step for levelfield's SpotCheck: of linear layers, norms, attention and the optimizer's update.

Those of the embedding and of the head: sampled_ends.py. Of gradients: sampled_gradients.py.
"""

from __future__ import annotations

import contextlib
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker.spot_check import PREFIX, ROWS
from model.attention import Attention
from model.decoder import Decoder
from model.layers import LayerNorm, RMSNorm
from model.parameters import local_memory
from step.sampled_ends import sample_ends
from step.sampled_gradients import (
    ActivationGradients,
    Head,
    ProductGradients,
    rows_of,
    rows_of_all,
    watch_attention,
    watch_norm,
)
from step.transfers import Copied, copied_together, indices_on_device, numbers_at, slices_at
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from levelfield.worker.spot_check import SpotCheck
    from parallelism.model_chunks import ModelChunks
    from step.optimizer import LocalAdamW
    from torch import nn


@contextlib.contextmanager
def sampled_forward(model: Decoder | ModelChunks, check: SpotCheck, sees_residuals: bool = True) -> Iterator[None]:
    """Sample the layers that `check` draws and the model's ends, while the context lasts: in one micro-batch.

    sees_residuals: a norm's input is the very tensor that its branch is added to, whose gradient is that of both.
    """
    modules = list(model.named_modules())
    local_layers = sorted({int(name.split(".")[1]) for name, _ in modules if name.startswith("layers.")})
    names = {name for name, _ in modules}
    drawn_names = {f"layers.{layer}" for layer in check.layers(local_layers)} | {"final_norm"}
    activations: dict[str, ActivationGradients] = {}
    with contextlib.ExitStack() as stack:
        for name, module in modules:
            if isinstance(module, Decoder):
                sample_ends(module, check, stack)
            if ".".join(name.split(".")[:2]) not in drawn_names:
                continue
            hook = _hook_of(
                module, name, check, activations, f"{name.rpartition('.')[0]}.gate" in names, sees_residuals, stack
            )
            if hook is not None:  # before the hooks that gather or sum a rank's part
                stack.callback(module.register_forward_hook(hook, prepend=True, with_kwargs=True).remove)
            if isinstance(module, Attention) and check.has_whole_sequences:
                _AttentionSamples(module, name, check).watch(stack)
        yield


def _hook_of(
    module: nn.Module,
    name: str,
    check: SpotCheck,
    activations: dict[str, ActivationGradients],
    is_gated: bool,
    sees_residuals: bool,
    stack: contextlib.ExitStack,
) -> Callable[..., None] | None:
    if isinstance(module, (LayerNorm, RMSNorm)):
        return lambda layer, inputs, _options, output: _sample_norm(check, name, layer, inputs, output, sees_residuals)
    if not hasattr(module, "in_features"):  # of Linear, or of another library's in its place
        return None
    block, _, last = name.rpartition(".")

    def sample(layer: Any, inputs: tuple[Any, ...], _options: Any, output: Any) -> None:
        if _sample_product(check, name, layer, inputs, output):
            x, outputs = inputs[0], output if isinstance(output, tuple) else (output,)
            if isinstance(x, DTensor) or any(isinstance(y, DTensor) for y in outputs):
                return  # gradients of a rank's part
            if block.endswith(".mlp") and last in ("gate", "up", "down"):
                joint = getattr(layer, "step_linear", None)
                layers = ["gate", "up"] if joint is not None and len(joint.layers) == 2 else [last]
                gradients = activations.setdefault(block, ActivationGradients(check, block, is_gated))
                gradients.watch(layers, x if last == "down" else outputs[0])
            product = ProductGradients(check, name, layer)
            product.watch_weight(x, outputs, stack)
            if _has_input_alone(layer, name, is_gated, check.has_one_norm):
                product.watch_input(x, outputs)

    return sample


def _has_input_alone(module: Any, name: str, is_gated: bool, has_one_norm: bool) -> bool:
    """Return whether no other layer has this input, so that its gradient comes from this product alone."""
    last = ".".join(name.split(".")[2:])
    if has_one_norm:
        return last in ("attention.output", "mlp.down")
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
    x = _plain(inputs[0]).flatten(0, -2)  # [tokens, in]
    rows = check.rows(x.shape[0])
    parts = [rows_of(_plain(y), rows) for y in outputs]  # each [rows, out]
    columns = check.places(ROWS, sum(part.shape[1] for part in parts))
    is_whole = not any(isinstance(layer.weight, DTensor) for layer in layers)
    check.product(
        name,
        Copied(slices_at(x, rows)),
        Copied(rows_of_all([_plain(layer.weight) for layer in layers], columns)),
        Copied(rows_of_all([_plain(bias) for bias in biases], columns)) if biases else None,
        Copied(slices_at(torch.cat(parts, -1), columns, 1)),
        columns if is_whole else (),
        Copied(largest_values(x, layers[0].weight)) if getattr(module, "is_exact", False) else None,
    )
    return True


def largest_values(*tensors: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute value of each, [tensors]."""
    return torch.stack([tensor.detach().abs().amax().float() for tensor in tensors])


def _sample_norm(
    check: SpotCheck, name: str, module: Any, inputs: tuple[Any, ...], output: Any, sees_residuals: bool
) -> None:
    if check.has(name):
        return
    # fused/add_norm.py returns the sum that it normalised, too
    x, y = (_plain(part) for part in (output if isinstance(output, tuple) else (inputs[0], output)))
    rows = check.rows(x.flatten(0, -2).shape[0])
    bias = getattr(module, "bias", None)
    check.norm(
        name,
        Copied(slices_at(x.flatten(0, -2), rows)),
        Copied(_plain(module.weight)),
        None if bias is None else Copied(_plain(bias)),
        Copied(slices_at(y.flatten(0, -2), rows)),
    )
    if sees_residuals and not any(isinstance(tensor, (tuple, DTensor)) for tensor in (inputs[0], output)):
        watch_norm(check, name, inputs[0], output, rows)


class _AttentionSamples:
    """One head at some positions with their rotation, and every head at one position near a sequence's start."""

    def __init__(self, module: Attention, name: str, check: SpotCheck) -> None:
        self.module, self.name, self.check = module, name, check
        self.unrotated: dict[str, torch.Tensor] = {}  # [batch, sequence, n, D]
        self.watch_unrotated: Callable[[Callable[[torch.Tensor], None]], Any] | None = None

    def watch(self, stack: contextlib.ExitStack) -> None:
        module = self.module
        has_norms = module.query_norm is not None
        for key, layer in (("query", module.query), ("key", module.key)):
            layer = getattr(module, f"{key}_norm") if has_norms else layer
            stack.callback(layer.register_forward_hook(partial(self._take, key=key)).remove)
        attend, module.attend = module.attend, partial(self._attend, module.attend)
        stack.callback(setattr, module, "attend", attend)

    def _take(self, layer: Any, _inputs: Any, output: Any, key: str) -> None:
        """Take queries and keys before their rotation, from layers that may compute them together."""
        if self.check.has(self.name):
            return
        joint = getattr(layer, "step_linear", None)
        if isinstance(output, tuple):
            query, keys = output[:2]
            self.unrotated = {"query": _plain(query), "key": _plain(keys)}
            self._watch(query, lambda gradient: gradient)
        elif joint is not None and len(joint.rows) > 1:
            query, keys, _ = _plain(output).split(joint.rows, -1)
            self.unrotated = {"query": self._heads(query), "key": self._heads(keys)}
            width = joint.rows[0]
            self._watch(output, lambda gradient: gradient[..., :width])
        else:
            self.unrotated[key] = self._heads(_plain(output))
            if key == "query":
                self._watch(output, lambda gradient: gradient)

    def _watch(self, output: Any, queries: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Let the gradient of an output be watched, of which `queries` returns those of the queries."""
        if output.requires_grad and not isinstance(output, DTensor) and self.check.has_rotary_positions:
            self.watch_unrotated = lambda hook: output.register_hook(lambda y: hook(self._heads(queries(y))))

    def _heads(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.dim() == 4 else tensor.unflatten(-1, (-1, self.module.head_size))

    def _attend(self, attend: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        output = attend(*inputs)
        if not self.check.has(self.name):
            place = self._sample(*(_plain(tensor) for tensor in (*inputs, output)))
            if output.requires_grad and not any(isinstance(tensor, DTensor) for tensor in (*inputs, output)):
                watch_attention(self.check, self.name, place, inputs, output, self.watch_unrotated)
            self.unrotated, self.watch_unrotated = {}, None
        return output

    def _sample(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mixed: torch.Tensor) -> Head:
        """Sample attention, and return where."""
        check, length = self.check, query.shape[1]
        (sequence,), (head,) = check.places(1, query.shape[0]), check.places(1, query.shape[2])
        places, group = check.places(ROWS, length), head * key.shape[2] // query.shape[2]
        unrotated_samples = None
        if self.unrotated.keys() == {"query", "key"} and check.has_rotary_positions:
            unrotated_samples = [
                Copied(slices_at(self.unrotated["query"][sequence, :, head], places)),
                Copied(slices_at(self.unrotated["key"][sequence, :, group], places)),
            ]
        check.attention(
            self.name,
            places,
            Copied(slices_at(query[sequence, :, head], places)),
            Copied(key[sequence, :, group]),
            Copied(value[sequence, :, group]),
            Copied(slices_at(mixed[sequence, :, head], places)),
            unrotated_samples,
        )
        (last,) = check.places(1, min(PREFIX, length))
        check.heads(
            self.name,
            Copied(query[sequence, last]),
            Copied(key[sequence, : last + 1].transpose(0, 1)),
            Copied(value[sequence, : last + 1].transpose(0, 1)),
            Copied(mixed[sequence, last]),
        )
        return Head(sequence, head, group, places)


class MicroBatchGradients:
    """What each micro-batch adds to the gradients that SampledUpdate samples, on a rank that has all of them."""

    def __init__(self, optimizer: LocalAdamW, check: SpotCheck) -> None:
        self.parts: dict[str, list[torch.Tensor]] = {}
        self.handles = []
        for name, places, whole in zip(
            optimizer.names, updated_places(optimizer, check), optimizer.parameters, strict=True
        ):
            hook = partial(self._take, name=name, places=places)
            self.handles.append(whole.register_hook(hook))

    def _take(self, gradient: torch.Tensor, name: str, places: torch.Tensor) -> None:
        self.parts.setdefault(name, []).append(numbers_at(gradient, places))

    def finish(self) -> None:
        for handle in self.handles:
            handle.remove()


class SampledUpdate:
    """Some numbers of each parameter before the optimizer's step, and, by `finish`, after it."""

    def __init__(
        self, optimizer: LocalAdamW, check: SpotCheck, scale: float, micro_batches: MicroBatchGradients | None
    ) -> None:
        self.check, self.scale, self.sampled_parameters = check, scale, []
        self.micro_batches = {} if micro_batches is None else micro_batches.parts
        moments = {
            id(parameter): states
            for kernel in optimizer.kernels or ()
            for parameter, *states in zip(kernel.parameters, kernel.means, kernel.squares, strict=True)
        }
        places_by_parameter = updated_places(optimizer, check)
        for name, places, whole, local in zip(
            optimizer.names, places_by_parameter, optimizer.parameters, optimizer.locals, strict=True
        ):
            if id(local) in moments:
                tensors = [local, *moments[id(local)]]
                before = [numbers_at(tensor, places) for tensor in tensors]
                before.insert(1, numbers_at(local.grad, places) / scale)
                self.sampled_parameters.append((name, whole.dim(), places, tensors, before))

    def finish(self) -> None:
        tensors_of_rows = []
        for name, _, places, tensors, before in self.sampled_parameters:
            after = [numbers_at(tensor, places) for tensor in tensors]
            parts = [torch.stack(self.micro_batches[name]) / self.scale] if name in self.micro_batches else []
            tensors_of_rows.append([*before, *after, *parts])
        if not self.sampled_parameters:
            return
        copies = iter(copied_together([tensor for row in tensors_of_rows for tensor in row]))
        for (name, dimensions, *_), row in zip(self.sampled_parameters, tensors_of_rows, strict=True):
            before_step, after_step, micro_batches = (list(islice(copies, count)) for count in (4, 3, len(row) - 7))
            self.check.update(name, dimensions, before_step, after_step, *micro_batches)


def updated_places(optimizer: LocalAdamW, check: SpotCheck) -> Sequence[torch.Tensor]:
    """Return where each parameter's numbers are sampled, of this rank's part."""
    places = [
        check.updated_places(name, local.numel()) for name, local in zip(optimizer.names, optimizer.locals, strict=True)
    ]
    return indices_on_device(places, optimizer.locals[0].device)


def _plain(tensor: torch.Tensor | Any) -> torch.Tensor:
    return local_memory(tensor.detach())

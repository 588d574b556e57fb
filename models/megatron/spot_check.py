"""Samples of one step for levelfield's SpotCheck: of linear layers, norms, attention and the optimizer's update."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker.spot_check import ROWS
from step.transfers import Copied, indices_on_device, numbers_at, slices_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from levelfield.worker.job import Coordinates, Job
    from levelfield.worker.spot_check import SpotCheck
    from megatron.core.models.gpt.gpt_model import GPTModel
    from torch import nn
    from weights import Weights

# The first canonical modules of Megatron's. Experts, routers and the head are not sampled.
PRODUCTS = ("attention.query", "attention.output", "mlp.gate", "mlp.up", "mlp.down")
SUMMED_PRODUCTS = ("attention.output", "mlp.down")  # over tensor-parallel ranks, inside the module
NORMS = ("attention_norm", "mlp_norm", "attention.query_norm", "attention.key_norm", "final_norm")


class SampledForward:
    """Hooks of the modules of this rank's chunks that sample a step's first micro-batch."""

    def __init__(
        self, job: Job, place: Coordinates, chunks: Sequence[GPTModel], weights: Weights, check: SpotCheck
    ) -> None:
        self.job, self.place, self.chunks, self.check = job, place, chunks, check
        parameters = weights.parameters
        self.names = {id(parameter): parts[0].name.rpartition(".")[0] for parameter, parts in parameters}

    @contextlib.contextmanager
    def install_hooks(self) -> Iterator[None]:
        """Sample the layers that the check draws, while the context lasts."""
        layers = {layer.layer_number - 1: layer for chunk in self.chunks for layer in chunk.decoder.layers}
        drawn_layers = self.check.layers(sorted(layers))
        with contextlib.ExitStack() as stack:
            for module in (module for chunk in self.chunks for module in chunk.modules()):
                name = self.names.get(id(getattr(module, "weight", None)), "")
                part = name.split(".", 2)[2] if name.startswith("layers.") else name
                if part != name and int(name.split(".")[1]) not in drawn_layers:
                    continue
                if part in NORMS:
                    stack.callback(self.watch_norm(name, module).remove)
                elif part in PRODUCTS and self.is_visible(part, module):
                    stack.callback(self.watch_product(name, module).remove)
            if self.check.has_whole_sequences and not self.job.model.attention_dropout:
                for number in drawn_layers:
                    core = layers[number].self_attention.core_attention
                    stack.callback(self.watch_attention(f"layers.{number}.attention", core).remove)
            yield

    def is_visible(self, part: str, module: nn.Module) -> bool:
        """Return whether the module's output is the product of its input.

        Not where transformer-engine's layer holds the norm before it, nor where the module sums its ranks' products.
        """
        is_summed = part in SUMMED_PRODUCTS and self.job.layout.tensor > 1
        return not (is_summed or hasattr(module, "layer_norm_weight"))

    def watch_product(self, name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        """Sample y = x W^T, with + b where the module adds its bias. Query, key and value, or gate and up, are one."""

        def hook(layer: Any, inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, Any]) -> None:
            if self.check.has(name):
                return
            x, (y, later_bias) = inputs[0], outputs
            if len(y) != len(x):  # gathered inside, of a sequence divided over the ranks: y of this rank's part
                y = y[self.place.tensor * len(x) :][: len(x)]
            x, y = x.flatten(0, -2), y.flatten(0, -2)
            rows, columns = self.check.places(ROWS, x.shape[0]), self.check.places(ROWS, y.shape[1])
            bias = layer.bias if later_bias is None and layer.bias is not None and layer.bias.numel() else None
            self.check.product(
                name,
                Copied(slices_at(x, rows)),
                Copied(slices_at(_optimizer_values(layer.weight), columns)),
                None if bias is None else Copied(slices_at(_optimizer_values(bias), columns)),
                Copied(slices_at(slices_at(y, rows), columns, 1)),
            )

        return module.register_forward_hook(hook)

    def watch_norm(self, name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def hook(layer: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            if self.check.has(name):
                return
            x, y = inputs[0].flatten(0, -2), output.flatten(0, -2)
            rows, bias = self.check.places(ROWS, x.shape[0]), getattr(layer, "bias", None)
            parameters = (
                Copied(_optimizer_values(layer.weight)),
                None if bias is None else Copied(_optimizer_values(bias)),
            )
            self.check.norm(name, Copied(slices_at(x, rows)), *parameters, Copied(slices_at(y, rows)))

        return module.register_forward_hook(hook)

    def watch_attention(self, name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        """Sample one head of one sequence. Tensors: [sequence, batch, heads or query groups, head_dim]."""

        def hook(_layer: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            if self.check.has(name):
                return
            query, key, value = inputs[:3]
            (sequence,), (head,) = self.check.places(1, query.shape[1]), self.check.places(1, query.shape[2])
            places, group = self.check.places(ROWS, query.shape[0]), head * key.shape[2] // query.shape[2]
            mixed = output.reshape(*query.shape[:3], -1)
            self.check.attention(
                name,
                places,
                Copied(slices_at(query[:, sequence, head], places)),
                Copied(key[:, sequence, group]),
                Copied(value[:, sequence, group]),
                Copied(slices_at(mixed[:, sequence, head], places)),
            )

        return module.register_forward_hook(hook)


class SampledUpdate:
    """Some numbers of each parameter before the optimizer's step, and, by `finish`, after it."""

    def __init__(self, weights: Weights, check: SpotCheck, loss_scale: float) -> None:
        self.check, self.sampled_parameters = check, []
        for local in weights.parameters:
            optimizer_states = weights.optimizer_states(local.parameter)
            if optimizer_states is None:
                continue
            part = local.parts[0]
            name = f"{part.name}[{part.slices[0].start}]" if len(part.shape) == 3 else part.name
            values = optimizer_states[0]
            (places,) = indices_on_device([check.updated_places(name, values.numel())], values.device)
            before = [numbers_at(tensor, places) for tensor in optimizer_states]
            gradient = local.parameter.main_grad.view(-1)[weights.owned_range(local.parameter)]
            before.insert(1, numbers_at(gradient, places) / loss_scale)
            self.sampled_parameters.append((name, len(part.shape), places, optimizer_states, before))

    def finish(self) -> None:
        for name, dimensions, places, optimizer_states, before in self.sampled_parameters:
            after = [Copied(numbers_at(tensor, places)) for tensor in optimizer_states]
            self.check.update(name, dimensions, [Copied(tensor) for tensor in before], after)


def _optimizer_values(parameter: Any) -> torch.Tensor:
    """Return the optimizer's own values of a parameter, where this rank has all of them; else the parameter."""
    main = getattr(parameter, "main_param", None)
    values: torch.Tensor = parameter if main is None or main.numel() != parameter.numel() else main
    return values.view(parameter.shape)

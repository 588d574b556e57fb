"""Where the canonical parameters lie in Megatron's.

Megatron keeps query, key and value in one matrix, one block of rows for each query group: [its queries; its key;
its value]. SwiGLU's gate and up share another: [gate; up], of a tensor-parallel rank its parts of both. Tensor
parallelism splits the rows of these, of the embedding and of the head, and the columns of the two that write into
the residual stream, whose biases are whole on every rank. Each expert of a mixture is an MLP of its own, numbered anew
on every expert-parallel rank; the canonical experts of a layer are one parameter, [expert, out, in].
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from levelfield.worker.architecture import Model

# Megatron's module: the canonical ones in it, in order, and the dimension that tensor parallelism splits
MODULES: dict[str, tuple[tuple[str, ...], int | None]] = {
    "embedding.word_embeddings": (("embedding",), 0),
    "embedding.position_embeddings": (("position",), None),
    "input_layernorm": (("attention_norm",), None),
    "self_attention.linear_qkv": (("attention.query", "attention.key", "attention.value"), 0),
    "self_attention.q_layernorm": (("attention.query_norm",), None),
    "self_attention.k_layernorm": (("attention.key_norm",), None),
    "self_attention.linear_proj": (("attention.output",), 1),
    "pre_mlp_layernorm": (("mlp_norm",), None),
    "mlp.linear_fc1": (("mlp.gate", "mlp.up"), 0),
    "mlp.linear_fc2": (("mlp.down",), 1),
    "mlp.router": (("mlp.router",), None),
    "mlp.experts.linear_fc1": (("mlp.experts.gate", "mlp.experts.up"), 0),
    "mlp.experts.linear_fc2": (("mlp.experts.down",), 1),
    "mlp.shared_experts.linear_fc1": (("mlp.shared.gate", "mlp.shared.up"), 0),
    "mlp.shared_experts.linear_fc2": (("mlp.shared.down",), 1),
    "decoder.final_layernorm": (("final_norm",), None),
    "output_layer": (("head",), 0),
}
# transformer-engine's layers hold the norm before them
FUSED_NORMS = {"self_attention.linear_qkv": "input_layernorm", "mlp.linear_fc1": "pre_mlp_layernorm"}
LOCAL_EXPERT = re.compile(r"\.local_experts\.(\d+)")


class Part(NamedTuple):
    """The slice `slices` of canonical parameter `name`, of whole shape `shape`, inside one of Megatron's.

    It has the rows from `start` to `stop` of each of `groups` equal blocks of rows.
    """

    name: str
    shape: tuple[int, ...]
    slices: tuple[slice, ...]
    groups: int
    start: int
    stop: int

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return these elements of a tensor shaped as Megatron's parameter: [groups, rows, ...]."""
        groups: torch.Tensor = tensor.unflatten(0, (self.groups, -1))
        return groups[:, self.start : self.stop]

    def values(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the same in the shape of the slices: a piece of the canonical parameter."""
        return self.view(tensor).reshape([bounds.stop - bounds.start for bounds in self.slices])

    @property
    def is_whole(self) -> bool:
        """Whether this rank has the canonical parameter whole."""
        return all(bounds.stop - bounds.start == size for bounds, size in zip(self.slices, self.shape, strict=True))


class Correspondence:
    """Which canonical parts each parameter of a tensor-parallel rank holds.

    shapes: canonical name to the whole shape. first_layer: the number, from 0, of its model
    chunk's first layer. first_expert: of this rank's first expert.
    """

    def __init__(
        self,
        model: Model,
        shapes: Mapping[str, tuple[int, ...]],
        ranks: int,
        rank: int,
        first_layer: int,
        first_expert: int = 0,
    ) -> None:
        self.model, self.shapes, self.ranks, self.rank = model, shapes, ranks, rank
        self.first_layer, self.first_expert = first_layer, first_expert

    def parts(self, name: str) -> list[Part]:
        """Return the parts in Megatron's parameter `name`, in order of rows. Raises KeyError for an unknown one."""
        module, parameter_kind = name.rsplit(".", 1)
        prefix, module = self.layer(module)
        module, expert = self.expert(module)
        if parameter_kind.startswith("layer_norm_"):
            module, parameter_kind = FUSED_NORMS[module], parameter_kind[len("layer_norm_") :]
        canonical, split = MODULES[module]
        names = [f"{prefix}{n}.{parameter_kind}" for n in self.present(canonical)]
        return self.stack_parts(names, split, self.groups(module), expert)

    def layer(self, module: str) -> tuple[str, str]:
        """Return (prefix, rest): decoder.layers.1.mlp -> (layers.<first_layer + 1>., mlp)."""
        if not module.startswith("decoder.layers."):
            return "", module
        number, rest = module[len("decoder.layers.") :].split(".", 1)
        return f"layers.{self.first_layer + int(number)}.", rest

    def expert(self, module: str) -> tuple[str, int | None]:
        """Return the module and its expert: mlp.experts.local_experts.1.linear_fc1 -> (mlp.experts.linear_fc1,
        <first_expert + 1>). Other modules have None."""
        match = LOCAL_EXPERT.search(module)
        if match is None:
            return module, None
        return module[: match.start()] + module[match.end() :], self.first_expert + int(match[1])

    def present(self, canonical: tuple[str, ...]) -> tuple[str, ...]:
        """Return the canonical modules that this model has. A tied head is the embedding."""
        if canonical == ("head",) and self.model.tied_embeddings:
            return ("embedding",)
        return canonical[1:] if canonical[0].endswith(".gate") and self.model.activation != "swiglu" else canonical

    def groups(self, module: str) -> int:
        return self.model.kv_heads // self.ranks if module == "self_attention.linear_qkv" else 1

    def stack_parts(self, names: Sequence[str], split: int | None, groups: int, expert: int | None) -> list[Part]:
        """Return this rank's parts of parameters `names`, whose rows lie one after another in each group."""
        parts, start = [], 0
        for name in names:
            slices = self.slices(self.shapes[name], split, expert)
            rows = slices[0] if expert is None else slices[1]
            stop = start + (rows.stop - rows.start) // groups
            parts.append(Part(name, self.shapes[name], slices, groups, start, stop))
            start = stop
        return parts

    def slices(self, shape: tuple[int, ...], split: int | None, expert: int | None) -> tuple[slice, ...]:
        """Return this rank's slice of each dimension; of the experts' one only `expert`, if it is not None."""
        if expert is not None:
            return (slice(expert, expert + 1), *self.slices(shape[1:], split, None))
        slices = [slice(0, size) for size in shape]
        if split is not None and split < len(shape):
            rank_size = shape[split] // self.ranks
            slices[split] = slice(self.rank * rank_size, (self.rank + 1) * rank_size)
        return tuple(slices)

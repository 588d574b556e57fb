"""Where the canonical parameters lie in Megatron's.

Megatron keeps query, key and value in one matrix, one block of rows for each query group: [its queries; its key;
its value]. SwiGLU's gate and up share another: [gate; up], of a tensor-parallel rank its parts of both. Tensor
parallelism splits the rows of these, of the embedding and of the head, and the columns of the two that write into
the residual stream, whose biases are whole on every rank. Each expert of a mixture is an MLP of its own, numbered anew
on every expert-parallel rank; the canonical experts of a layer are one parameter, [expert, out, in].
"""

import re
from typing import NamedTuple

# Megatron's module: the canonical ones in it, in order, and the dimension that tensor parallelism splits
MODULES = {
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
    """The slice `slices` of canonical parameter `name`, of whole shape `shape`, inside one of Megatron's: of each of
    `groups` equal blocks of rows, those from `start` to `stop`."""

    name: str
    shape: tuple
    slices: tuple
    groups: int
    start: int
    stop: int

    def view(self, tensor):
        """These elements of a tensor shaped as Megatron's parameter: [groups, rows, ...]."""
        return tensor.unflatten(0, (self.groups, -1))[:, self.start : self.stop]

    def values(self, tensor):
        """The same in the shape of the slices: that of the canonical parameter, of which this is a piece."""
        return self.view(tensor).reshape([each.stop - each.start for each in self.slices])

    @property
    def whole(self):
        return all(part.stop - part.start == size for part, size in zip(self.slices, self.shape, strict=True))


class Correspondence:
    """Says of each parameter of a tensor-parallel rank which canonical parts it holds.

    shapes: canonical name to the whole shape. first_layer: the number, from 0, of its model
    chunk's first layer. first_expert: of this rank's first expert.
    """

    def __init__(self, model, shapes, ranks, rank, first_layer, first_expert=0):
        self.model, self.shapes, self.ranks, self.rank = model, shapes, ranks, rank
        self.first_layer, self.first_expert = first_layer, first_expert

    def parts(self, name):
        """The parts in Megatron's parameter `name`, in order of rows. Raises KeyError for an unknown one."""
        module, kind = name.rsplit(".", 1)
        prefix, module = self.layer(module)
        module, expert = self.expert(module)
        if kind.startswith("layer_norm_"):
            module, kind = FUSED_NORMS[module], kind[len("layer_norm_") :]
        canonical, split = MODULES[module]
        names = [f"{prefix}{n}.{kind}" for n in self.present(canonical)]
        return self.stack(names, split, self.groups(module), expert)

    def layer(self, module):
        """decoder.layers.1.mlp -> (layers.<first_layer + 1>., mlp)"""
        if not module.startswith("decoder.layers."):
            return "", module
        number, rest = module[len("decoder.layers.") :].split(".", 1)
        return f"layers.{self.first_layer + int(number)}.", rest

    def expert(self, module):
        """mlp.experts.local_experts.1.linear_fc1 -> (mlp.experts.linear_fc1, <first_expert + 1>); others: None"""
        found = LOCAL_EXPERT.search(module)
        if found is None:
            return module, None
        return module[: found.start()] + module[found.end() :], self.first_expert + int(found[1])

    def present(self, canonical):
        """The canonical modules that this model has, under the name of the one that a tied head is."""
        if canonical == ("head",) and self.model.tied_embeddings:
            return ("embedding",)
        return canonical[1:] if canonical[0].endswith(".gate") and self.model.activation != "swiglu" else canonical

    def groups(self, module):
        return self.model.kv_heads // self.ranks if module == "self_attention.linear_qkv" else 1

    def stack(self, names, split, groups, expert):
        parts, start = [], 0
        for name in names:
            slices = self.slices(self.shapes[name], split, expert)
            rows = slices[0] if expert is None else slices[1]
            stop = start + (rows.stop - rows.start) // groups
            parts.append(Part(name, self.shapes[name], slices, groups, start, stop))
            start = stop
        return parts

    def slices(self, shape, split, expert):
        """This rank's slice of each dimension; of the experts' one only `expert`, if it is not None."""
        if expert is not None:
            return (slice(expert, expert + 1), *self.slices(shape[1:], split, None))

        def of(dimension, size):
            if dimension != split:
                return slice(0, size)
            share = size // self.ranks
            return slice(self.rank * share, (self.rank + 1) * share)

        return tuple(of(dimension, size) for dimension, size in enumerate(shape))

"""What one rank's step needs by its case and layout: FLOPs of matrix products, and bytes by kind of collective.

All of it is computed from shapes, and nothing of it by the code that is rehearsed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from levelfield.measure.flops import attention_core_width
from levelfield.measure.parameter_counts import active_matrix_elements, layer_matrices, parameter_shapes
from levelfield.specs.architecture import Model

FLOAT32 = 4
COLUMNS = ("query", "key", "value", "gate", "up")  # tensor-parallel ranks divide their biases too
PERSISTENT = 100_000  # elements: DeepSpeed's ZeRO 3 keeps smaller parameters whole


class Need(NamedTuple):
    """Bytes by one of these kinds of collective over so many ranks. exact: more than that is a fault too."""

    what: str
    kinds: tuple[str, ...]
    ranks: int
    least: float
    exact: bool = True


class RankWork:
    """The part of a job that one rank has."""

    def __init__(self, job: dict[str, Any], framework: str, rank: int) -> None:
        self.job, self.framework, self.layout = job, framework, {"context": 1, "expert": 1, **job["layout"]}
        self.model, self.tuning = Model.model_validate(job["model"]), job["tuning"]
        self.tensor, self.expert, self.context = (self.layout[name] for name in ("tensor", "expert", "context"))
        self.stages = self.layout["pipeline"]
        self.ranks = self.layout["data"] * self.context  # that sum gradients
        self.stage = rank // (self.ranks * self.tensor)  # of the pipeline
        self.zero = self.layout["sharding_stage"]
        self.shard = self.layout["sharding_degree"] if self.zero else 1
        self.replicas = self.ranks // self.expert
        self.width = FLOAT32 if job["training"]["precision"] == "fp32" else 2
        self.count = job["accumulation"]  # micro-batches of a step
        # reductions of a step: ZeRO 2 and 3 reduce at each micro-batch, but not under torch's pipeline schedules
        self.reductions = self.count if self.zero >= 2 and self.stages == 1 else 1
        self.tokens = self.tuning["micro_batch"] * job["training"]["sequence_length"] // self.context  # of one
        self.chunks = self._chunks()
        self.layers = [layer for chunk in self.chunks for layer in chunk]
        self.mixtures = [layer for layer in self.layers if self.model.is_mixture(layer)]

    def _chunks(self) -> list[range]:
        """The layers of each model chunk: those of chunk c on stage s are part c x stages + s of the model. Earlier
        parts take the remainder."""
        chunks = self.tuning["virtual_pipeline"]
        size, extra = divmod(self.model.layers, self.stages * chunks)
        parts = [chunk * self.stages + self.stage for chunk in range(chunks)]
        begins = [(part, part * size + min(part, extra)) for part in parts]
        return [range(begin, begin + size + (part < extra)) for part, begin in begins]

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    def parameters(self) -> Iterator[tuple[str, float]]:
        """The name and the elements, on this rank, of each parameter that it has, before ZeRO divides it."""
        for name, shape in parameter_shapes(self.model, self.job["training"]["sequence_length"]).items():
            if self._has(name):
                yield name, math.prod(shape) / (self.tensor if is_divided(name, shape) else 1) / self._experts(name)

    def _has(self, name: str) -> bool:
        part = name.split(".")
        if part[0] == "layers":
            return int(part[1]) in self.layers
        at_both = part[0] == "embedding" and self.model.tied_embeddings
        is_first = self.stage == 0 and part[0] in ("embedding", "position")
        return is_first or (self.is_last and (at_both or part[0] not in ("embedding", "position")))

    def _experts(self, name: str) -> int:
        return self.expert if ".experts." in name else 1

    def elements(self, experts: bool, least: int = 0) -> float:
        """Of the experts that expert parallelism divides, or of all others. least: of a parameter that counts."""
        apart = self.expert > 1
        return sum(n for name, n in self.parameters() if (apart and ".experts." in name) == experts and n > least)

    def made_in_first_step(self) -> float:
        """Bytes that stay from the first step on: the optimizer's two moments, and what DDP's buckets take once more
        when they are made anew in the order of the gradients."""
        replicas = self.replicas if self.zero else 1
        return 3 * FLOAT32 * (self.elements(False) / self.shard + self.elements(True) / replicas)

    def product_flops(self, core: bool) -> float:
        """By the platform's count (`megatron` of measure/flops.py), and the router's, which that formula leaves out.
        Of the forward pass, twice that for the backward pass, and once more what is recomputed: of `full` all layers,
        though without mlp.down where torch needs no output of it (Megatron's layers and those of DeepSpeed's ZeRO 3
        run whole); of `selective` none.

        core: whether attention's core is products of whole sequences too, as in no fused kernel.
        """
        head = self.model.hidden_size * self.model.vocab_size / self.tensor if self.is_last else 0
        again = self._repeated()
        repeated = self._token_multiplications(again, core) - self._unrepeated(again)
        return 2 * self.tokens * self.count * (3 * (self._token_multiplications(self.layers, core) + head) + repeated)

    def _token_multiplications(self, layers: Sequence[int], core: bool) -> float:
        """Multiplications of the forward pass of a token in these layers."""
        weights = sum(active_matrix_elements(self.model, layer) / self.tensor for layer in layers)
        routed = sum(self.model.is_mixture(layer) for layer in layers)
        weights += routed * (self.model.experts.count * self.model.hidden_size if self.model.experts else 0)
        return weights + (
            len(layers) * 2 * attention_core_width(self.model) / self.tensor * self._keys() if core else 0
        )

    def _repeated(self) -> Sequence[int]:
        """The layers that `full` recomputes: all, or the first ones of each model chunk."""
        if self.tuning["recompute"] != "full":
            return ()
        first = self.tuning.get("recompute_layers") or len(self.layers)
        return [layer for chunk in self.chunks for layer in chunk[:first]]

    def _keys(self) -> float:
        """The keys that a query meets: those up to the end of its piece, of the two that a rank has of a sequence."""
        length: int = self.job["training"]["sequence_length"]
        return length if self.context == 1 else length * (2 * self.context + 1) / (4 * self.context)

    def _unrepeated(self, layers: Sequence[int]) -> float:
        in_fp8 = self.job["training"]["precision"] == "fp8"
        needed = self.model.experts or ((self.model.hidden_dropout or in_fp8) and not self.tuning["compile"])
        if needed or self.framework == "megatron" or (self.framework == "deepspeed" and self.zero == 3):
            return 0
        return sum(math.prod(layer_matrices(self.model, layer)["mlp.down"]) / self.tensor for layer in layers)

    def most_waits(self) -> int:
        """How often torch's training may wait in a step: for the numbers of tokens that each mixture exchanges, which
        in float32 each of its products reads too, and a few times more: DDP twice for the new buckets of a chunk."""
        passes = 1 if self.tuning["recompute"] == "none" else 2
        waits_per_pass = 12 if self.width == FLOAT32 else 3
        return 6 + 2 * len(self.chunks) + waits_per_pass * len(self.mixtures) * self.count * passes

    def _has_capacity(self) -> bool:
        return self.model.experts is not None and self.model.experts.capacity_factor is not None

    def needs(self) -> list[Need]:
        """All collectives that move gradients, parameters or activations."""
        needs = [*self._dense(), *self._experts_apart(), *self._between_stages(), *self._within_layers()]
        return [need for need in needs if need.ranks > 1 and need.least]

    def _dense(self) -> Iterator[Need]:
        """Gradients in float32, and the parameters that ZeRO gathers."""
        size, times = self.elements(False), self.reductions
        if self.framework == "deepspeed":
            bytes_each = FLOAT32 if self.zero else self.width
            yield Need(
                "gradients", ("all_reduce", "reduce_scatter"), self.ranks, bytes_each * size * times, self.zero > 0
            )
            if self.zero == 3:
                large = self.elements(False, PERSISTENT)
                yield Need("parameters", ("all_gather",), self.ranks, self.width * large * self.count, False)
            elif self.zero:
                yield Need("parameters", ("all_gather",), self.ranks, self.width * size, False)
            return
        replicates = self.ranks // self.shard
        yield Need("gradients", ("reduce_scatter",), self.shard, FLOAT32 * size * times)
        yield Need("gradients", ("all_reduce",), replicates, FLOAT32 * size / self.shard)
        yield self._gathered(size, self.shard)

    def _gathered(self, size: float, ranks: int) -> Need:
        """ZeRO 3 gathers the layers for each micro-batch, most of them twice; routers are gathered in float32. In fp8
        torchao's matrices are gathered in one byte, transformer-engine's in two."""
        router = sum(n for name, n in self.parameters() if ".router." in name)
        in_fp8 = self.job["training"]["precision"] == "fp8"
        bytes_less = sum(map(self._matrices, self.layers)) if in_fp8 else 0
        if self.zero < 3:
            least = self.width * (size - router) + FLOAT32 * router - bytes_less
            return Need("parameters", ("all_gather",), ranks, least, exact=not in_fp8)
        inside = size - sum(n for name, n in self.parameters() if not name.startswith("layers."))
        least = (self.width * inside - bytes_less) * self.reductions
        return Need("parameters", ("all_gather",), ranks, least, exact=False)

    def _matrices(self, layer: int) -> float:
        """Elements of a layer's matrices on this rank."""
        return sum(map(math.prod, layer_matrices(self.model, layer).values())) / self.tensor

    def _experts_apart(self) -> Iterator[Need]:
        """The experts' gradients and parameters, among the ranks with the same ones, and the tokens for them."""
        size, experts = self.elements(True), self.model.experts
        if experts is None or self.expert == 1:
            return
        if self.zero and self.replicas > 1:
            yield Need("experts' gradients", ("reduce_scatter",), self.replicas, FLOAT32 * size * self.reductions)
            yield Need("experts' parameters", ("all_gather",), self.replicas, self.width * size, self.zero < 3)
        else:
            yield Need("experts' gradients", ("all_reduce",), self.replicas, FLOAT32 * size)
        rows = (
            4 * self.count * len(self.mixtures) * self.tokens * experts.chosen
        )  # there and back, forward and backward
        sure = self.tuning["recompute"] == "none" and not self._has_capacity()
        if not self._has_capacity():
            yield Need("tokens", ("send",), self.expert, rows * self.model.hidden_size * self.width, sure)

    def _between_stages(self) -> Iterator[Need]:
        """Activations to the next stage, and their gradients to the one before."""
        message_bytes = self.count * self.tokens * self.model.hidden_size * self.width
        message_bytes /= self.tensor if self.layout["sequence_parallel"] else 1
        chunks = len(self.chunks)
        interleaved = chunks > 1
        sure = (self.framework == "torch" or not interleaved) and self.tensor == 1
        neighbours = 2 * chunks - (self.stage == 0) - self.is_last  # of each chunk the one before and the one behind
        send, receive = self.stages, self.stages
        if self.framework == "megatron" and self.stages == 2 and interleaved:  # it sends back over the group of all
            world = self.stages * self.ranks * self.tensor
            send, receive = (world, send) if self.is_last else (send, world)
        yield Need("activations", ("send",), send, neighbours * message_bytes, sure)
        yield Need("activations", ("recv",), receive, neighbours * message_bytes, False)
        if self.model.tied_embeddings and self.stages > 1 and self.stage in (0, self.stages - 1):
            size = next(n for name, n in self.parameters() if name == "embedding.weight")
            shard = self.shard if self.framework == "torch" else 1
            yield Need("the tied embedding's gradient", ("all_reduce",), 2, FLOAT32 * size / shard)

    def _within_layers(self) -> Iterator[Need]:
        """Tensor parallelism sums what its ranks have computed of attention and of the MLP, forward and backward;
        context parallelism gathers keys and values, and sums their gradients."""
        layers, step = len(self.layers), self.count * self.tokens * self.width
        activations = 4 * layers * step * self.model.hidden_size
        kinds = ("all_gather", "reduce_scatter") if self.layout["sequence_parallel"] else ("all_reduce",)
        for kind in kinds:
            yield Need("activations", (kind,), self.tensor, activations, exact=False)
        if self.framework == "torch" and self.is_last:  # three numbers a token, and norms' gradients beside them
            sums = 3 * FLOAT32 * self.tokens * self.count
            yield Need("the loss over the vocabulary's parts", ("all_reduce",), self.tensor, sums, exact=False)
        if self.model.latent_attention is not None:
            return
        keys = 2 * self.model.kv_heads * self.model.head_size / self.tensor
        if self.framework == "megatron":  # transformer-engine's ring: forward, again backward, and the gradients
            ring = 3 * (self.context - 1) * layers * step * keys
            for kind in ("send", "recv"):
                yield Need("keys and values", (kind,), self.context, ring, exact=False)
        else:
            for kind in ("all_gather", "reduce_scatter"):
                yield Need("keys and values", (kind,), self.context, layers * step * self.context * keys, exact=False)


def is_divided(name: str, shape: tuple[int, ...]) -> bool:
    """Whether tensor-parallel ranks divide the parameter."""
    if len(shape) > 1:
        return not name.startswith("position") and ".router" not in name
    return name.endswith(".bias") and name.split(".")[-2] in COLUMNS

"""One layout of a case on one kind of device: the numbers that every formula of memory and time needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from levelfield.specs.architecture import Experts, Model
from levelfield.specs.case import Training, Work
from levelfield.specs.constants import MemoryModel
from levelfield.specs.layout import Layout
from levelfield.specs.tuning import Tuning

FP32, FP16, FP8 = 4, 2, 1  # bytes of a value


@dataclass(frozen=True)
class TrainingSetup:
    """One layout of a case on one kind of device."""

    model: Model
    training: Training
    layout: Layout
    tuning: Tuning
    on_host: bool  # the devices are shares of the host
    memory_model: MemoryModel
    tokens: int  # of a micro-batch on a rank
    width: int  # bytes of a compute value
    input_width: int  # bytes of a stored input of a matrix product
    micro_batches: int  # per step of one data-parallel rank

    def layers_of(self, stage: int) -> int:
        """Return the layers of a stage, of which the first is the largest: the last ones have one layer less where
        they do not divide."""
        shortest, longer_stages = divmod(self.model.layers, self.layout.pipeline)
        return shortest + (1 if stage < longer_stages else 0)

    def mixtures_of(self, stage: int) -> int:
        """Return the layers of a stage that are mixtures of experts. Model chunks are counted as one run of layers."""
        experts = self.model.experts
        if experts is None:
            return 0
        return _compositions(self.model.layers, self.layout.pipeline, experts)[stage][1]

    @property
    def total_repeated_layers(self) -> tuple[int, int]:
        """The layers of all stages that recomputation repeats, and the mixtures among them."""
        count, mixtures = zip(*self.repeated_layers, strict=True)
        return sum(count), sum(mixtures)

    @property
    def repeated_layers(self) -> tuple[tuple[int, int], ...]:
        """The layers of each stage that recomputation repeats, and the mixtures among them: all, where it is not of the
        first ones alone. Model chunks are counted as parts of one run of layers."""
        model, tuning = self.model, self.tuning
        first = model.layers if tuning.recompute_layers is None else tuning.recompute_layers
        return _repetitions(model.layers, self.layout.pipeline, tuning.virtual_pipeline, first, model.experts)

    def repeats_whole_chunk(self, stage: int) -> bool:
        """Return whether a model chunk of the stage has no layer beside the repeated ones."""
        first, smallest = self.tuning.recompute_layers, self.layers_of(stage) // self.tuning.virtual_pipeline
        return self.tuning.recompute == "full" and (first is None or first >= smallest)

    @property
    def critical_stages(self) -> tuple[int, ...]:
        """The stages of which one needs most: the first and the last; where layers are of two kinds also the first one
        between them of each composition; the second, where it receives from both sides in buffers for the whole
        step."""
        stages, experts = self.layout.pipeline, self.model.experts
        if experts is None or self.model.mixture_layers == self.model.layers:
            second = {1} if self.memory_model.receives_all and stages > 2 else set()
            return tuple(sorted({0, stages - 1} | second))
        # the later ones of the same composition hold fewer micro-batches
        compositions = _compositions(self.model.layers, stages, experts)
        kinds = {compositions[stage]: stage for stage in reversed(range(1, stages - 1))}
        return tuple(sorted({0, *kinds.values(), stages - 1}))

    @property
    def routed_tokens(self) -> int:
        """The tokens that one rank's experts compute for a micro-batch, where all experts have equally many."""
        return self.tokens * (self.model.experts.chosen if self.model.experts else 0)

    @property
    def expert_shards(self) -> int:
        """The ranks over which the states of an expert are sharded: of those that hold the same experts."""
        return max(1, self.layout.sharding_degree // self.layout.expert)

    @property
    def has_whole_experts(self) -> bool:
        """Whether no other rank shares the states of this rank's experts, so that ZeRO does not shard them."""
        return self.layout.expert > 1 and self.expert_shards == 1

    @property
    def key_value_bytes(self) -> int:
        """Bytes of the keys and values of one layer's tokens on one rank, which context ranks exchange.

        Latent attention makes those of all heads from its latents.
        """
        model = self.model
        width = 2 * model.kv_heads * model.head_size
        if model.latent_attention is not None:
            width = model.heads * sum(model.head_widths)
        return self.width * self.tokens * (width // self.layout.tensor)

    @property
    def sequence_split(self) -> int:
        """The number of ranks that divide what lies outside the tensor-parallel regions."""
        return self.layout.tensor if self.layout.sequence_parallel else 1

    @property
    def layer_weight_width(self) -> int:
        """Bytes of a layer's weight as ranks gather it; other weights have the width of compute values."""
        has_fp8 = self.memory_model.fp8_primary_weights and self.input_width == FP8
        return FP8 if has_fp8 else self.width

    @property
    def state_widths(self) -> tuple[int, int, int]:
        """Bytes of one gradient, of its master weight, and of Adam's two moments of it."""
        model = self.memory_model
        if self.width == FP32:
            return FP32, FP32, 2 * FP32
        return model.gradient_bytes, model.master_bytes, model.state_bytes


@lru_cache(maxsize=1024)
def _compositions(layers: int, stages: int, experts: Experts | None) -> tuple[tuple[int, int], ...]:
    """Return the layers of each stage, and the mixtures among them."""
    shortest, longer_stages = divmod(layers, stages)
    begins = [shortest * stage + min(stage, longer_stages) for stage in range(stages + 1)]
    mixtures = [experts.mixtures_before(layer) if experts else 0 for layer in begins]
    return tuple((begins[n + 1] - begins[n], mixtures[n + 1] - mixtures[n]) for n in range(stages))


@lru_cache(maxsize=1024)
def _repetitions(
    layers: int, stages: int, chunks: int, first_layers: int, experts: Experts | None
) -> tuple[tuple[int, int], ...]:
    """Return the first layers of each stage's chunks, and the mixtures among them."""
    repetitions, begin = [], 0
    for size, _ in _compositions(layers, stages, experts):
        count = mixtures = 0
        for chunk in range(chunks):
            start = begin + size * chunk // chunks
            end = min(start + first_layers, begin + size * (chunk + 1) // chunks)
            count += end - start
            mixtures += experts.mixtures_before(end) - experts.mixtures_before(start) if experts else 0
        repetitions.append((count, mixtures))
        begin += size
    return tuple(repetitions)


def training_setup(work: Work, tuning: Tuning, on_host: bool, memory_model: MemoryModel | None = None) -> TrainingSetup:
    """Return the numbers of a case in the layout of `tuning`. memory_model: None takes the defaults."""
    training, layout = work.training, tuning.layout
    return TrainingSetup(
        model=work.model,
        training=training,
        layout=layout,
        tuning=tuning,
        on_host=on_host,
        memory_model=memory_model or MemoryModel(),
        tokens=tuning.micro_batch * training.sequence_length // layout.context,
        width=FP32 if training.precision == "fp32" else FP16,
        input_width={"fp32": FP32, "fp8": FP8}.get(training.precision, FP16),
        micro_batches=max(1, training.global_batch // (tuning.micro_batch * layout.data)),
    )

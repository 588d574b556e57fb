"""Bytes of activations that wait for the backward pass, on one rank of one pipeline stage.

The formulas are those of Korthikanti et al., 2022, section 4. Each factor is explicit, so they also hold for grouped
heads, a gated MLP, 32-bit compute and attention kernels without a score matrix (Dao et al., 2022). Micro-batches in
flight: Narayanan et al., 2021, section 2.2 (1F1B, and interleaved over model chunks). fp8: inputs of matrix products
take one byte, as in transformer-engine's modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from levelfield.predict.setup import FP8, FP32, TrainingSetup
from levelfield.specs.architecture import Model

MASK_BYTES = 1  # of a dropout mask's element


@dataclass(frozen=True)
class LayerBytes:
    """The bytes of one layer for one micro-batch. They do not depend on stages, chunks and sharded states."""

    whole: int  # what the backward pass reads
    stored: int  # what waits for it in a layer that is computed again
    mixture: LayerBytes | None = None  # the same of a layer with experts; None in a model without

    def stage_bytes(self, s: TrainingSetup, stage: int) -> int:
        """Return the bytes that wait of one micro-batch in all layers of a stage."""
        layers, mixtures = s.layers_of(stage), s.mixtures_of(stage)
        repeated, mixtures_repeated = s.repeated_layers[stage]
        dense, dense_repeated = layers - mixtures, repeated - mixtures_repeated
        waiting = dense_repeated * self.stored + (dense - dense_repeated) * self.whole
        if self.mixture:
            waiting += mixtures_repeated * self.mixture.stored + (mixtures - mixtures_repeated) * self.mixture.whole
        return waiting


def layer_bytes(s: TrainingSetup) -> LayerBytes:
    """Return the bytes of a dense layer and, where the model has experts, of a mixture."""
    whole = whole_layer_bytes(s)
    if s.model.experts is None:
        return LayerBytes(whole, _stored_bytes(s, whole))
    mixture = whole_layer_bytes(s, is_mixture=True)
    return LayerBytes(whole, _stored_bytes(s, whole), LayerBytes(mixture, _stored_bytes(s, mixture, is_mixture=True)))


def activation_bytes(s: TrainingSetup, stage: int, layer: LayerBytes) -> int:
    """Return the bytes for the backward pass of all micro-batches in flight. The first chunk adds the embedding."""
    mask = MASK_BYTES if s.model.hidden_dropout else 0
    embedding = s.tokens * s.model.hidden_size * (s.width + mask) if stage == 0 else 0
    layers = waiting_layers(s, stage) * layer.stage_bytes(s, stage) // s.layers_of(stage)
    stored = layers + first_chunk_passes(s, stage) * (embedding // s.sequence_split)
    # What is computed again at a time, a whole layer or the part that selective does not keep, and what a mixture's
    # backward pass needs beside it to weigh the experts' outputs. Before the first layer of a chunk its last ones,
    # which are not computed again, have given back as much.
    mixtures, is_full = s.mixtures_of(stage), s.tuning.recompute == "full"
    weighing_bytes = int(s.memory_model.gated_bytes * s.routed_tokens * s.model.hidden_size)
    kinds = [(layer, 0)] if mixtures < s.layers_of(stage) else []  # of layers, with the bytes beside them
    kinds += [(layer.mixture, weighing_bytes)] if mixtures and layer.mixture else []
    is_repeated = s.repeats_whole_chunk(stage)
    recomputed_bytes = max(
        extra + (kind.whole * is_repeated if is_full else kind.whole - kind.stored) for kind, extra in kinds
    )
    return stored + recomputed_bytes * (s.memory_model.pipeline_working_sets if s.layout.pipeline > 1 else 1)


def waiting_passes(s: TrainingSetup, stage: int) -> int:
    """Return the largest number of forward passes that wait for their backward pass. In 1F1B: pipeline - stage.

    In the interleaved schedule every later chunk adds a round of `pipeline`. On the first of p stages with v chunks
    this is 1 + (p - 1)/(p v) times the activations of 1F1B (Korthikanti et al., 2022, section 4.2.3).
    """
    later = (s.tuning.virtual_pipeline - 1) * min(s.layout.pipeline, s.micro_batches)
    return later + first_chunk_passes(s, stage)


def waiting_layers(s: TrainingSetup, stage: int) -> int:
    """Return how many layers wait for their backward pass when most do, counted once for each micro-batch."""
    chunks, stages, layers = s.tuning.virtual_pipeline, s.layout.pipeline, s.model.layers
    if layers % (stages * chunks) == 0 or chunks == 1:
        return waiting_passes(s, stage) * s.layers_of(stage) // chunks
    return _max_waiting_layers(layers, stages, chunks, stage, s.micro_batches, waiting_passes(s, stage))


@lru_cache(maxsize=4096)
def _max_waiting_layers(
    layers: int, stages: int, chunks: int, stage: int, micro_batches: int, waiting_passes: int
) -> int:
    """Return the same of chunks that differ by a layer: which of them wait changes from one pass to the next.

    In rounds of `stages` micro-batches a stage runs its chunks forward in their order, and backward in the other one,
    beginning when so many passes wait.
    """
    shortest_chunk, longer_chunks = divmod(layers, stages * chunks)
    sizes = [shortest_chunk + (chunk * stages + stage < longer_chunks) for chunk in range(chunks)]
    waiting = max_waiting = 0
    for forward in range(min(chunks * micro_batches, waiting_passes + 2 * chunks * stages)):
        waiting += sizes[forward // stages % chunks]
        max_waiting = max(max_waiting, waiting)
        if forward >= waiting_passes - 1:
            waiting -= sizes[chunks - 1 - (forward - waiting_passes + 1) // stages % chunks]
    return max_waiting


def first_chunk_passes(s: TrainingSetup, stage: int) -> int:
    """Return how many passes of a stage's first model chunk wait for their backward pass."""
    later_stages = s.layout.pipeline - stage - 1
    return min((2 * later_stages if s.tuning.virtual_pipeline > 1 else later_stages) + 1, s.micro_batches)


def _stored_bytes(s: TrainingSetup, whole: int, is_mixture: bool = False) -> int:
    """Return the bytes that one layer keeps for the backward pass.

    Full recomputation keeps the layer's input. Selective recomputation keeps the outputs of matrix products and of
    attention; norms, activations and dropout are recomputed. With Megatron only the inside of attention is recomputed.
    No recomputation keeps more than none.
    """
    if s.tuning.recompute == "none":
        return whole
    hidden = s.tokens * s.model.hidden_size * s.width // s.sequence_split
    if s.tuning.recompute == "full":
        return hidden
    if s.memory_model.selective_keeps == "all but scores":
        return whole - _score_bytes(s)
    attention = _attention_width(s, with_normed=False)  # norms of queries and keys are computed again
    products = attention + mlp_width(s.model, is_mixture) * (2 if s.model.is_gated else 1)
    outputs = (1 - s.memory_model.selective_recomputes) * s.tokens * products * s.width
    # outputs of two products, before they are scattered over the sequence
    scattered_factor = s.sequence_split if s.memory_model.keeps_gathered_inputs else 1
    undivided_bytes = (1 + 2 * scattered_factor) * hidden + _score_bytes(s) + _undivided_bytes(s)
    undivided_bytes += _routed_bytes(s) if is_mixture else 0
    return min(whole, int(outputs) // s.layout.tensor + undivided_bytes)


def whole_layer_bytes(s: TrainingSetup, is_mixture: bool = False) -> int:
    """Return the bytes of a whole layer: outside the tensor-parallel regions, inside them, and the scores.

    Korthikanti et al., 2022, equations 1 to 4. GPT in 16 bits without tensor parallel: s b h (10 + 24) + 5 a s^2 b.
    Under sequence parallelism their program gathers a product's input again in the backward pass; some keep it whole.
    is_mixture: the layer has experts, and keeps what was sent to them and came back.
    """
    hidden, memory_model = s.tokens * s.model.hidden_size, s.memory_model
    # the inputs of attention and of the MLP, which side by side may be one, or in fp8 of each product
    by_product = memory_model.inputs_by_product and s.input_width == FP8
    norms, sums = s.model.norms_per_layer, 1 if s.model.parallel_residual else 2  # sums are what norms read
    inputs = norms
    if by_product:
        inputs = 3 + (2 if s.model.is_gated else 1)  # query, key, value; gate and up, or up
    input_bytes = inputs * hidden * s.input_width // (1 if memory_model.keeps_gathered_inputs else s.sequence_split)
    element_bytes = sums * s.width + norms * memory_model.norm_bytes + (2 * MASK_BYTES if s.model.hidden_dropout else 0)
    outside = int(hidden * element_bytes) // s.sequence_split + input_bytes + _undivided_bytes(s)
    heads_width = s.model.heads * s.model.head_widths[1]  # of their outputs together
    if memory_model.keeps_contexts and s.layout.context > 1:
        # Attention keeps the keys and values of other context ranks and, where it needs a mask, its output, which
        # exists in the pieces of the sequence and joined.
        is_masked = s.on_host or s.width == FP32 or s.model.attention_dropout or s.model.sliding_window is not None
        pieces = s.width * s.tokens * (heads_width // s.layout.tensor) if is_masked else 0
        outside += (s.layout.context - 1) * s.key_value_bytes + pieces
    # inside: attention, and the MLP before and after each step. The heads' output and the MLP's last tensor are inputs
    # of products.
    kept_tensors = (memory_model.gated_mlp_tensors if s.model.is_gated else 2) - 1
    mlp_bytes = mlp_width(s.model, is_mixture) * (kept_tensors * s.width + s.input_width)
    # in fp8 attention's kernel keeps its own output beside the input of the next product
    output_bytes = s.input_width + (s.width if by_product else 0)
    token_bytes = (_attention_width(s) - heads_width) * s.width + heads_width * output_bytes + mlp_bytes
    inside = s.tokens * token_bytes // s.layout.tensor + _score_bytes(s)
    return outside + inside + (_routed_bytes(s) if is_mixture else 0)


def mlp_width(model: Model, is_mixture: bool) -> int:
    """Return the width of what a token uses as MLP in a layer: the chosen and the shared experts, or the MLP."""
    if not is_mixture or model.experts is None:
        return model.ffn_hidden_size
    return (model.experts.chosen + model.experts.shared) * model.experts.ffn_hidden_size


def _routed_bytes(s: TrainingSetup) -> int:
    """Return the bytes of a mixture beside its MLPs, where all experts have equally many tokens: the inputs that came
    to the rank's experts, their outputs where the gates' gradient reads them, and the router's input, logits and
    scores, which are in float32."""
    expert_count = s.model.experts.count if s.model.experts else 0
    input_copy_width = s.model.hidden_size if s.width < FP32 else 0
    router_bytes = FP32 * s.tokens * (input_copy_width + 2 * expert_count) // s.sequence_split
    output_width = s.width if s.memory_model.expert_outputs else 0
    return s.routed_tokens * s.model.hidden_size * (s.input_width + output_width) + router_bytes


def _undivided_bytes(s: TrainingSetup) -> int:
    """Return the bytes that every tensor rank has whole: latent attention's latents before and after their norms, and
    the copies that some programs make without sequence parallelism."""
    latent, size = s.model.latent_attention, 0
    if latent is not None:
        normed_width = (latent.query_rank or 0) + latent.key_value_rank
        size = s.tokens * (normed_width * (s.width + s.input_width) + latent.rotary_size * s.width)
    if s.layout.tensor > 1 and not s.layout.sequence_parallel:
        size += s.memory_model.tensor_parallel_copies * s.tokens * s.model.hidden_size * s.width
    return size


def _attention_width(s: TrainingSetup, with_normed: bool = True) -> int:
    """Return the width of queries, keys, values and the heads' output, and of queries and keys before their norms or
    before their rotation, where either is kept too. with_normed: those before norms are kept."""
    model = s.model
    if model.latent_attention is not None:
        return 2 * model.heads * sum(model.head_widths)
    keeps_earlier = s.memory_model.keeps_projections and model.positions == "rope"
    if model.query_key_norm_widths:
        keeps_earlier = with_normed
    return (2 + keeps_earlier) * (model.heads + model.kv_heads) * model.head_size


def _score_bytes(s: TrainingSetup) -> int:
    """Return the bytes of scores, softmax and dropout. On the host the kernel keeps them only with dropout."""
    per_score = s.memory_model.score_bytes
    if s.on_host:
        per_score = 2 * s.width + MASK_BYTES if s.model.attention_dropout else 0
    return int(per_score * s.model.heads * s.tokens * s.training.sequence_length) // s.layout.tensor

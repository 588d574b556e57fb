"""A decoder in Megatron-Core's own terms: one TransformerConfig, its own layer specs, and its GPTModel.

GPT: LayerNorm, GELU, learned positions, biases, the head tied to the embedding. Llama: RMSNorm, SwiGLU, rotary
positions, grouped queries, no biases, a head of its own. Later models compose the same parts and others: norms of
queries and keys, heads of their own size, scaled positions, mixtures of experts. On a GPU the layers are
transformer-engine's, with Megatron's fused kernels; on a processor they are Megatron's local ones, without.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Any

import torch
from context_attention import use_context_attention
from definite_router import use_definite_router
from levelfield.worker import head_size, part
from local_norm import use_local_norm
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import TransformerConfig
from mixture import mixture
from torch.nn import functional

if TYPE_CHECKING:
    from levelfield.worker.architecture import Model, RopeScaling
    from levelfield.worker.job import Coordinates, Job

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
POSITIONS = {"learned": "learned_absolute", "rope": "rope"}


def build(job: Job, place: Coordinates, device: torch.device) -> list[GPTModel]:
    """Build the model chunks of this rank's pipeline stage, in their order, on `device`; unfilled.

    One holds consecutive layers; interleaved, chunk c of stage s is the (c * stages + s)th part of the model.
    Parameters are in the precision they are multiplied in.
    """
    is_accelerated = device.type == "cuda"
    config = TransformerConfig(
        **architecture(job.model),
        **mixture(job.model),
        **arithmetic(job, is_accelerated),
        **execution(job),
        **messages(job),
    )
    numbers = range(job.tuning.virtual_pipeline)
    return [build_chunk(job, place, config, number, is_accelerated).to(device) for number in numbers]


def build_chunk(job: Job, place: Coordinates, config: TransformerConfig, number: int, is_accelerated: bool) -> GPTModel:
    """Build one model chunk: the first of the first stage has the embedding, the last of the last stage the head."""
    model, virtual = job.model, config.virtual_pipeline_model_parallel_size
    virtual_stage = number if virtual else None
    spec = get_gpt_decoder_block_spec(config, is_accelerated, config.normalization, vp_stage=virtual_stage)
    experts = part(model, "experts")
    if experts is not None:
        spec = use_definite_router(spec, experts)
    if not is_accelerated:
        spec = use_local_norm(spec)
        spec = use_context_attention(spec) if job.layout.context > 1 else spec
    chunk = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=model.vocab_size,
        max_sequence_length=job.training.sequence_length,
        pre_process=place.pipeline == 0 and number == 0,
        post_process=place.pipeline == job.layout.pipeline - 1 and number == job.tuning.virtual_pipeline - 1,
        share_embeddings_and_output_weights=model.tied_embeddings,
        position_embedding_type=POSITIONS[model.positions],
        rotary_base=model.rope_base,
        vp_stage=virtual_stage,
    )
    scale_positions(chunk, part(model, "rope_scaling"))
    return chunk


def scale_positions(chunk: GPTModel, scaling: RopeScaling | None) -> None:
    """Change the rotary frequencies, by llama3 with Megatron's own formula: its option has Llama 3.1's numbers only."""
    if scaling is None:
        return
    rotary = chunk.rotary_pos_emb
    if scaling.kind == "linear":
        rotary.inv_freq = rotary.inv_freq / scaling.factor
    else:
        bounds = scaling.low_factor, scaling.high_factor, scaling.original_length
        rotary.inv_freq = rotary._apply_scaling(rotary.inv_freq, scaling.factor, *bounds)


def architecture(model: Model) -> dict[str, Any]:
    """Return what the case says of the network."""
    window = part(model, "sliding_window")
    return {
        "num_layers": model.layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.heads,
        "num_query_groups": model.kv_heads,
        "kv_channels": head_size(model),
        "qk_layernorm": part(model, "query_key_norm"),
        # Megatron counts the tokens before the own one
        "window_size": (window - 1, 0) if window else None,
        "normalization": NORMS[model.norm],
        "layernorm_epsilon": model.norm_eps,
        "gated_linear_unit": model.activation == "swiglu",
        "add_bias_linear": model.bias,
        "add_qkv_bias": part(model, "qkv_bias"),
        "hidden_dropout": model.hidden_dropout,
        "attention_dropout": model.attention_dropout,
        # the values come from the worker; not initialising at all would leave parameters unmarked as tensor-parallel
        "init_method": keep_values,
        "embedding_init_method": keep_values,
        "output_layer_init_method": keep_values,
    }


def arithmetic(job: Job, is_accelerated: bool) -> dict[str, Any]:
    """Return precision and kernels. Megatron's fused GELU is the tanh form, and its name for it is the erf form's."""
    precision, activation = job.training.precision, job.model.activation
    is_fused = is_accelerated and (activation == "swiglu" or (activation == "gelu_tanh" and job.model.bias))
    activation_functions = {
        "swiglu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": functional.gelu if is_fused else functools.partial(functional.gelu, approximate="tanh"),
    }
    return {
        "params_dtype": DTYPES[precision],
        "pipeline_dtype": DTYPES[precision],
        "bf16": precision in ("bf16", "fp8"),
        "fp16": precision == "fp16",
        "fp8": "hybrid" if precision == "fp8" else None,
        "fp8_recipe": "tensorwise",  # the delayed scales lose the first steps' gradients, see ../torch/step/fp8.py
        "activation_func": activation_functions[activation],
        "bias_activation_fusion": is_fused,
        "bias_dropout_fusion": is_accelerated,
        "masked_softmax_fusion": False,  # transformer-engine's attention does not use it
        "apply_rope_fusion": is_accelerated and job.model.positions == "rope",
        # it rounds the logits' gradients to bf16 in every precision
        "cross_entropy_loss_fusion": is_accelerated and precision in ("bf16", "fp8"),
        "gradient_accumulation_fusion": is_accelerated and has_fused_accumulation(),
        "attention_backend": AttnBackend.flash if job.tuning.attention == "flash_attn" else AttnBackend.auto,
    }


def execution(job: Job) -> dict[str, Any]:
    """Return layout and recomputation.

    Selective recomputation computes the inside of attention again. Full recomputation computes each layer from its
    input, or the first layers of each model chunk (Megatron's `block`).
    """
    layout, recompute, layers = job.layout, job.tuning.recompute, job.tuning.recompute_layers
    method = "uniform" if layers is None else "block"
    return {
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "context_parallel_size": layout.context,
        "expert_model_parallel_size": layout.expert,
        "sequence_parallel": layout.sequence_parallel,
        "recompute_granularity": None if recompute == "none" else recompute,
        "recompute_method": method if recompute == "full" else None,
        "recompute_num_layers": (layers or 1) if recompute == "full" else None,
    }


def messages(job: Job) -> dict[str, Any]:
    """Return how the stages send tensors: in batches that are waited for, or interleaved each by itself while they
    compute.

    Interleaved, a stage sends to the next and to the previous one at once. Of two stages these are the same rank, which
    cannot tell the two apart within a batch and trains on the wrong ones without a word (Megatron-LM's issue 750).
    """
    interleaved = job.tuning.virtual_pipeline > 1
    return {
        "virtual_pipeline_model_parallel_size": job.tuning.virtual_pipeline if interleaved else None,
        "overlap_p2p_comm": interleaved,
        "batch_p2p_comm": not interleaved,
        "batch_p2p_sync": False,  # a wait of the whole device at each message, for a fault of older PyTorch
        "deallocate_pipeline_outputs": True,
    }


def keep_values(weight: torch.Tensor) -> torch.Tensor:
    return weight


def has_fused_accumulation() -> bool:
    """Return whether apex is installed with the kernel that adds a weight's gradient to the step's as it computes
    it."""
    return importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is not None

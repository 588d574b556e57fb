"""FLOPs per token by four formulas, with two FLOPs per multiply-add. See docs/measurement.md.

`palm`           6 N + 12 L H Q T; N all parameters, of a mixture the active ones. Chowdhery et al., 2022 (PaLM),
                 appendix B.
`6n`             6 N, N as above or as the caller gives it (FlagPerf: a rounded 8e9). Kaplan et al., 2020, without
                 attention.
`megatron`       the exact matrix multiplications of the model: grouped key and value heads, gated MLP, logits
                 (Korthikanti et al., 2022, appendix A, for any of our shapes). Of attention's core it counts the half
                 that the causal mask leaves (Dao, 2023, section 4.1), or that a sliding window leaves. Of a mixture
                 it counts the chosen and the shared experts, not the router (Megatron-LM, training/training.py).
`megatron-2021`  96 B S L h^2 (1 + S / 6h + V / 16 L h) per step. Narayanan et al., 2021, section 5.1 and appendix.
                 It counts the full recomputation of every layer, so it measures hardware utilisation.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal, get_args

from levelfield.measure.parameter_counts import (
    active_matrix_elements,
    active_parameters,
    count_parameters,
    layer_matrices,
)
from levelfield.specs.architecture import Model

Recomputation = Literal["none", "selective", "selective-attention", "full", "full-except-down"]
FormulaId = Literal["palm", "6n", "megatron", "megatron-2021"]
FULL_RECOMPUTATIONS: tuple[Recomputation, ...] = ("full", "full-except-down")
FORMULAS: tuple[FormulaId, ...] = get_args(FormulaId)
VERSIONS: dict[FormulaId, int] = {"palm": 1, "6n": 1, "megatron": 1, "megatron-2021": 1}


class FormulaError(ValueError):
    """The formula does not apply to this model or this recomputation. The message gives the reason."""


def formula_version(formula: FormulaId) -> str:
    """Return a formula's id with the version of its definition, such as `palm/1`."""
    return f"{formula}/{VERSIONS[formula]}"


def flops_per_token(
    formula: FormulaId,
    model: Model,
    sequence_length: int,
    parameters_override: float | None = None,
    recompute: Recomputation = "none",
    repeated: Collection[int] | None = None,
) -> float:
    """Return training FLOPs per token: forward, backward (twice the forward) and the recomputed part of the forward.

    `full` repeats every layer. `selective` repeats everything except matrix products (norms, activations, dropout),
    which no formula counts. `selective-attention` repeats the core of attention, as Megatron does (Korthikanti et
    al., 2022, section 5). `full-except-down` repeats every layer without its last product, mlp.down, whose output no
    backward pass needs. Embeddings and logits are never repeated. parameters_override: N of `palm` and `6n`.
    repeated: the layers that are repeated, from 0, as `repeated_layers` returns them; None: all.
    `megatron-2021` counts whole layers for both kinds of full recomputation, as its published tables do.
    Raises FormulaError.
    """
    layers = range(model.layers) if repeated is None else repeated
    if formula == "megatron-2021":
        return _megatron_2021_flops(model, sequence_length, recompute, len(layers))
    if formula == "megatron":
        # queries x keys and weights x values: 2 x 2 x width for each key that a token attends to
        width = attention_core_width(model)
        forward, recomputed = (
            2.0 * sum(active_matrix_elements(model, layer) for layer in part)
            + 4.0 * len(part) * width * attended_keys(model, sequence_length, part)
            for part in (range(model.layers), layers if recompute in FULL_RECOMPUTATIONS else ())
        )
        if recompute in FULL_RECOMPUTATIONS:
            recomputed -= _unrepeated_flops(model, recompute, len(layers))
        elif recompute == "selective-attention":
            recomputed = 4.0 * len(layers) * width * attended_keys(model, sequence_length, layers)
        return 3 * (forward + 2.0 * model.hidden_size * model.vocab_size) + recomputed
    attention = 0.0 if formula == "6n" else 12.0 * model.layers * attention_core_width(model) * sequence_length
    parameter_count = (
        count_parameters(model, sequence_length).active if parameters_override is None else parameters_override
    )
    if not (math.isfinite(parameter_count) and parameter_count > 0):
        raise FormulaError(f"found {parameter_count} parameters, expected a positive number")
    return (
        6.0 * parameter_count
        + attention
        + _repeated_flops(formula, model, sequence_length, parameter_count, recompute, layers)
    )


def repeated_layers(layers: int, stages: int, chunks: int, first_layers: int) -> tuple[int, ...]:
    """Return which layers are recomputed where each model chunk of a stage repeats its first `first_layers` layers.

    Chunk c of stage s is part c x stages + s of the model. Where the parts do not divide the layers, the first parts
    have one more.
    """
    part_size, larger_parts = divmod(layers, stages * chunks)
    part_spans = (
        (part * part_size + min(part, larger_parts), part_size + (part < larger_parts))
        for part in range(stages * chunks)
    )
    return tuple(begin + layer for begin, size in part_spans for layer in range(min(first_layers, size)))


def _repeated_flops(
    formula: FormulaId,
    model: Model,
    sequence_length: int,
    parameter_count: float,
    recompute: Recomputation,
    layers: Collection[int],
) -> float:
    attention_flops = 0.0 if formula == "6n" else 4.0 * len(layers) * attention_core_width(model) * sequence_length
    if recompute in FULL_RECOMPUTATIONS:
        exact = count_parameters(model, sequence_length)
        outside = exact.total - exact.in_layers
        share = 1.0  # of the parameters that a token uses, in the repeated layers
        if len(layers) != model.layers:
            all_active = sum(active_parameters(model, layer) for layer in range(model.layers))
            share = sum(active_parameters(model, layer) for layer in layers) / all_active
        return (
            2.0 * (parameter_count - outside) * share
            + attention_flops
            - _unrepeated_flops(model, recompute, len(layers))
        )
    if recompute == "selective-attention" and formula == "6n":
        raise FormulaError("6n has no attention term, so it cannot count attention that is recomputed")
    return attention_flops if recompute == "selective-attention" else 0.0


def _unrepeated_flops(model: Model, recompute: Recomputation, layers: int) -> float:
    """Return the FLOPs of mlp.down in `layers` layers, where it is not repeated; else 0."""
    if recompute != "full-except-down":
        return 0.0
    if model.experts is not None:
        raise FormulaError("full-except-down is not defined for a mixture of experts")
    return 2.0 * layers * math.prod(layer_matrices(model)["mlp.down"])


def attended_keys(model: Model, sequence_length: int, layers: Collection[int] | None = None) -> float:
    """Return the mean number of keys of a token: half of the sequence under the causal mask, fewer with a window.

    layers: those whose mean it is, since a window may be that of some layers; None: all.
    """
    if model.full_attention_interval is None:
        return _windowed_keys(model.sliding_window, sequence_length)
    keys = [_windowed_keys(model.layer_window(n), sequence_length) for n in layers or range(model.layers)]
    return sum(keys) / len(keys)


def _windowed_keys(window: int | None, sequence_length: int) -> float:
    if window is None or window >= sequence_length:
        return sequence_length / 2
    return window - window * window / (2 * sequence_length)


def attention_core_width(model: Model) -> float:
    """Return the mean width of queries and values of all heads."""
    return model.heads * sum(model.head_widths) / 2


def _megatron_2021_flops(model: Model, sequence_length: int, recompute: Recomputation, repeated: int) -> float:
    """Return FLOPs per token by `megatron-2021`.

    96 is 72 for forward and backward plus 24 for the layers' second forward.
    """
    if recompute not in FULL_RECOMPUTATIONS:
        raise FormulaError(f"megatron-2021 counts full recomputation; this run recomputes: {recompute}")
    if repeated < model.layers:
        raise FormulaError(
            f"megatron-2021 counts full recomputation of all {model.layers} layers; this run recomputes {repeated}"
        )
    has_other_heads = model.kv_heads != model.heads or model.head_dim is not None or model.latent_attention is not None
    if has_other_heads or model.is_gated or model.experts is not None or model.ffn_hidden_size != 4 * model.hidden_size:
        raise FormulaError(
            "megatron-2021 is derived for an MLP of 4 x hidden_size without a gate and as many key as query heads"
        )
    layers, hidden, vocab = model.layers, model.hidden_size, model.vocab_size
    return 96.0 * layers * hidden**2 * (1 + sequence_length / (6 * hidden) + vocab / (16 * layers * hidden))

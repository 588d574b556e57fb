"""The locked fields: the fields that a case fixes, with the reason why a tuning cannot set them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Locked:
    """Fields of one kind, other common names of them, and the reason why the case fixes them."""

    fields: tuple[str, ...]
    also: tuple[str, ...]
    why: str


LOCKED = (
    Locked(
        (
            "model", "family", "layers", "hidden_size", "ffn_hidden_size", "heads", "kv_heads", "vocab_size",
            "positions", "rope_base", "norm", "norm_eps", "activation", "bias", "tied_embeddings", "hidden_dropout",
            "attention_dropout", "init_std", "scaled_residual_init", "head_dim", "qkv_bias", "query_key_norm",
            "sliding_window", "rope_scaling", "latent_attention", "norm_place", "embedding_scale", "experts",
            "kind", "factor", "original_length", "low_factor", "high_factor", "beta_fast", "beta_slow", "magnitude",
            "query_rank", "key_value_rank", "plain_size", "rotary_size", "value_size", "count", "chosen", "shared",
            "first_layer", "every", "router", "capacity_factor", "scores", "normalised", "scale", "groups",
            "auxiliary_loss", "z_loss", "bias_rate",
        ),
        ("num_layers", "num_heads", "vocabulary_size", "dropout", "parameters"),
        "another model has other FLOPs and another loss, so its figures would stand beside those of another work",
    ),
    Locked(
        ("global_batch", "sequence_length"),
        ("batch_size", "global_batch_size", "seq_length", "seq_len", "accumulation", "gradient_accumulation"),
        "the tokens of a step decide how fast the loss falls; micro_batch is free and accumulation makes up the rest",
    ),
    Locked(
        (
            "training", "optimizer", "name", "beta1", "beta2", "eps", "weight_decay", "schedule", "style", "peak_lr",
            "min_lr", "warmup_steps", "decay_steps", "gradient_clip",
        ),
        ("learning_rate", "lr", "betas", "clip_grad", "warmup"),
        "the same steps from the same weights are what makes two losses comparable",
    ),
    Locked(
        ("precision", "loss_scale", "initial", "growth_interval"),
        ("dtype", "amp", "fp8", "bf16", "fp16", "fp32", "tf32"),
        "a peak, an MFU and a loss belong to one precision; another precision is another case",
    ),
    Locked(
        ("data", "seed", "shuffle", "split", "alphabet", "branching", "tokenizer"),
        ("data_seed", "random_seed", "dataset", "corpus"),
        "initial weights and the order of samples follow from the seed and the data; with others no loss can be held "
        "against a reference",
    ),
    Locked(
        (
            "steps", "window", "first_step", "last_step", "disturbance_limit", "acceptance",
            "final_loss_below_fraction", "tail_steps", "limits", "heartbeat_seconds", "step_seconds", "start_seconds",
            "evidence", "gradient_steps",
        ),
        ("train_iters", "max_steps", "warmup_iterations"),
        "who is measured does not choose what is measured, nor when a run counts as right or as hung",
    ),
)  # fmt: skip


def reason(field: str) -> str | None:
    """Return the reason why the field is locked, or None when it is free."""
    return next((group.why for group in LOCKED if field in (*group.fields, *group.also)), None)


def refuse_locked(names: Iterable[str], free: Iterable[str]) -> None:
    """Raise ValueError for the first name that is locked, with the reason, or unknown, with the nearest names."""
    known = list(free)
    for name in names:
        if name in known:
            continue
        if why := reason(name):
            raise ValueError(f"'{name}' is locked, the case fixes it: {why}. Free fields: {', '.join(known)}")
        near = difflib.get_close_matches(name, known, n=3)
        nearest = f"; nearest: {', '.join(near)}" if near else ""
        raise ValueError(f"unknown field '{name}'{nearest}. Free fields: {', '.join(known)}")

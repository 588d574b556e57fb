"""`case new`: the document of a case from a published model. It marks what the model leaves to Levelfield."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from levelfield.catalog.registry import Registry
from levelfield.errors import UsageError
from levelfield.measure.parameter_counts import count_parameters
from levelfield.specs.architecture import Model
from levelfield.specs.base import parse
from levelfield.specs.case import Case
from levelfield.specs.vendor import NAME_PATTERN
from levelfield.testing.published_config import PublishedModel

MAX_SEQUENCE_LENGTH = 4096  # tokens, for a model with rotary positions
_SMOKE_WIDTH, _SMOKE_HEADS = 256, 8
_TRAINING_TEMPLATE = """\
# The training is Levelfield's choice: config.json says nothing of it. Replace it by the model's own.
training:
  steps: 300
  sequence_length: {length}
  global_batch: 256
  precision: bf16
  optimizer: {{name: adamw, beta1: 0.9, beta2: 0.95, eps: 1.0e-8, weight_decay: 0.1}}
  schedule: {{style: cosine, peak_lr: 3.0e-4, min_lr: 3.0e-5, warmup_steps: 20, decay_steps: 300}}
  gradient_clip: 1.0
  seed: 1234
data: {{seed: 1234, shuffle: true, split: [100, 0, 0], alphabet: {alphabet}, branching: {branching}}}
window: {{first_step: 21, last_step: 300}}
acceptance: {{final_loss_below_fraction: 0.8, tail_steps: 20}}
evidence: {{gradient_steps: [1, 2, 10]}}
limits: {{heartbeat_seconds: 60, step_seconds: 1800, start_seconds: 3600}}
# The same parts at a size for two processor cores.
smoke:
{smoke}  training:
    steps: 40
    sequence_length: 128
    global_batch: 32
    precision: fp32
    schedule: {{peak_lr: {rate}, min_lr: {floor}, warmup_steps: 20, decay_steps: 40}}
  data: {{alphabet: {small}}}
  window: {{first_step: 11, last_step: 40}}
  acceptance: {{final_loss_below_fraction: 0.6, tail_steps: 5}}
  limits: {{heartbeat_seconds: 30, step_seconds: 120, start_seconds: 300}}
tuning:
  full: {{micro_batch: 1}}
  smoke: {{micro_batch: 8}}
"""


def create_case(
    name: str,
    config_path: Path,
    published: PublishedModel,
    ignored_keys: Sequence[str],
    expected_parameters: int | None,
    plugins_folder: Path,
    registry: Registry,
) -> Path:
    """Write configs/cases/<name>.yaml below `plugins_folder` and return it.

    Raises UsageError for a name that exists, and for a model with another number of parameters.
    """
    if not re.fullmatch(NAME_PATTERN, name) or len(name) > 60:
        raise UsageError(f"case new: found the name '{name}', expected letters, digits, '.', '_' and '-'")
    if (existing_name := registry.canonical_case(name)) in registry.all_cases:
        raise UsageError(
            f"case new: the case '{existing_name}' exists: {registry.all_cases[existing_name]}; use another name"
        )
    path = plugins_folder / "configs" / "cases" / f"{name}.yaml"
    count = count_parameters(published.model, sequence_length(published)).total
    if expected_parameters is not None and count != expected_parameters:
        raise UsageError(
            f"--parameters: found {expected_parameters:,}, and {config_path} gives {count:,}: "
            f"{abs(count - expected_parameters):,} apart. The "
            "model has a part that its config.json does not say, or the number counts other things; nothing was written"
        )
    text = case_document(name, config_path, published, ignored_keys, is_count_published=expected_parameters is not None)
    parse(Case, yaml.safe_load(text), str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"case new: {path} cannot be written: {error.strerror}; give another folder") from None
    return path


def sequence_length(published: PublishedModel) -> int:
    """Return the tokens of a sequence: all learned positions, or at most MAX_SEQUENCE_LENGTH rotary ones."""
    return (
        published.max_sequence_length
        if published.model.positions == "learned"
        else min(published.max_sequence_length, MAX_SEQUENCE_LENGTH)
    )


def case_document(
    name: str, config_path: Path, published: PublishedModel, ignored_keys: Sequence[str], is_count_published: bool
) -> str:
    """Return the text of the case. is_count_published: its number of parameters is the published one."""
    model, length = published.model, sequence_length(published)
    ignored_words = f", without {', '.join(ignored_keys)}" if ignored_keys else ""
    header = {
        "schema": Case.schema_name(),
        "name": name,
        "title": f"{name}, a {published.model_type} by its config.json",
        "source": (
            f"{config_path.name} (model_type {published.model_type}{ignored_words}); "
            "the training is Levelfield's choice"
        ),
        "tokenizer": f"the model's own, {model.vocab_size} tokens",
        "parameters": count_parameters(model, length).total,
    }
    notice = (
        ""
        if is_count_published
        else "# parameters: Levelfield's count of this model. Hold it against the published number.\n"
    )
    peak_lr = (
        5e-4 if model.query_key_norm else 1e-3
    )  # with norms of queries and keys the higher rate lets the loss jump
    training = _TRAINING_TEMPLATE.format(
        length=length,
        alphabet=min(4096, model.vocab_size),
        small=min(64, model.vocab_size),
        branching=min(8, model.vocab_size // 2),
        smoke="".join(f"  {line}\n" for line in _dump_yaml({"model": _smoke_model(model)}).splitlines()),
        rate=f"{peak_lr:.1e}",
        floor=f"{peak_lr / 10:.1e}",
    )
    return (
        _dump_yaml(header)
        + notice
        + _dump_yaml({"model": model.model_dump(mode="json", exclude_defaults=True)})
        + training
    )


def _dump_yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)


def _smoke_model(model: Model) -> dict[str, Any]:
    """Return the model's sizes at smoke scale. A model that is small already keeps its width."""
    smoke_sizes: dict[str, Any] = {"layers": min(4, model.layers), "vocab_size": min(1024, model.vocab_size)}
    smoke_sizes |= {name: 0 for name in ("hidden_dropout", "attention_dropout") if getattr(model, name)}
    smoke_sizes |= {"sliding_window": 64} if model.sliding_window else {}
    for name in ("full_attention_interval", "no_rope_interval"):  # at least one layer is of the rarer kind
        smoke_sizes |= {name: smoke_sizes["layers"]} if (getattr(model, name) or 0) > smoke_sizes["layers"] else {}
    smoke_sizes |= (
        {"rope_scaling": {"original_length": 64}} if model.rope_scaling and model.rope_scaling.original_length else {}
    )
    if model.hidden_size > _SMOKE_WIDTH and model.heads >= _SMOKE_HEADS:
        # the same kind of keys: of one head, of every head, or of a group of heads
        kv_heads = {1: 1, model.heads: _SMOKE_HEADS}.get(model.kv_heads, _SMOKE_HEADS // 2)
        ffn = 704 if model.is_gated else 1024
        smoke_sizes |= {
            "hidden_size": _SMOKE_WIDTH,
            "ffn_hidden_size": ffn,
            "heads": _SMOKE_HEADS,
            "kv_heads": kv_heads,
        }
        smoke_sizes |= {"head_dim": 48} if model.head_dim else {}
        head = smoke_sizes.get("head_dim", _SMOKE_WIDTH // _SMOKE_HEADS)
        # such factors go against the width (Yang et al., 2022), so that a narrow model learns as fast
        if model.logit_scale:
            smoke_sizes["logit_scale"] = min(0.5, model.logit_scale * model.hidden_size / _SMOKE_WIDTH)
        if model.attention_scale:
            smoke_sizes["attention_scale"] = model.attention_scale * model.head_size / head
        if model.rotary_dim:
            smoke_sizes["rotary_dim"] = max(2, 2 * round(head * model.rotary_dim / model.head_size / 2))
        smoke_sizes |= {"embedding_scale": 16} if model.embedding_scale else {}
    if experts := model.experts:
        small_experts = {"count": min(8, experts.count), "chosen": min(2, experts.chosen), "ffn_hidden_size": 128}
        smoke_sizes["experts"] = small_experts | ({"first_layer": 1} if experts.first_layer else {})
    return smoke_sizes

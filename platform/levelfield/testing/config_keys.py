"""The keys of a config.json, of which each must be read, be known to change nothing, or be refused by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# Tokens, outputs, generation and the loading of files: nothing of these is part of a pretraining's arithmetic.
IDLE = frozenset(
    (
        *("architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache", "unsloth_fixed"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id"),
        *("_name_or_path", "name_or_path", "_commit_hash", "attn_implementation", "_attn_implementation"),
        *("_attn_implementation_autoset", "id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
        *("task_specific_params", "return_dict", "output_attentions", "output_hidden_states", "output_router_logits"),
        *("tokenizer_class", "prefix", "is_decoder", "use_bfloat16", "torchscript", "gradient_checkpointing"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
        *("keys_to_ignore_at_inference", "max_length", "min_length", "do_sample", "temperature", "top_k", "top_p"),
        *("num_beams", "num_return_sequences", "repetition_penalty", "n_ctx"),
    )
)


class ConfigKeys:
    """The content of a config.json. defaults: what transformers takes where a key is absent, in all its releases.

    above: of the keys of an inner value, the path to it. Problems are collected, so that one error names every key.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        defaults: Mapping[str, Any],
        ignored: frozenset[str] = frozenset(),
        above: str = "",
    ) -> None:
        self._content = dict(content)
        self.defaults = defaults
        self._ignored = ignored
        self._above = above
        self._read: set[str] = set()
        self.problems: list[str] = []
        self.assumed: dict[str, Any] = {}

    def take(self, key: str, kind: type | tuple[type, ...], says: str = "") -> Any:
        """Return a value of this type, or the default; None, with a problem, without either."""
        self._read.add(key)
        if key not in self._content:
            if key in self.defaults:
                self.assumed[key] = self.defaults[key]
                return self.defaults[key]
            self.problem(
                key, says or "missing; transformers' own default has changed between releases, or there is none"
            )
            return None
        value = self._content[key]
        wanted = kind if isinstance(kind, tuple) else (kind,)
        is_truth = isinstance(value, bool)
        if (is_truth and bool in wanted) or (not is_truth and isinstance(value, wanted)):
            return value
        names = " or ".join("null" if each is type(None) else each.__name__ for each in wanted)
        self.problem(key, f"found {_short(value)}, expected {names}")
        return None

    def must(self, key: str, allowed: tuple[Any, ...], why: str) -> None:
        """Add a problem for a value that is none of these. An absent key has the first of them."""
        self._read.add(key)
        value = self._content.get(key, allowed[0])
        if not any(type(value) is type(each) and value == each for each in allowed):
            self.problem(key, f"found {_short(value)}: {why}")

    def leave(self, *keys: str) -> None:
        """Take keys whose values do not count here."""
        self._read.update(keys)

    def problem(self, key: str, says: str) -> None:
        if not self.is_ignored(key.split(".")[0]):
            self.problems.append(f"key '{self._above}{key}': {says}")

    def is_ignored(self, key: str) -> bool:
        return key in self._ignored

    def has(self, key: str) -> bool:
        return key in self._content

    def finish(self) -> None:
        """Add a problem for each key that nothing has read. An unknown null asks for nothing."""
        for key in self._unread():
            if key not in IDLE and self._content[key] is not None:
                self.problem(key, f"found {_short(self._content[key])}, which a case cannot say")

    def left_out(self) -> list[str]:
        """Return the keys that change nothing, or that the user leaves out."""
        return sorted(self._unread())

    def _unread(self) -> Iterator[str]:
        return (key for key in self._content if key not in self._read)


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."

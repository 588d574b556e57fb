"""A parallel layout: the distribution of one training over devices, in every common notation.

`data` is the whole data-parallel size. `context` ranks share each sequence: every one computes a part of its tokens.
Both hold the same weights, so gradients are summed over data x context ranks. ZeRO (Rajbhandari et al., 2020) shards
over `sharding_degree` of these, and each shard has data x context / sharding_degree replicas (hybrid sharding).
`expert` of the same ranks divide the experts of a mixture; it adds no ranks (Rajbhandari et al., 2022).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer, model_validator

from levelfield.errors import LayoutError
from levelfield.specs.base import MAX_RANKS, Value, parse_digits

_FIELD_BY_PREFIX = {
    "DP": "data",
    "CP": "context",
    "EP": "expert",
    "TP": "tensor",
    "PP": "pipeline",
    "SH": "sharding_stage",
    "SP": "sharding_degree",
}
_PART = rf"({'|'.join(_FIELD_BY_PREFIX)})(\d+)"  # such as DP4
_PARTS_PATTERN = re.compile(rf"(?:{_PART})+", re.IGNORECASE)
_PRODUCT_PATTERN = re.compile(r"(\d+)x(\d+)x(\d+)")
_ONEFLOW_PATTERN = re.compile(r"(\d+)n_(\d+)g(?=_\d*[dm]p)(?:_(\d*)dp)?(?:_(\d*)mp)?_(\d+)bs", re.IGNORECASE)
_MAX_CHARACTERS = 40  # characters of a text in a message


class Layout(Value):
    """The sizes of each kind of parallelism."""

    data: int = Field(default=1, ge=1, le=MAX_RANKS)
    tensor: int = Field(default=1, ge=1, le=MAX_RANKS)
    pipeline: int = Field(default=1, ge=1, le=MAX_RANKS)
    sequence_parallel: bool = False
    sharding_stage: int = Field(default=0, ge=0, le=3)
    sharding_degree: int = Field(default=1, ge=1, le=MAX_RANKS)
    context: int = Field(default=1, ge=1, le=MAX_RANKS)
    expert: int = Field(default=1, ge=1, le=MAX_RANKS)

    @property
    def world_size(self) -> int:
        return self.gradient_ranks * self.tensor * self.pipeline

    @property
    def gradient_ranks(self) -> int:
        """The ranks over which the gradient of a weight is summed: they hold the same weights and other tokens."""
        return self.data * self.context

    @property
    def is_hybrid_sharded(self) -> bool:
        """Whether states are sharded over some of the ranks that could share them, and replicated over the others."""
        return self.sharding_stage > 0 and self.sharding_degree != self.gradient_ranks

    @property
    def sizes_text(self) -> str:
        """`data 4 x tensor 2 x pipeline 1`, with context and expert where they are above 1."""
        context_text = f" x context {self.context}" if self.context > 1 else ""
        expert_text = f", experts over {self.expert}" if self.expert > 1 else ""
        return f"data {self.data}{context_text} x tensor {self.tensor} x pipeline {self.pipeline}{expert_text}"

    @model_serializer(mode="wrap")
    def _omit_unused_degrees(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `context` and `expert` where they are 1, so that documents from before them stay as they are."""
        content: dict[str, Any] = handler(self)
        return {key: value for key, value in content.items() if key not in ("context", "expert") or value != 1}

    @model_validator(mode="after")
    def _degrees_are_consistent(self) -> Layout:
        if self.world_size > MAX_RANKS:
            raise ValueError(f"found {self.world_size:,} ranks, expected at most {MAX_RANKS:,}")
        if self.gradient_ranks % self.sharding_degree:
            context = f" x context {self.context}" if self.context > 1 else ""
            raise ValueError(
                f"sharding_degree {self.sharding_degree} does not divide data-parallel size {self.data}{context}"
            )
        if self.gradient_ranks % self.expert:
            raise ValueError(
                f"expert {self.expert} does not divide data {self.data} x context {self.context}, whose ranks share "
                "the experts"
            )
        if self.sharding_stage == 0 and self.sharding_degree > 1:
            raise ValueError(f"sharding_degree {self.sharding_degree} needs a sharding_stage of 1 to 3")
        return self

    def __str__(self) -> str:
        """Return `DP4TP2PP1`, with `CP2` and `EP2` after DP, `SH2SP4` for sharded states and `+seq` for sequence
        parallel."""
        sharding = f"SH{self.sharding_stage}SP{self.sharding_degree}" if self.sharding_stage else ""
        context = f"CP{self.context}" if self.context > 1 else ""
        expert = f"EP{self.expert}" if self.expert > 1 else ""
        seq = "+seq" if self.sequence_parallel else ""
        return f"DP{self.data}{context}{expert}TP{self.tensor}PP{self.pipeline}{sharding}{seq}"


class LayoutText(NamedTuple):
    """The content of a layout's text; None for what it does not give."""

    layout: Layout
    nodes: int | None = None
    devices_per_node: int | None = None
    micro_batch: int | None = None


def parse_layout(text: str) -> LayoutText:
    """Read a layout as Levelfield, Megatron, OneFlow or Paddle writes it, or as three factors. Raises LayoutError.

    In Paddle's names with SH and SP, SP is the sharding degree, not sequence parallelism. A DP part beside them is
    the whole data-parallel size. Without a DP part the sharding degree is data x context.
    """
    try:
        return _parse(text)
    except ValueError as error:  # a number has too many digits
        raise LayoutError(f"layout '{text[:_MAX_CHARACTERS]}...': {error}") from None


def _parse(text: str) -> LayoutText:
    body, _, suffix = text.partition("+")
    if suffix not in ("", "seq"):
        raise LayoutError(f"layout '{text}': found '+{suffix}', expected '+seq' (sequence parallel) or nothing")
    if match := _PRODUCT_PATTERN.fullmatch(body):
        data, tensor, pipeline = map(parse_digits, match.groups())
        return LayoutText(_build_layout(text, suffix, data=data, tensor=tensor, pipeline=pipeline))
    if match := _ONEFLOW_PATTERN.fullmatch(body):
        return _from_oneflow(text, match, suffix)
    if _PARTS_PATTERN.fullmatch(body):
        return LayoutText(_from_parts(text, body, suffix))
    raise LayoutError(
        f"layout '{text}' has an unknown notation; write DP4TP2PP1, PP2DP4TP1, 8x1x4 (data x tensor x pipeline), "
        "TP1PP1SH2SP8 (sharding stage and degree), DP2CP2TP2 (context parallel), DP4EP2 (expert parallel), "
        "1n_8g_dp_4bs or 1n_8g_2dp_4mp_4bs (model parallel is tensor parallel), with +seq for sequence parallel"
    )


def _from_oneflow(text: str, match: re.Match[str], suffix: str) -> LayoutText:
    """Return the layout of OneFlow's xn_xg_xdp_xmp_xbs. `dp` or `mp` without a number takes the remaining devices."""
    nodes, devices_per_node, micro_batch = (parse_digits(match[group]) for group in (1, 2, 5))
    world_size, dp, mp = nodes * devices_per_node, match[3], match[4]
    tensor = 1 if mp is None else parse_digits(mp) if mp else world_size // max(1, parse_digits(dp or "1"))
    data = parse_digits(dp) if dp else world_size // max(1, tensor)
    if data * tensor != world_size:
        raise LayoutError(
            f"layout '{text}': found {data} x {tensor} ranks, expected {nodes} x {devices_per_node} devices"
        )
    return LayoutText(_build_layout(text, suffix, data=data, tensor=tensor), nodes, devices_per_node, micro_batch)


def _from_parts(text: str, body: str, suffix: str) -> Layout:
    """Return the layout of parts such as DP4TP2PP1, in any order. body: the text without its suffix."""
    fields: dict[str, int] = {}
    for name, number in re.findall(_PART, body.upper()):
        if _FIELD_BY_PREFIX[name] in fields:
            raise LayoutError(f"layout '{text}': found {name} twice, expected it once")
        fields[_FIELD_BY_PREFIX[name]] = parse_digits(number)
    if fields.get("sharding_degree", 1) > 1 and "sharding_stage" not in fields:
        raise LayoutError(
            f"layout '{text}': found SP, the sharding degree, without SH, the stage; for sequence parallel write +seq"
        )
    context = fields.get("context", 1)
    fields.setdefault("data", max(1, fields.get("sharding_degree", 1) // max(1, context)))
    if fields.get("sharding_stage") and "sharding_degree" not in fields:
        fields["sharding_degree"] = fields["data"] * context
    if fields.get("sharding_degree", 1) == 1:
        fields["sharding_stage"] = 0  # sharding over one rank is no sharding
    return _build_layout(text, suffix, **fields)


def _build_layout(text: str, suffix: str, **fields: int) -> Layout:
    try:
        return Layout(**fields, sequence_parallel=suffix == "seq")
    except ValidationError as error:
        reasons = (f"{'.'.join(map(str, d['loc']))} {d['msg']}".strip() for d in error.errors())
        raise LayoutError(f"layout '{text}': {'; '.join(reasons)}") from None

"""The plans that are rehearsed: the defaults of shipped cases on several chips, and each family of layouts."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A plan: a case string, further options, and whether all ranks run, with their messages delivered."""

    case: str
    options: tuple[str, ...] = ()
    delivered: bool = False

    def __str__(self) -> str:
        return " ".join((self.case, *self.options, *(["delivered"] if self.delivered else [])))


def laid_out(case: str, layout: str, *more: str, delivered: bool = False) -> Row:
    return Row(case, ("--scale", "full", "--layout", layout, *more), delivered)


# without any option: what a user gets
DEFAULTS = (
    *(Row(f"{case}:torch:H100:1:8") for case in ("gpt3_6.7B", "llama3_8b", "qwen3_8b")),
    Row("gpt3_6.7B:deepspeed:H100:1:8"),
    Row("llama3_8b:deepspeed:H100:1:8"),
    *(Row(f"{case}:torch:H100:8:8") for case in ("llama3_70b", "qwen3_30b_a3b", "mixtral_8x7b")),
    Row("gpt3_6.7B:torch:H100:2:8"),
    Row("llama3_8b:torch:H200:1:8"),
    Row("gpt3_6.7B:torch:A100-SXM4-40GB:1:8"),
    Row("gpt2_small:torch:H100:1:1"),
    *(Row(f"{case}:megatron:H100:1:8") for case in ("gpt3_6.7B", "llama3_8b", "qwen3_8b")),
    Row("mixtral_8x7b:torch:H100:2:8"),  # the smallest number of H100 that holds it
    Row("mixtral_8x7b:megatron:H100:2:8"),
    *(Row(f"{case}:megatron:H100:8:8") for case in ("llama3_70b", "qwen3_30b_a3b")),
    *(Row(f"{case}:torch:H100:8:8") for case in ("gpt3_6.7B", "llama3_8b", "qwen3_8b")),
    *(Row(f"{case}:deepspeed:H100:2:8") for case in ("gpt3_6.7B", "llama3_8b")),
    Row("qwen3_8b:torch:H200:2:8"),
)
# each family of layouts, and its crosses
FAMILIES = (
    laid_out("gpt3_6.7B:torch:H100:1:8", "DP2PP4", delivered=True),
    laid_out("gpt3_6.7B:torch:H100:1:8", "DP2PP4", "--micro-batch", "1"),
    laid_out("gpt3_6.7B:torch:H100:1:8", "DP4TP2+seq", "--micro-batch", "1"),
    laid_out("gpt3_6.7B:torch:H100:1:8", "TP2PP4+seq", delivered=True),
    laid_out("llama3_8b:torch:H100:1:8", "DP8SH1", "--recompute", "full"),
    laid_out("llama3_8b:torch:H100:1:8", "DP8SH2"),
    laid_out("llama3_8b:torch:H100:1:8", "DP4CP2SH3"),
    laid_out("llama3_8b:torch:H100:1:8", "DP4TP2SH1+seq"),
    laid_out("llama3_8b:torch:H100:1:8", "DP2TP2PP2SH1+seq", delivered=True),
    laid_out("mixtral_8x7b:torch:H100:2:8", "DP4CP2EP8PP2SH2", "--micro-batch", "1", "--recompute", "none"),
    laid_out("gpt2_medium:torch:H100:1:8", "DP8", delivered=True),
    laid_out("gpt3_6.7B:megatron:H100:1:8", "DP4TP2+seq"),
    laid_out("gpt3_6.7B:megatron:H100:1:8", "DP2PP4", delivered=True),
    laid_out("llama3_8b:megatron:H100:1:8", "DP2TP2CP2SH1+seq"),
    laid_out("gpt3_6.7B:torch:H100:1:8", "DP8SH1", "--micro-batch", "4", "--recompute", "selective"),
    laid_out("gpt3_6.7B:torch:H100:2:8", "DP16SH1", "--micro-batch", "4", "--recompute", "selective"),
    laid_out("gpt3_6.7B:deepspeed:H100:1:8", "DP8SH1", "--micro-batch", "2", "--recompute", "none"),
    laid_out("gpt3_6.7B:megatron:H100:1:8", "DP4PP2SH1", "--micro-batch", "2", "--virtual-pipeline", "4"),
    laid_out("gpt3_6.7B:torch:H100:1:8", "DP4PP2SH1", "--micro-batch", "2", "--virtual-pipeline", "4"),
    laid_out(
        "qwen3_8b:torch:H100:2:8", "DP2PP8SH1", "--micro-batch", "1", "--virtual-pipeline", "3", "--recompute", "none"
    ),
    laid_out("gpt2_small:torch:H100:1:8", "DP2PP4", "--micro-batch", "4", "--virtual-pipeline", "3", delivered=True),
    laid_out("gpt3_6.7B:megatron:H100:1:8", "DP4TP2+seq", "--micro-batch", "1", "--recompute", "none"),
    laid_out("qwen3_8b:torch:H100:1:8", "DP8SH2", "--micro-batch", "2", "--recompute", "selective"),
    laid_out("qwen3_8b:torch:H100:1:8", "DP8SH3", "--micro-batch", "2", "--recompute", "none"),
    laid_out("mixtral_8x7b:torch:H100:2:8", "DP16EP8SH3", "--micro-batch", "8", "--recompute", "full"),
    laid_out("mixtral_8x7b:torch:H100:2:8", "DP8EP8PP2SH3", "--micro-batch", "1", "--recompute", "selective"),
    laid_out("mixtral_8x7b:torch:H100:8:8", "DP4CP2EP8PP8SH1", "--micro-batch", "1", "--recompute", "none"),
    laid_out("mixtral_8x7b:megatron:H100:2:8", "DP2CP4EP8PP2SH1", "--micro-batch", "1", "--recompute", "none"),
    laid_out("qwen3_30b_a3b:torch:H100:8:8", "DP32EP8PP2SH1", "--micro-batch", "1", "--recompute", "none"),
    laid_out(
        "qwen3_30b_a3b:megatron:H100:8:8",
        "DP32EP8PP2SH1",
        "--micro-batch",
        "1",
        "--virtual-pipeline",
        "4",
        "--recompute",
        "none",
    ),
    laid_out("llama3_70b:megatron:H100:8:8", "DP2CP2TP4PP4SH1+seq", "--micro-batch", "1", "--recompute", "none"),
)
# the first layers of each chunk computed again
FIRST_LAYERS = tuple(
    laid_out(case, layout, "--micro-batch", batch, "--recompute", "full", "--recompute-layers", layers, *more)
    for case, layout, batch, layers, *more in (
        ("llama3_8b:torch:A100-SXM4-40GB:1:8", "DP8SH3", "2", "28"),
        ("llama3_8b:torch:A100-SXM4-40GB:1:8", "DP4TP2SH2+seq", "1", "17"),
        ("llama3_8b:torch:H100:1:8", "DP4PP2SH1", "1", "6"),
        ("mixtral_8x7b:torch:H100:2:8", "DP8EP8PP2SH1", "1", "9"),
        ("gpt3_6.7B:deepspeed:H100:1:8", "DP8SH1", "4", "16"),
        ("llama3_8b:megatron:A100-SXM4-40GB:1:8", "DP2TP2PP2SH1+seq", "1", "14"),
        ("gpt3_6.7B:megatron:H100:1:8", "DP4PP2SH1", "4", "3", "--virtual-pipeline", "2"),
    )
)
ROWS = (*DEFAULTS, *FAMILIES, *FIRST_LAYERS)

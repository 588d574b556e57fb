"""Multi-head latent attention (DeepSeek-AI, 2024, V2, section 2.1): keys and values of all heads from one latent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from levelfield.worker import Unsupported, part
from levelfield.worker.job import Job
from model.attention import rotate
from model.layers import Linear, RMSNorm
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from levelfield.worker.architecture import LatentAttention as LatentSizes
    from levelfield.worker.architecture import Model


class LatentAttention(nn.Module):
    """Each head's query and key has a plain part and one that is rotated; the rotated part of the keys is that of all
    heads. Queries come from a latent too, or without one from the hidden state."""

    def __init__(
        self, model: Model, attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        sizes: LatentSizes
        sizes, hidden, heads = model.latent_attention, model.hidden_size, model.heads  # type: ignore[assignment]
        self.sizes, self.heads, self.attend = sizes, heads, attend
        width = heads * (sizes.plain_size + sizes.rotary_size)
        if sizes.query_rank is None:
            self.query = Linear(hidden, width, bias=False)
        else:
            self.query_down = Linear(hidden, sizes.query_rank, bias=False)
            self.query_norm = RMSNorm(sizes.query_rank, eps=model.norm_eps)
            self.query_up = Linear(sizes.query_rank, width, bias=False)
        self.latent_down = Linear(hidden, sizes.key_value_rank + sizes.rotary_size, bias=False)
        self.latent_norm = RMSNorm(sizes.key_value_rank, eps=model.norm_eps)
        self.latent_up = Linear(sizes.key_value_rank, heads * (sizes.plain_size + sizes.value_size), bias=False)
        self.output = Linear(heads * sizes.value_size, hidden, bias=False)

    def forward(self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the attention's output of x, both [batch, sequence, hidden].

        rotary: the tables of heads of `rotary_size`.
        """
        sizes = self.sizes
        # [batch, sequence, heads, plain_size] and [..., rotary_size]
        plain, rotated = self.split(self.queries(x), sizes.plain_size, sizes.rotary_size)
        query = torch.cat((plain, rotate(rotated, rotary)), dim=-1)
        # [batch, sequence, key_value_rank] and [batch, sequence, rotary_size]
        latent, rotated = self.latent_down(x).split((sizes.key_value_rank, sizes.rotary_size), dim=-1)
        # [batch, sequence, heads, plain_size] and [..., value_size]
        plain, value = self.split(self.latent_up(self.latent_norm(latent)), sizes.plain_size, sizes.value_size)
        shared = rotate(rotated[:, :, None], rotary).expand(-1, -1, self.heads, -1)  # of one head, for all
        # [batch, sequence, heads, value_size] -> [batch, sequence, hidden]
        return self.output(  # type: ignore[no-any-return]
            self.attend(query, torch.cat((plain, shared), dim=-1), value).flatten(2)
        )

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        """Return the queries of all heads, [batch, sequence, heads (plain_size + rotary_size)]."""
        if self.sizes.query_rank is None:
            return self.query(x)  # type: ignore[no-any-return]
        return self.query_up(self.query_norm(self.query_down(x)))  # type: ignore[no-any-return]

    def split(self, x: torch.Tensor, first: int, second: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Split [batch, sequence, heads (first + second)] into two of [batch, sequence, heads, ...]."""
        return x.unflatten(-1, (self.heads, -1)).split((first, second), dim=-1)  # type: ignore[no-any-return]


def check_latent_attention(job: Job) -> None:
    """Raise Unsupported for what latent attention cannot be combined with here."""
    if part(job.model, "latent_attention") is None:
        return
    refused = {
        f"tensor parallel {job.layout.tensor}": job.layout.tensor > 1,
        f"context parallel {job.layout.context}": job.layout.context > 1,
        "attention flash_attn: it takes heads of one size": job.tuning.attention == "flash_attn",
        "positions 'learned'": job.model.positions != "rope",
        "rope_scaling: its softmax would be scaled too": part(job.model, "rope_scaling") is not None,
    }
    refusals = [what for what, requested in refused.items() if requested]
    if refusals:
        raise Unsupported(f"latent attention with {'; with '.join(refusals)}: not written")

"""The part of each sequence that a context-parallel rank computes, as Megatron and transformer-engine divide it."""

from __future__ import annotations

import torch


class Sequence:
    """The part of rank `rank` of `ranks`, of a sequence of `length` tokens. places: its tokens' in the whole sequence.

    Rank r has the r-th of 2 ranks equal pieces from the front and the r-th from the back, so that all have equal work
    under the causal mask.
    """

    def __init__(self, length: int, ranks: int, rank: int, device: torch.device | str) -> None:
        pieces = torch.arange(length, device=device).chunk(2 * ranks)
        whole = torch.arange(length, device=device)
        self.places = whole if ranks == 1 else torch.cat((pieces[rank], pieces[2 * ranks - 1 - rank]))
        self.is_whole = ranks == 1

    def part(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of tokens [batch, sequence]."""
        return tokens if self.is_whole else tokens[:, self.places]

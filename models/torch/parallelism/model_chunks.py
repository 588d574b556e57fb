"""The model chunks that a rank of an interleaved pipeline holds. Without interleaving its model is one."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from torch import nn


class ModelChunks:
    """Several model chunks as one model: the modules and parameters of all. Parameters bear canonical names, so those
    of two chunks differ."""

    def __init__(self, chunks: Sequence[Any]) -> None:
        self.chunks = chunks

    @property
    def dtype(self) -> torch.dtype:
        return self.chunks[0].dtype  # type: ignore[no-any-return]

    def modules(self) -> Iterator[nn.Module]:
        return chain.from_iterable(chunk.modules() for chunk in self.chunks)

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        return chain.from_iterable(chunk.named_modules() for chunk in self.chunks)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return chain.from_iterable(chunk.named_parameters() for chunk in self.chunks)


def chunks_of(model: object) -> Sequence[Any]:
    """Return the chunks of a model, or of what is called in its place; a whole model or stage is one."""
    return getattr(model, "chunks", [model])

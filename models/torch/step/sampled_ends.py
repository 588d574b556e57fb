"""Samples of a step's two ends for levelfield's SpotCheck: tokens and embedding, and the head with its loss.

Also of the gradients of their tables, which are one where the two are tied.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker.spot_check import ROWS, TOKEN_COLUMNS, WHOLE_ROWS
from model import head_loss
from step.transfers import Copied, slices_at
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

    import torch.distributed as dist
    from levelfield.worker.spot_check import SpotCheck
    from model.decoder import Decoder
    from model.tied import TiedGradient

# of float32 logits at a time: a processor's memory is counted as a whole, and an accelerator launches kernels for each
SLICE_BYTES, SLICE_BYTES_ON_ACCELERATORS = 2**21, 2**26


def sample_ends(decoder: Decoder, check: SpotCheck, stack: contextlib.ExitStack) -> None:
    """Sample what this stage has of the two ends, until `stack` is closed."""
    if not check.has_whole_sequences:
        return
    embedding = _TableGradient("embedding", check, stack)
    if decoder.stage.first:
        _EmbeddingSamples(decoder, check, embedding).watch(stack)
    if decoder.stage.last:
        table = embedding if decoder.model.tied_embeddings else _TableGradient("head", check, stack)
        compute = partial(_sampled_head_loss, head_loss.head_loss, check, table)
        stack.callback(setattr, head_loss, "head_loss", head_loss.head_loss)
        head_loss.head_loss = compute


class _TableGradient:
    """What the first micro-batch adds to some rows of a table's gradient."""

    def __init__(self, name: str, check: SpotCheck, stack: contextlib.ExitStack) -> None:
        self.name, self.check, self.stack = name, check, stack
        self.tokens, self.columns = check.tokens(TOKEN_COLUMNS), []  # type: list[int], list[int]
        self.hidden: torch.Tensor | None = None  # of the embedding's output, [tokens, columns]
        self.head: list[torch.Tensor] | None = (
            None  # of the logits, [tokens, rows]; the head's inputs, [tokens, columns]
        )
        self.is_watched = False

    def watch(self, weight: torch.Tensor | Any) -> None:
        """Watch the gradient of the table's weight, once."""
        if not self.is_watched and weight.requires_grad:
            self.is_watched = True
            self.columns = self.check.places(TOKEN_COLUMNS, weight.shape[1])
            self.stack.callback(weight.register_hook(self._sample).remove)

    def _sample(self, gradient: torch.Tensor) -> None:
        if self.check.has(f"{self.name} weights") or (self.hidden is None and self.head is None):
            return
        hidden = None if self.hidden is None else Copied(self.hidden)
        head = None if self.head is None else [Copied(tensor) for tensor in self.head]
        numbers = Copied(slices_at(slices_at(gradient.detach(), self.tokens), self.columns, 1))
        self.check.table_gradient(self.name, self.tokens, numbers, hidden, head)


class _EmbeddingSamples:
    def __init__(self, decoder: Decoder, check: SpotCheck, table: _TableGradient) -> None:
        self.decoder, self.check, self.table = decoder, check, table
        self.rows: torch.Tensor | None = None  # of the table, [rows, hidden]

    def watch(self, stack: contextlib.ExitStack) -> None:
        embedding = self.decoder.embedding
        hook = embedding.register_forward_hook(lambda module, *_: self._take(module.weight), prepend=True)
        stack.callback(hook.remove)
        self.decoder.embed = partial(self._embed, self.decoder.embed)  # type: ignore[method-assign]
        stack.callback(delattr, self.decoder, "embed")

    def _take(self, weight: torch.Tensor | Any) -> None:
        """Take the rows that the first micro-batch has to read; while a module runs, ZeRO has gathered its weight."""
        self.table.watch(weight)
        if self.rows is None and not isinstance(weight, DTensor):
            self.rows = slices_at(weight.detach(), self.check.inputs_at(self.check.rows(self.check.batch_tokens)))

    def _embed(self, embed: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
        x = embed(tokens)
        self.check.read("inputs", Copied(tokens))
        if self.check.has("embedding") or self.decoder.model.hidden_dropout:
            return x
        if self.decoder.tied is not None:
            self._take(self.decoder.embedding.weight)
        if self.rows is None or isinstance(x, DTensor) or x.shape[:2] != tokens.shape:
            return x
        rows = self.check.rows(tokens.numel())
        positions = None
        if self.decoder.model.positions == "learned":
            table = self.decoder.position.weight.detach()
            positions = Copied(slices_at(table, [row % tokens.shape[1] for row in rows]))
        self.check.embedding(Copied(self.rows), positions, Copied(slices_at(x.detach().flatten(0, 1), rows)))
        if x.requires_grad:
            x.register_hook(self._take_gradient)
        return x

    def _take_gradient(self, gradient: torch.Tensor) -> None:
        if self.table.hidden is None:
            self.table.hidden = slices_at(gradient.detach().flatten(0, 1), self.table.columns, 1)


def _sampled_head_loss(
    right: Callable[..., torch.Tensor],
    check: SpotCheck,
    table: _TableGradient,
    x: torch.Tensor,
    weight: torch.Tensor | Any,
    targets: torch.Tensor,
    scale: float,
    tied: TiedGradient | None = None,
    cast: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `head_loss` by `right`, and sample it."""
    check.read("targets", Copied(targets))
    if isinstance(weight, DTensor) or isinstance(x, DTensor):  # a rank's part of the vocabulary
        return right(x, weight, targets, scale, tied, cast)
    samples = _HeadSamples(check, table, x, weight, scale)
    way_of = head_loss.way_of
    head_loss.way_of = partial(samples.way_of, way_of)
    try:
        loss = right(x, weight, targets, scale, tied, cast)
    finally:
        head_loss.way_of = way_of
    samples.finish()
    return loss


class _HeadSamples:
    """Numbers of a micro-batch's logits, before they become their gradient and after it.

    Some are of every token: [tokens]. scale: of the micro-batch's loss.
    """

    def __init__(
        self, check: SpotCheck, table: _TableGradient, x: torch.Tensor, weight: torch.Tensor, scale: float
    ) -> None:
        self.check, self.table, self.x, self.weight, self.scale = check, table, x, weight, scale
        self.factor = scale * x.shape[-1] / x.numel()  # of the loss of one token
        self.is_sampled = not check.has("loss")
        self.start = 0  # tokens whose logits were computed
        self.normalisers, self.target_logits = [], []  # type: list[torch.Tensor], list[torch.Tensor]
        if self.is_sampled:
            count = x.flatten(0, 1).shape[0]
            self.rows, self.columns = check.rows(count), check.places(ROWS, weight.shape[0])
            self.whole_rows = check.rows(count)[:WHOLE_ROWS]
            self.target_gradients, self.table_gradients = [], []  # type: list[torch.Tensor], list[torch.Tensor]
            self.logits, self.whole_logits, self.whole_gradients = [], [], []  # type: ignore[var-annotated]
            table.watch(weight)

    def way_of(
        self,
        right: Callable[..., head_loss.Way],
        x: torch.Tensor,
        weight: torch.Tensor,
        group: dist.ProcessGroup | None,
    ) -> head_loss.Way:
        way = right(x, weight, group)
        return way._replace(cross_entropy=partial(self._cross_entropy, way.cross_entropy))

    def _cross_entropy(
        self, right: Callable[..., torch.Tensor], logits: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        slice_bytes = SLICE_BYTES if head_loss.on_processor(logits) else SLICE_BYTES_ON_ACCELERATORS
        few = max(1, slice_bytes // (4 * logits.shape[1]))
        self.normalisers += [part.float().logsumexp(1) for part in logits.split(few)]
        self.target_logits.append(logits.gather(1, targets[:, None])[:, 0].float())
        if not self.is_sampled:
            return right(logits, targets)
        whole_rows = self._here(self.whole_rows, len(logits))
        self.logits.append(slices_at(slices_at(logits, self._here(self.rows, len(logits))), self.columns, 1))
        self.whole_logits.append(slices_at(logits, whole_rows))
        loss = right(logits, targets)
        self.target_gradients.append(logits.gather(1, targets[:, None])[:, 0])
        self.table_gradients.append(slices_at(logits, self.table.tokens, 1))
        self.whole_gradients.append(slices_at(logits, whole_rows))
        self.start += len(logits)
        return loss

    def _here(self, rows: list[int], count: int) -> list[int]:
        return [row - self.start for row in rows if self.start <= row < self.start + count]

    def finish(self) -> None:
        """Give SpotCheck what was sampled; what follows from it in the backward pass is sampled there."""
        check, x, columns = self.check, self.x, self.table.columns
        del self.x  # which would wait for the hook below, and the hook for it
        rows = x.detach().flatten(0, 1)
        normaliser, target_logit = torch.cat(self.normalisers), torch.cat(self.target_logits)
        check.micro_batch_loss(Copied((normaliser - target_logit).mean()), self.scale)
        if not self.is_sampled:
            return
        target_gradient = torch.cat(self.target_gradients)
        self.whole_gradient = torch.cat(self.whole_gradients)  # [whole rows, vocabulary]
        check.loss(
            (Copied(normaliser), Copied(target_logit), Copied(target_gradient)),
            self.whole_rows,
            Copied(torch.cat(self.whole_logits)),
            Copied(self.whole_gradient),
        )
        weight, logits = self.weight.detach(), torch.cat(self.logits)
        check.product(
            "head",
            Copied(slices_at(rows, self.rows)),
            Copied(slices_at(weight, self.columns)),
            None,
            Copied(logits),
            self.columns,
        )
        self.table.head = [torch.cat(self.table_gradients).float() * self.factor, slices_at(rows, columns, 1)]
        if x.requires_grad:
            places = check.places(TOKEN_COLUMNS, rows.shape[1])
            x.register_hook(partial(self._sample_input_gradient, places, slices_at(weight, places, 1).t()))

    def _sample_input_gradient(self, places: list[int], weight: torch.Tensor, gradient: torch.Tensor) -> None:
        rows = slices_at(gradient.detach().flatten(0, 1), self.whole_rows)
        input_gradient = slices_at(rows, places, 1).float() / self.factor
        self.check.input_gradient("head", Copied(self.whole_gradient), Copied(weight), Copied(input_gradient))

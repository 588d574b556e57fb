"""What a few chosen steps record besides: each parameter's gradient norm, and for `diagnose` the tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decoder import Block, FinalNorm, Positions
from levelfield.worker import Capture
from optimizer import SLICE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import paddle
    from levelfield.worker.job import Job
    from parallelize import TrainingSetup


class Evidence:
    """Watches the clipping object, which sees the whole step's gradients, and the pieces of the decoder."""

    squares: list[tuple[str, float]] | None  # of the step: (name, share of the squared gradient norm)

    def __init__(self, job: Job, setup: TrainingSetup) -> None:
        self.job, self.capture = job, Capture(job)
        self.parts = {part.parameter.name: part for part in setup.parts}
        self.model, self.clip, self.squares = setup.runner, setup.clip, None
        self.hooks: list[Any] = []

    def prepare(self, step: int) -> None:
        """Watch `step` if it is one of the chosen. Called before its forward pass."""
        self.squares = None
        wants_squares = step in self.job.gradient_steps
        is_captured = self.capture.wants(step)
        self.clip.watch = lambda pairs, squares: self.note(pairs, squares if wants_squares else None, is_captured)
        if is_captured:
            self.hook_pieces()

    def note(
        self, pairs: Sequence[tuple[paddle.Tensor, paddle.Tensor]], squares: paddle.Tensor | None, is_captured: bool
    ) -> None:
        """Note the gradients of this rank, before clipping, and their shares of the squared norms."""
        parts = [self.parts[parameter.name.removeprefix(SLICE)] for parameter, _ in pairs]
        if squares is not None:
            self.squares = list(zip([part.name for part in parts], squares.tolist(), strict=True))
        if is_captured:
            for part, (_, gradient) in zip(parts, pairs, strict=True):
                self.capture.keep(f"gradient.{part.name}", part.canonical(gradient))

    def hook_pieces(self) -> None:
        """Keep the outputs of the pieces of the next forward pass, which is the first micro-batch's."""
        names = {Positions: "embedding", FinalNorm: "final_norm"}
        for piece in self.model.sublayers():
            name = f"layers.{piece.index}" if isinstance(piece, Block) else names.get(type(piece))
            if name is not None:
                self.hooks.append(piece.register_forward_post_hook(self.capture_hook(name)))
        self.hooks.append(self.model.register_forward_post_hook(self.capture_hook("logits")))

    def capture_hook(self, name: str) -> Callable[[Any, Any, paddle.Tensor], None]:
        return lambda _piece, _inputs, output: self.capture.keep(name, output.detach().astype("float32").numpy())

    def remove_hooks(self) -> None:
        while self.hooks:
            self.hooks.pop().remove()

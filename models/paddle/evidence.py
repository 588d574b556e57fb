"""What else a few chosen steps tell: every parameter's gradient norm, and for `diagnose` the tensors themselves."""

from decoder import Block, FinalNorm, Positions
from levelfield.worker import Capture
from optimizer import SLICE


class Evidence:
    """Watches the clipping object, which sees the whole step's gradients, and the pieces of the decoder."""

    def __init__(self, job, built):
        self.job, self.capture = job, Capture(job)
        self.parts = {part.parameter.name: part for part in built.parts}
        self.model, self.hooks, self.squares = built.runner, [], None
        self.clip = built.clip

    def prepare(self, step):
        """Before the forward pass of `step`: look where this step is one of the chosen."""
        self.squares = None
        measured = step in self.job.gradient_steps
        captured = self.capture.wants(step)
        self.clip.watch = lambda pairs, squares: self.note(pairs, squares if measured else None, captured)
        if captured:
            self.hook_pieces()

    def note(self, pairs, squares, captured):
        """The gradients of this rank, before clipping, and their shares of the squared norms."""
        parts = [self.parts[parameter.name.removeprefix(SLICE)] for parameter, _ in pairs]
        if squares is not None:
            self.squares = list(zip([part.name for part in parts], squares.tolist(), strict=True))
        if captured:
            for part, (_, gradient) in zip(parts, pairs, strict=True):
                self.capture.keep(f"gradient.{part.name}", part.canonical(gradient))

    def hook_pieces(self):
        """Keep the outputs of the pieces of the next forward pass, which is the first micro-batch's."""
        names = {Positions: "embedding", FinalNorm: "final_norm"}
        for piece in self.model.sublayers():
            name = f"layers.{piece.index}" if isinstance(piece, Block) else names.get(type(piece))
            if name is not None:
                self.hooks.append(piece.register_forward_post_hook(self.keeper(name)))
        self.hooks.append(self.model.register_forward_post_hook(self.keeper("logits")))

    def keeper(self, name):
        return lambda _piece, _inputs, output: self.capture.keep(name, output.detach().astype("float32").numpy())

    def first_micro_batch_done(self):
        while self.hooks:
            self.hooks.pop().remove()

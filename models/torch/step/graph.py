"""A step as a CUDA graph: captured once, then launched as one, so that the host's time per kernel does not count.

Captured is all from the casts of parameters to the optimizer's step. What changes from step to step are tensors with a
place of their own: tokens, targets and the learning rate. The results keep their place, too. Not yet run on a chip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker import Unsupported, part
from levelfield.worker.job import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WARM_UP_STEPS = 2  # steps as they are: they make the optimizer's state, and what libraries set up at their first call


def check_graph(job: Job) -> None:
    """Check that a step can be captured. Raises Unsupported where it is not the same launches each time."""
    model = job.model
    refused = {
        f"device '{job.device}': expected cuda": job.device != "cuda",
        f"{job.world_size} ranks: expected 1, as no collective was captured yet": job.world_size > 1,
        "precision fp16: the host decides by each step's norm whether the loss scale changes": (
            job.training.precision == "fp16"
        ),
        "precision fp8: no library for it was captured yet": job.training.precision == "fp8",
        "dropout: its random numbers begin anew on the host in each step": (
            model.hidden_dropout or model.attention_dropout
        ),
        "experts: the host counts their tokens": part(model, "experts") is not None,
        "a captured step: its tensors are copied to the host while it runs": job.capture is not None,
    }
    for reason, applies in refused.items():
        if applies:
            raise Unsupported(f"graph with {reason}")


class StepGraph:
    """The graph of one function of tensors, and the tensors that it reads and writes.

    The stream of this thread becomes one that can be captured, which the default one cannot.
    """

    def __init__(self) -> None:
        self.graph: torch.cuda.CUDAGraph | None
        self.inputs: list[torch.Tensor] | None
        self.results: Any
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.set_stream(stream)
        self.calls, self.graph, self.inputs, self.results = 0, None, None, None

    def run(self, function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
        """Return function(*inputs). From the third call on its launches are replayed, into the same results."""
        self.calls += 1
        if self.calls <= WARM_UP_STEPS:
            return function(*inputs)
        if self.graph is None:
            self.capture(function, inputs)
        for graph_input, tensor in zip(self.inputs, inputs, strict=True):  # type: ignore[arg-type]  # captured by now
            graph_input.copy_(tensor)
        self.graph.replay()  # type: ignore[union-attr]
        return self.results

    def capture(self, function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> None:
        """Capture function(*inputs), which does not run, on copies of the inputs."""
        self.inputs, self.graph = [torch.empty_like(tensor) for tensor in inputs], torch.cuda.CUDAGraph()
        # it first gives back what the first steps needed: the graph has memory of its own
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            self.results = function(*self.inputs)

"""The parent of rehearsals with torch.compile: parent.py, and what these need."""

import attention_choices
import parent
import rank
import torch
from books import LONGEST


def main():
    rank.StepBooks.step = with_compilation(rank.StepBooks.step)
    attention_choices.observe_choices = leave_unobserved
    parent.main()


def with_compilation(step):
    """The step of the recorder, with what torch.compile did since the last one."""
    seen = {"graphs": 0, "breaks": {}}

    def call(self, number, **facts):
        self.report["compiled_steps"] = [*self.report.get("compiled_steps", []), {"step": number, **since(seen)}]
        return step(self, number, **facts)

    return call


def since(seen):
    """Graphs that were compiled, and graph breaks by their first line. Changes `seen`."""
    from torch._dynamo.utils import counters

    graphs, breaks = counters["stats"]["unique_graphs"], dict(counters["graph_break"])
    new = {why: many - seen["breaks"].get(why, 0) for why, many in breaks.items()}
    found = {"graphs": graphs - seen["graphs"], "graph_breaks": {}}
    for why, many in new.items():
        if many:
            line = why.strip().splitlines()[0][:LONGEST]
            found["graph_breaks"][line] = found["graph_breaks"].get(line, 0) + many
    seen.update(graphs=graphs, breaks=breaks)
    return found


def leave_unobserved(chosen):
    """Observing each call of attention would itself break the graph: only cuDNN's kernels are left out."""
    torch.backends.cuda.enable_cudnn_sdp(False)


if __name__ == "__main__":
    main()

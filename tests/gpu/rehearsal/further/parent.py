"""The parent of rehearsals with torch.compile or with masks in attention: inside/parent.py, and what these need.

A file of its own: the records of other rehearsals rest on the files of inside/, and on no other.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "inside"))

import attention_choices
import parent
import rank
import torch
from books import LONGEST
from torch.nn import functional


def main():
    job = json.loads((Path(sys.argv[1]).parent / "job.json").read_text())
    if job["tuning"]["compile"]:
        rank.StepBooks.step = with_compilation(rank.StepBooks.step)
        attention_choices.observe_choices = leave_unobserved
    else:
        attention_choices.observe_choices = without_masks(attention_choices.observe_choices)
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


def without_masks(observe):
    """The observer of attention, where a mask is left out for kernels of cuDNN.

    cuDNN's take a mask, flash attention in their place does not, and torch would fall back to its kernel that holds all
    scores of a head. No kernel computes anything here, so that the mask's content is not missed.
    """

    def call(chosen):
        plain = functional.scaled_dot_product_attention
        observe(chosen)
        observed, known = functional.scaled_dot_product_attention, {}

        def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
            more = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
            if attn_mask is None or not query.is_cuda:
                return observed(query, key, value, attn_mask, **more)
            words = f"{list(query.shape)} {query.dtype} keys {list(key.shape)} dropout {dropout_p:g} masked"
            if words not in known:
                known[words] = chosen[words] = attention_choices.choice(query, key, value, attn_mask, more)
            return plain(query, key, value, None if known[words] == "cudnn" else attn_mask, **more)

        functional.scaled_dot_product_attention = attention

    return call


if __name__ == "__main__":
    main()

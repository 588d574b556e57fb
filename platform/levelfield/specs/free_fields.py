"""The table of free fields: what a vendor, a suite or a user may choose for a run. The case fixes everything else.

Options, help, plans, jobs, certificates, the series of the store, comparisons and pages walk this table. A further
field is an entry here, its type in specs/tuning.py (`FreeFields` and `TuningChoice`), and the code of the framework
that reads it. Standard library only: `--help` imports no package.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FreeField:
    """One free field, with the texts that the command line and reports use for it."""

    help: str
    value_type: type | tuple[str, ...]  # `int`, `bool`, `str`, or the closed list of its values
    phrase: str  # how a run with another value than the default is described, such as `{} threads`
    changes_code: bool = False  # the training takes another path through its code, so a certificate is of one value
    is_framework_specific: bool = False  # only a framework whose manifest names it in `free_fields` has it


RECOMPUTE_LAYERS = "recompute_layers"  # a part of `recompute` in sentences

FREE_FIELDS = {
    "layout": FreeField("parallel layout, such as DP4TP2PP1", str, "{}"),
    "micro_batch": FreeField("sequences per forward pass", int, "micro-batch {}"),
    "virtual_pipeline": FreeField(
        "virtual stages per pipeline stage (interleaved schedule)", int, "virtual pipeline {}"
    ),
    "threads": FreeField("CPU threads per process", int, "{} threads"),
    "recompute": FreeField(
        "activation checkpointing: what is recomputed", ("none", "selective", "full"), "recompute {}", True
    ),
    RECOMPUTE_LAYERS: FreeField("with --recompute full: only the first N layers of each virtual stage", int, ""),
    "compile": FreeField("compile the model", bool, "compiled", True),
    "graph": FreeField(
        "replay each training step as one CUDA graph: the host launches once (one CUDA device; not yet run on a chip)",
        bool,
        "replayed as a graph",
        True,
        is_framework_specific=True,
    ),
    "attention": FreeField("attention kernel", ("sdpa", "flash_attn"), "attention {}", True),
}
CODE_FIELDS = tuple(name for name, field in FREE_FIELDS.items() if field.changes_code)


def option_name(name: str) -> str:
    """Return the option of a free field, such as `--micro-batch`."""
    return f"--{name.replace('_', '-')}"

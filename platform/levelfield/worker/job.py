"""The job of this training process, read from job.json and from the rank's environment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .architecture import UNUSED
from .faults import JobError

SCHEMA = "levelfield.job/1"
# What a job does not say: one model chunk for each stage, all layers computed again where any is, no CUDA graph, each
# sequence and all experts on one rank, no later part.
_LEFT_OUT: dict[str, dict[str, Any]] = {
    "tuning": {"virtual_pipeline": 1, "recompute_layers": None, "graph": False},
    "layout": {"context": 1, "expert": 1},
    "model": UNUSED,
}


def load_job(path: str | None = None) -> SimpleNamespace:
    """Return the job as nested namespaces, with rank, world_size and local_rank (0, 1, 0 without a launcher).

    path: by default the variable LEVELFIELD_JOB. Raises JobError for a missing or unreadable file or another schema.
    """
    path = path or os.environ.get("LEVELFIELD_JOB")
    if not path:
        raise JobError("LEVELFIELD_JOB is not set; expected the path of job.json")
    content = _read(path)
    found = content.get("schema")
    if found != SCHEMA:
        raise JobError(f"{path}: key 'schema': found {found!r}, expected '{SCHEMA}'")
    job = namespace({**content, **{key: {**left_out, **content.get(key, {})} for key, left_out in _LEFT_OUT.items()}})
    job.rank, job.world_size, job.local_rank = _rank("RANK", 0), _rank("WORLD_SIZE", 1), _rank("LOCAL_RANK", 0)
    return job  # type: ignore[no-any-return]


def coordinates(job: SimpleNamespace) -> SimpleNamespace:
    """Return this rank's place (pipeline, data, context, tensor): tensor is innermost, then context, data, pipeline.

    Raises JobError when the layout needs another number of ranks.
    """
    layout = job.layout
    needed = layout.data * layout.context * layout.tensor * layout.pipeline
    if job.world_size != needed or not 0 <= job.rank < needed:
        context = f"context {layout.context}, " if layout.context > 1 else ""
        raise JobError(
            f"rank {job.rank} of {job.world_size}: the layout (data {layout.data}, {context}tensor {layout.tensor}, "
            f"pipeline {layout.pipeline}) needs {needed} ranks"
        )
    outer, tensor = divmod(job.rank, layout.tensor)
    outer, context_rank = divmod(outer, layout.context)
    pipeline, data = divmod(outer, layout.data)
    return SimpleNamespace(pipeline=pipeline, data=data, context=context_rank, tensor=tensor)


def _read(path: str) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise JobError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise JobError(f"{path}: found {type(content).__name__}, expected a JSON object")
    return content


def namespace(value: Any) -> Any:
    """Return a mapping as a namespace, and what it holds as well."""
    if isinstance(value, dict):
        return SimpleNamespace(**{key: namespace(item) for key, item in value.items()})
    return [namespace(item) for item in value] if isinstance(value, list) else value


def _rank(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        raise JobError(f"{variable}: found '{text}', expected an integer") from None

"""The job of this training process, read from job.json and from the rank's environment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .faults import JobError

SCHEMA = "levelfield.job/1"


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
    # a job without tuning.virtual_pipeline has one model chunk for each stage
    job = _namespace({**content, "tuning": {"virtual_pipeline": 1, **content.get("tuning", {})}})
    job.rank, job.world_size, job.local_rank = _rank("RANK", 0), _rank("WORLD_SIZE", 1), _rank("LOCAL_RANK", 0)
    return job  # type: ignore[no-any-return]


def coordinates(job: SimpleNamespace) -> SimpleNamespace:
    """Return this rank's place (pipeline, data, tensor): tensor is innermost, then data, then pipeline.

    Raises JobError when the layout needs another number of ranks.
    """
    layout = job.layout
    needed = layout.data * layout.tensor * layout.pipeline
    if job.world_size != needed or not 0 <= job.rank < needed:
        raise JobError(
            f"rank {job.rank} of {job.world_size}: the layout (data {layout.data}, tensor {layout.tensor}, "
            f"pipeline {layout.pipeline}) needs {needed} ranks"
        )
    outer, tensor = divmod(job.rank, layout.tensor)
    pipeline, data = divmod(outer, layout.data)
    return SimpleNamespace(pipeline=pipeline, data=data, tensor=tensor)


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


def _namespace(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{key: _namespace(item) for key, item in value.items()})
    return [_namespace(item) for item in value] if isinstance(value, list) else value


def _rank(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        raise JobError(f"{variable}: found '{text}', expected an integer") from None

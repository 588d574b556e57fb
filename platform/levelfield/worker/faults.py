"""What can go wrong inside a training process, each with the class that its error event carries.

The worker may not import `levelfield.errors`; the platform translates by the class.
"""

from __future__ import annotations

import errno

_STORAGE = {errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG}
_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")


class WorkerError(Exception):
    """Base of the worker's own errors; `error_class` goes into the error event."""

    error_class = "error"


class JobError(WorkerError):
    """The job, or the rank's environment, does not say what the worker needs."""


class CorpusError(WorkerError):
    """A corpus that is damaged or does not fit the case; says the file, what was found, expected, and where."""

    error_class = "corpus"


class NonFinite(WorkerError):
    """The loss is NaN or infinite."""

    error_class = "non-finite"


class StorageError(WorkerError):
    """Events cannot be written."""

    error_class = "storage"


class Unsupported(WorkerError):
    """This implementation cannot do what the job asks for; raised by models, never replaced by something else."""

    error_class = "unsupported"


def classify(error: BaseException) -> str:
    """The error event's class: oom, non-finite, unsupported, corpus, storage, environment or error."""
    if isinstance(error, WorkerError):
        return error.error_class
    if _is_out_of_memory(error):
        return "oom"
    if isinstance(error, OSError) and error.errno in _STORAGE:
        return "storage"
    return "environment" if isinstance(error, ImportError) else "error"


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return True
    text = str(error).lower()
    return any(words in text for words in _MEMORY)

"""The errors of a training process, each with the error class that its event carries.

The worker may not import `levelfield.errors`. The platform maps each class to one of its own errors.
"""

from __future__ import annotations

import errno

_STORAGE = {errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG}
_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")


class WorkerError(Exception):
    """The base class of the worker's errors. The error event records `error_class`."""

    error_class = "error"


class JobError(WorkerError):
    """The job or the rank's environment lacks a value that the worker needs, or holds a wrong one."""


class CorpusError(WorkerError):
    """The corpus is damaged or does not fit the case. The message names the file and the place, found and expected."""

    error_class = "corpus"


class NonFinite(WorkerError):
    """The loss is NaN or infinite."""

    error_class = "non-finite"


class StorageError(WorkerError):
    """An event or a tensor cannot be written."""

    error_class = "storage"


class Unsupported(WorkerError):
    """This implementation does not support what the job requires. Models raise it and never use a substitute."""

    error_class = "unsupported"


def classify(error: BaseException) -> str:
    """Return the class of an error event: oom, non-finite, unsupported, corpus, storage, environment or error."""
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

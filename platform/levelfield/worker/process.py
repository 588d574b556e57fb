"""The run of one training process, from the job to an exit code. The last event records the reason."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Callable, NoReturn

from .events import Recorder
from .faults import StorageError, classify
from .job import Job, load_job

DONE, FAILED = 0, 1

Main = Callable[[Job, Recorder], None]


def run(main: Main) -> NoReturn:
    """Run main(job, recorder) and end this process with exit code 0, or 1 after any error.

    `main` returns when no other rank needs this one any more. An error becomes an error event (its class from
    faults.classify) and a traceback on stderr. The process ends with os._exit, because threads of collective
    libraries sometimes abort, and their destructors hang, after the work is complete.
    """
    code = _attempt(main)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _attempt(main: Main) -> int:
    recorder = None
    try:
        job = load_job()
        recorder = Recorder(job)
        for module in job.preload:
            importlib.import_module(module)
        main(job, recorder)
        recorder.close()
    except BaseException as error:
        _report(error, recorder)
        return FAILED
    return DONE


def _report(error: BaseException, recorder: Recorder | None) -> None:
    error_class, message = classify(error), _one_line(error)
    traceback.print_exception(type(error), error, error.__traceback__)
    if recorder is not None:
        try:
            recorder.error(error_class, message, type(error).__name__)
        except StorageError as second:
            print(f"levelfield: this error could not be recorded: {second}", file=sys.stderr)
    # after the traceback: the last line of the log then gives the class and the reason
    print(f"levelfield: {error_class}: {message}", file=sys.stderr)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

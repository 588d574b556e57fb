"""Ranks that start with their framework imported, as importing it takes longer than most trainings of these tests.

As a script, in a framework's own interpreter, it imports what there is of MODULES once, and loads what there is of
LIBRARIES. Each line on its standard input is a list of ranks, which it forks and waits for; it answers with their exit
codes, and ends with its input. What is forked has nothing of Levelfield's or of an implementation's imported. Whole
runs, by run_benchmarks.py, start their ranks otherwise: tests/e2e and tests/containers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import runpy
import signal
import site
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

MODULES = (
    "numpy", "torch", "torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.tensor.parallel",
    "megatron.core.distributed", "megatron.core.models.gpt", "megatron.core.optimizer", "paddle", "deepspeed",
    # These two import torch's compiler and 600 modules more, which each rank would import again.
    "deepspeed.runtime.zero.muon.original_muon", "deepspeed.module_inject.auto_ep_layer",
)  # fmt: skip
# Of a framework that joins the other ranks and starts threads when it is imported: most of its import is this library.
LIBRARIES = ("oneflow/_oneflow_internal*.so",)
PLATFORM = Path(__file__).parents[2] / "platform"
LIMIT_SECONDS = 420
SETTLE_SECONDS = 60  # for the other ranks, once one has failed
POLL_SECONDS = 0.02


@functools.cache
def warm(python: str) -> subprocess.Popen[str]:
    """The process that forks ranks of this interpreter. It ends with the tests, by its closed input."""
    settings = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(PLATFORM)}
    # The C++ compiler knows this processor: without this, torch compiles a program for each set of instructions to see.
    settings["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([python, __file__], env={**os.environ, **settings}, **pipes)


@dataclass(frozen=True)
class End:
    """How a rank ended: its exit code, negative for a signal, and all that it printed."""

    returncode: int
    output: str


def run_ranks(python: str, script: str, environments: list[dict[str, str]], folder: Path) -> list[End]:
    """Run `script` once for each environment, all at a time; every rank's end, in their order."""
    outputs = [folder / f"rank{rank}.out" for rank in range(len(environments))]
    ranks = [[script, environment, str(output)] for environment, output in zip(environments, outputs, strict=True)]
    process = warm(python)
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(ranks) + "\n")
    process.stdin.flush()
    codes = json.loads(process.stdout.readline())
    return [End(code, output.read_text(errors="replace")) for code, output in zip(codes, outputs, strict=True)]


def serve():
    """Until the input ends. Never returns in a rank."""
    for module in MODULES:
        with contextlib.suppress(ModuleNotFoundError):  # of another framework
            importlib.import_module(module)
    for path in (path for place in site.getsitepackages() for name in LIBRARIES for path in Path(place).glob(name)):
        ctypes.CDLL(str(path))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a framework prints is no answer
    for line in sys.stdin:
        running = {start(*rank): index for index, rank in enumerate(json.loads(line))}
        codes = ends_of(running)
        answers.write(json.dumps([codes[index] for index in sorted(codes)]) + "\n")
        answers.flush()


def start(script, environment, output):
    """Fork a rank; in it, nothing is left of this process but the imported modules."""
    pid = os.fork()
    if pid:
        return pid
    for descriptor, path, mode in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
        os.dup2(os.open(path, mode), descriptor)
    os.dup2(1, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = [script], str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
    os._exit(1)  # a training ends its process itself


def ends_of(running):
    """Exit code by index. All are killed after LIMIT_SECONDS, the others SETTLE_SECONDS after one has failed."""
    codes, deadline = {}, time.monotonic() + LIMIT_SECONDS
    while len(codes) < len(running):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in running:
            codes[running[pid]] = os.waitstatus_to_exitcode(status)
            if codes[running[pid]]:
                deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
        elif time.monotonic() > deadline:
            for left in [pid for pid, index in running.items() if index not in codes]:
                os.kill(left, signal.SIGKILL)
            deadline += LIMIT_SECONDS
        else:
            time.sleep(POLL_SECONDS)
    return codes


if __name__ == "__main__":
    serve()

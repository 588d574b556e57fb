"""Ranks that start with their framework imported, as importing it takes longer than most trainings of these tests.

As a script, in a framework's own interpreter, it imports what there is of MODULES once, and loads what there is of
LIBRARIES. All processes of one run of the tests connect to it. Each line of theirs is a list of ranks: a forked process
forks them, waits for them and answers with their exit codes. It ends with its last connection. A rank has the worker's
modules imported and its table of normal values made, which half of a short training's time would go to, but nothing of
an implementation. Whole runs, by run_benchmarks.py, start their ranks otherwise: tests/e2e and tests/containers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib
import json
import os
import runpy
import select
import signal
import site
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import IO

MODULES = (
    "numpy", "torch", "torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.tensor.parallel",
    "megatron.core.distributed", "megatron.core.models.gpt", "megatron.core.optimizer", "paddle", "deepspeed", "jax",
    # These two import torch's compiler and 600 modules more, which each rank would import again.
    "deepspeed.runtime.zero.muon.original_muon", "deepspeed.module_inject.auto_ep_layer",
    # What frameworks import later, while they train.
    "megatron.core.models.gpt.gpt_layer_specs", "setuptools", "numpy.random", "jaxlib.mlir.dialects.mhlo",
)  # fmt: skip
# Of a framework that joins the other ranks and starts threads when it is imported: most of its import is this library,
# and what it imports of others.
LIBRARIES = ("oneflow/_oneflow_internal*.so",)
OTHERS = ("google.protobuf.text_format", "rich.table", "tqdm.auto", "doctest", "multiprocessing.connection")
# Not `interface`: what a rank changes in these, it changes before `interface` takes their names.
WORKER = ("batches", "capture", "init", "loop", "offers", "own_work", "process", "product_rates", "rotary")
PLATFORM = Path(__file__).parents[2] / "platform"
LIMIT_SECONDS = 420
SETTLE_SECONDS = 60  # for the other ranks, once one has failed
POLL_SECONDS = 0.02
REAP_SECONDS = 5


@functools.cache
def warm(python: str) -> IO[str]:
    """A connection to the process that forks ranks of this interpreter, which is started if there is none."""
    address, deadline = address_of(python), time.monotonic() + LIMIT_SECONDS
    server = None
    while time.monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
            return connection.makefile("rw")
        except ConnectionRefusedError:
            connection.close()
            server = server or start_server(python, address)
            time.sleep(POLL_SECONDS)
    raise TimeoutError(f"no process of {python} listens at {address!r}")


def address_of(python: str) -> str:
    """In Linux's abstract namespace: no file, and bound once. All processes of one run of the tests have the same."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return "\0levelfield-warm-" + hashlib.sha256(f"{run} {python}".encode()).hexdigest()[:16]


def start_server(python: str, address: str) -> subprocess.Popen[bytes]:
    settings = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(PLATFORM)}
    # The C++ compiler knows this processor: without this, torch compiles a program for each set of instructions to see.
    settings["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
    argv = [python, __file__, address.removeprefix("\0")]
    return subprocess.Popen(argv, env={**os.environ, **settings}, stdin=subprocess.DEVNULL)


@dataclass(frozen=True)
class End:
    """How a rank ended: its exit code, negative for a signal, and all that it printed."""

    returncode: int
    output: str


def run_ranks(python: str, script: str, environments: list[dict[str, str]], folder: Path) -> list[End]:
    """Run `script` once for each environment, all at a time; every rank's end, in their order."""
    outputs = [folder / f"rank{rank}.out" for rank in range(len(environments))]
    ranks = [[script, environment, str(output)] for environment, output in zip(environments, outputs, strict=True)]
    server = warm(python)
    server.write(json.dumps(ranks) + "\n")
    server.flush()
    codes = json.loads(server.readline())
    return [End(code, output.read_text(errors="replace")) for code, output in zip(codes, outputs, strict=True)]


def serve(name: str) -> None:
    """Until the last connection ends, or at once where another process has the address. Never returns in a rank."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind("\0" + name)
    except OSError:
        return
    listener.listen()
    import_all()
    os.dup2(2, 1)
    clients = [listener.accept()[0]]
    while clients:
        ready, _, _ = select.select([listener, *clients], [], [], REAP_SECONDS)
        clients += [listener.accept()[0] for ready_socket in ready if ready_socket is listener]
        for client in (ready_socket for ready_socket in ready if ready_socket is not listener):
            if not answer(client):
                clients.remove(client)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def import_all() -> None:
    for module in MODULES:
        with contextlib.suppress(ModuleNotFoundError):  # of another framework
            importlib.import_module(module)
    for path in (path for place in site.getsitepackages() for name in LIBRARIES for path in Path(place).glob(name)):
        ctypes.CDLL(str(path))
        for module in OTHERS:
            importlib.import_module(module)
    for module in WORKER:
        importlib.import_module(f"levelfield.worker.{module}")
    importlib.import_module("levelfield.worker.normal").standard_normal_table()
    gc.collect()
    gc.freeze()  # no rank looks through a framework's objects for garbage, which would copy their memory too


def answer(client: socket.socket) -> bool:
    """False for a connection that has ended. Ranks run in a process of their own: others may ask meanwhile."""
    line = client.makefile("rb").readline()
    if line and not os.fork():
        running = {start(*rank): index for index, rank in enumerate(json.loads(line))}
        codes = ends_of(running)
        client.sendall(json.dumps([codes[index] for index in sorted(codes)]).encode() + b"\n")
        os._exit(0)
    return bool(line)


def start(script: str, environment: dict[str, str], output: str) -> int:
    """Fork a rank; in it, nothing is left of this process but the imported modules."""
    pid = os.fork()
    if pid:
        return pid
    for descriptor, path, mode in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
        os.dup2(os.open(path, mode), descriptor)
    os.dup2(1, 2)
    importlib.reload(sys.modules["levelfield.worker.heartbeat"])  # it notes its parent when it is imported
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = [script], str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
    os._exit(1)  # a training ends its process itself


def ends_of(running: dict[int, int]) -> dict[int, int]:
    """Exit code by index. running: each process's index.

    All are killed after LIMIT_SECONDS, the others SETTLE_SECONDS after one has failed.
    """
    codes: dict[int, int] = {}
    deadline = time.monotonic() + LIMIT_SECONDS
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
    serve(sys.argv[1])

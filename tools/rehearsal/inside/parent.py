"""Import torch once and fork a process for each rank: `python parent.py SPEC.json`, with the stand-in preloaded."""

import contextlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

AT_ONCE = 2  # ranks that run alone, each by itself


def main():
    spec = json.loads(Path(sys.argv[1]).read_text())
    import_once(spec)
    waiting, running = list(spec["ranks"]), {}
    most = len(waiting) if spec["whole"] else AT_ONCE
    failed_at = None
    while waiting or running:
        while waiting and len(running) < most:
            rank = waiting.pop(0)
            running[start(spec, rank)] = rank
        child, status = os.wait()
        rank, code = running.pop(child), os.waitstatus_to_exitcode(status)
        (Path(spec["folder"]) / f"rank{rank}.code").write_text(str(code))
        if code and spec["whole"] and failed_at is None:
            failed_at = time.monotonic()
            end_others(running)


def import_once(spec):
    """What every rank imports. Nothing here may open a device: a forked process cannot use it."""
    import torch
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel

    if spec["framework"] == "torch":
        import torch.distributed._composable.replicate_with_fsdp  # noqa: F401


def start(spec, rank):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        redirect(Path(spec["folder"]) / f"rank{rank}.txt")
        from rank import run_rank

        code = run_rank(spec, rank)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def redirect(path):
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)


def end_others(running):
    """After one rank failed: give the others a moment to say where they wait, then end them."""
    time.sleep(2)
    for child in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, 9)


if __name__ == "__main__":
    main()

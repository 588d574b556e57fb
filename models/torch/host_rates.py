"""What this host gives torch: matrix products, memory and messages between processes, alone and side by side.

    host_rates.py --dtype fp32,bf16 --seconds 0.1

prints one line of JSON: {"torch": version, "cores": n, "shares": [...]}, a share for each way of dividing the cores:
{"processes": 2, "threads": 1, "matmul": {dtype: {size: FLOP/s}}, "triad": {bytes: bytes/s}, "copy": bytes/s,
"operation": s, "collectives": {operation: {bytes: s}}}. Of several processes each figure is the slowest one's, as a
training waits for that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

RANK = Path(__file__).with_name("host_rank.py")
RANK_LIMIT_SECONDS = 120


def main() -> None:
    options = parse_arguments()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = [{"processes": p, "threads": t, **measure(p, t, options)} for p, t in divisions(cores)]
    print(json.dumps({"torch": torch.__version__, "cores": cores, "shares": shares}))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dtype", default="fp32,bf16", help="comma-separated, of fp32, bf16, fp16")
    parser.add_argument("--seconds", type=float, default=0.1, help="how long to measure each size")
    return parser.parse_args()


def divisions(cores: int) -> list[tuple[int, int]]:
    """Return pairs of processes and threads of each: one on one core, one on all, and two and four that share all."""
    return sorted({(1, 1), (1, cores), (2, max(1, cores // 2)), (4, max(1, cores // 4))})


def measure(processes: int, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of processes that run at the same time. It ends the program where one of them fails."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            sys.executable,
            "-W",
            "ignore::FutureWarning",
            str(RANK),
            "--processes",
            str(processes),
            "--threads",
            str(threads),
        ]
        argv += ["--store", str(Path(folder) / "store"), "--dtype", options.dtype, "--seconds", str(options.seconds)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        ranks = [
            subprocess.Popen([*argv, "--rank", str(rank)], stdout=subprocess.PIPE, text=True, env=environment)
            for rank in range(processes)
        ]
        try:
            outputs = [rank.communicate(timeout=RANK_LIMIT_SECONDS)[0] for rank in ranks]
        finally:
            end(ranks)
    if failures := [rank.returncode for rank in ranks if rank.returncode]:
        sys.exit(f"a process of {processes} ended with exit status {failures[0]}")
    reports = [json.loads(text.splitlines()[-1]) for text in outputs]
    return {
        key: slowest([shares[key] for shares in reports], key in ("operation", "collectives")) for key in reports[0]
    }


def end(ranks: Sequence[subprocess.Popen[str]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
            rank.wait()


def slowest(values: Sequence[Any], are_seconds: bool) -> Any:
    """Return the longest time or the lowest rate of each figure of several processes."""
    if isinstance(values[0], dict):
        return {key: slowest([value[key] for value in values], are_seconds) for key in values[0]}
    return max(values) if are_seconds else min(values)


if __name__ == "__main__":
    main()

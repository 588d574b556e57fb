"""What a node can do before the work begins: rates of memory, processors and disk, its clock, its limits, its load.

    python3 preflight_checks.py --folder RUN_FOLDER [--short] [--own PID]

prints one JSON object. Each check is a process of its own with a time limit, so that a disk that hangs costs one check.
It needs the standard library of Python 3.8 and the folder of this file. It judges nothing: the platform compares nodes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict

if __name__ == "__main__":  # by path: this folder's modules shadow nothing, and the package is found
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from levelfield.node import node_facts, node_rates
from levelfield.node.bounded_command import completed

SCHEMA = "levelfield.node-preflight/1"
LIMIT_SECONDS = 10.0  # of one check; all of them together stay under a minute
Fields = Dict[str, Any]
# Each takes the options. States are read first and side by side, as they need no processor; rates one after another.
STATES: dict[str, Callable[[argparse.Namespace], Fields]] = {
    "clock": lambda options: node_facts.clock(),
    "load": lambda options: node_facts.load_of_others(options.own),
    "memory": lambda options: node_facts.memory(),
    "limits": lambda options: node_facts.limits(),
}
RATES: dict[str, Callable[[argparse.Namespace], Fields]] = {
    "copy": lambda options: node_rates.copying(_window(options)),
    "integers": lambda options: node_rates.counting(_window(options)),
    "hashes": lambda options: node_rates.hashing(_window(options)),
    "disk": lambda options: node_rates.disk(options.folder, 2 ** (24 if options.short else 26)),
}


def checked(options: argparse.Namespace, limit: float = LIMIT_SECONDS) -> Fields:
    """Return what every check gave: its facts and rates, or the reason why it gave none."""
    begun, began = time.time_ns(), time.monotonic()
    with ThreadPoolExecutor(len(STATES)) as pool:
        together = {name: pool.submit(_answer, _argv(name, options), limit) for name in STATES}
    found = {name: future.result() for name, future in together.items()}
    found.update((name, _answer(_argv(name, options), limit)) for name in RATES)
    seconds = time.monotonic() - began
    return {"schema": SCHEMA, "wall_ns": [begun, time.time_ns()], "seconds": seconds, "checks": found}


def _window(options: argparse.Namespace) -> float:
    """Return the seconds of one of the repeats of a rate."""
    return 0.1 if options.short else 0.4


def _argv(name: str, options: argparse.Namespace) -> list[str]:
    argv = [sys.executable, __file__, "--check", name, "--folder", options.folder, "--own", str(options.own)]
    return argv + (["--short"] if options.short else [])


def _answer(argv: list[str], limit: float) -> Fields:
    """Return the object that a check printed. One that is too slow is ended with all processes that it started."""
    try:
        done = completed(argv, limit)
    except subprocess.TimeoutExpired:
        return {"reason": f"no answer within {limit:g} s"}
    except subprocess.SubprocessError:
        return {"reason": "the check failed: it printed too much"}
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"reason": f"the check failed: {last[0][:200]}"}
    return answer if isinstance(answer, dict) else {"reason": "the check printed no object"}


def main(given: list[str] | None = None) -> int:
    options = _options(given)
    one = {**STATES, **RATES}.get(options.check)
    print(json.dumps(one(options) if one else checked(options)), flush=True)
    return 0


def _options(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--folder", required=True, help="the folder of the run, whose disk is measured")
    parser.add_argument("--short", action="store_true", help="shorter repeats, and a smaller file")
    parser.add_argument(
        "--own", type=int, default=0, metavar="PID", help="this process and its descendants are not others' load"
    )
    parser.add_argument("--check", choices=[*STATES, *RATES], help="only this check, without a time limit")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())

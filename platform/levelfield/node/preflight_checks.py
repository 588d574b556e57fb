"""A node's settings, memory and load before the work begins, as one printed JSON object.

    python3 preflight_checks.py [--own PID]

PID and its descendants do not count as load. It needs Python 3.8 and the folder of this file, and judges nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Callable, Dict

if __name__ == "__main__":  # started by path: make the package importable, and let this folder shadow no module
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from levelfield.node import node_facts

SCHEMA = "levelfield.node-preflight/1"
Fields = Dict[str, Any]


def run_checks(own_process: int) -> Fields:
    """Return the facts that every check gave, or the reason why it gave none. own_process: 0 for this process."""
    checks: dict[str, Callable[[], Fields]] = {
        "load": lambda: node_facts.measure_load_of_others(own_process),
        "memory": node_facts.memory_facts,
        "limits": node_facts.limit_facts,
    }
    facts = {}
    for name, check in checks.items():
        try:
            facts[name] = check()
        except Exception as error:  # a kernel may lack a file, or show another content
            facts[name] = {"reason": f"the check failed: {type(error).__name__}: {str(error)[:200]}"}
    return {"schema": SCHEMA, "checks": facts}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--own", type=int, default=0, metavar="PID")
    # the worker also names the run's folder and a short form, which no check needs
    print(json.dumps(run_checks(parser.parse_known_args()[0].own)), flush=True)

"""What a sampled step launches beyond another one of the same plan, on pretended devices.

    LEVELFIELD_CUDA_PYTHON=PYTHON .venvs/dev/bin/python tools/sampled_launches.py gpt2_small:torch:H100:1:1 ...

Of each plan: kernels, copies, and how often the host waits for the device, in a step without samples and in one with
them, which the first rank takes. tools/rehearsal/README.md says what that Python is.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, NamedTuple

from rehearsal.plans import make_plan
from rehearsal.start import rehearse
from standin.build import build

STEPS, LIMIT_SECONDS = 3, 600


class Launches(NamedTuple):
    """Of one step: kernels, copies of any kind, waits of the host, and the most memory in bytes."""

    kernels: int
    copies: int
    waits: int
    peak_bytes: int


def launches(step: dict[str, Any]) -> Launches:
    """Return those of a rehearsed step."""
    copies = sum(copy["count"] for copy in step["copies"].values())
    return Launches(step["kernels"], copies, sum(step["synchronisations"].values()), step["allocated_peak_bytes"])


def compare_launches(text: str, python: Path) -> tuple[Launches, Launches]:
    """Return the launches of a plan's step without samples, and of the next one, which is sampled."""
    entry = make_plan(text, [])
    entry["job"]["window"] = {"first_step": STEPS, "last_step": STEPS}  # its last step is the one that is sampled
    (report,) = rehearse(entry, python, build(python), [0], STEPS, LIMIT_SECONDS)
    without, sampled = report["steps"][-2:]
    return launches(without), launches(sampled)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a sampled step launches beyond another one")
    parser.add_argument("plans", nargs="+", metavar="CASE:FRAMEWORK:CHIP:NODES:DEVICES")
    python = Path(os.environ["LEVELFIELD_CUDA_PYTHON"])
    for text in parser.parse_args().plans:
        without, sampled = compare_launches(text, python)
        print(text)
        for label, step in (("without", without), ("sampled", sampled)):
            memory = f"{step.peak_bytes / 2**30:.2f} GiB"
            print(f"  {label}  {step.kernels:7,} kernels {step.copies:6,} copies {step.waits:2} waits  {memory}")


if __name__ == "__main__":
    main()

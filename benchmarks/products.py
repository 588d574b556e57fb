#!/usr/bin/env python3
"""The three matrix products of a linear layer in float32: oneDNN's rate over MKL's, shape by shape.

models/torch takes forward and input gradient from oneDNN and the weight's gradient from MKL; this shows why.
Each figure is the best of a few turns, in GFLOP/s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models" / "torch"))

# tokens, inputs, outputs
SHAPES = ((1024, 512, 512), (1024, 512, 2048), (1024, 2048, 512), (1024, 768, 3072), (512, 512, 8192))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.turns = 1
    import torch

    torch.set_num_threads(arguments.threads)
    rows = [measure(*shape, arguments.turns) for shape in SHAPES[: 1 if arguments.quick else None]]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'tokens, in, out':<18}{'product':<18}{'MKL':>6}{'oneDNN':>8}{'ratio':>7}")
    for row in rows:
        for name, (mkl, onednn) in row["rates"].items():
            print(f"{row['shape']!s:<18}{name:<18}{mkl:>6.0f}{onednn:>8.0f}{onednn / mkl:>7.2f}")


def measure(tokens: int, inputs: int, outputs: int, turns: int) -> dict[str, Any]:
    import torch
    from model.onednn import product

    x, weight = torch.randn(tokens, inputs), torch.randn(outputs, inputs)
    gradient, operations = torch.randn(tokens, outputs), 2e-9 * tokens * inputs * outputs
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "forward": (lambda: x @ weight.t(), lambda: product(x, weight)),
        "input gradient": (lambda: gradient @ weight, lambda: product(gradient, weight.t())),
        "weight gradient": (lambda: gradient.t() @ x, lambda: product(gradient.t(), x.t())),
    }
    rates = {name: [operations / best(call, turns) for call in calls] for name, calls in pairs.items()}
    return {"shape": (tokens, inputs, outputs), "rates": rates}


def best(call: Callable[[], Any], turns: int) -> float:
    def timed() -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    return min(timed() for _ in range(turns + 1))


if __name__ == "__main__":
    main()

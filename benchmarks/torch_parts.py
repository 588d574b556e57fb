#!/usr/bin/env python3
"""Parts of a training step alone on this processor or device: what benchmarks/torch_step.py's steps are made of.

ceilings: the best plain product, and a copy. head: head with cross-entropy, forward and backward, by torch (eager and
compiled), by models/torch with chunks of several sizes, and by Liger-Kernel, with the largest relative errors of loss
and gradient on 64 rows, against float64. pieces: casts, a layer's weight gradient in float32, and the kernels of
models/torch/fused beside torch's operations, forward and backward.

Each time is the least of a few. bf16 on devices, fp32 on a processor. What cannot run has the reason in its row. On the
stand-in for CUDA (tools/run_on_standin.py) times are the host's and say nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("models/torch", "platform", "benchmarks/loops")
sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]

from levelfield.report.sheets import pad_row  # noqa: E402
from torch_trainers import pretended, product_rate  # noqa: E402

Row = dict[str, Any]
Call = Callable[[], Any]

# tokens, vocabulary, hidden
HEADS = {"cuda": ((8192, 50304, 768), (4096, 128256, 4096)), "cpu": ((1024, 8192, 512),), "quick": ((64, 512, 64),)}
ROWS = {"cuda": (1536, 1569, 2560, 4096), "cpu": (512, 1024), "quick": (32,)}  # of a chunk of the head
HIDDEN = {"cuda": (768, 2048, 4096), "cpu": (512,), "quick": (64,)}
TOKENS = {"cuda": 8192, "cpu": 1024, "quick": 64}
COPY_BYTES = {"cuda": 2**32, "cpu": 2**28, "quick": 2**20}
ERROR_ROWS = 64
CASTS = 196  # matrices and vectors of a GPT of 12 layers
WIDTHS = (52, -12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", choices=tuple(PARTS), help="this part")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: threads that spin take others' cores
    import torch

    torch.set_num_threads(arguments.threads)
    size, rows = "quick" if arguments.quick else arguments.device, []
    for part in [arguments.only] if arguments.only else PARTS:
        for row in PARTS[part](arguments.device, size):
            rows.append({"part": part, **row})
            if not arguments.json:
                print(text(rows[-1]), flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif pretended():
        print(f"on a pretended {pretended()}: these times are the host's, and say nothing")


def text(row: Row) -> str:
    words = {"loss_error": "loss", "gradient_error": "gradient"}
    errors = ", ".join(f"{word} off by {row[key]:.1e}" for key, word in words.items() if key in row)
    rate = f"{row['rate'] / 1e12:.2f} T{row['unit']}/s" if row.get("rate") else ""
    if "left_out" in row:
        return pad_row((row["name"], "left out:", row["left_out"]), WIDTHS)
    return pad_row((row["name"], f"{row['ms']:.3f} ms" if row["ms"] else "", rate + errors), WIDTHS)


# -- measuring
def measured(name: str, arrange: Callable[[], tuple[Call, Row]], device: str) -> Row:
    """Return the row of a call and what is known beside; with the reason where it cannot run."""
    try:
        call, facts = arrange()
        return {"name": name, "ms": 1e3 * seconds_of(call, device), **facts}
    except (ImportError, RuntimeError, TypeError) as error:  # a kernel, library or torch's function that is not here
        return {"name": name, "left_out": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}


def seconds_of(call: Call, device: str) -> float:
    """The least mean of a few calls that are waited for together."""
    import torch

    together = 1 if device == "cpu" else 10
    times = []
    for _ in range(4):  # the first one compiles and sets up memory
        begin = time.perf_counter()
        for _ in range(together):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / together)
    return min(times[1:])


def dtype_of(device: str) -> Any:
    import torch

    return torch.float32 if device == "cpu" else torch.bfloat16


def random(*shape: int, device: str, dtype: Any = None, scale: float = 1.0, gradient: bool = False) -> Any:
    import torch

    values = torch.randn(shape, device=device) * scale
    return values.to(dtype or dtype_of(device)).requires_grad_(gradient)


# -- parts
def ceilings(device: str, size: str) -> Iterator[Row]:
    import torch

    precision = {"cpu": "fp32", "cuda": "bf16"}[device]
    rate = product_rate(precision, device, 0.05 if size == "quick" else 3.0)
    yield {"name": f"best plain product, {precision}", "ms": None, "rate": rate, "unit": "FLOP"}

    def copy() -> tuple[Call, Row]:
        source = torch.zeros(COPY_BYTES[size], dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source), {}

    row = measured(f"copy of {COPY_BYTES[size]:,} bytes", copy, device)
    is_real = "ms" in row and not pretended()
    yield {**row, "rate": 2 * COPY_BYTES[size] / row["ms"] * 1e3, "unit": "B"} if is_real else row


def head(device: str, size: str) -> Iterator[Row]:
    for shape in HEADS[size]:
        yield from heads_of(device, shape, ROWS[size])


def heads_of(device: str, shape: tuple[int, int, int], rows: tuple[int, ...]) -> Iterator[Row]:
    import torch

    tokens, vocabulary, hidden = shape
    x = random(tokens, hidden, device=device, gradient=True)
    weight = random(vocabulary, hidden, device=device, dtype=torch.float32, scale=0.02, gradient=True)
    targets = torch.randint(0, vocabulary, (tokens,), device=device)
    ways: dict[str, Callable[[], Callable[..., Any]]] = {
        **{f"models/torch, {many} rows": partial(chunked_head, many) for many in rows if many <= tokens},
        "torch": lambda: torch_head,
        "torch, compiled": lambda: torch.compile(torch_head),
        "Liger-Kernel": lambda: liger_head(device),
    }
    for name, make in ways.items():

        def arrange(make: Callable[[], Callable[..., Any]] = make) -> tuple[Call, Row]:
            loss_of = make()

            def call() -> None:
                x.grad = weight.grad = None
                loss_of(x, weight, targets).backward()

            return call, {} if pretended() else errors_of(loss_of, x, weight, targets)

        yield measured(f"head {tokens} x {vocabulary} x {hidden}, {name}", arrange, device)


def torch_head(x: Any, weight: Any, targets: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(functional.linear(x, weight.to(x.dtype)).float(), targets)


def chunked_head(many: int) -> Callable[..., Any]:
    """The loss of models/torch with so many rows in a chunk, in place of those that it chooses."""
    from model import head_loss

    way_of = getattr(head_loss.way_of, "chosen", head_loss.way_of)

    def chunked(*arguments: Any) -> Any:
        way = way_of(*arguments)
        at_once = many if way.softmax_rows >= way.rows else min(many, way.softmax_rows)
        return way._replace(rows=min(many, arguments[0].shape[0]), softmax_rows=at_once)

    chunked.chosen = way_of  # type: ignore[attr-defined]
    head_loss.way_of = chunked  # type: ignore[assignment]
    return lambda x, weight, targets: head_loss.head_loss(x[None], weight, targets[None], 1.0)[0]


def liger_head(device: str) -> Callable[..., Any]:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    if device == "cpu":
        raise RuntimeError("liger-kernel's kernels are for accelerators")
    loss = LigerFusedLinearCrossEntropyLoss()
    return lambda x, weight, targets: loss(weight.to(x.dtype), x, targets)


def errors_of(loss_of: Callable[..., Any], x: Any, weight: Any, targets: Any) -> Row:
    """Of loss and both gradients on a few rows, relative to float64's largest."""
    import torch
    from torch.nn import functional

    few, its_targets = x.detach()[:ERROR_ROWS].requires_grad_(), targets[:ERROR_ROWS]
    same = weight.detach().clone().requires_grad_()
    loss = loss_of(few, same, its_targets)
    loss.backward()
    exact_x, exact_weight = few.detach().double().requires_grad_(), weight.detach().to(x.dtype).double()
    exact_weight.requires_grad_()
    exact = functional.cross_entropy(exact_x @ exact_weight.t(), its_targets)
    exact.backward()
    pairs = ((few.grad, exact_x.grad), (same.grad, exact_weight.grad))
    with torch.no_grad():
        gradient = max(
            float((actual.double() - exact_gradient).abs().max() / exact_gradient.abs().max())
            for actual, exact_gradient in pairs
        )
    return {"loss_error": abs(float(loss.detach().double() / exact.detach()) - 1), "gradient_error": gradient}


def pieces(device: str, size: str) -> Iterator[Row]:
    for hidden in HIDDEN[size]:
        for name, arrange in (*casts_of(device, hidden), *gradients_of(device, hidden, TOKENS[size])):
            yield measured(name, arrange, device)
        for name, arrange in kernels_of(device, hidden, TOKENS[size], also_compiled=hidden == max(HIDDEN["cuda"])):
            yield measured(name, arrange, device)


Arrangement = tuple[str, Callable[[], tuple[Call, Row]]]


def casts_of(device: str, hidden: int) -> Iterator[Arrangement]:
    import torch

    def sources(dtype: Any) -> list[Any]:
        return [torch.zeros(hidden, hidden if n % 2 else 1, dtype=dtype, device=device) for n in range(CASTS)]

    def apart() -> tuple[Call, Row]:
        wide = sources(torch.float32)
        return lambda: [tensor.to(torch.bfloat16) for tensor in wide], {}

    def together() -> tuple[Call, Row]:
        wide, narrow = sources(torch.float32), sources(torch.bfloat16)
        return lambda: torch._foreach_copy_(narrow, wide), {}

    yield f"{CASTS} casts, h{hidden}, one by one", apart
    yield f"{CASTS} casts, h{hidden}, at once", together


def gradients_of(device: str, hidden: int, tokens: int) -> Iterator[Arrangement]:
    import torch

    def through_bf16() -> tuple[Call, Row]:
        left, right = (random(tokens, hidden, device=device, dtype=torch.bfloat16) for _ in range(2))
        return lambda: torch.mm(left.t(), right).float(), {}

    def direct() -> tuple[Call, Row]:
        left, right = (random(tokens, hidden, device=device, dtype=torch.bfloat16) for _ in range(2))
        return lambda: torch.mm(left.t(), right, out_dtype=torch.float32), {}

    yield f"weight gradient, h{hidden}, bf16 and a cast", through_bf16
    yield f"weight gradient, h{hidden}, float32 from the product", direct


def kernels_of(device: str, hidden: int, tokens: int, also_compiled: bool) -> Iterator[Arrangement]:
    """The kernels of models/torch/fused, each behind torch's operations, and behind those compiled."""
    import torch
    from model.attention import rotary_tables, rotate
    from torch.nn import functional

    tables = rotary_tables(64, tokens, 10000.0, torch.device(device), dtype_of(device))
    shapes: dict[str, list[tuple[int, ...]]] = {
        "swiglu": [(1, tokens, 4 * hidden)] * 2,
        "rotary": [(1, tokens, hidden // 64, 64)],
    }
    shapes["add_norm"] = [(1, tokens, hidden)] * 2
    weight = torch.ones(hidden, device=device, dtype=dtype_of(device))

    def add_norm(x: Any, branch: Any) -> Any:
        total = x + branch
        return total, functional.rms_norm(total, (hidden,), weight, 1e-5)

    plain: dict[str, Callable[..., Any]] = {
        "swiglu": lambda gate, up: functional.silu(gate) * up,
        "rotary": lambda x: rotate(x, tables),
        "add_norm": add_norm,
    }
    fused: dict[str, Callable[[Any], Callable[..., Any]]] = {
        "swiglu": lambda kernels: lambda gate, up: kernels.gated("swiglu", gate, up),
        "rotary": lambda kernels: lambda x: kernels.rotate(x, tables),
        "add_norm": lambda kernels: lambda x, branch: kernels.add_norm(x, branch, weight=weight, eps=1e-5),
    }
    makers: dict[str, Callable[[str], Callable[..., Any]]] = {
        "torch": lambda name: plain[name],
        **({"torch, compiled": lambda name: torch.compile(plain[name])} if also_compiled else {}),
        "models/torch/fused": lambda name: fused[name](importlib.import_module(f"fused.{name}")),
    }

    def arrange(name: str, maker: str) -> tuple[Call, Row]:
        inputs, operation = [random(*s, device=device, gradient=True) for s in shapes[name]], makers[maker](name)

        def call() -> None:
            result = operation(*inputs)
            outputs = result if isinstance(result, tuple) else (result,)
            torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs])

        return call, {}

    for name in plain:
        for maker in makers:
            yield f"{name}, {tokens} x h{hidden}, {maker}", partial(arrange, name, maker)


PARTS: dict[str, Callable[[str, str], Iterator[Row]]] = {"ceilings": ceilings, "head": head, "pieces": pieces}


if __name__ == "__main__":
    main()

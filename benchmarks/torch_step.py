#!/usr/bin/env python3
"""models/torch against its peers: a training step of the same shape on this processor or device.

Peers: HuggingFace transformers; the same with Liger-Kernel's kernels; a plain step after nanoGPT
(loops/plain_torch.py). Each has a process of its own, and they step in turn: tokens to the device, forward,
backward, clipping to 1.0, fused AdamW, in fp32 or with bf16 compute over fp32 weights (autocast in peers). Nobody
waits before the step's end, where loss and norm are read. `host` is the time until the step was launched.

Where ours is compiled, so are the peers, on processors too: their whole models by torch.compile. Where ours is a
CUDA graph, a compiled peer has torch's own graphs (mode reduce-overhead). Each figure is the median over the turns;
a ratio is a peer's time over ours, turn by turn, so a slow moment hits both. `best` is the fastest peer by its median.
Launches: how often the host starts work on the device, a graph once. Memory: allocated on the device, else the
resident peak of the process. `of peak`: matmul FLOPs (causal half of attention) against the best rate of plain
products here, by the faster of torch's libraries. Threads of processors wait passively (OMP_WAIT_POLICY).

On the stand-in for CUDA, where kernels do nothing, launches are exact and times are the host's processor time:

    .venvs/dev/bin/python tools/run_on_standin.py PYTHON benchmarks/torch_step.py --device cuda

PYTHON has a CUDA build of torch, numpy, pydantic and PyYAML; transformers and liger-kernel for their columns.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOOPS = ROOT / "benchmarks" / "loops"
sys.path[:0] = [str(LOOPS), str(ROOT / "platform")]

from levelfield.report.sheets import pad_row  # noqa: E402
from torch_trainers import TRAINERS, model_of, pretended, why_not  # noqa: E402

FIELDS = ("family", "hidden", "layers", "vocabulary", "sequence", "batch", "dtype", "compile", "graph")
EAGER, COMPILED, GRAPH, BOTH = (False, False), (True, False), (False, True), (True, True)
SHAPES = (
    ("gpt", 256, 4, 1024, 128, 8, "fp32", *EAGER),
    ("gpt", 512, 4, 8192, 256, 4, "fp32", *EAGER),
    ("gpt", 512, 4, 8192, 256, 4, "fp32", *COMPILED),
    ("gpt", 768, 4, 16384, 256, 4, "fp32", *EAGER),
    ("gpt", 512, 4, 8192, 256, 4, "bf16", *EAGER),
    ("gpt", 768, 4, 16384, 256, 4, "bf16", *COMPILED),
    ("gpt", 768, 4, 50257, 512, 2, "fp32", *EAGER),
    ("gpt", 768, 4, 50257, 512, 2, "bf16", *COMPILED),
    ("llama", 256, 4, 1024, 128, 8, "fp32", *EAGER),
    ("llama", 512, 4, 8192, 256, 4, "fp32", *EAGER),
    ("llama", 512, 4, 8192, 256, 4, "fp32", *COMPILED),
    ("llama", 768, 4, 16384, 256, 4, "fp32", *EAGER),
    ("llama", 512, 4, 8192, 256, 4, "bf16", *EAGER),
    ("llama", 768, 4, 16384, 256, 4, "bf16", *COMPILED),
    ("llama", 768, 4, 32000, 512, 2, "fp32", *COMPILED),
    ("llama", 768, 4, 32000, 512, 2, "bf16", *COMPILED),
)
ON_DEVICE = (
    ("gpt", 768, 12, 50304, 1024, 8, "bf16"),
    ("gpt", 2048, 12, 50304, 2048, 4, "bf16"),
    ("llama", 4096, 2, 128256, 4096, 1, "bf16"),  # Llama 3 8B's block
)
DEVICE_SHAPES = tuple((*shape, *mode) for mode in (EAGER, COMPILED) for shape in ON_DEVICE)
GRAPH_SHAPES = tuple((*shape, *mode) for mode in (GRAPH, BOTH) for shape in ON_DEVICE)  # with --only graph
QUICK = (("gpt", 64, 2, 128, 32, 2, "fp32", *EAGER), ("llama", 128, 2, 128, 32, 2, "fp32", *EAGER))
WARM_UP = 4
# For all trainers at the same time: a parameter has a weight, a gradient and two moments of 4 bytes; a logit at most
# four copies of 4; a layer's number about 40 bytes.
PARAMETER_BYTES = LOGIT_BYTES = 16
ACTIVATION_BYTES, CONTEXT_BYTES = 40, 2**30


def main() -> int:
    arguments = parsed()
    rows = []
    for shape in shapes_of(arguments):
        rows.append(measure(shape, arguments))
        if not arguments.json:
            print("\n".join(lines_of(rows[-1])), flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif pretended():
        print(f"on a pretended {pretended()}: launches are exact; times are those of the host's processors alone")
    else:
        print("aims: ratio at least 1.10 to the best peer, our memory at most 1.00 of its")
    failed = [f"{row['shape']}: {row['failed']}" for row in rows if "failed" in row]
    print(*failed, sep="\n", end="\n" if failed else "", file=sys.stderr)
    return 1 if failed else 0


def shapes_of(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    values: Sequence[Sequence[object]] = QUICK if arguments.quick else SHAPES
    if arguments.device == "cuda":
        values = DEVICE_SHAPES + (GRAPH_SHAPES if any("graph" in words for words in arguments.only) else ())
    shapes = [dict(zip(FIELDS, shape_values, strict=True)) for shape_values in values]
    return [shape for shape in shapes if all(words in name_of(shape) for words in arguments.only)]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9, help="steps of each that count (default %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="shapes whose name contains this; may be repeated; 'graph' adds ours as a CUDA graph",
    )
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.turns = 1
    return arguments


def name_of(shape: dict[str, Any]) -> str:
    mode = "+".join(word for word, key in (("compiled", "compile"), ("graph", "graph")) if shape[key]) or "eager"
    sizes = f"h{shape['hidden']} v{shape['vocabulary']} s{shape['sequence']} b{shape['batch']}"
    return f"{shape['family']} {sizes} {shape['dtype']} {mode}"


# -- measuring
EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Exit|Unsupported|Interrupt)\b: ")


class TrainerFailed(Exception):
    """A trainer's process ended. The message is that of its exception."""


class Trainer:
    """A process that answers one question at a time: each has its own settings and its own memory."""

    def __init__(self, task: dict[str, Any]) -> None:
        argv = [sys.executable, str(LOOPS / "torch_trainers.py"), json.dumps(task)]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  as long as the process
        # threads that spin while another trainer steps would take its cores
        passive = {"OMP_WAIT_POLICY": "passive"} if task["device"] == "cpu" or pretended() else {}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        self.process = subprocess.Popen(argv, text=True, env={**os.environ, **passive}, **pipes)

    def ask(self, question: str) -> Any:
        self.tell(question)
        return self.answer()

    def tell(self, question: str) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):  # the answer says why
            print(question, file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        assert self.process.stdout
        try:
            return json.loads(self.process.stdout.readline())
        except ValueError:
            self.process.wait()
            self.errors.seek(0)
            raise TrainerFailed(reason_in(self.errors.read())) from None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()


def reason_in(errors: str) -> str:
    """Return the last line that names an exception, else the last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["it ended without a word"]
    return next((line for line in reversed(lines) if EXCEPTION.match(line)), lines[-1])


def measure(shape: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a shape. Peers that cannot run or fail are left out, with the reason; `failed`: ours did."""
    task = {**shape, "threads": arguments.threads, "device": arguments.device}
    task["probe_seconds"] = 0.1 if arguments.quick else 2.0
    left_out = {who: reason for who in TRAINERS if (reason := why_not(who, task))}
    peers = [who for who in TRAINERS if who != "ours" and who not in left_out]
    row: dict[str, Any] = {"shape": name_of(shape), "pretended": pretended(), "left_out": left_out, "trainers": {}}
    row |= {"ratios": {}, "best": None, "of_peak": None, "memory_ratio": None}
    try:
        while True:
            measured = measure_group(peers, task, arguments.turns, left_out)
            row["ratios"] |= ratios_of(measured["seconds"])
            row["trainers"] = {**measured["trainers"], **row["trainers"]}  # ours: as the first time
            peers = [who for who in peers if who not in row["trainers"] and who not in left_out]
            if not peers:
                break
    except TrainerFailed as error:
        return {**row, "failed": str(error)}
    row["trainers"] = {who: row["trainers"][who] for who in TRAINERS if who in row["trainers"]}
    row["best"] = best_of(row["ratios"], row["trainers"])
    seconds, rate = row["trainers"]["ours"]["ms"] / 1e3, measured["product_rate"]
    row["of_peak"] = None if rate is None else flops(task) / seconds / rate
    if row["best"]:
        row["memory_ratio"] = row["trainers"]["ours"]["peak_bytes"] / row["trainers"][row["best"]["peer"]]["peak_bytes"]
    return row


def expected_bytes(task: dict[str, Any]) -> float:
    """Return about what a trainer takes of a device: more than ours, as much as one with all logits in float32."""
    from levelfield.measure.parameter_counts import count_parameters
    from levelfield.specs.architecture import Model

    model, tokens = Model.model_validate(model_of(task)), task["batch"] * task["sequence"]
    weights = PARAMETER_BYTES * count_parameters(model, task["sequence"]).total
    activations = ACTIVATION_BYTES * tokens * model.layers * model.hidden_size
    return weights + activations + LOGIT_BYTES * tokens * model.vocab_size + CONTEXT_BYTES


def measure_group(peers: list[str], task: dict[str, Any], turns: int, left_out: dict[str, str]) -> dict[str, Any]:
    """Warm all trainers up, let them step in turn, and read what else they know. Adds failing peers to left_out.

    On a device that is too small for all of them only the first peer takes part.
    """
    trainers = {who: Trainer({**task, "who": who}) for who in ("ours", *peers)}
    try:
        if len(peers) > 1 and task["device"] != "cpu":
            room = trainers["ours"].ask("device_bytes")
            for who in peers[1:] if len(trainers) * expected_bytes(task) > room else ():
                trainers.pop(who).end()
        steps = warm_up(trainers, left_out)
        for _ in range(turns):
            for who, trainer in trainers.items():
                steps[who].append(trainer.ask("step"))
        facts = {
            who: {
                "ms": 1e3 * statistics.median(step["seconds"] for step in steps[who][WARM_UP:]),
                "host_ms": 1e3 * statistics.median(step["host_seconds"] for step in steps[who][WARM_UP:]),
                "first_step_seconds": steps[who][0]["seconds"],
                "first_norm": steps[who][0]["norm"],
                "losses": [step["loss"] for step in steps[who]],
                "peak_bytes": trainer.ask("peak_bytes"),
                "launches": trainer.ask("launches"),
            }
            for who, trainer in trainers.items()
        }
        rate = trainers["ours"].ask("product_rate")
    finally:
        for trainer in trainers.values():
            trainer.end()
    seconds = {who: [step["seconds"] for step in steps[who][WARM_UP:]] for who in trainers}
    return {"trainers": facts, "seconds": seconds, "product_rate": rate}


def warm_up(trainers: dict[str, Trainer], left_out: dict[str, str]) -> dict[str, list[dict[str, float]]]:
    """Return each trainer's first steps. A peer that fails is ended and leaves `trainers`."""
    steps: dict[str, list[dict[str, float]]] = {who: [] for who in trainers}
    for _ in range(WARM_UP):
        for trainer in trainers.values():  # at the same time: the first step may compile
            trainer.tell("step")
        for who, trainer in list(trainers.items()):
            try:
                steps[who].append(trainer.answer())
            except TrainerFailed as error:
                if who == "ours":
                    raise
                left_out[who] = str(error)
                trainers.pop(who).end()
    return steps


def ratios_of(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Return each peer's time over ours: the median of the turns' ratios."""
    return {
        who: statistics.median(theirs / ours for theirs, ours in zip(steps, seconds["ours"], strict=True))
        for who, steps in seconds.items()
        if who != "ours"
    }


def best_of(ratios: dict[str, float], trainers: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Return the fastest peer by its median, with its ratio; None without peers."""
    if not ratios:
        return None
    peer = min(ratios, key=lambda who: trainers[who]["ms"])
    return {"peer": peer, "ratio": ratios[peer]}


def flops(task: dict[str, Any]) -> float:
    """Of one step, by the platform's own `megatron` formula."""
    from levelfield.measure.flops import flops_per_token
    from levelfield.specs.architecture import Model

    model, length = Model.model_validate(model_of(task)), task["sequence"]
    return task["batch"] * length * flops_per_token("megatron", model, length)


# -- text
WIDTHS = (14, -10, -10, -9, -10, -7)


def lines_of(row: dict[str, Any]) -> list[str]:
    peak = "" if row["of_peak"] is None else f", ours at {row['of_peak']:.0%} of the peak of plain products"
    lines = [f"{row['shape']}{peak}", "  " + pad_row(("", "step", "host", "launches", "memory", "ratio"), WIDTHS)]
    for who, facts in row["trainers"].items():
        best = "best" if row["best"] and row["best"]["peer"] == who else ""
        ratio = f"{row['ratios'][who]:.2f}" if who in row["ratios"] else ""
        count = "-" if facts["launches"] is None else str(facts["launches"])
        times = (f"{facts['ms']:.1f} ms", f"{facts['host_ms']:.1f} ms")
        lines.append(
            "  " + pad_row((who, *times, count, f"{facts['peak_bytes'] / 2**30:.2f} GiB", ratio, best), WIDTHS)
        )
    lines += [f"  {pad_row((who, f'left out: {reason}'), WIDTHS[:1])}" for who, reason in row["left_out"].items()]
    return [*lines, f"  failed: {row['failed']}"] if "failed" in row else lines


if __name__ == "__main__":
    sys.exit(main())

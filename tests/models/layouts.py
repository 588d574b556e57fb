"""Train the same small work in many parallel layouts and compare each with one process.

    PYTHONPATH=platform python tests/models/layouts.py [--family gpt] [--only TP2] [--steps 40]

prints a Markdown table of the largest differences. The tests of test_torch_layouts.py use the same functions.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 420
NOISE = 1e-6

MODELS: dict[str, dict[str, Any]] = {
    "gpt": {
        "family": "gpt", "layers": 4, "hidden_size": 32, "ffn_hidden_size": 128, "heads": 4, "kv_heads": 4,
        "vocab_size": 128, "positions": "learned", "rope_base": None, "norm": "layernorm", "norm_eps": 1e-5,
        "activation": "gelu_tanh", "bias": True, "tied_embeddings": True, "hidden_dropout": 0.0,
        "attention_dropout": 0.0, "init_std": 0.02, "scaled_residual_init": True,
    },
    "llama": {
        "family": "llama", "layers": 4, "hidden_size": 32, "ffn_hidden_size": 96, "heads": 4, "kv_heads": 2,
        "vocab_size": 128, "positions": "rope", "rope_base": 10000.0, "norm": "rmsnorm", "norm_eps": 1e-5,
        "activation": "swiglu", "bias": False, "tied_embeddings": False, "hidden_dropout": 0.0,
        "attention_dropout": 0.0, "init_std": 0.02, "scaled_residual_init": True,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One way to run the work: the layout, and what else differs from one process with accumulation."""

    name: str
    layout: dict[str, Any] = field(default_factory=dict)
    micro_batch: int = 2
    recompute: str = "none"
    compile: bool = False

    @property
    def ranks(self) -> int:
        return math.prod(self.layout.get(key, 1) for key in ("data", "tensor", "pipeline"))


def _zero(stage: int, data: int, degree: int, **more: Any) -> dict[str, Any]:
    return {"data": data, "sharding_stage": stage, "sharding_degree": degree, **more}


_SEQUENCE_AND_PIPELINE = {"tensor": 2, "pipeline": 2, "sequence_parallel": True}

SINGLE = Variant("1 process, accumulation 4")
VARIANTS = (
    Variant("accumulation 1", micro_batch=8),
    Variant("recompute selective", recompute="selective"),
    Variant("recompute full", recompute="full"),
    Variant("DP2", {"data": 2}),
    Variant("ZeRO 1, DP2", _zero(1, 2, 2)),
    Variant("ZeRO 2, DP2", _zero(2, 2, 2)),
    Variant("ZeRO 3, DP2", _zero(3, 2, 2)),
    Variant("TP2", {"tensor": 2}),
    Variant("TP2 sequence parallel", {"tensor": 2, "sequence_parallel": True}),
    Variant("PP2", {"pipeline": 2}),
    Variant("TP2 x PP2", {"tensor": 2, "pipeline": 2}),
    Variant("DP2 x TP2", {"data": 2, "tensor": 2}),
    Variant("DP2 x PP2", {"data": 2, "pipeline": 2}),
)
MORE = (
    Variant("ZeRO 1 over 2 of DP4", _zero(1, 4, 2)),
    Variant("ZeRO 2 over 2 of DP4", _zero(2, 4, 2), micro_batch=1),
    Variant("ZeRO 3 over 2 of DP4", _zero(3, 4, 2), micro_batch=1, recompute="full"),
    Variant("ZeRO 1, DP2 x TP2 sequence parallel", _zero(1, 2, 2, tensor=2, sequence_parallel=True)),
    Variant("ZeRO 3, DP2 x TP2", _zero(3, 2, 2, tensor=2)),
    Variant("ZeRO 2, DP2 x PP2", _zero(2, 2, 2, pipeline=2)),
    Variant("ZeRO 3, DP2 x PP2", _zero(3, 2, 2, pipeline=2)),
    Variant("TP2 sequence parallel x PP2, recompute full", _SEQUENCE_AND_PIPELINE, recompute="full"),
    Variant("PP4", {"pipeline": 4}),
    Variant("compile", compile=True),
)


@dataclass(frozen=True)
class Curve:
    """What one run said: a value for each step, the sum of the tokens' checksums, and the initial weights'.

    gradients: by step, the squared gradient norm of each parameter, over all ranks.
    """

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    tokens: tuple[int, ...]
    token_checksums: tuple[int, ...]
    weights: dict[str, int]
    gradients: dict[int, dict[str, float]]


@dataclass(frozen=True)
class Difference:
    """The largest relative differences of a run from the reference, and whether its checksums are the same.

    parameter_norm: of one parameter's gradient norm, in the steps that record them. total_norm: of the norm of all
    parameters' gradients together from the run's own gradient norm of that step.
    """

    first_loss: float
    loss: float
    grad_norm: float
    parameter_norm: float
    total_norm: float
    same_weights: bool
    same_tokens: bool

    def within(self, first_loss: float = 1e-6, loss: float = 1e-5, grad_norm: float = 1e-4) -> bool:
        near = self.first_loss <= first_loss and self.loss <= loss and self.total_norm <= 1e-5
        near = near and self.grad_norm <= grad_norm and self.parameter_norm <= grad_norm
        return near and self.same_weights and self.same_tokens


def job_of(model: dict[str, Any], variant: Variant, steps: int = 40, **changes: Any) -> dict[str, Any]:
    """The job of `variant` on `model`; `changes` replace fields of training."""
    layout = {"data": 1, "tensor": 1, "pipeline": 1, "sequence_parallel": False, "sharding_stage": 0}
    layout = {**layout, "sharding_degree": 1, **variant.layout}
    training = {
        "steps": steps, "sequence_length": 32, "global_batch": 8, "precision": "fp32",
        "optimizer": {"name": "adamw", "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "schedule": {"style": "cosine", "peak_lr": 2e-3, "min_lr": 2e-4, "warmup_steps": 5, "decay_steps": 40},
        "loss_scale": None, "gradient_clip": 1.0, "seed": 7, **changes,
    }  # fmt: skip
    return {
        "schema": "levelfield.job/1", "run_id": "layouts", "case": "layouts", "scale": "smoke",
        "model": copy.deepcopy(model), "training": training, "corpus": {"kind": "synthetic"}, "layout": layout,
        "data": {"seed": 7, "shuffle": True, "split": [1.0, 0.0, 0.0], "alphabet": 32, "branching": 4},
        "tuning": {"micro_batch": variant.micro_batch, "recompute": variant.recompute, "compile": variant.compile,
                   "attention": "sdpa", "threads": 1, "environment": {}},
        "accumulation": training["global_batch"] // (variant.micro_batch * layout["data"]),
        "device": "cpu", "backend": "gloo", "preload": [],
        "gradient_steps": [1, 2, 10], "capture": None, "save_weights_dir": None,
    }  # fmt: skip


def launch(
    job: dict[str, Any], folder: Path, script: Path | None = None, python: Path | None = None
) -> list[subprocess.CompletedProcess[str]]:
    """Run `job` in one process for each rank, with its events in `folder`; every rank's end, in rank order.

    script, python: of another framework than torch, its train.py and the interpreter of its environment.
    """
    layout = job["layout"]
    ranks = layout["data"] * layout["tensor"] * layout["pipeline"]
    path = folder / "job.json"
    path.write_text(json.dumps({**job, "events_dir": str(folder)}))
    argv = [str(python or sys.executable), str(script or ROOT / "models" / "torch" / "train.py")]
    common = {
        **os.environ, "LEVELFIELD_JOB": str(path), "PYTHONPATH": str(ROOT / "platform"), "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    processes = [_start(argv, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]
    return [_end(process) for process in processes]


def train(job: dict[str, Any], script: Path | None = None, python: Path | None = None) -> Curve:
    """The curve of `job`. Raises RuntimeError, with what the ranks said, when one of them fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ends = launch(job, folder, script, python)
        failed = [f"rank {rank}: {end.stderr[-3000:]}" for rank, end in enumerate(ends) if end.returncode]
        if failed:
            raise RuntimeError("\n".join(failed))
        return read_curve([events(folder, rank) for rank in range(len(ends))])


def events(folder: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"rank{rank}.jsonl").read_text().splitlines()]


def read_curve(ranks: list[list[dict[str, Any]]]) -> Curve:
    """One curve from all ranks' events: the ranks that own tokens own the tokens' checksum."""
    steps = [[event for event in rank if event["event"] == "step"] for rank in ranks]
    owners = [rank for rank in steps if rank[0]["tokens"]]
    by_step = list(zip(*owners, strict=True))
    return Curve(
        losses=tuple(event["loss"] for event in steps[0]),
        grad_norms=tuple(event["grad_norm"] for event in steps[0]),
        tokens=tuple(sum(event["tokens"] for event in group) for group in by_step),
        token_checksums=tuple(sum(event["tokens_checksum"] for event in group) % 2**64 for group in by_step),
        weights=_weight_checksums(ranks),
        gradients=_gradient_squares(ranks),
    )


def compare(curve: Curve, reference: Curve) -> Difference:
    losses = [_relative(a, b) for a, b in zip(curve.losses, reference.losses, strict=True)]
    norms = [_relative(a, b) for a, b in zip(curve.grad_norms, reference.grad_norms, strict=True)]
    same_tokens = curve.token_checksums == reference.token_checksums and curve.tokens == reference.tokens
    return Difference(
        first_loss=losses[0],
        loss=max(losses),
        grad_norm=max(norms),
        parameter_norm=_parameter_difference(curve, reference),
        total_norm=_total_difference(curve),
        same_weights=curve.weights == reference.weights,
        same_tokens=same_tokens,
    )


def _parameter_difference(curve: Curve, reference: Curve) -> float:
    """Infinite unless both have the same parameters in the same steps.

    A gradient that is nothing but rounding (a key's bias: attention does not change with it) has no relative error;
    so differences are relative to no less than NOISE of the whole gradient's norm.
    """
    names = {step: set(squares) for step, squares in curve.gradients.items()}
    if not names or names != {step: set(squares) for step, squares in reference.gradients.items()}:
        return math.inf
    found = []
    for step, squares in reference.gradients.items():
        least = NOISE * reference.grad_norms[step - 1]
        for name, square in squares.items():
            difference = abs(_root(curve.gradients[step][name]) - _root(square)) / max(_root(square), least)
            found.append(difference if math.isfinite(difference) else math.inf)
    return max(found)


def _total_difference(curve: Curve) -> float:
    totals = {step: _root(math.fsum(squares.values())) for step, squares in curve.gradients.items()}
    return max((_relative(total, curve.grad_norms[step - 1]) for step, total in totals.items()), default=math.inf)


def _root(square: float) -> float:
    return math.sqrt(square) if square >= 0 else math.nan


def _relative(value: float, reference: float) -> float:
    """Infinite for anything that is not a finite number, so that no comparison with a limit accepts it."""
    difference = abs(value - reference) / abs(reference) if isinstance(value, float) else math.inf
    return difference if math.isfinite(difference) else math.inf


def _gradient_squares(ranks: list[list[dict[str, Any]]]) -> dict[int, dict[str, float]]:
    totals: dict[int, dict[str, float]] = {}
    for event in (event for rank in ranks for event in rank if event["event"] == "gradients"):
        squares = totals.setdefault(event["step"], {})
        for name, square in event["squares"].items():
            squares[name] = squares.get(name, 0.0) + float(square)
    return totals


def _weight_checksums(ranks: list[list[dict[str, Any]]]) -> dict[str, int]:
    """Name to checksum: the sum over different slices; ranks that hold the same slice must say the same of it."""
    slices: dict[tuple[str, str], str] = {}
    for rank in ranks:
        for name, _shape, bounds, checksum in next(e for e in rank if e["event"] == "weights")["parameters"]:
            if slices.setdefault((name, str(bounds)), checksum) != checksum:
                raise RuntimeError(f"{name} {bounds}: replicas have different values")
    totals: dict[str, int] = {}
    for (name, _), checksum in slices.items():
        totals[name] = (totals.get(name, 0) + int(checksum, 16)) % 2**64
    return totals


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(argv: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _end(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"\nkilled after {TIMEOUT_SECONDS} s"
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measured differences between layouts, as a Markdown table")
    parser.add_argument("--family", choices=sorted(MODELS), action="append")
    parser.add_argument("--only", action="append", help="a variant's name, or a part of it")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    print("| model | run | step 1 | all steps | gradient norm | by parameter | same weights | same tokens |")
    print("|---" * 8 + "|")
    for family in options.family or sorted(MODELS):
        reference = train(job_of(MODELS[family], SINGLE, options.steps))
        for variant in (*VARIANTS, *MORE):
            if options.only and not any(part in variant.name for part in options.only):
                continue
            try:
                found = compare(train(job_of(MODELS[family], variant, options.steps)), reference)
            except RuntimeError as error:
                print(f"| {family} | {variant.name} | failed: {error}", flush=True)
                continue
            print(f"| {family} | {variant.name} | {found.first_loss:.1e} | {found.loss:.1e} | {found.grad_norm:.1e} | "
                  f"{found.parameter_norm:.1e} | {found.same_weights} | {found.same_tokens} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()

"""Train the same small work in many parallel layouts, by any framework, and compare each run with another.

torch's own curves are what most runs are compared with: `torch_curve` computes each once for all test processes.
"""

from __future__ import annotations

import copy
import dataclasses
import fcntl
import functools
import hashlib
import json
import math
import os
import pickle
import socket
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levelfield.measure.final_weights import final_weights
from levelfield.measure.raw_facts import FinalSlice
from levelfield.specs.tested import Difference
from warm import End, run_ranks

ROOT = Path(__file__).parents[2]
NOISE = 1e-6
LONG_STEPS = 40  # to the end of the learning rate's decay

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
    "qwen": {
        "family": "qwen", "layers": 4, "hidden_size": 32, "ffn_hidden_size": 96, "heads": 4, "kv_heads": 2,
        "vocab_size": 128, "positions": "rope", "rope_base": 10000.0, "norm": "rmsnorm", "norm_eps": 1e-6,
        "activation": "swiglu", "bias": False, "tied_embeddings": False, "hidden_dropout": 0.0,
        "attention_dropout": 0.0, "init_std": 0.02, "scaled_residual_init": True,
        "head_dim": 12, "qkv_bias": True, "query_key_norm": True,
        "rope_scaling": {"kind": "llama3", "factor": 4.0, "original_length": 16, "low_factor": 1.0,
                         "high_factor": 4.0, "beta_fast": None, "beta_slow": None, "magnitude": None},
    },
}  # fmt: skip
MODELS["mixture"] = {
    **MODELS["llama"],
    "family": "mixture",
    "experts": {
        "count": 4, "chosen": 2, "ffn_hidden_size": 48, "shared": 1, "first_layer": 1, "every": 1,
        "router": {"scores": "softmax", "normalised": True, "scale": 1.0, "groups": None, "auxiliary_loss": 0.01,
                   "z_loss": 0.0, "bias_rate": 0.0},
        "capacity_factor": None,
    },
}  # fmt: skip
EVERYWHERE = ("gpt", "llama")  # what every framework trains


def shallow(model: dict[str, Any]) -> dict[str, Any]:
    """The model with two layers: a first and a last one, where no more stages divide them."""
    return {**model, "layers": 2}


@dataclass(frozen=True)
class Variant:
    """One way to run the work: the layout, and what else differs from one process with accumulation."""

    name: str
    layout: dict[str, Any] = field(default_factory=dict)
    micro_batch: int = 2
    recompute: str = "none"
    compile: bool = False
    virtual_pipeline: int = 1

    @property
    def ranks(self) -> int:
        return math.prod(self.layout.get(key, 1) for key in ("data", "context", "tensor", "pipeline"))


SINGLE = Variant("1 process, accumulation 4")


@dataclass(frozen=True)
class Curve:
    """What one run said: a value for each step, the sum of the tokens' checksums, and the initial weights'.

    gradients: by step, the squared gradient norm of each parameter, over all ranks. final: the norm and the projections
    of each parameter after the last step; a shorter run has others. auxiliary, experts: of a mixture, the routers'
    losses by step, and by step and layer the number of tokens that chose each expert.
    """

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    tokens: tuple[int, ...]
    token_checksums: tuple[int, ...]
    weights: dict[str, int]
    gradients: dict[int, dict[str, float]]
    final: dict[str, tuple[float, ...]] = field(default_factory=dict, compare=False)
    auxiliary: tuple[float, ...] = ()
    experts: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)


def job_of(model: dict[str, Any], variant: Variant, steps: int = LONG_STEPS, **changes: Any) -> dict[str, Any]:
    """The job of `variant` on `model`; `changes` replace fields of training."""
    layout = {"data": 1, "tensor": 1, "pipeline": 1, "sequence_parallel": False, "sharding_stage": 0}
    layout = {**layout, "sharding_degree": 1, **variant.layout}
    training = {
        "steps": steps, "sequence_length": 32, "global_batch": 8, "precision": "fp32",
        "optimizer": {"name": "adamw", "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "schedule": {"style": "cosine", "peak_lr": 2e-3, "min_lr": 2e-4, "warmup_steps": 5, "decay_steps": LONG_STEPS},
        "loss_scale": None, "gradient_clip": 1.0, "seed": 7, **changes,
    }  # fmt: skip
    return {
        "schema": "levelfield.job/1", "run_id": "layouts", "case": "layouts", "scale": "smoke",
        "model": copy.deepcopy(model), "training": training, "corpus": {"kind": "synthetic"}, "layout": layout,
        "data": {"seed": 7, "shuffle": True, "split": [1.0, 0.0, 0.0], "alphabet": 32, "branching": 4},
        "tuning": {"micro_batch": variant.micro_batch, "recompute": variant.recompute, "compile": variant.compile,
                   "attention": "sdpa", "threads": 1, "environment": {},
                   "virtual_pipeline": variant.virtual_pipeline},
        "accumulation": training["global_batch"] // (variant.micro_batch * layout["data"]),
        "device": "cpu", "backend": "gloo", "preload": [],
        "gradient_steps": [1, 2, 10], "capture": None, "save_weights_dir": None,
    }  # fmt: skip


FAULTY = """
import sys
sys.path.insert(0, {folder!r})
import train
from levelfield.worker import run
def faulty(job, recorder):
    if hasattr(train, "prepare"):
        train.prepare(job)
        train.prepare = lambda job: None  # in vain a second time: OneFlow's ranks have met, and would wait for it
{fault}
    train.main(job, recorder)
run(faulty)
"""


# what cannot be done is said before: a rank that ends while others join may leave them waiting
NOBODY_JOINS = "import torch.distributed as dist; dist.init_process_group = None"


def script_of(framework: str) -> Path:
    return ROOT / "models" / framework / "train.py"


def planted(folder: Path, framework: str, fault: str) -> Path:
    """A framework's train.py with `fault`, some lines of Python, run before it starts."""
    path = folder / "faulty.py"
    lines = "\n".join("    " + line for line in fault.strip().splitlines())
    path.write_text(FAULTY.format(folder=str(script_of(framework).parent), fault=lines))
    return path


def launch(job: dict[str, Any], folder: Path, script: Path | None = None, python: Path | None = None) -> list[End]:
    """Run `job` in one process for each rank, with its events in `folder`; every rank's end, in rank order.

    script, python: of another framework than torch, its train.py and the interpreter of its environment.
    """
    layout = job["layout"]
    ranks = layout["data"] * layout.get("context", 1) * layout["tensor"] * layout["pipeline"]
    path = folder / "job.json"
    path.write_text(json.dumps({**job, "events_dir": str(folder)}))
    common = {
        **os.environ, "LEVELFIELD_JOB": str(path), "PYTHONPATH": str(ROOT / "platform"), "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "NODE_RANK": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),  # not the kernels that others left on the machine
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()),
    }  # fmt: skip
    environments = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return run_ranks(str(python or sys.executable), str(script or script_of("torch")), environments, folder)


def train(job: dict[str, Any], script: Path | None = None, python: Path | None = None) -> Curve:
    """The curve of `job`. Raises RuntimeError, with what the ranks said, when one of them fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ends = launch(job, folder, script, python)
        failed = [f"rank {rank}: {end.output[-3000:]}" for rank, end in enumerate(ends) if end.returncode]
        if failed:
            raise RuntimeError("\n".join(failed))
        return read_curve([events(folder, rank) for rank in range(len(ends))])


def torch_curve(job: dict[str, Any], folder: Path) -> Curve:
    """The curve of `job` by torch in the tests' own environment, from `folder` where it was computed before.

    Processes that need it at a time wait for the first. `folder` belongs to one run of the tests; the key has all that
    the curve follows from, so that sources changed in between give another.
    """
    key = hashlib.sha256(json.dumps([job, _torch_sources()], sort_keys=True).encode()).hexdigest()
    path = folder / f"{key}.curve"
    folder.mkdir(exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            curve = pickle.dumps(train(job))
            path.with_suffix(".part").write_bytes(curve)
            path.with_suffix(".part").rename(path)
        return pickle.loads(path.read_bytes())


@functools.cache
def _torch_sources() -> str:
    """sha256 of all that torch's curve follows from: its implementation, the worker, and how ranks are started here."""
    digest = hashlib.sha256(sys.version.encode())
    torch, worker = ROOT / "models" / "torch", ROOT / "platform" / "levelfield" / "worker"
    for path in sorted(
        (*torch.glob("*.py"), *worker.glob("*.py"), Path(__file__), Path(__file__).with_name("warm.py"))
    ):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


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
        final=_final_weights(ranks),
        auxiliary=tuple(event["auxiliary_loss"] for event in steps[0] if "auxiliary_loss" in event),
        experts=_expert_tokens(ranks),
    )


def first_steps(curve: Curve, steps: int) -> Curve:
    """`curve` as a run of so few steps would have left it."""
    by_step = ("losses", "grad_norms", "tokens", "token_checksums", "auxiliary")
    gradients = {step: squares for step, squares in curve.gradients.items() if step <= steps}
    experts = {step: counts for step, counts in curve.experts.items() if step <= steps}
    sliced = {name: getattr(curve, name)[:steps] for name in by_step}
    return dataclasses.replace(curve, gradients=gradients, experts=experts, final={}, **sliced)


def compare(curve: Curve, reference: Curve) -> Difference:
    losses = [_relative(a, b) for a, b in zip(curve.losses, reference.losses, strict=True)]
    norms = [_relative(a, b) for a, b in zip(curve.grad_norms, reference.grad_norms, strict=True)]
    same_tokens = curve.token_checksums == reference.token_checksums and curve.tokens == reference.tokens
    return Difference(
        first_loss=_finite(losses[0]),
        loss=_finite(max(losses)),
        grad_norm=_finite(max(norms)),
        parameter_norm=_finite(_parameter_difference(curve, reference)),
        total_norm=_finite(_total_difference(curve)),
        same_weights=curve.weights == reference.weights,
        same_tokens=same_tokens,
    )


def compare_routing(curve: Curve, reference: Curve) -> tuple[float, int]:
    """The largest relative difference of the routers' losses, and how many choices of an expert differ, as counts show.

    Infinite for a curve without routing, and for other layers or steps than the reference's.
    """
    pairs = list(zip(curve.auxiliary, reference.auxiliary, strict=True))
    steps = {step: set(layers) for step, layers in curve.experts.items()}
    if not pairs or not steps or steps != {step: set(layers) for step, layers in reference.experts.items()}:
        return math.inf, 0
    moved = 0
    for step, layers in reference.experts.items():
        for layer, counts in layers.items():
            moved += sum(abs(a - b) for a, b in zip(curve.experts[step][layer], counts, strict=True)) // 2
    return max(_relative(a, b) for a, b in pairs), moved


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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


def _expert_tokens(ranks: list[list[dict[str, Any]]]) -> dict[int, dict[int, tuple[int, ...]]]:
    totals: dict[int, dict[int, tuple[int, ...]]] = {}
    for event in (event for rank in ranks for event in rank if event["event"] == "experts"):
        layers = totals.setdefault(event["step"], {})
        for layer, counts in event["tokens"].items():
            known = layers.get(int(layer), (0,) * len(counts))
            layers[int(layer)] = tuple(a + b for a, b in zip(known, counts, strict=True))
    return totals


def _final_weights(ranks: list[list[dict[str, Any]]]) -> dict[str, tuple[float, ...]]:
    slices = [
        FinalSlice(number, name, tuple(shape), tuple(map(tuple, bounds)), tuple(map(float, sums)))
        for number, rank in enumerate(ranks)
        for event in rank
        if event["event"] == "final_weights"
        for name, shape, bounds, sums in event["parameters"]
    ]
    return final_weights(slices)


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

"""Train the same small work in many parallel layouts, by any framework, and compare each run with another.

torch's own curves are what most runs are compared with: `torch_curve` computes each once for all test processes. The
models, their jobs and the comparison are those of `framework check`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

from levelfield.run.launchers.launched_ranks import find_free_port
from levelfield.testing.framework_kit.small_jobs import COMMON_MODELS, LONG_STEPS, MODELS, SINGLE, Variant, small_job
from levelfield.testing.framework_kit.training_curves import (
    Curve,
    compare,
    compare_routing,
    first_steps,
    read_curve,
)
from levelfield.worker.architecture import Model
from levelfield.worker.job import Job, parse
from trainings.warm import End, run_ranks

__all__ = [
    "COMMON_MODELS",
    "LONG_STEPS",
    "MODELS",
    "NOBODY_JOINS",
    "ROOT",
    "SINGLE",
    "Curve",
    "Variant",
    "compare",
    "compare_routing",
    "events",
    "first_steps",
    "launch",
    "launch_explained",
    "parsed_job",
    "parsed_model",
    "planted",
    "read_curve",
    "script_of",
    "shallow",
    "small_job",
    "torch_curve",
    "train",
]

ROOT = Path(__file__).parents[1]


def shallow(model: dict[str, Any]) -> dict[str, Any]:
    """The model with two layers: a first and a last one, where no more stages divide them."""
    return {**model, "layers": 2}


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


def parsed_model(content: dict[str, Any]) -> Model:
    """The model as a training process has it."""
    return parse(Model, content, "model")


def parsed_job(content: dict[str, Any], ranks: int = 1) -> Job:
    """The job as rank 0 of so many ranks has it."""
    return parse(Job, {"events_dir": "", **content, "world_size": ranks}, "job")


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
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port()),
    }  # fmt: skip
    environments = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return run_ranks(str(python or sys.executable), str(script or script_of("torch")), environments, folder)


def launch_explained(
    job: dict[str, Any], folder: Path, steps: int, most_bytes: int = 2**26, script: Path | None = None,
    python: Path | None = None,
) -> list[End]:  # fmt: skip
    """`launch` with this many recorded steps after the training, in the folder's `profile`."""
    path = folder / "explained.py"
    training_script = str(script or script_of("torch"))
    path.write_text(f"from levelfield.worker.step_profile import run_script\nrun_script({training_script!r})\n")
    explain_step = {"steps": steps, "folder": str(folder / "profile"), "most_bytes": most_bytes}
    return launch({**job, "explain_step": explain_step}, folder, path, python)


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

    Processes that need it at a time wait for the first. `folder` belongs to one run of the tests.
    """
    key = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()
    path = folder / f"{key}.curve"
    folder.mkdir(exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            curve = pickle.dumps(train(job))
            path.with_suffix(".part").write_bytes(curve)
            path.with_suffix(".part").rename(path)
        return pickle.loads(path.read_bytes())


def events(folder: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"rank{rank}.jsonl").read_text().splitlines()]

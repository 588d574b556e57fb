"""One rank of a training at full scale, by the project's own code, on a pretended device.

Replaced are the initial weights, which are zeros and not generated, the recorder, and for a rank alone the rendezvous.
"""

import contextlib
import json
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import attention_choices
import torch
from alone import stand_alone
from books import Books
from counts import HostCounts, exchange_on_host


def run_rank(spec, rank):
    """Train and write the report. Returns the process's exit code."""
    report = {"rank": rank, "world": spec["world"], "alone": not spec["whole"], "steps": [], "attention_choices": {}}
    enter(spec, rank)
    try:
        train_rank(spec, report)
        report["error"] = None
    except BaseException as error:
        traceback.print_exc()
        report["error"] = f"{type(error).__name__}: {error}"
        report["where"] = traceback.format_exc()[-1500:]
    write(spec, report)
    return 1 if report["error"] else 0


def write(spec, report):
    Path(spec["folder"], f"rank{report['rank']}.json").write_text(json.dumps(report))


def enter(spec, rank):
    """The variables and the import paths of this rank."""
    devices, world = spec["devices"], spec["world"]
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK=str(rank % devices),
        LOCAL_WORLD_SIZE=str(min(devices, world)),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(spec["port"]),
        LEVELFIELD_JOB=str(Path(spec["folder"]) / "job.json"),
        TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="36000",
    )
    if not spec["whole"]:
        os.environ["TORCH_DIST_INIT_BARRIER"] = "0"
    models = Path(spec["checkout"]) / "models"
    own = [str(models / spec["framework"]), str(Path(spec["checkout"]) / "platform")]
    sys.path[:0] = own
    if spec["framework"] in ("deepspeed", "megatron"):
        sys.path.append(str(models / "torch"))


def train_rank(spec, report):
    books = Books()
    job = prepared_job(spec)
    if spec["framework"] == "deepspeed":
        from accelerator import prepare

        prepare(job)
    exchange_on_host(books.library)
    if not spec["whole"] and spec["world"] > 1:
        stand_alone(spec["world"])
    weights_are_zeros()
    attention_choices.observe_choices(report["attention_choices"])
    train, recorder = trainer_of(spec["framework"]), StepBooks(spec, job, books, report)
    finish_each_step()
    with counts_mode(job, books):
        train(job, recorder)


def prepared_job(spec):
    from levelfield.worker.job import load_job

    job = load_job()
    training = replace(job.training, steps=spec["steps"])
    without = {"capture": None, "save_weights_dir": None}
    return replace(job, training=training, gradient_steps=(1,), events_dir=spec["folder"], **without)


def trainer_of(framework):
    if framework == "deepspeed":
        from zero_training import train
    else:
        from training import train
    return train


def counts_mode(job, books):
    experts = getattr(job.model, "experts", None)
    if experts is None:
        return contextlib.nullcontext()
    return HostCounts(books.library, experts.count, experts.chosen)


def weights_are_zeros():
    """Generated weights would touch all of a model's memory, and kernels do nothing with them."""
    import numpy as np
    from levelfield.worker import Initializer

    def array(self, name, shape, slices=None, std=None, fill=None):
        bounds = slices or [None] * len(shape)
        sizes = [len(range(*(each or slice(None)).indices(size))) for each, size in zip(bounds, shape, strict=True)]
        return np.zeros(sizes, dtype=np.float32)

    Initializer.array = array


def finish_each_step():
    """The books of a step end when it is recorded, so the next one is not launched before."""
    from levelfield.worker import loop

    loop._Records.can_wait = lambda self, step: False


def layers_of(details):
    """The maker of the layers, and its version, where they are not the framework's own."""
    maker = details.get("layers", "local")
    return None if maker == "local" else f"{maker} {details.get(maker) or ''}".strip().replace("_", "-")


class StepBooks:
    """The recorder of a rehearsal: books of each step. Losses of a pretended device mean nothing and stop nothing."""

    def __init__(self, spec, job, books, report):
        self.spec, self.books, self.report = spec, books, report
        self.layers, self.began = job.model.layers, time.monotonic()

    def framework(self, name, version, device, details=None):
        self.report.update(framework=name, version=version, device=device, layers=layers_of(details or {}))

    def weights(self, parameters):
        """The weights stay as they are: nothing of them is read."""
        torch.cuda.synchronize()
        self.report["built_seconds"] = round(time.monotonic() - self.began, 1)
        self.report["built_allocated_bytes"] = torch.cuda.memory_allocated()
        self.books.reset()

    def final_weights(self, parameters):
        pass

    def begin(self):
        self.began = time.monotonic()

    def gradients(self, step, squares):
        list(squares)

    def experts(self, step, tokens):
        self.report["expert_tokens"] = {str(layer): [int(each) for each in row] for layer, row in tokens}

    def step(self, step, **facts):
        self.books.wait_for_messages()
        found = self.books.step(step, self.layers)
        found["host_seconds"] = round(time.monotonic() - self.began, 1)
        self.report["steps"].append(found)
        write(self.spec, self.report)
        self.began = time.monotonic()

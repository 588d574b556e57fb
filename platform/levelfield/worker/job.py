"""The job of this training process, read from job.json and from the rank's environment.

Each class has the keys of one object of job.json. A key that this version does not have is ignored, so a newer platform
may add one. A field with a default is a key that a job may leave out.
"""

from __future__ import annotations

import json
import os
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple, Type, TypeVar, Union, get_type_hints

from .architecture import Model
from .faults import JobError

SCHEMA = "levelfield.job/1"
T = TypeVar("T")


@dataclass(frozen=True)
class Optimizer:
    """AdamW with decoupled decay, on tensors of two or more dimensions only."""

    name: str
    beta1: float
    beta2: float
    eps: float
    weight_decay: float


@dataclass(frozen=True)
class Schedule:
    """The learning rate: linear to peak_lr at step warmup_steps, then cosine to min_lr at step decay_steps."""

    style: str
    peak_lr: float
    min_lr: float
    warmup_steps: int
    decay_steps: int


@dataclass(frozen=True)
class LossScale:
    """Dynamic loss scaling for fp16: its first value, and after how many steps without an overflow it doubles."""

    initial: float
    growth_interval: int


@dataclass(frozen=True)
class Training:
    steps: int
    sequence_length: int  # tokens
    global_batch: int  # sequences of one step, on all ranks
    precision: str  # fp32, bf16, fp16 or fp8
    optimizer: Optimizer
    schedule: Schedule
    loss_scale: Optional[LossScale]  # None: losses are not scaled
    gradient_clip: float  # the largest norm of the gradients of all parameters
    seed: int


@dataclass(frozen=True)
class Data:
    """The order of samples, and the synthetic corpus, which is used without a real one."""

    seed: int
    shuffle: bool
    split: Tuple[float, ...]  # the parts for training, validation and test
    alphabet: int  # tokens of the synthetic corpus
    branching: int  # successors of each pair of its tokens


@dataclass(frozen=True)
class Window:
    """The measured steps, counted from 1, with both ends. The worker does not use them."""

    first_step: int
    last_step: int
    disturbance_limit: float = 0.1


@dataclass(frozen=True)
class Limits:
    """The seconds after which the platform ends a run. The worker does not use them."""

    heartbeat_seconds: float
    step_seconds: float
    start_seconds: float


@dataclass(frozen=True)
class CorpusChoice:
    """The corpus: synthetic, or the files of `kind` at `prefix`."""

    kind: str  # synthetic, megatron or paddle
    prefix: Optional[str] = None  # None: synthetic
    digest: Optional[str] = None


@dataclass(frozen=True)
class Layout:
    """The ranks over which the training is distributed: data x context x tensor x pipeline."""

    data: int
    tensor: int
    pipeline: int
    sequence_parallel: bool
    sharding_stage: int  # of ZeRO, 0 to 3
    sharding_degree: int  # ranks that share one copy of the sharded states
    context: int = 1  # ranks that share each sequence
    expert: int = 1  # of the data and context ranks, those that share the experts


@dataclass(frozen=True)
class Tuning:
    """The free fields, by the names of specs/tuning.py."""

    micro_batch: int  # sequences of one forward pass of a data-parallel rank
    threads: Optional[int]  # of this process; None: the framework's default
    recompute: str  # none, selective or full
    compile: bool
    attention: str  # sdpa or flash_attn
    virtual_pipeline: int = 1  # model chunks of each pipeline stage
    recompute_layers: Optional[int] = None  # with full: the first layers of each chunk; None: all
    graph: bool = False  # each step is captured as a CUDA graph and replayed


@dataclass(frozen=True)
class Choices:
    """The choices of experts are recorded. known: those to follow, as choices.py packs them; None: the rank's own."""

    known: Optional[str]


@dataclass(frozen=True)
class CapturedStep:
    """The step whose tensors are written, and where."""

    step: int
    folder: str


@dataclass(frozen=True)
class ExplainedSteps:
    """How many steps after the training are recorded, and where; a record of more bytes is left out."""

    steps: int
    folder: str
    most_bytes: int


@dataclass(frozen=True)
class Job:
    """What one rank trains."""

    run_id: str
    case: str
    scale: str  # full or smoke
    model: Model
    training: Training
    data: Data
    corpus: CorpusChoice
    layout: Layout
    tuning: Tuning
    accumulation: int  # micro-batches of a step on each data-parallel rank
    device: str  # the framework's word for the kind of device, such as cuda
    backend: str  # the library of collectives, such as nccl
    preload: Tuple[str, ...]  # modules that are imported first
    gradient_steps: Tuple[int, ...]  # the steps that record each parameter's gradient norm
    capture: Optional[CapturedStep]
    events_dir: str
    save_weights_dir: Optional[str]  # None: the weights are not saved
    window: Optional[Window] = None
    limits: Optional[Limits] = None
    products: Optional[str] = None  # the library of a layer's float32 products on a processor: onednn or mkl
    choices: Optional[Choices] = None  # None: the choices of experts are not recorded
    explain_step: Optional[ExplainedSteps] = None
    spot_check: bool = False  # one step of the window is sampled, for the platform to compute it again
    rank: int = 0  # of RANK; job.json has no place in the job, nor the next two
    world_size: int = 1  # of WORLD_SIZE
    local_rank: int = 0  # of LOCAL_RANK: on this node


@dataclass(frozen=True)
class Coordinates:
    """A rank's place in the layout, each counted from 0."""

    pipeline: int
    data: int
    context: int
    tensor: int


_OF_ENVIRONMENT = {"rank": ("RANK", 0), "world_size": ("WORLD_SIZE", 1), "local_rank": ("LOCAL_RANK", 0)}


def load_job(path: str | None = None) -> Job:
    """Return the job with rank, world_size and local_rank (0, 1, 0 without a launcher).

    path: by default the variable LEVELFIELD_JOB. Raises JobError for a missing or unreadable file, for another schema,
    and for a key that is missing or has a value of another type.
    """
    path = path or os.environ.get("LEVELFIELD_JOB")
    if not path:
        raise JobError("LEVELFIELD_JOB is not set; expected the path of job.json")
    content = _read(path)
    if content.get("schema") != SCHEMA:
        raise JobError(f"{path}: key 'schema': found {content.get('schema')!r}, expected '{SCHEMA}'")
    ranks = {name: _rank(variable, default) for name, (variable, default) in _OF_ENVIRONMENT.items()}
    return parse(Job, {**content, **ranks}, path)


def coordinates(job: Job) -> Coordinates:
    """Return this rank's place: tensor is innermost, then context, data, pipeline.

    Raises JobError when the layout needs another number of ranks.
    """
    layout = job.layout
    needed = layout.data * layout.context * layout.tensor * layout.pipeline
    if job.world_size != needed or not 0 <= job.rank < needed:
        context = f"context {layout.context}, " if layout.context > 1 else ""
        raise JobError(
            f"rank {job.rank} of {job.world_size}: the layout (data {layout.data}, {context}tensor {layout.tensor}, "
            f"pipeline {layout.pipeline}) needs {needed} ranks"
        )
    outer, tensor = divmod(job.rank, layout.tensor)
    outer, context_rank = divmod(outer, layout.context)
    pipeline, data = divmod(outer, layout.data)
    return Coordinates(pipeline=pipeline, data=data, context=context_rank, tensor=tensor)


def parse(kind: Type[T], content: Any, origin: str) -> T:
    """Return the content of a JSON object as a value of a class of this module or of `architecture`.

    Raises JobError with `origin` and the key for a key that is missing or has a value of another type.
    """
    value: T = _value(kind, content, origin, "")
    return value


def _value(kind: Any, value: Any, origin: str, key: str) -> Any:
    """Return a JSON value as `kind`: a class of fields, a tuple of items, an optional value, or a plain one."""
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise _wrong(value, "an object", origin, key)
        make: Any = kind
        return make(**dict(_fields(kind, value, origin, f"{key}." if key else "")))
    variants: Any = getattr(kind, "__args__", ())
    if getattr(kind, "__origin__", None) is Union:  # Optional[...]
        return None if value is None else _value(variants[0], value, origin, key)
    if variants:
        if not isinstance(value, (list, tuple)):
            raise _wrong(value, "a list", origin, key)
        return tuple(_value(variants[0], item, origin, f"{key}[{index}]") for index, item in enumerate(value))
    types, words = _PLAIN[kind]
    if not isinstance(value, types) or (kind is not bool and isinstance(value, bool)):
        raise _wrong(value, words, origin, key)
    return value


def _fields(kind: Any, content: Dict[str, Any], origin: str, above: str) -> Iterator[Tuple[str, Any]]:
    types = _types(kind)
    for field in fields(kind):
        if field.name in content:
            yield field.name, _value(types[field.name], content[field.name], origin, f"{above}{field.name}")
        elif field.default is MISSING:
            raise JobError(f"{origin}: key '{above}{field.name}': missing; it is required")


_PLAIN: Dict[Any, Tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    str: (str, "a text"),
}
_types = lru_cache(maxsize=None)(get_type_hints)


def _wrong(value: Any, expected: str, origin: str, key: str) -> JobError:
    place = f"{origin}: key '{key}'" if key else origin
    return JobError(f"{place}: found {value!r}, expected {expected}")


def _read(path: str) -> Dict[str, Any]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise JobError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise JobError(f"{path}: found {type(content).__name__}, expected a JSON object")
    return content


def _rank(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        raise JobError(f"{variable}: found '{text}', expected an integer") from None

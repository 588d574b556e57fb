"""FlagPerf's configuration files, read as data: strategies (config_*.py) and hosts (cluster_conf.py).

They are Python. Only assignments of literals at the top of the file are read; nothing in it is executed.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelfield.errors import LayoutError, UsageError
from levelfield.node.regular_files import read_regular
from levelfield.specs.layout import parse_layout
from levelfield.specs.plan import Plan
from levelfield.specs.tuning import Recompute, TuningChoice

# config_TP1PP1SH2SP8A10080Gx1x8.py and config_MLUx4x8.py: nodes and devices of each
_MACHINE_COUNTS = re.compile(r"x(\d{1,6})x(\d{1,4})\.py")
_SHARDING = re.compile(r"stage([123])")
_RECOMPUTE_BY_GRANULARITY: dict[str, Recompute] = {"full": "full", "core_attn": "selective"}
# One field by its names in the files of Paddle's and of Megatron's benchmarks.
_TENSOR_KEYS, _PIPELINE_KEYS = (
    ("tensor_parallel_degree", "tensor_parallel"),
    ("pipeline_parallel_degree", "pipeline_parallel"),
)
_MICRO_BATCH_KEYS = ("per_device_train_batch_size", "localbs")


@dataclass(frozen=True)
class Strategy:
    """The free fields of a strategy file, and the numbers that the case must have at full scale; None: not there."""

    path: Path
    choice: TuningChoice
    accumulation: int | None
    sequence_length: int | None

    def check(self, plan: Plan) -> None:
        """Raise UsageError where the case fixes another number than the file. Smoke scale has its own."""
        if plan.scale != "full":
            return
        training = plan.work.training
        pairs = {
            "gradient_accumulation_steps": (self.accumulation, plan.accumulation),
            "max_seq_length": (self.sequence_length, training.sequence_length),
        }
        for key, (value, expected) in pairs.items():
            if value is not None and value != expected:
                raise UsageError(
                    f"{self.path}: key '{key}': found {value}, expected {expected}: case {plan.case} has a global "
                    f"batch of {training.global_batch} and sequences of {training.sequence_length}. Take the file's "
                    "case, or change these by --global-batch and --sequence-length"
                )


def read_strategy(path: Path) -> Strategy:
    """Return the strategy of a config_*.py. Raises UsageError with file, key, found and expected."""
    fields = _Literals(path)
    tensor, pipeline = fields.positive_integer(_TENSOR_KEYS) or 1, fields.positive_integer(_PIPELINE_KEYS) or 1
    sharding_degree = fields.positive_integer(("sharding_parallel_degree",)) or 1
    data_parallel = sharding_degree
    if machines := _MACHINE_COUNTS.search(path.name):
        devices, model_parallel = int(machines[1]) * int(machines[2]), tensor * pipeline
        if devices % model_parallel or not devices:
            raise UsageError(
                f"{path}: found tensor x pipeline = {model_parallel}, expected a divisor of the {devices} "
                "devices in its name"
            )
        data_parallel = devices // model_parallel
    layout = f"DP{data_parallel}TP{tensor}PP{pipeline}"
    if sharding_degree > 1:
        text = fields.get(("sharding",))
        match = _SHARDING.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise UsageError(f"{path}: key 'sharding': found {text!r:.40}, expected 'stage1', 'stage2' or 'stage3'")
        layout += f"SH{match[1]}SP{sharding_degree}"
    try:
        parse_layout(layout)
    except LayoutError as error:
        raise UsageError(f"{path}: {error}") from None
    choice = TuningChoice(
        layout=layout,
        micro_batch=fields.positive_integer(_MICRO_BATCH_KEYS),
        recompute=_recompute(fields),
        attention="flash_attn" if fields.get(("use_flash_attention",)) in (1, True) else None,
    )
    length = fields.positive_integer(("max_seq_length", "seqlength"))
    return Strategy(path, choice, fields.positive_integer(("gradient_accumulation_steps",)), length)


def read_hosts(path: Path) -> tuple[str, ...]:
    """Return HOSTS of a cluster_conf.py. Raises UsageError where it is missing, commented out or no list of names."""
    hosts = _Literals(path).get(("HOSTS",))
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) and host.strip() for host in hosts):
        raise UsageError(
            f'{path}: key \'HOSTS\': found {hosts!r:.60}, expected a list such as ["10.1.2.2", "10.1.2.3"]'
        )
    if len(set(hosts)) < len(hosts):
        raise UsageError(f"{path}: key 'HOSTS': found a host twice, expected each once")
    return tuple(hosts)


def _recompute(fields: _Literals) -> Recompute | None:
    if (recompute := fields.get(("recompute",))) is None:
        return None
    if not recompute:
        return "none"
    granularity = fields.get(("recompute_granularity",)) or "full"
    if granularity not in _RECOMPUTE_BY_GRANULARITY:
        names = ", ".join(_RECOMPUTE_BY_GRANULARITY)
        raise UsageError(f"{fields.path}: key 'recompute_granularity': found {granularity!r:.40}, expected {names}")
    return _RECOMPUTE_BY_GRANULARITY[granularity]


class _Literals:
    """The literals that a Python file assigns at its top level, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            tree = ast.parse(read_regular(path, "setting"))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UsageError(
                f"{path}: not a Python file: {type(error).__name__}; expected FlagPerf's config_*.py"
            ) from None
        self._values: dict[str, Any] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign):
                try:
                    value = ast.literal_eval(node.value)
                except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError):
                    value = _ComputedValue(ast.unparse(node.value))  # which no key here accepts
                self._values |= {target.id: value for target in node.targets if isinstance(target, ast.Name)}

    def get(self, names: tuple[str, ...]) -> Any:
        """Return the value of the first of `names` that the file has, else None."""
        return next((self._values[name] for name in names if name in self._values), None)

    def positive_integer(self, names: tuple[str, ...]) -> int | None:
        """Return the value of the first of `names` as a whole number above 0. Raises UsageError for another value."""
        value = self.get(names)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 10**9:
            name = next(name for name in names if name in self._values)
            raise UsageError(f"{self.path}: key '{name}': found {value!r:.40}, expected a whole number above 0")
        return value


@dataclass(frozen=True)
class _ComputedValue:
    """The source of a value that only running the file would give."""

    source: str

    def __repr__(self) -> str:
        return f"`{self.source}`, which is not computed,"

"""The first hour on a machine with accelerators, as data: the entries of `make gpu-check`, most valuable first.

Minutes of one device are about twice what an H100 with 16 cores took; those of several are guesses from plans.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

CASES = Path(__file__).parent / "cases"
VALID = ("valid",)
DONE = ("exit 0",)
ALIGNED = ("aligned", "consistent")


class Entry(NamedTuple):
    """One command of run_benchmarks.py, or a program of benchmarks/, whose path is then its first argument.

    {vendor} and {count} in arguments are filled in. devices: how many it needs. module: what the training's Python must
    have. expects: the words, or `exit 0`, with which it is as expected. verdicts: the same of the alignment; () takes
    any. chip_only: it says nothing on a processor. fault: what is done to the last rank once it has trained five steps,
    `kill` or `stop`; or `full`, another program's use of the device's memory. part: what --only takes for several.
    """

    name: str
    minutes: float
    arguments: tuple[str, ...]
    shows: str
    devices: int = 1
    module: str = ""
    expects: tuple[str, ...] = VALID
    verdicts: tuple[str, ...] = ()
    chip_only: bool = False
    fault: str = ""
    part: str = ""

    @property
    def is_program(self) -> bool:
        """Whether the training's Python runs a program of benchmarks/, which prints its rows as JSON."""
        return self.arguments[0].startswith("benchmarks/")

    @property
    def trains(self) -> bool:
        """Whether the command is a training, which has a result."""
        return self.arguments[0].startswith("-")


MODULES = {"torch": "torch", "megatron": "megatron.core", "deepspeed": "deepspeed", "jax": "jax"}
FP8 = {"torch": "torchao", "megatron": "transformer_engine.pytorch"}
SEQUENCE = "gpt3_6.7B"
GATED = "llama3_8b"


def training(case: str, framework: str, devices: int, *options: str, scale: str = "smoke") -> tuple[str, ...]:
    return ("--case", f"{case}:{framework}:{{vendor}}:1:{devices}", "--scale", scale, *options)


def family(name: str, case: str, framework: str, devices: int, *options: str, shows: str) -> Entry:
    """A layout family at smoke scale in fp32, held against the processor's reference."""
    arguments = training(case, framework, devices, *options)
    return Entry(name, 0.7, arguments, shows, devices, MODULES[framework], verdicts=ALIGNED)


def whole(
    name: str, minutes: float, case: str, devices: int, *options: str, shows: str, framework: str = "torch"
) -> Entry:
    """A run at full scale on a chip, without a training for its certificate before it."""
    arguments = training(case, framework, devices, "--no-certificate", *options, scale="full")
    return Entry(name, minutes, arguments, shows, devices, MODULES[framework], chip_only=True)


def one_device(
    name: str, case: str, *options: str, shows: str, framework: str = "torch", minutes: float = 2.0
) -> Entry:
    """A case of tools/chip_check/cases/, which fills one device of 80 GB."""
    file = str(CASES / f"{case}.yaml")
    return whole(name, minutes, case, 1, "--case-file", file, *options, shows=shows, framework=framework)


def program(name: str, minutes: float, path: str, *options: str, shows: str) -> Entry:
    arguments = (f"benchmarks/{path}.py", "--device", "cuda", "--json", *options)
    return Entry(name, minutes, arguments, shows, module="torch", expects=DONE, chip_only=True)


def step(name: str, minutes: float, shape: str, mode: str) -> Entry:
    """A shape of benchmarks/torch_step.py, of ours beside every peer."""
    options = ("--only", f"{shape} ", "--only", f"bf16 {mode}")
    return program(f"step-{name}", minutes, "torch_step", *options, shows=f"{name.replace('-', ' ')}: ours and peers")


# Fifteen minutes of one device, in two calls of about 400 s: check_speed.py holds what is expected of them.
SPEED = (
    program("ceilings", 0.3, "torch_parts", "--only", "ceilings", shows="the best product and copy"),
    program("head-alone", 0.9, "torch_parts", "--only", "head", shows="head and loss alone, by whom, in which chunks"),
    step("gpt-h768", 0.7, "gpt h768", "eager"),
    step("llama-h4096", 0.8, "llama h4096", "eager"),
    step("gpt-h2048", 0.8, "gpt h2048", "eager"),
    step("gpt-h768-graph", 0.6, "gpt h768", "graph"),
    step("gpt-h2048-graph", 0.7, "gpt h2048", "graph"),
    Entry("gpt-bf16", 0.6, training("gpt3_6.7B_bf16", "torch", 1), "bf16", 1, "torch", verdicts=ALIGNED),
    Entry("llama-bf16", 0.6, training("llama3_8b_bf16", "torch", 1), "bf16", 1, "torch", verdicts=ALIGNED),
    program("pieces", 0.5, "torch_parts", "--only", "pieces", shows="casts, gradients and kernels alone"),
    step("gpt-h768-compiled", 1.1, "gpt h768", "compiled"),
    step("llama-h4096-compiled", 1.1, "llama h4096", "compiled"),
    step("gpt-h2048-compiled", 1.1, "gpt h2048", "compiled"),
    whole("gpt2-small", 1.0, "gpt2_small", 1, "--probe", "--explain-step", shows="one device at full scale; by part"),
    one_device("llama-one-device", "llama_8b_wide", "--explain-step", shows="8B's width; by part", minutes=1.2),
    one_device("gpt-one-device", "gpt_1.3B", shows="1.3B parameters on one device", minutes=1.1),
    step("gpt-h768-both", 1.1, "gpt h768", "compiled+graph"),
)

FIRST = (
    Entry("list-vendors", 0.1, ("show", "vendors", "--json"), "what the driver answers", expects=DONE),
    Entry("vendor-check", 0.2, ("vendor", "check", "{vendor}", "--fast"), "the vendor's conformance", expects=DONE),
    Entry(
        "vendor-record",
        0.3,
        ("vendor", "record", "{vendor}", "--redact", "--force"),
        "recordings of the driver's real answers, in vendors/",
        expects=DONE,
        chip_only=True,
    ),
    Entry("gpt-fp32", 0.5, training(SEQUENCE, "torch", 1), "noise to a processor", 1, "torch", verdicts=ALIGNED),
    Entry("llama-fp32", 0.5, training(GATED, "torch", 1), "noise to a processor", 1, "torch", verdicts=ALIGNED),
    Entry(
        "preflight-pairs",
        1.5,
        ("site", "preflight", "--case", f"{GATED}:torch:{{vendor}}:1:{{count}}", "--pairs"),
        "collectives of all devices, and between every two",
        2,
        "torch",
        DONE,
    ),
    Entry("peak", 0.8, training(SEQUENCE, "torch", 1, "--probe"), "the best product, TF32 off", 1, "torch"),
    Entry(
        "peak-tf32",
        0.8,
        training(SEQUENCE, "torch", 1, "--probe", "--env", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"),
        "TF32 on must be caught: its verdict must not be aligned",
        module="torch",
        verdicts=("different", "diverged", "inconclusive"),
        chip_only=True,
    ),
    whole("gpt-20-steps", 4.0, SEQUENCE, 8, "--steps", "20", "--global-batch", "256", shows="full case, short batch"),
    whole("llama-20-steps", 8.0, GATED, 8, "--steps", "20", "--global-batch", "128", shows="full case, short batch"),
)

FAMILIES = (
    family("zero1", SEQUENCE, "torch", 2, "--layout", "DP2SH1", shows="ZeRO 1"),
    family("zero2", SEQUENCE, "torch", 2, "--layout", "DP2SH2", shows="ZeRO 2"),
    family("zero3", GATED, "torch", 2, "--layout", "DP2SH3", shows="ZeRO 3"),
    family("tp-seq", GATED, "torch", 2, "--layout", "TP2+seq", shows="tensor and sequence parallel"),
    family("pp", SEQUENCE, "torch", 2, "--layout", "PP2", shows="pipeline parallel"),
    family("cp", GATED, "torch", 2, "--layout", "DP1CP2", shows="context parallel"),
    family("ep", "mixtral_8x7b", "torch", 2, "--layout", "DP2EP2", shows="expert parallel"),
    family("hybrid", GATED, "torch", 4, "--layout", "DP4SH3SP2", shows="hybrid sharding"),
    family("tp-pp", GATED, "torch", 8, "--layout", "DP2TP2PP2+seq", shows="a cross of three"),
    family("cp-zero3", GATED, "torch", 8, "--layout", "DP4CP2SH3", shows="a cross of two"),
    family("ep-zero1", "mixtral_8x7b", "torch", 4, "--layout", "DP4EP2SH1", shows="a cross of two"),
)

FAULTS = (
    Entry(
        "killed",
        0.7,
        training(SEQUENCE, "torch", 1),
        "a killed rank: words and evidence",
        module="torch",
        expects=("failed",),
        fault="kill",
    ),
    Entry(
        "hang",
        1.5,
        training(SEQUENCE, "torch", 1),
        "a hang: words and evidence",
        module="torch",
        expects=("timeout",),
        fault="stop",
    ),
    Entry(
        "out-of-memory",
        1.2,
        training("gpt2_small", "torch", 1, "--no-certificate", scale="full"),
        "another program fills the device: words and evidence",
        module="torch",
        expects=("oom",),
        chip_only=True,
        fault="full",
    ),
    Entry("after-faults", 0.7, training(SEQUENCE, "torch", 1), "what the faults left on the device", 1, "torch"),
)

OTHERS = (
    Entry("compiled", 1.5, training(GATED, "torch", 1, "--compile"), "torch.compile", 1, "torch", verdicts=ALIGNED),
    family("megatron", SEQUENCE, "megatron", 1, shows="megatron on one device"),
    family("megatron-llama", GATED, "megatron", 1, shows="megatron on one device"),
    family("megatron-gpt-bf16", f"{SEQUENCE}_bf16", "megatron", 1, shows="bf16 by megatron"),
    family("megatron-llama-bf16", f"{GATED}_bf16", "megatron", 1, shows="bf16 by megatron"),
    family("llama-fp8", f"{GATED}_fp8", "torch", 1, shows="fp8 at smoke scale")._replace(
        module=FP8["torch"], chip_only=True
    ),
    family("megatron-llama-fp8", f"{GATED}_fp8", "megatron", 1, shows="fp8 by megatron")._replace(
        module=FP8["megatron"], chip_only=True
    ),
    family("megatron-zero1", SEQUENCE, "megatron", 2, "--layout", "DP2SH1", shows="its distributed optimizer"),
    family("megatron-tp-seq", GATED, "megatron", 2, "--layout", "TP2+seq", shows="tensor and sequence parallel"),
    family("megatron-pp", SEQUENCE, "megatron", 2, "--layout", "PP2", shows="pipeline parallel"),
    family(
        *("megatron-interleaved", GATED, "megatron", 2, "--layout", "PP2", "--virtual-pipeline", "2"),
        shows="two model chunks a stage",
    ),
    family("megatron-cp", GATED, "megatron", 2, "--layout", "DP1CP2", shows="context parallel"),
    family("megatron-ep", "mixtral_8x7b", "megatron", 2, "--layout", "DP2EP2", shows="expert parallel"),
    family("megatron-tp-pp", GATED, "megatron", 8, "--layout", "DP2TP2PP2+seq", shows="a cross of three"),
    family("deepspeed-zero1", SEQUENCE, "deepspeed", 2, "--layout", "DP2SH1", shows="ZeRO 1"),
    family("deepspeed-zero2", SEQUENCE, "deepspeed", 2, "--layout", "DP2SH2", shows="ZeRO 2"),
    family("deepspeed-zero3", GATED, "deepspeed", 2, "--layout", "DP2SH3", shows="ZeRO 3"),
    family("deepspeed", SEQUENCE, "deepspeed", 1, shows="deepspeed on one device"),
    family("jax-gpt", SEQUENCE, "jax", 1, shows="jax on one device"),
    family("jax-llama", GATED, "jax", 1, shows="jax on one device"),
    one_device("llama-one-device-compiled", "llama_8b_wide", "--compile", shows="compiled, beside llama-one-device"),
    one_device("gpt-one-device-compiled", "gpt_1.3B", "--compile", shows="compiled, beside gpt-one-device"),
    one_device("llama-one-device-megatron", "llama_8b_wide", framework="megatron", shows="8B's width by megatron"),
    one_device("llama-one-device-fp8", "llama_8b_wide_fp8", shows="fp8 by torch")._replace(module=FP8["torch"]),
    one_device("llama-one-device-fp8-compiled", "llama_8b_wide_fp8", "--compile", shows="fp8, compiled")._replace(
        module=FP8["torch"]
    ),
    one_device("llama-one-device-fp8-megatron", "llama_8b_wide_fp8", framework="megatron", shows="fp8 by megatron"),
    one_device(
        *("llama-one-device-repeated", "llama_8b_wide", "--micro-batch", "8"),
        *("--recompute", "full", "--recompute-layers", "5"),
        shows="the first layers computed again",
    ),
    one_device("gpt-one-device-deepspeed", "gpt_1.3B", framework="deepspeed", shows="1.3B parameters by deepspeed"),
    one_device("gpt-one-device-jax", "gpt_1.3B", framework="jax", shows="1.3B parameters by jax"),
    whole("gpt2-medium", 2.5, "gpt2_medium", 1, shows="one device at full scale"),
    whole("gpt2-small-compiled", 2.0, "gpt2_small", 1, "--compile", shows="compiled, beside gpt2-small"),
    whole(*("fp8", 8.0, "flagperf_llama3_8b_fp8", 8, "--steps", "10"), shows="fp8 by torch")._replace(
        module=FP8["torch"]
    ),
    whole("gpt-20-steps-whole-batch", 9.0, SEQUENCE, 8, "--steps", "20", shows="the case's own batch"),
    whole("llama-20-steps-whole-batch", 25.0, GATED, 8, "--steps", "20", shows="the case's own batch"),
)

PLAN = (*(entry._replace(part="speed") for entry in SPEED), *FIRST, *FAMILIES, *FAULTS, *OTHERS)


def read_plan(path: Path | None) -> tuple[Entry, ...]:
    """Return the plan of the file, a list of entries by their fields, or the plan above. Raises ValueError."""
    if path is None:
        return PLAN
    try:
        rows: list[dict[str, Any]] = [
            {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
            for row in json.loads(path.read_text(encoding="utf-8"))
        ]
        entries = tuple(Entry(**row) for row in rows)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: found no plan: {error}; expected a list of entries as in check_plan.py") from None
    if len({e.name for e in entries}) < len(entries):
        raise ValueError(f"{path}: two entries have one name; give each its own")
    return entries

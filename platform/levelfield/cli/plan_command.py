"""`plan` (compare chips): memory and tokens/s of every layout, on any devices
`plan sweep` (compare chips): run the best layouts of a plan, prediction beside measurement
"""

from __future__ import annotations

import argparse
import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.cli.command_line import Command
from levelfield.cli.options import (
    RUN_HELP,
    add_chips_option,
    add_json_option,
    add_python_option,
    add_quiet_option,
    add_scale_option,
    registry_of,
    runs_folder,
)
from levelfield.cli.store_options import add_prices_option, add_recording_options, load_prices, run_recorder
from levelfield.cli.terminal import Terminal
from levelfield.errors import UsageError
from levelfield.report.result_words import status_in_words
from levelfield.report.sheets import pad_row
from levelfield.report.words import GIB, NONE, wrapped
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from levelfield.specs.prices import Prices
    from levelfield.studies.chip_planner import PlanRequest
    from levelfield.studies.variations import PredictedRun

_PLAN_HELP = """\
Predict every layout that the case, the framework and the devices allow, fastest
first: memory of the fullest device (GiB), tokens/s of one device, and MFU.
The devices may be absent.

examples:
  run_benchmarks.py plan gpt3_6.7B --chip A100-SXM4-80GB --devices 8
  run_benchmarks.py plan llama3_70b --chip H100 --devices 16384 --top 5
  run_benchmarks.py plan llama3_8b --chip H100 --nodes 4 --network 8x400Gb/s
  run_benchmarks.py plan llama3_8b --chip H100 --framework megatron --explain 1
  run_benchmarks.py plan llama3_8b --chip H100 --layout DP8 --micro-batch 1
  run_benchmarks.py plan llama3_70b --chip H100 --devices 64 --show-oom 5
  run_benchmarks.py plan llama3_8b --chip H100 --layout DP4CP2SH3
  run_benchmarks.py plan llama3_8b --chip B200 --precision nvfp4
  run_benchmarks.py plan llama3_8b --chip H100 --tokens 1T --prices prices.yaml
  run_benchmarks.py plan llama3_8b --chip H100,H200,MI300X --devices 8
  run_benchmarks.py plan llama3_70b --chip H100 --devices 64 --calibrate latest
  run_benchmarks.py plan llama3_8b:torch:H100:1:8

--layout shows one layout, whether it fits or not, and by how much. --program
takes the constants of another training stack (configs/planner).
docs/planner.md explains the formulas and their error against published results
"""
_SWEEP_HELP = """\
Run the best layouts of the plan on this machine's devices, one after another.
The table shows prediction beside measurement: tokens/s of one device, and the
memory of the fullest device in GiB. Layouts with equal predictions run once.

examples:
  run_benchmarks.py plan sweep gpt3_6.7B:torch:cpu:1:2 --top 4
  run_benchmarks.py plan sweep llama3_8b:megatron --top 3
"""
PRECISIONS = ("fp32", "bf16", "fp16", "fp8", "nvfp4")  # no case has nvfp4: it is predicted only
_TOKEN_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)([KMBT]?)", re.IGNORECASE)
_TOKEN_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
MAX_TOKENS = 1e18
ATTENTION_KERNELS = ("flash1", "triton", "flash2", "flash3", "cudnn", "efficient", "materialised")


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "case", metavar="CASE", help="a name of `show cases`; or a case string, case:framework[:chip[:nodes[:devices]]]"
    )
    option(
        "--chip",
        metavar="NAME",
        help="a chip of `show chips`; cpu: this host, measured by torch. Several, joined by commas, or a vendor: the "
        "best row of each",
    )
    option("--nodes", type=int, metavar="N", help="number of nodes (default: from --devices)")
    option("--devices", type=int, metavar="N", help="devices per node; without --nodes: devices of all nodes")
    option("--framework", metavar="NAME", help="default: torch")
    option("--network", metavar="RATE", help="network of a node: 100Gb/s, 8x400Gb/s (default: of `show chips`)")
    option(
        "--precision",
        choices=PRECISIONS,
        help="plan in this precision; fp8: also mxfp8; nvfp4: fp8 with matmuls in NVFP4, predicted only",
    )
    option("--scale", choices=("full", "smoke"), default="full", help="default: full")
    option("--top", type=int, default=10, metavar="N", help="rows to show (default: 10)")
    option(
        "--show-oom",
        type=int,
        default=0,
        metavar="N",
        help="show N rows that do not fit, and by how much, and N that need what the framework does not offer",
    )
    option("--explain", type=int, metavar="ROW", help="show the arithmetic of one row, with sources")
    option("--json", action="store_true", help="machine-readable output, with all parts of memory and time")
    add_chips_option(parser)
    option("--tokens", metavar="N", help="also what a training on so many takes, such as 300B or 1.5T")
    add_prices_option(parser)
    only = parser.add_argument_group("only these rows").add_argument
    only("--layout", metavar="LAYOUT", help="one layout, such as DP4TP2PP1 or DP8TP2PP1SH1SP8+seq")
    only("--micro-batch", type=int, metavar="N", help="sequences of a forward pass")
    only("--recompute", choices=("none", "selective", "full"), help="activation checkpointing: what is recomputed")
    only(
        "--recompute-layers",
        type=int,
        metavar="N",
        help="with --recompute full: only the first N layers of each virtual stage",
    )
    only("--virtual-pipeline", type=int, metavar="N", help="virtual stages of a pipeline stage")
    program = parser.add_argument_group("how the training is programmed (default: as models/* does)").add_argument
    program("--calibrate", metavar="RUN", help="set one rate by a run of your own on this chip: " + RUN_HELP)
    program("--program", metavar="NAME", help="another training stack, a name of `show programs`")
    program("--attention", choices=ATTENTION_KERNELS, metavar="KERNEL", help=", ".join(ATTENTION_KERNELS))
    program(
        "--tensor-overlap",
        type=float,
        metavar="SHARE",
        help="share of the tensor-parallel exchange that overlaps with computation",
    )


def _plan(options: argparse.Namespace) -> int:
    """Print the ranking, one row's arithmetic, or the best row of each chip. Return 0, also when no layout fits."""
    from levelfield.catalog.chip_names import find_chips
    from levelfield.cli.chip_plans import print_chip_plans
    from levelfield.cli.plan_tables import plan_content, plan_lines, print_arithmetic
    from levelfield.studies.chip_planner import ChipPlanner

    choices = _split_case_string(options)
    registry = registry_of(options)
    chips = find_chips(registry, choices["chip"])
    if len(chips) > 1:
        one_chip_options = {
            "explain": options.explain,
            "calibrate": options.calibrate,
            "show-oom": options.show_oom or None,
        }
        for name in (name for name, value in one_chip_options.items() if value is not None):
            raise UsageError(f"--{name}: found {len(chips)} chips, expected one; leave --{name} or the others out")
    if options.top < 1:
        raise UsageError(f"--top: found {options.top}, expected 1 or more")
    request = _plan_request(choices, runs_folder(options), load_prices(options.prices, registry))
    gc.disable()  # a search leaves no garbage: looking for it takes a tenth of the search's processor time
    try:
        if len(chips) > 1:
            print_chip_plans(request, registry, chips, options.json)
            return 0
        plan = ChipPlanner(request, registry, *chips[0], Terminal(quiet=options.json).say).plan()
    finally:
        gc.enable()
    if options.explain is not None:
        print_arithmetic(plan, options.explain, options.json)
    elif options.json:
        print(json_text(plan_content(plan, plan.ranking.rows[: options.top])))
    else:
        print("\n".join(plan_lines(plan, options.top)))
    return 0


def _split_case_string(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options with the parts of a case string. Raises UsageError for a part that an option repeats."""
    from levelfield.specs.selector import parse_selector, versioned_framework

    choices = dict(vars(options))
    if ":" in options.case:
        selector = parse_selector(options.case)
        parts = {
            "framework": versioned_framework(selector.framework, selector.version),
            "chip": selector.target,
            "layout": selector.layout,
            "nodes": selector.nodes if options.case.count(":") > 2 else None,
            "devices": selector.devices,
        }
        parts = {name: value for name, value in parts.items() if value is not None}
        for name in (name for name in parts if choices[name] is not None):
            raise UsageError(f"--{name}: found it in '{options.case}' too; leave one of the two out")
        choices |= {**parts, "case": selector.case}
    if choices["chip"] is None:
        case = choices["case"]
        raise UsageError(f"plan {case}: found no chip; give --chip NAME or case:framework:chip (`show chips`)")
    return choices


def _plan_request(choices: Mapping[str, Any], runs: Path, prices: Prices | None) -> PlanRequest:
    from levelfield.predict.layout_search import SearchConstraints
    from levelfield.specs.layout import parse_layout
    from levelfield.studies.chip_planner import PlanRequest

    constraints = SearchConstraints(
        layout=parse_layout(choices["layout"]).layout if choices["layout"] else None,
        **{name: choices[name] for name in ("micro_batch", "recompute", "recompute_layers", "virtual_pipeline")},
    )
    shared_names = ("case", "scale", "nodes", "devices", "network", "precision", "program", "attention")
    return PlanRequest(
        **{name: choices[name] for name in (*shared_names, "tensor_overlap")},
        calibration_run=choices["calibrate"],
        extra_rows=choices["show_oom"],
        framework=choices["framework"] or "torch",
        constraints=constraints,
        runs=runs,
        tokens=_parse_tokens(choices["tokens"]),
        prices=prices,
    )


def _parse_tokens(text: str | None) -> float | None:
    """Return the number of tokens that `300B` or `1.5T` stands for. Raises UsageError."""
    if text is None:
        return None
    match = _TOKEN_COUNT.fullmatch(text.strip())
    tokens = float(match[1]) * _TOKEN_UNITS[match[2].upper()] if match else 0.0
    if not 1 <= tokens <= MAX_TOKENS:
        raise UsageError(f"--tokens: found '{text[:40]}', expected 1 to 1e18 tokens, such as 300B, 1.5T or 2e12")
    return tokens


def _add_sweep_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", metavar="CASE", help="a case string: case:framework[:chip[:nodes[:devices]]]")
    parser.add_argument("--top", type=int, default=3, metavar="N", help="number of layouts to run (default: 3)")
    add_scale_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the predictions and run nothing")
    add_python_option(parser)
    add_recording_options(parser)
    add_chips_option(parser)
    add_json_option(parser)
    add_quiet_option(parser)


def _sweep(options: argparse.Namespace) -> int:
    """Run the layouts and print the table. Return the exit code as `run` does."""
    from levelfield.catalog import lookup
    from levelfield.cli.run_entries import exit_code, run_jobs
    from levelfield.plan.arrangement import choose_scale
    from levelfield.plan.request import Decision, UserRequest
    from levelfield.predict.layout_search import search_layouts
    from levelfield.run import scheduler
    from levelfield.run.measurement import load_host_rates
    from levelfield.specs.selector import parse_selector
    from levelfield.studies.variations import distinct_rows, host_rates, local_question, predicted_run, row_entries

    if options.top < 1:
        raise UsageError(f"--top: found {options.top}, expected 1 or more")
    terminal = Terminal(quiet=options.quiet or options.json, record_run=run_recorder(options.store, options.no_store))
    registry, selector = registry_of(options), parse_selector(options.case)
    if selector.layout or selector.nodes > 1:
        raise UsageError(
            f"sweep {options.case}: found a layout or several nodes; leave both out, sweep chooses layouts on one node"
        )
    selection = lookup.find_selection(registry, selector)
    request = UserRequest(scale=options.scale, python=options.python)
    scaled_case, _ = choose_scale(Decision(options.case, selector, selection, request, options.scale))
    devices = selector.devices or selection.default_devices
    rates = None
    if selection.vendor.is_host:
        rates = load_host_rates(registry) if options.dry_run else host_rates(registry, terminal.say)
        if rates is None:
            raise UsageError(
                f"sweep {options.case}: the rates of this host are not known, and a dry run measures nothing; "
                f"`plan {selector.case} --chip {selection.vendor.name}` measures them (about a minute)"
            )
    question = local_question(registry, selection, scaled_case.work, devices, rates)
    rows = distinct_rows(search_layouts(question).rows)[: options.top]
    if not rows:
        raise UsageError(f"sweep {options.case}: no layout fits; `plan` shows what the smallest needs")
    predicted_runs = [predicted_run(row) for row in rows]
    if not options.dry_run:
        entries = row_entries(rows, selector, selection.vendor.name, devices, request, scaled_case.scale)
        jobs = scheduler.plan_jobs(registry, entries, None)
        results = run_jobs(jobs, runs_folder(options), terminal, registry)
        predicted_runs = [predicted_run(row, result) for row, result in zip_longest(rows, results)]
    if options.json:
        content = {"schema": "levelfield.sweep/1", "rows": [_sweep_content(run) for run in predicted_runs]}
        print(json_text(content))
    else:
        print("\n".join(_sweep_lines(predicted_runs)))
    return exit_code([run.result for run in predicted_runs if run.result])


def _sweep_lines(predicted_runs: Sequence[PredictedRun]) -> Iterator[str]:
    yield pad_row(("", "tokens/s/device", "GiB"), (37, -21, -14), gap="")
    widths = (21, -5, 8, -10, -9, -5, -6, -6)
    yield pad_row(("layout", "micro", "again", "predicted", "measured", "off", "pred.", "meas."), widths, " ")
    for run in predicted_runs:
        row, rate, difference, memory = run.row, run.measured_rate, run.rate_difference, run.measured_memory
        measured = (
            f"{rate:,.0f}" if rate else NONE,
            NONE if difference is None else f"{difference:+.0%}",
            f"{row.memory.total / GIB:.2f}",
            f"{memory / GIB:.2f}" if memory else NONE,
        )
        predicted = (row.layout, row.tuning.micro_batch, row.tuning.recomputation, f"{row.tokens_per_second:,.0f}")
        yield pad_row((*predicted, *measured), widths, " ")
    for run in predicted_runs:
        if run.result and status_in_words(run.result) != "valid":
            texts = (str(run.row.layout), status_in_words(run.result), run.result.status.evidence)
            yield wrapped(": ".join(filter(None, texts)), 4)


def _sweep_content(run: PredictedRun) -> dict[str, object]:
    row = run.row
    return {
        "layout": str(row.layout),
        "micro_batch": row.tuning.micro_batch,
        "recompute": row.tuning.recompute,
        "recompute_layers": row.tuning.recompute_layers,
        "virtual_pipeline": row.tuning.virtual_pipeline,
        "predicted_tokens_per_second_per_device": row.tokens_per_second,
        "measured_tokens_per_second_per_device": run.measured_rate,
        "predicted_memory_bytes": row.memory.total,
        "measured_memory_bytes": run.measured_memory,
        "run": run.result.run_id if run.result else None,
        "status": run.result.status.word if run.result else "not-run",
    }


COMMANDS = {
    "plan": Command(_PLAN_HELP, _add_plan_options, _plan),
    "plan sweep": Command(_SWEEP_HELP, _add_sweep_options, _sweep, trains=True),
}

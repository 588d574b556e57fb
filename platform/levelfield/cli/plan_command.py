"""`plan` (compare chips): memory and tokens/s of every layout, on any devices"""

from __future__ import annotations

import argparse

from levelfield.cli.command_line import Command
from levelfield.cli.options import chips_option

DESCRIPTION = """\
Predict every layout that the case, the framework and the devices allow, fastest
first: memory of the fullest device (GiB), tokens/s of one device, and MFU.
The devices may be absent.

examples:
  run_benchmarks.py plan gpt3_6.7B --chip A100-SXM4-80GB --devices 8
  run_benchmarks.py plan llama3_70b --chip H100 --devices 16384 --top 5
  run_benchmarks.py plan llama3_8b --chip H100 --nodes 4 --network 8x400Gb/s
  run_benchmarks.py plan llama3_8b --chip H100 --framework megatron --explain 1
  run_benchmarks.py plan llama3_8b --chip H100 --layout DP8 --micro-batch 1
  run_benchmarks.py plan llama3_70b --chip H100 --devices 64 --beyond 5
  run_benchmarks.py plan llama3_8b --chip H100 --layout DP4CP2SH3
  run_benchmarks.py plan gpt2_medium --chip A100 --precision tf32
  run_benchmarks.py plan llama3_8b:torch:H100:1:8 --rehearse
  run_benchmarks.py plan gpt2_small:torch:H100:1:1 --rehearse 1 --compile

--layout shows one layout, whether it fits or not, and by how much. --program
takes the constants of other people's training code (configs/planner).
docs/planner.md explains the formulas and their error against published figures

--rehearse runs the real training of the first rows at full scale on pretended
NVIDIA devices, a minute or three each, and shows what torch's allocator took:
memory is real, speed and numbers are not. It needs no GPU, but gcc and a CUDA
build of the framework (5 GB):
  run_benchmarks.py environment make torch --vendor nvidia --any-driver
Exit code 3: a row did not run to its end. 4: an allocation failed or flushed.
"""
# tf32 is no precision of a case: its values have 32 bits, and only products round them.
PRECISIONS = ("fp32", "bf16", "fp16", "fp8", "tf32")
KERNELS = ("flash1", "triton", "flash2", "flash3", "cudnn", "efficient", "materialised")
REHEARSED = 3  # rows, where --rehearse has no number


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "case", metavar="CASE", help="a name of `show cases`; or a case string, case:framework[:chip[:nodes[:devices]]]"
    )
    parser.add_argument("--chip", metavar="NAME", help="a chip of `show chips`; cpu: this host, measured")
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: from --devices)")
    parser.add_argument(
        "--devices", type=int, metavar="N", help="devices per node; without --nodes: devices of all nodes"
    )
    parser.add_argument("--framework", metavar="NAME", help="default: torch")
    parser.add_argument(
        "--network", metavar="RATE", help="network of a node: 100Gb/s, 8x400Gb/s (default: 200 Gb/s per device)"
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, help="plan as if the case had this one; tf32: fp32 with products in TF32"
    )
    parser.add_argument("--scale", choices=("full", "smoke"), default="full", help="default: full")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows to show (default: 10)")
    parser.add_argument(
        "--beyond",
        type=int,
        default=0,
        metavar="N",
        help="show N rows that do not fit, and by how much, and N that need what the framework does not offer",
    )
    parser.add_argument("--explain", type=int, metavar="ROW", help="show the arithmetic of one row, with sources")
    parser.add_argument(
        "--json", action="store_true", help="machine-readable output, with all parts of memory and time"
    )
    chips_option(parser)
    real = parser.add_argument_group("the real code, without the device")
    real.add_argument(
        "--rehearse",
        type=int,
        nargs="?",
        const=REHEARSED,
        metavar="N",
        help=f"rehearse the first N rows on pretended devices (default: {REHEARSED})",
    )
    real.add_argument(
        "--compile", action="store_true", help="with --rehearse: by torch.compile; shows kernels and graph breaks"
    )
    asked = parser.add_argument_group("only these rows")
    asked.add_argument("--layout", metavar="LAYOUT", help="one layout, such as DP4TP2PP1 or DP8TP2PP1SH1SP8+seq")
    asked.add_argument("--micro-batch", type=int, metavar="N", help="sequences of a forward pass")
    asked.add_argument("--recompute", choices=("none", "selective", "full"), help="what is computed again")
    asked.add_argument("--virtual-pipeline", type=int, metavar="N", help="model chunks of a pipeline stage")
    program = parser.add_argument_group("how the training is programmed (default: as models/* does)")
    program.add_argument("--program", metavar="NAME", help="others' code, by its name in configs/planner/*.yaml")
    program.add_argument("--attention", choices=KERNELS, metavar="KERNEL", help=", ".join(KERNELS))
    program.add_argument("--overlap", type=float, metavar="SHARE", help="share of data-parallel exchange that overlaps")
    program.add_argument("--tensor-overlap", type=float, metavar="SHARE", help="the same of tensor parallelism")


def execute(options: argparse.Namespace) -> int:
    """Print the ranking or one row's arithmetic. Return 0, also when no layout fits; with --rehearse as it went."""
    from levelfield.cli.plan_question import planned
    from levelfield.cli.plan_tables import print_explained, print_plan, rehearsed

    plan = planned(options)
    if plan.rehearser:
        return rehearsed(plan, plan.rehearser, options)
    if options.explain is None:
        print_plan(plan, options)
    else:
        print_explained(plan, options)
    return 0


COMMANDS = {"plan": Command(DESCRIPTION, arguments, execute)}

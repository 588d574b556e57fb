"""`run`: run the given cases and suites; the word may be left out"""

from __future__ import annotations

import argparse
from pathlib import Path

from levelfield.cli.command_line import Command
from levelfield.cli.options import (
    ParserOrGroup,
    add_chips_option,
    add_detach_option,
    add_free_field_options,
    add_json_option,
    add_python_option,
    add_quiet_option,
    add_scale_option,
    size_in_bytes,
)
from levelfield.cli.site_options import BASE_HAS_FRAMEWORK_HELP, BASE_IMAGE_HELP, add_runtime_option, add_site_options
from levelfield.cli.store_options import add_recording_options

_DEFAULT_EXPLAINED_STEPS = 3  # of --explain-step without a number
_HELP = """\
Train cases and compute their results from the raw files. `plan` predicts what
fits, `show cases` lists the cases. The word `run` may be left out.

examples:
  run_benchmarks.py --case gpt3_6.7B:torch          smoke without accelerator
  run_benchmarks.py --case llama3_8b:torch:cpu:1:2  two processes
  run_benchmarks.py --case gpt3_6.7B:torch --layout TP2PP1 --dry-run
  run_benchmarks.py --suite smoke --repeat 3
  run_benchmarks.py --suite oneflow_gpt --dry-run   as a table
  run_benchmarks.py --suite smoke --detach          goes on without this shell

a case string:
  case:framework[_version][:vendor-or-chip[:nodes[:devices[:repeats]]]]
versions: those of the framework's manifest; without one, its default
layouts: DP4TP2PP1, PP2DP4TP1, 8x1x4 (data x tensor x pipeline), TP1PP1SH2SP8
(sharding stage and degree), 1n_8g_dp_4bs, 1n_8g_2dp_4mp_4bs; +seq adds
sequence parallelism; PP2DP4TP1 is planned as FlagPerf's row of it ran

exit codes: 0 success, 2 wrong usage or configuration, 3 a run failed,
4 a check failed, 5 a fault of the platform, 130 interrupted
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "run_benchmarks.py --case CASE:FRAMEWORK[:...] [options]"
    _add_work_options(parser.add_argument_group("what to run"))
    case_changes = parser.add_argument_group("changes of the case (they make a derived case, compared with no other)")
    case_changes.add_argument("--steps", type=int, metavar="N", help="training steps")
    case_changes.add_argument("--sequence-length", type=int, metavar="N", help="tokens of a sequence")
    case_changes.add_argument("--global-batch", type=int, metavar="N", help="sequences of a step")
    case_changes.add_argument("--seed", type=int, metavar="N", help="seed of the weights and of the data's order")
    free_choices = parser.add_argument_group("free choices (the case fixes everything else)")
    add_free_field_options(free_choices)
    free_choices.add_argument(
        "--strategy", type=Path, metavar="FILE", help="FlagPerf's config_*.py: its layout, batch and recomputation"
    )
    _add_mode_options(parser.add_argument_group("how to run it"))
    _add_place_options(parser.add_argument_group("where it runs"))


def _add_work_options(group: ParserOrGroup) -> None:
    group.add_argument("--case", action="append", default=[], metavar="STRING", help="a case string; may be repeated")
    group.add_argument(
        "--suite", action="append", default=[], metavar="NAME|FILE", help="a list of cases; may be repeated"
    )
    group.add_argument(
        "--entry", action="append", default=[], metavar="NAME", help="only this entry of the suites; may be repeated"
    )
    group.add_argument("--framework", metavar="NAME", help="run the suites' entries through this framework")
    group.add_argument("--repeat", type=int, metavar="N", help="run each case N times")
    group.add_argument(
        "--nodes", metavar="N,N,...", help="each case on these numbers of nodes, such as 1,2,4, with a table of scaling"
    )
    group.add_argument(
        "--weak",
        action="store_true",
        help="with --nodes: --global-batch is the smallest run's and grows with the nodes",
    )
    group.add_argument(
        "--parallel",
        type=int,
        metavar="N",
        help="run N entries at once, whose nodes an engine chooses; the repeats of one stay one after another",
    )
    add_scale_option(group)
    group.add_argument(
        "--explain", action="store_true", help="with --dry-run: the arithmetic of the predicted memory and time"
    )
    group.add_argument(
        "--data", metavar="PREFIX", help="a dataset, PREFIX.bin/.idx or PREFIX_ids.npy/_idx.npz (default: synthetic)"
    )


def _add_mode_options(group: ParserOrGroup) -> None:
    group.add_argument("--dry-run", action="store_true", help="show the plan with all commands, and run nothing")
    add_detach_option(group)
    group.add_argument(
        "--assume-hardware",
        metavar="HARDWARE",
        help='with --dry-run: plan for this hardware, such as "4x8 V100-SXM2-16GB" (nodes x devices)',
    )
    add_python_option(group)
    group.add_argument("--probe", action="store_true", help="measure the matmul peak even if a published one exists")
    group.add_argument(
        "--no-certificate",
        action="store_true",
        help="in 16 bits or at full scale: skip the fp32 equivalence check, about a minute at smoke scale; without it "
        "no run is aligned",
    )
    group.add_argument(
        "--explain-step",
        type=int,
        nargs="?",
        const=_DEFAULT_EXPLAINED_STEPS,
        metavar="N",
        help=f"record N steps more after the last one ({_DEFAULT_EXPLAINED_STEPS}) for `report explain`; "
        "no metric changes",
    )
    group.add_argument("--save-weights", action="store_true", help="write the weights after the last step")
    add_chips_option(group)
    add_json_option(group, " on stdout")
    add_quiet_option(group)
    add_recording_options(group)


def _add_place_options(group: ParserOrGroup) -> None:
    add_runtime_option(group)
    add_site_options(group)
    group.add_argument(
        "--preflight",
        action=argparse.BooleanOptionalAction,
        help="measure the nodes and their collectives before the training (default: with several named hosts)",
    )
    group.add_argument(
        "--quiet-machine",
        action="store_true",
        help="measure that first, and train nothing where others use a device or the CPUs",
    )
    group.add_argument(
        "--devices", metavar="N,N-N", help="take these devices of this machine, by the vendor's tool, such as 0-3"
    )
    group.add_argument("--base-image", metavar="IMAGE", help=BASE_IMAGE_HELP)
    group.add_argument("--base-has-framework", action="store_true", help=BASE_HAS_FRAMEWORK_HELP)
    group.add_argument("--offline", action="store_true", help="fetch neither wheels nor images from a network")
    group.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="WHAT",
        help="give a vendor's container more of the host, such as ipc:host or device:/dev/acme*; may be repeated",
    )
    group.add_argument(
        "--container-memory", type=size_in_bytes, metavar="SIZE", help="memory limit per container in bytes, or as 8G"
    )


def execute(options: argparse.Namespace) -> int:
    """Run all given cases and suites.

    Return 0 when every run is valid and none differs from its reference, 3 when a run is not valid, 4 when a valid run
    differs from its reference, 130 when interrupted.
    """
    from levelfield.cli.run_entries import run_or_show

    return run_or_show(options)


COMMANDS = {"run": Command(_HELP, add_options, execute, trains=True)}

"""`run`: run the given cases and suites; the word may be left out"""

from __future__ import annotations

import argparse
from pathlib import Path

from levelfield.cli.command_line import Command
from levelfield.cli.options import (
    ParserOrGroup,
    add_chips_option,
    add_free_field_options,
    add_json_option,
    add_python_option,
    add_quiet_option,
    add_scale_option,
    size_in_bytes,
)
from levelfield.cli.site_options import BASE_HAS_FRAMEWORK, BASE_IMAGE, add_runtime_option, add_site_options
from levelfield.cli.store_options import add_recording_options

_EXPLAINED = 3  # steps that are recorded where no number is given
_HELP = """\
Train cases and compute their results from the raw files. `plan` predicts what
fits, `show cases` lists the cases. The word `run` may be left out.

examples:
  run_benchmarks.py --case gpt3_6.7B:torch          smoke without accelerator
  run_benchmarks.py --case llama3_8b:torch:cpu:1:2  two processes
  run_benchmarks.py --case gpt3_6.7B:torch --layout TP2PP1 --dry-run
  run_benchmarks.py --suite smoke --repeat 3
  run_benchmarks.py --suite oneflow_gpt --dry-run   as a table

a case string:
  case:framework[_version][:vendor-or-chip[:nodes[:devices[:repeats]]]]
versions: those of the framework's manifest; without one, its default
layouts: DP4TP2PP1, PP2DP4TP1, 8x1x4 (data x tensor x pipeline), TP1PP1SH2SP8
(sharding stage and degree), 1n_8g_dp_4bs, 1n_8g_2dp_4mp_4bs; +seq adds
sequence parallelism; PP2DP4TP1 is planned as FlagPerf's row of it ran

exit codes: 0 success, 2 wrong usage or configuration, 3 a run failed,
4 a check failed, 5 a fault of the platform, 130 interrupted
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "run_benchmarks.py --case CASE:FRAMEWORK[:...] [options]"
    _work_options(parser.add_argument_group("what to run"))
    derived = parser.add_argument_group("changes of the case (they make a derived case, compared with no other)")
    derived.add_argument("--steps", type=int, metavar="N", help="training steps")
    derived.add_argument("--sequence-length", type=int, metavar="N", help="tokens of a sequence")
    derived.add_argument("--global-batch", type=int, metavar="N", help="sequences of a step")
    derived.add_argument("--seed", type=int, metavar="N", help="seed of the weights and of the data's order")
    free = parser.add_argument_group("free choices (the case fixes everything else)")
    add_free_field_options(free)
    free.add_argument(
        "--strategy", type=Path, metavar="FILE", help="FlagPerf's config_*.py: its layout, batch and recomputation"
    )
    _way_options(parser.add_argument_group("how to run it"))
    _place_options(parser.add_argument_group("where it runs"))


def _work_options(what: ParserOrGroup) -> None:
    what.add_argument("--case", action="append", default=[], metavar="STRING", help="a case string; may be repeated")
    what.add_argument(
        "--suite", action="append", default=[], metavar="NAME|FILE", help="a list of cases; may be repeated"
    )
    what.add_argument(
        "--entry", action="append", default=[], metavar="NAME", help="only this entry of the suites; may be repeated"
    )
    what.add_argument("--framework", metavar="NAME", help="run the suites' entries through this framework")
    what.add_argument("--repeat", type=int, metavar="N", help="run each case N times")
    what.add_argument(
        "--nodes", metavar="N,N,...", help="each case on these numbers of nodes, such as 1,2,4, with a table of scaling"
    )
    what.add_argument(
        "--weak",
        action="store_true",
        help="with --nodes: --global-batch is the smallest run's and grows with the nodes",
    )
    add_scale_option(what)
    what.add_argument(
        "--explain", action="store_true", help="with --dry-run: the arithmetic of the predicted memory and time"
    )
    what.add_argument(
        "--data", metavar="PREFIX", help="a dataset, PREFIX.bin/.idx or PREFIX_ids.npy/_idx.npz (default: synthetic)"
    )


def _way_options(how: ParserOrGroup) -> None:
    how.add_argument("--dry-run", action="store_true", help="show the plan with all commands, and run nothing")
    how.add_argument(
        "--assume-hardware",
        metavar="HARDWARE",
        help='with --dry-run: plan for this hardware, such as "4x8 V100-SXM2-16GB" (nodes x devices)',
    )
    add_python_option(how)
    how.add_argument("--probe", action="store_true", help="measure the matmul peak even if a published one exists")
    how.add_argument(
        "--no-certificate",
        action="store_true",
        help="in 16 bits or at full scale: skip the fp32 equivalence check, about a minute at smoke scale; without it "
        "no run is aligned",
    )
    how.add_argument(
        "--explain-step",
        type=int,
        nargs="?",
        const=_EXPLAINED,
        metavar="N",
        help=f"record N steps more after the last one ({_EXPLAINED}) for `report explain`; no metric changes",
    )
    how.add_argument("--save-weights", action="store_true", help="write the weights after the last step")
    add_chips_option(how)
    add_json_option(how, " on stdout")
    add_quiet_option(how)
    add_recording_options(how)


def _place_options(where: ParserOrGroup) -> None:
    add_runtime_option(where)
    add_site_options(where)
    where.add_argument(
        "--attach",
        metavar="RUN",
        help="watch a run whose platform was killed while its job goes on, such as one of Slurm, and collect it",
    )
    where.add_argument(
        "--preflight",
        action=argparse.BooleanOptionalAction,
        help="measure the nodes and their collectives before the training (default: with several named hosts)",
    )
    where.add_argument(
        "--quiet-machine",
        action="store_true",
        help="measure that first, and train nothing where others use a device or the CPUs",
    )
    where.add_argument(
        "--devices", metavar="N,N-N", help="take these devices of this machine, by the vendor's tool, such as 0-3"
    )
    where.add_argument("--base-image", metavar="IMAGE", help=BASE_IMAGE)
    where.add_argument("--base-has-framework", action="store_true", help=BASE_HAS_FRAMEWORK)
    where.add_argument("--offline", action="store_true", help="fetch neither wheels nor images from a network")
    where.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="WHAT",
        help="give a vendor's container more of the host, such as ipc:host or device:/dev/acme*; may be repeated",
    )
    where.add_argument(
        "--container-memory", type=size_in_bytes, metavar="SIZE", help="memory limit per container in bytes, or as 8G"
    )


def execute(options: argparse.Namespace) -> int:
    """Run all given cases and suites.

    Return 0 when every run is valid and none differs from its reference, 3 when a run is not valid, 4 when a valid run
    differs from its reference, 130 when interrupted.
    """
    from levelfield.cli.run_entries import run_all

    return run_all(options)


COMMANDS = {"run": Command(_HELP, arguments, execute, trains=True)}

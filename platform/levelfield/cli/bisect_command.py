"""`nightly bisect`: the first commit or package version that made a case worse"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.options import base_image, chips_option, container_options, json_option
from levelfield.errors import UsageError
from levelfield.report.words import wrapped

if TYPE_CHECKING:
    from levelfield.nights.bisection import FirstBad
    from levelfield.run.builds import Pin
    from levelfield.series.pairs import Side
    from levelfield.specs.plan import ImplementationUsed
    from levelfield.specs.record import Gated

    Candidate = tuple[str, Pin | None]

_HELP = """\
Find the first build with which a case got worse. Each build of the list is run
beside the good one, in ABBA order on this machine, three to seven pairs, until
the difference is proven or excluded. A build that cannot be decided is left
out, and the answer names the two builds that it lies between.

With --package the commit stays, and a version that the framework's manifest
pins changes; each version gets an environment of its own. Packages that only
work in the same version are named together.

examples:
  run_benchmarks.py nightly bisect v1.0 HEAD --case gpt3_6.7B:torch:cpu:1:1
  run_benchmarks.py nightly bisect --package torch \\
      --versions 2.11.0 2.12.0 2.13.0 --case gpt3_6.7B:torch:cpu:1:1
  run_benchmarks.py nightly bisect --package jax jaxlib \\
      --versions 0.10.1 0.10.2 --case gpt3_6.7B:jax:cpu:1:1 --figure memory
"""
FIGURES: dict[str, Gated] = {
    "speed": "tokens_per_second_per_device",
    "memory": "memory_bytes",
    "energy": "joules_per_token",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("commits", nargs="*", metavar="GOOD BAD", help="a good commit, and a bad one after it")
    parser.add_argument("--case", required=True, metavar="STRING", help="the case string to run")
    parser.add_argument("--figure", choices=tuple(FIGURES), default="speed", help="what got worse (default: speed)")
    parser.add_argument(
        "--package", nargs="+", metavar="NAME", help="search versions of this package, or of these, instead of commits"
    )
    parser.add_argument("--versions", nargs="+", default=[], metavar="V", help="with --package: the good one first")
    parser.add_argument("--scale", choices=("auto", "smoke", "full"), default="auto", help="default: auto")
    container_options(parser)
    parser.add_argument("--python", metavar="PATH", help="train every build with this Python")
    chips_option(parser)
    json_option(parser)
    parser.add_argument("--quiet", action="store_true", help="print only the answer")


def execute(options: argparse.Namespace) -> int:
    """Print the first bad build and return 0. Raises RunFailed where the last build is not worse than the first."""
    from levelfield.cli.options import registry_of
    from levelfield.cli.terminal import Terminal
    from levelfield.nights.bisection import BuildTrials, first_bad
    from levelfield.plan.request import Entry, UserRequest
    from levelfield.run import scheduler
    from levelfield.run.builds import build_of
    from levelfield.rundir.directory import default_runs

    terminal = Terminal(quiet=options.quiet or options.json)
    request = UserRequest(
        scale=options.scale,
        runtime=options.runtime,
        base_image=base_image(options),
        python=options.python,
        repeat=1,
    )
    (job,) = scheduler.jobs(registry_of(options), [Entry(options.case, request)], None)
    candidates = _candidates(options, job.plan.implementation)
    good = build_of(*candidates[0], say=terminal.say)
    runs = options.runs or default_runs()
    trials = BuildTrials(job.plan, good, FIGURES[options.figure], runs, options.plugins, terminal.say)

    def answer(candidate: Candidate) -> Side:
        build = build_of(*candidate, say=terminal.say)
        terminal.say(f"trying {build}")
        found = trials.answer(build)
        terminal.say(f"{build} is {found}")
        return found

    _print([_name(each) for each in candidates], first_bad(candidates, answer), options.json)
    return 0


def _candidates(options: argparse.Namespace, used: ImplementationUsed) -> list[Candidate]:
    """Return commits with their pins, the good one first. Raises UsageError for a mix of both kinds of search."""
    from levelfield.run.builds import Pin, commits_between, head

    if options.package:
        if options.commits or len(options.versions) < 2:
            raise UsageError(
                "bisect --package: found no two --versions, or also commits; expected --versions GOOD ... BAD alone"
            )
        if used.is_further:
            raise UsageError(
                f"bisect --package: found {used.label}, whose pins stay; expected {used.framework}, the default version"
            )
        return [(head(), Pin(used.framework, tuple(options.package), version)) for version in options.versions]
    if len(options.commits) != 2 or options.versions:
        raise UsageError(f"bisect: found {len(options.commits)} commits, expected two, GOOD and BAD, or --package")
    return [(commit, None) for commit in commits_between(*options.commits)]


def _name(candidate: Candidate) -> str:
    commit, pin = candidate
    return commit[:12] if pin is None else str(pin)


def _print(names: list[str], found: FirstBad, as_json: bool) -> None:
    undecided = [names[place] for place in found.undecided]
    if as_json:
        trials = [{"build": names[trial.place], "answer": trial.answer} for trial in found.trials]
        content = {"last_good": names[found.good], "first_bad": names[found.bad], "undecided": undecided}
        print(json.dumps({"schema": "levelfield.bisect/1", **content, "trials": trials}, indent=2))
        return
    print(f"first bad  {names[found.bad]}")
    print(f"last good  {names[found.good]}")
    if undecided:
        print(wrapped(f"undecided  {', '.join(undecided)}", 11))
    print(f"tried      {len(found.trials)} of {len(names)} builds")


COMMANDS = {
    "nightly bisect": Command(_HELP, arguments, execute, trains=True),
}

"""The commands that decide an inconclusive ratio: a duel where one machine can run both sides, else more repeats."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from levelfield.compare.ratios import MIN_RUNS
from levelfield.compare.sides import ComparedSide, tuning_of
from levelfield.specs.free_fields import FREE_FIELDS, RECOMPUTE_LAYERS

_ENVIRONMENT = "environment"


@dataclass(frozen=True)
class DecidingCommand:
    """A command that runs as it is printed, and the machine that it has to run on."""

    machine: str
    text: str


def deciding_commands(side: ComparedSide, base: ComparedSide) -> tuple[DecidingCommand, ...]:
    """Return the commands that tell two sides apart; none where no further run can.

    No command can repeat the variables of an earlier run, whose values may be secrets, nor several nodes, whose names
    no series has. Where both sides have the same command they are two builds, and it runs only the present one.
    """
    ours, theirs = side.first, base.first
    if ours.conditions.variables != theirs.conditions.variables or any(map(_has_chosen_variables, (side, base))):
        return ()
    if max(ours.series.nodes, theirs.series.nodes) > 1:
        return ()
    arms = [(base, _field_options(base, side)), (side, _field_options(side, base))]
    cases = [arm.first.series.target for arm, _ in arms]
    scale_option = ("--scale", ours.series.scale) if ours.series.scale != "full" else ()
    is_one_machine = (ours.series.chip, ours.node) == (theirs.series.chip, theirs.node)
    runtimes = {ours.series.runtime, theirs.series.runtime}
    if is_one_machine and runtimes == {"process"}:
        if (cases[0], arms[0][1]) == (cases[1], arms[1][1]):
            return ()
        settings = [
            f"--{name}={shlex.quote(options)}" for name, (_, options) in zip("ab", arms, strict=True) if options
        ]
        words = shlex.join(("run_benchmarks.py", "compare", "duel", *cases, *scale_option))
        return (DecidingCommand("the same machine", " ".join((words, *settings))),)
    commands = []
    for (arm, options), case in zip(arms, cases, strict=True):
        if len(arm.counted) < MIN_RUNS:
            runtime = arm.first.series.runtime
            runtime_option = ("--runtime", runtime) if runtime != "process" else ()
            words = shlex.join(
                ("run_benchmarks.py", "--case", case, "--repeat", str(MIN_RUNS), *scale_option, *runtime_option)
            )
            commands.append(DecidingCommand(f"the machine of {arm.name}", " ".join(filter(None, (words, options)))))
    return tuple(commands)


def _has_chosen_variables(side: ComparedSide) -> bool:
    tuning = side.first.result.tuning
    return tuning is not None and tuning.chosen.get(_ENVIRONMENT, "vendor") != "vendor"


def _field_options(side: ComparedSide, other: ComparedSide) -> str:
    """Return the options that choose the side's free fields: those in which the sides differ, and those that a user
    chose. A base run beside a peak one has the defaults alone."""
    if (tuning_of(side.first), tuning_of(other.first)) == ("base", "peak"):
        return "--base"
    tuning, series = side.first.result.tuning, side.first.series
    chosen = {name for name, who in tuning.chosen.items() if who != "vendor"} if tuning else set[str]()
    names = {n for n in FREE_FIELDS if n in chosen or getattr(series, n) != getattr(other.first.series, n)}
    if RECOMPUTE_LAYERS in names:  # these are a part of it
        names.add("recompute")
    return shlex.join(series.options_of(name for name in FREE_FIELDS if name in names))

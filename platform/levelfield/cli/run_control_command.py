"""`run status`: what goes on now, or one run: its step, platform and exit code
`run log`: what a detached run prints
`run attach`: show the rest of a run, and end with its exit code
`run cancel`: end a run as Ctrl-C in its shell does
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.checkout import checkout
from levelfield.cli.command_line import Command
from levelfield.cli.options import RUN_HELP, add_json_option, add_quiet_option, registry_of, runs_folder
from levelfield.cli.store_options import add_recording_options, run_recorder
from levelfield.cli.terminal import Terminal, print_command, print_wrapped, program_command, short_path
from levelfield.errors import INTERRUPTED, RunFailed, UsageError
from levelfield.node.regular_files import open_regular
from levelfield.report.escapes import one_line
from levelfield.report.sheets import entry_lines, labelled_line
from levelfield.report.words import format_number
from levelfield.rundir.detached_calls import CALLS_FOLDER, Call, end_call, read_call
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from levelfield.run.run_control import Target
    from levelfield.specs.result import Result

_STATUS_HELP = """\
Show what a run does: its step and speed, since when, which process runs it on
which host, and its exit code when it has ended. Without RUN: what goes on now.
After its platform was killed: what of the training still lives.

examples:
  run_benchmarks.py run status
  run_benchmarks.py run status RUN --json
"""
_LOG_HELP = """\
Print what a detached run has printed. --follow goes on until it ends.

examples:
  run_benchmarks.py run log RUN --follow
"""
_ATTACH_HELP = """\
Show the rest of a run, then its result, and end with its exit code. Ctrl-C
leaves; the run goes on. After its platform was killed this takes it up: it
joins a job of Slurm or pods that go on and judges the run. With other
launchers the training ended with its platform, and what it measured is judged.

examples:
  run_benchmarks.py run attach RUN
"""
_CANCEL_HELP = """\
End a run as Ctrl-C in its shell does, and wait for that, at most {seconds:.0f} s.
After its platform was killed this ends what still lives. Only the run's user
and root may end it.

examples:
  run_benchmarks.py run cancel RUN
"""
CANCEL_SECONDS = 180.0  # a launcher waits up to 120 s for its engine, and then for the last records
_POLL_SECONDS = 0.3
_LAST_LINES = 10  # that `run attach` shows of what was printed before
_STATE_WORDS = {"alive": "running", "killed": "killed", "unseen": "unseen", "over": "ended"}


def show_call(runs: Path, as_json: bool, call_id: str) -> None:
    """Print the id of a call that goes on, where it writes, and the commands for it."""
    call = read_call(runs.absolute() / CALLS_FOLDER / call_id)
    folder = runs.absolute() if len(call.planned_runs) != 1 else runs.absolute() / call_id
    if as_json:
        content = {"id": call.id, "writes": folder, "stdout": call.stdout, "stderr": call.stderr}
        print(json_text({name: str(value) for name, value in content.items()}), flush=True)
        return
    print(f"run      {call.id}")
    print(f"writes   {one_line(short_path(folder))}")
    for command in ("status", "log --follow", "attach", "cancel"):
        print_command(*_command_parts(runs, command, call.id))


def _command_parts(runs: Path, command: str, run_id: str) -> list[str]:
    """Return a command of this module for a run, in parts between which a line may break."""
    word, _, option = command.partition(" ")
    is_default = runs.absolute() == checkout() / "runs"
    options = [*([] if is_default else [f"--runs {runs.absolute()}"]), *([option] if option else [])]
    return [f"{program_command()} run {word} {run_id.rpartition('_')[2]}", *options]


def _add_status_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help=RUN_HELP)
    add_json_option(parser)


def _status(options: argparse.Namespace) -> int:
    from levelfield.run.run_control import find_target, unfinished_targets

    runs = runs_folder(options)
    if options.run is None:
        rows = [{"name": target.id, "says": _state_line(target)} for target in unfinished_targets(runs)]
        print(json_text({"runs": rows}) if options.json else "\n".join(["not finished", *entry_lines(rows)]))
        return 0
    content = _status_content(find_target(runs, options.run))
    if options.json:
        print(json_text(content))
        return 0
    for label, text in _status_texts(content):
        print(labelled_line(label, text, 10))
    if content["state"] == "killed":
        for command in ("attach", "cancel"):
            print_command(*_command_parts(runs, command, content["run"]))
    return 0


def _state_line(target: Target) -> str:
    from levelfield.run.run_control import last_progress, platform_state

    word, platform = platform_state(target)
    step = last_progress(target.run) if target.run else None
    place = f" on {platform.host}" if word == "unseen" and platform else ""
    return f"{_STATE_WORDS[word]}{place}: {f'step {step.step} of {step.steps}' if step else 'no step yet'}"


def _status_content(target: Target) -> dict[str, Any]:
    """Return what is known of a run, by the keys of --json."""
    from levelfield.run.run_control import engine_handle, last_progress, platform_state
    from levelfield.rundir.run_state import read_status, state_text

    call, run = target.call, target.run
    word, platform = platform_state(target)
    step, status = (last_progress(run), read_status(run)[0]) if run else (None, {})
    return {
        "run": target.id,
        "state": _STATE_WORDS[word],
        "phase": state_text(run) if run else None,
        "phase_since": status.get("time"),
        "step": step and step.step,
        "steps": step and step.steps,
        "tokens_per_second_per_device": step and step.tokens_per_second_per_device,
        "exit_code": _exit_code(target) if word == "over" else None,
        "started": call and call.started,
        "ended": call and call.ended,
        "platform": platform and {"host": platform.host, "process": platform.process},
        "user": call.user if call else status.get("user"),
        "engine": engine_handle(run) if run else None,
        "still_alive": _remaining_work(run) if run and word == "killed" else None,
        "planned_runs": list(call.planned_runs) if call else None,
        "started_runs": call.run_ids() if call else [target.id],
        "stderr": call and str(call.stderr),
    }


def _status_texts(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line about a run."""
    yield "run", content["run"]
    place = "{host}, process {process}".format(**content["platform"]) if content["platform"] else ""
    elsewhere = ": it runs on another machine or in another container" if content["state"] == "unseen" else ""
    yield "state", content["state"] + elsewhere
    if content["exit_code"] is not None:
        yield "exit code", str(content["exit_code"])
    if content["phase"]:
        phase = content["phase"].removeprefix("running: ")
        yield "phase", f"{phase}, since {content['phase_since']}"
    if content["step"]:
        speed = format_number(content["tokens_per_second_per_device"], 0)
        yield "step", f"{content['step']} of {content['steps']}, {speed} tokens/s/device"
    if content["planned_runs"] is not None and len(content["planned_runs"]) != 1:
        planned = f" of {len(content['planned_runs'])}" if content["planned_runs"] else ""
        yield "runs", f"{len(content['started_runs'])}{planned} started"
        for run_id in content["started_runs"]:
            yield "", run_id
    if place:
        yield "platform", f"{place}, user {content['user']}"
    if content["engine"]:
        yield "engine", ", ".join(f"{key} {value}" for key, value in content["engine"].items())
    if content["still_alive"]:
        yield "alive", content["still_alive"]
    if content["stderr"]:
        yield "output", short_path(Path(content["stderr"]))


def _remaining_work(run: Any) -> str:
    from levelfield.errors import LevelfieldError
    from levelfield.run.runner import remaining_work

    try:
        return remaining_work(run) or "nothing of the training"
    except LevelfieldError as error:
        return f"unknown: {error}"


def _exit_code(target: Target) -> int | None:
    """Return the exit code of a run that is over, by its call or by its result; None without either."""
    from levelfield.cli.run_entries import exit_code

    if target.call:
        return read_call(target.call.folder).exit_code
    results = _results(target)
    return exit_code(results) if results else None


def _results(target: Target) -> list[Result]:
    """Return the results that there are of a run, or of the planned runs of a call."""
    from levelfield.errors import LevelfieldError
    from levelfield.specs.base import load
    from levelfield.specs.paths import RunPaths
    from levelfield.specs.result import Result

    results = []
    if target.run:
        names = target.call.planned_runs if target.call else (target.run.root.name,)
        for name in names:
            with suppress(LevelfieldError):
                results.append(load(Result, RunPaths(target.run.root.with_name(name)).result))
    return results


def _add_log_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--follow", action="store_true", help="go on until the run has ended")


def _log(options: argparse.Namespace) -> int:
    from levelfield.run.run_control import find_target

    target = find_target(runs_folder(options), options.run)
    if target.call is None:
        raise UsageError(
            f"{target.id}: it was started without --detach and prints in its own shell; `run attach` shows its steps, "
            f"and {target.run.logs if target.run else 'logs'} has what its ranks print"
        )
    try:
        _print_output(target, follows=options.follow)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _print_output(target: Target, follows: bool, last_lines: int | None = None) -> None:
    """Print what a call has written and writes, each file to the stream that it was, until its platform has ended.

    last_lines: of the errors and sentences, print only so many that were written before.
    """
    from levelfield.run.run_control import Target, platform_state

    assert target.call
    files = {target.call.stderr: sys.stderr, target.call.stdout: sys.stdout}
    offsets = dict.fromkeys(files, 0)
    if last_lines is not None:
        with open_regular(target.call.stderr) as file:
            lines = file.read().splitlines(keepends=True)
        offsets[target.call.stderr] = len(b"".join(lines[: max(0, len(lines) - last_lines)]))
    goes_on = True
    while goes_on:
        goes_on = follows and platform_state(Target(read_call(target.call.folder), None))[0] == "alive"
        for path, stream in files.items():
            with open_regular(path) as file:
                file.seek(offsets[path])
                text = file.read()
            part = text[: text.rfind(b"\n") + 1] if goes_on else text
            offsets[path] += len(part)
            stream.write(part.decode(errors="backslashreplace"))
            stream.flush()
        if goes_on:
            time.sleep(_POLL_SECONDS)


def _add_attach_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    add_json_option(parser, " on stdout")
    add_quiet_option(parser)
    add_recording_options(parser)


def _attach(options: argparse.Namespace) -> int:
    """Return the run's exit code, or 130 where the user leaves it."""
    from levelfield.run.interruption import WatchLeft
    from levelfield.run.run_control import find_target, platform_state, refuse_other_user

    runs = runs_folder(options)
    target = find_target(runs, options.run)
    terminal = Terminal(options.quiet or options.json, run_recorder(options.store, options.no_store))
    word, platform = platform_state(target)
    try:
        if target.call and word != "killed" and platform == target.call.platform:
            _print_output(target, follows=True, last_lines=0 if options.quiet or options.json else _LAST_LINES)
        elif word == "alive":
            _show_steps(target, terminal)
        target = find_target(runs, options.run)
        word, platform = platform_state(target)
        if word in ("alive", "unseen") and platform:
            raise UsageError(
                f"{target.id}: process {platform.process} of host {platform.host} runs it; attach to it on that host"
            )
        if word == "over" and target.call:
            return RunFailed.exit_code if (code := _exit_code(target)) is None else code
        if word == "killed" or not _results(target):
            refuse_other_user(target)
            return _take_up(target, options, terminal, cancels=False)
        return _print_results(target, options, terminal)
    except (KeyboardInterrupt, WatchLeft):
        terminal.say(f"left; the run goes on. `run attach` shows the rest of it, and `run cancel` ends it: {target.id}")
        return INTERRUPTED


def _print_results(target: Target, options: argparse.Namespace, terminal: Terminal) -> int:
    """Print the results of a run or of a call. Return their exit code."""
    from levelfield.cli.run_entries import print_results

    return print_results(_results(target), runs_folder(options), False, options.json, terminal)


def _show_steps(target: Target, terminal: Terminal) -> None:
    """Show the steps of a run that prints in another shell, until it ends."""
    from levelfield.run.run_control import platform_state
    from levelfield.rundir.directory import read_plan
    from levelfield.rundir.follower import Follower

    assert target.run
    plan = read_plan(target.run)
    follower = Follower(target.run.events, plan)
    while platform_state(target)[0] == "alive":
        for progress in follower.read():
            terminal.show_step(plan, progress)
        time.sleep(_POLL_SECONDS)


def _take_up(target: Target, options: argparse.Namespace, terminal: Terminal, cancels: bool) -> int:
    """Take up a run whose platform was killed. Return its exit code, which its call gets."""
    from levelfield.run import runner
    from levelfield.rundir.directory import read_plan

    call, run = target.call, target.run
    options.plugins = options.plugins or list(call.plugins if call else ())
    code: int = RunFailed.exit_code
    if call and not call.planned_runs:  # a night judges its own runs, and repeats one that was killed
        terminal.say("start the night again, as it was started: it goes on, and repeats no finished run")
    elif run is None or not run.plan.exists():
        terminal.say(f"{target.id}: its platform was killed before its first run; nothing was measured")
    else:
        if not run.result.exists():
            vendor = registry_of(options).vendor(read_plan(run).hardware.vendor)
            ends_work = cancels and runner.remaining_work(run) is not None
            terminal.show_status(runner.attach(run, vendor, terminal.listener(), ends_work))
        code = _print_results(target, options, terminal)
    if call and (missing := [run_id for run_id in call.planned_runs if run_id not in call.run_ids()]):
        terminal.say(f"{len(missing)} of {len(call.planned_runs)} runs were not started: start them again")
        code = code or RunFailed.exit_code
    if call:
        end_call(call.folder, code)
    return code


def _add_cancel_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.set_defaults(quiet=False, json=False)
    add_recording_options(parser)


def _cancel(options: argparse.Namespace) -> int:
    """Return 0 when the run has ended. Raises RunFailed where it goes on after the limit."""
    from levelfield.run.run_control import (
        find_target,
        platform_state,
        refuse_other_user,
        send_interrupt,
        wait_for_end,
    )

    runs = runs_folder(options)
    target = find_target(runs, options.run)
    word, platform = platform_state(target)
    terminal = Terminal(record_run=run_recorder(options.store, options.no_store))
    if word == "unseen" and platform:
        raise UsageError(
            f"{target.id}: process {platform.process} of host {platform.host} runs it; cancel it on that host"
        )
    if word == "over":
        print_wrapped(f"{target.id} has ended before: exit code {_exit_code(target)}")
        return 0
    if word == "killed":
        refuse_other_user(target)
        _take_up(target, options, terminal, cancels=True)
        return 0
    assert platform
    if part_of := _call_of_run(runs, target):
        raise UsageError(f"{target.id}: it is a run of {part_of.id}, and ends with it: `run cancel {part_of.id}`")
    send_interrupt(target, platform)
    terminal.say(f"interrupted process {platform.process}; waiting for its end, at most {CANCEL_SECONDS:.0f} s")
    if not wait_for_end(lambda: find_target(runs, options.run), CANCEL_SECONDS):
        raise RunFailed(
            f"{target.id}: process {platform.process} still runs {CANCEL_SECONDS:.0f} s after it was interrupted. If "
            f"it does nothing (`run log`), end it by `kill -9 {platform.process}`; `run cancel` then ends the rest"
        )
    target = find_target(runs, options.run)
    if platform_state(target)[0] == "killed":
        _take_up(target, options, terminal, cancels=True)
    print_wrapped(f"{target.id} has ended: exit code {_exit_code(find_target(runs, options.run))}")
    return 0


def _call_of_run(runs: Path, target: Target) -> Call | None:
    """Return the call of several runs that a run is a part of."""
    from levelfield.rundir.detached_calls import list_calls

    if target.call:
        return None
    return next((c for c in list_calls(runs) if c.exit_code is None and target.id in c.run_ids()), None)


COMMANDS = {
    "run status": Command(_STATUS_HELP, _add_status_options, _status),
    "run log": Command(_LOG_HELP, _add_log_options, _log),
    "run attach": Command(_ATTACH_HELP, _add_attach_options, _attach),
    "run cancel": Command(_CANCEL_HELP.format(seconds=CANCEL_SECONDS), _add_cancel_options, _cancel),
}

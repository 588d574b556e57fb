"""Determines the status of a run from the ends of its processes, their last output, and the rules of validity."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

from levelfield.judge.node_ends import node_evidence, rank_named
from levelfield.measure.clocks import node_clock_reasons, platform_clock_reasons
from levelfield.measure.routing import auxiliary_reasons, choice_reasons, mixture_layers, routing_reasons
from levelfield.measure.validity import MOST_REASONS, check
from levelfield.measure.weights import final_weight_reasons, gradient_reasons
from levelfield.node.regular_files import read_last
from levelfield.rundir.node_parts import node_parts
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import INTERRUPTED, PRETENDED, Status, Word

_LIBRARY = re.compile(r"(lib[\w.+-]+\.so[\d.]*): cannot open shared object file")
_END_OF_LOG = 2**20  # bytes in which the last line is looked for
_WORDS_OF_CLASSES = {"oom": "oom", "non-finite": "invalid", "unsupported": "unsupported"}


# Ends of a run that do not depend on its training: word, class of failure, reason.
_WORDS_OF_CAUSES: dict[str, tuple[Word, str | None, str]] = {
    "interrupted": ("failed", "interrupted", INTERRUPTED),
    "environment": ("failed", "environment", "the environment is not usable"),
    "launch-error": ("failed", "launch", "no process could be started"),
    "engine": ("failed", "engine", "the container engine went away"),
    "device-taken": ("not-run", None, "a device is in use"),
    "unsupported": ("unsupported", None, "this machine cannot run it"),
    "hang": ("timeout", "hang", "the run hung"),
    "corpus": ("failed", "corpus", "the corpus is not the one that was checked"),
    "preflight": ("not-run", "preflight", "the preflight failed; --no-preflight trains without one"),
    "node-lost": ("failed", "node", "a node went away, or the connection to it"),
    "inputs-changed": ("failed", "files", "a file of the run was overwritten while it trained"),
    "storage": ("failed", "storage", "the run directory could not be read or written"),
    "code-changed": ("not-run", "code", "the code has changed since the plan was made"),
    "node-differs": ("not-run", "node", "a node has other code or another environment"),
    "unreachable": ("not-run", "node", "a node could not be reached"),
    "cancelled": ("failed", "cancelled", "somebody else cancelled the job"),
    "preempted": ("failed", "preempted", "the engine took the nodes for another job"),
    "time-limit": ("timeout", "time limit", "the engine's time limit ended the job"),
}


def judge(plan: Plan, raw: RawRecords, paths: RunPaths) -> Status:
    """Return the status with reasons and evidence. It is `valid` only when every rule holds."""
    cause = raw.outcome.get("cause")
    if cause is None:
        return _without_outcome(raw)
    if held := _held(raw):
        return _unkillable(held, cause, raw)
    if cause in _WORDS_OF_CAUSES:
        word, failure, reason = _WORDS_OF_CAUSES[cause]
        return Status(word=word, failure=failure, reasons=(reason,), evidence=_evidence(raw))
    if raw.errors or cause == "rank-failed":
        return _failed(plan, raw, paths)
    return _validity(plan, raw)


def _held(raw: RawRecords) -> list[str]:
    """Return a sentence for each rank that did not end by SIGKILL."""
    ends = [end for end in raw.outcome.get("ends", ()) if end.get("process") is not None]
    return [
        f"rank {end['rank']} (process {end['process']}, state {end.get('state')}) did not end by SIGKILL"
        for end in ends
    ]


def _unkillable(held: list[str], cause: str, raw: RawRecords) -> Status:
    """Return the status of a run that left a process behind. The second reason is why the rank was to end."""
    before = _WORDS_OF_CAUSES.get(cause, ("failed", None, "a rank failed"))[2]
    evidence = "; ".join([*held, _evidence(raw)])
    return Status(word="failed", failure="unkillable", reasons=("a rank cannot be ended", before), evidence=evidence)


def _evidence(raw: RawRecords) -> str:
    """Return the launcher's evidence, the nodes that ended badly, and the number of finished steps."""
    said = raw.outcome.get("evidence") if raw.outcome["cause"] != "interrupted" else None
    nodes = node_evidence(raw, said or "")
    done = _steps_done(raw) if raw.steps_done or not (said or nodes) else None
    return "; ".join(part for part in (said, nodes, done) if part)


def _without_outcome(raw: RawRecords) -> Status:
    """Return the status of a run without an outcome: the platform was killed, or its disk was full."""
    if not raw.steps:
        return Status(word="not-run", reasons=("there is no outcome and no step: the run was not started",))
    reason = "the platform ended before it could say how the run did"
    return Status(word="failed", failure="platform", reasons=(reason,), evidence=_steps_done(raw))


def _validity(plan: Plan, raw: RawRecords) -> Status:
    reasons = _pretended(raw)
    reasons += [str(r) for r in check(raw.steps, raw.weights, plan.work, plan.tuning.layout)]
    reasons += [f"clock: {r}" for r in platform_clock_reasons(raw.steps, raw.seen, plan.work.window)]
    reasons += [f"clock: {r}" for r in _between_nodes(plan, raw)]
    reasons += [f"gradients: {r}" for r in gradient_reasons(raw.gradients, raw.steps, plan.work)]
    reasons += [f"final weights: {r}" for r in final_weight_reasons(raw.final, plan.work, plan.tuning.layout)]
    reasons += [f"routing: {r}" for r in routing_reasons(raw.experts, plan.work)]
    reasons += [f"choices: {r}" for r in _choice_reasons(plan, raw)]
    reasons += [f"auxiliary loss: {r}" for r in auxiliary_reasons(raw.steps, plan.work.model)]
    reasons += [f"raw files: {sentence}" for sentence in (*raw.broken, *_of_no_node(plan, raw))]
    reasons += list(_without_end(plan, raw))
    changed = _code_reasons(plan, raw)
    reasons += changed
    failure = PRETENDED if raw.pretended else "code" if changed else None
    return Status(word="invalid", failure=failure, reasons=tuple(reasons)) if reasons else Status(word="valid")


def _choice_reasons(plan: Plan, raw: RawRecords) -> list[str]:
    training, experts = plan.work.training, plan.work.model.experts
    if experts is None:
        return ["choices of experts were recorded, and the model has none"] if raw.follows else []
    planned = plan.choices.follows if plan.choices else None
    if other := [rank for rank, found in raw.follows.items() if found != planned]:
        return [f"rank {other[0]} follows {str(raw.follows[other[0]])[:19]}, planned {str(planned)[:19]}"]
    layers, choices = mixture_layers(plan.work.model), training.tokens_per_step * experts.chosen
    return choice_reasons(raw.compared, raw.follows, layers, training.steps, choices)


def _code_reasons(plan: Plan, raw: RawRecords) -> list[str]:
    """Return where the code that trained was another one than the planned one. Earlier versions did not look."""
    planned, found = plan.implementation.rests_on, raw.outcome.get("code")
    if planned is None or not isinstance(found, dict):
        return []
    return [
        f"code: it changed after the plan was made: {where} {str(digest)[:19]}, planned {planned[:19]}"
        for where, digest in found.items()
        if digest != planned
    ]


def _without_end(plan: Plan, raw: RawRecords) -> Iterator[str]:
    silent = [rank for rank in range(plan.world_size) if rank not in raw.ended]
    yield from (f"rank {rank} did not write its end" for rank in silent[:MOST_REASONS])
    if len(silent) > MOST_REASONS:
        yield f"and {len(silent) - MOST_REASONS} more ranks"


def _pretended(raw: RawRecords) -> list[str]:
    """Return the reason why no figure of a run on pretended devices means anything; none for real devices."""
    chips = ", ".join(sorted(set(raw.pretended.values())))
    return [f"{PRETENDED}: a stand-in for {chips} computed nothing"] if chips else []


def _of_no_node(plan: Plan, raw: RawRecords) -> list[str]:
    nodes = [each.node for each in raw.telemetry if each.node is not None and each.node >= plan.hardware.nodes]
    return [f"telemetry/node{node}.jsonl: the run has {plan.hardware.nodes} node(s)" for node in nodes]


def _between_nodes(plan: Plan, raw: RawRecords) -> list[str]:
    window = plan.work.window
    named = {part.name: part.window_ns(window) for part in node_parts(plan, raw) if part.name is not None}
    known = {name: found for name, found in named.items() if found is not None}
    return node_clock_reasons(known, window.last_step - window.first_step + 1)


def _failed(plan: Plan, raw: RawRecords, paths: RunPaths) -> Status:
    """Return the first cause: a rank killed from outside, else a worker's first error, else the end of a log."""
    killed = [e for e in raw.outcome.get("ends", ()) if e.get("signal") and not e.get("stopped_by_us")]
    if killed:
        return _killed(killed[0], plan, raw)
    if raw.errors:
        rank, error = _first_error(raw)
        failure, message = str(error.get("class")), str(error.get("message"))
        word = _WORDS_OF_CLASSES.get(failure, "failed")
        evidence = f"{rank_named(plan, raw, rank)}: {error.get('type')}: {message}"
        return Status.model_validate(
            {
                "word": word,
                "failure": failure,
                "reasons": (message, *_advice(failure, message, plan)),
                "evidence": f"{evidence}; {_steps_done(raw)}",
            }
        )
    return _from_log(plan, raw, paths)


def _advice(failure: str, message: str, plan: Plan) -> tuple[str, ...]:
    """Return what to do about what an import lacks: a library of the system, or a package of its own environment."""
    if failure != "environment":
        return ()
    advice = []
    if library := _LIBRARY.search(message):
        advice.append(f"install the system's package that has {library[1]}; on Debian libgomp1 has libgomp.so.1")
    if folder := plan.environment.folder:
        advice.append(f"if {folder} has lost a package, remove that folder: the next run makes it again")
    return tuple(advice)


def _first_error(raw: RawRecords) -> tuple[int, dict[str, object]]:
    """Return the rank and error of the cause. Class `error` comes last: a rank has it when its peer is lost."""
    ordered = sorted(raw.errors.items(), key=lambda item: (item[1].get("class") in ("error", None), item[0]))
    return ordered[0]


def _killed(end: dict[str, int], plan: Plan, raw: RawRecords) -> Status:
    name = signal.Signals(end["signal"]).name if end["signal"] in set(signal.Signals) else f"signal {end['signal']}"
    evidence = f"{rank_named(plan, raw, end['rank'])} was ended by {name}; {_steps_done(raw)}"
    if end["signal"] == signal.SIGKILL and raw.oom_kills:
        evidence = f"{evidence}; {raw.oom_evidence}" if raw.oom_evidence else evidence
        return Status(word="oom", failure="oom", reasons=("the kernel killed a rank for memory",), evidence=evidence)
    return Status(word="failed", failure="killed", reasons=("a rank was killed",), evidence=evidence)


def _from_log(plan: Plan, raw: RawRecords, paths: RunPaths) -> Status:
    """Return the status of a rank that ended without an error event. Its log's last line is the evidence."""
    rank = next((e["rank"] for e in raw.outcome.get("ends", ()) if e.get("exit_code")), 0)
    line = last_line(paths.logs / f"rank{rank}.log")
    failure = "environment" if line and line.startswith(("ModuleNotFoundError", "ImportError")) else "error"
    evidence = f"{rank_named(plan, raw, rank)}: {line or raw.outcome.get('evidence')}"
    reasons = ("a rank ended with an error", *_advice(failure, line or "", plan))
    return Status(word="failed", failure=failure, reasons=reasons, evidence=evidence)


def last_line(log: Path) -> str | None:
    """Return the last line of a log that is not empty; None without one."""
    try:
        lines = read_last(log, _END_OF_LOG).decode(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), None)


def _steps_done(raw: RawRecords) -> str:
    return "1 step was finished" if raw.steps_done == 1 else f"{raw.steps_done} steps were finished"

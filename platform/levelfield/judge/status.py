"""Determines the status of a run from the ends of its processes, their last output, and the rules of validity."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from levelfield.contracts.execution import DISK_IS_FULL
from levelfield.judge.memory_errors import has_memory_words, is_memory_error, last_memory_line
from levelfield.measure.clocks import node_clock_reasons, platform_clock_reasons
from levelfield.measure.routing import auxiliary_reasons, choice_reasons, mixture_layers, routing_reasons
from levelfield.measure.validity import MAX_REASONS, validity_reasons
from levelfield.measure.weights import final_weight_reasons, gradient_reasons
from levelfield.node.regular_files import read_last
from levelfield.rundir.event_lines import mapping, sequence
from levelfield.rundir.node_parts import NodePart, node_parts
from levelfield.rundir.raw_files import RawRecords, clipped_text, clipped_texts
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import INTERRUPTED, PRETENDED, NodeResult, Status, StatusWord

_LIBRARY = re.compile(r"(lib[\w.+-]+\.so[\d.]*): cannot open shared object file")
_MODULE = re.compile(r"No module named '(\w+)")
# Messages of gloo, NCCL, HCCL and torch's store about a peer that has ended: the cause is with that peer.
_LOST_PEER = re.compile(
    r"closed by (remote )?peer|reset by peer|broken pipe|remote process exit|connection was likely closed"
    r"|communicator was aborted|socket (is )?closed|connection refused|timed out waiting"
    r"|more than 1EB",  # the size of what a peer should have sent
    re.I,
)
_PIPE_ERRORS = ("BrokenPipeError", "ConnectionResetError")  # of Python, such as of a process that feeds the data
_LOST_PEER_LIKELIHOOD = 2  # the value of `_consequence_likelihood` for a lost peer
_LOG_TAIL_BYTES = 2**20  # the last line of a log is looked for in these
_WORD_BY_ERROR_CLASS: dict[str, StatusWord] = {"oom": "oom", "non-finite": "invalid", "unsupported": "unsupported"}
# Ends of a run that do not depend on its training: word, class of failure, reason.
_STATUS_BY_CAUSE: dict[str, tuple[StatusWord, str | None, str]] = {
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

GOOD_ENDS = ("ended", "stopped")  # words for the end of a node that is no cause of a failure
_MAX_NODES_SHOWN = 3  # in a line of evidence


def judge_run(plan: Plan, raw: RawRecords, paths: RunPaths) -> Status:
    """Return the status with reasons and evidence. It is `valid` only when every rule holds."""
    cause = raw.outcome.get("cause")
    if cause is None and not raw.steps:
        return Status(word="not-run", reasons=("there is no outcome and no step: the run was not started",))
    if cause is None:  # the platform was killed, or the disk was full
        reason = "the platform ended before it could say how the run did"
        return Status(word="failed", failure="platform", reasons=(reason,), evidence=_steps_done(plan, raw))
    if unkillable := [end for end in raw.outcome.get("ends", ()) if end.get("process") is not None]:
        cause_reason = _STATUS_BY_CAUSE.get(cause, ("failed", None, "a rank failed"))[2]  # why the rank was to end
        sentences = [
            f"rank {end['rank']} (process {end['process']}, state {end.get('state')}) did not end by SIGKILL"
            for end in unkillable
        ]
        reasons, evidence = ("a rank cannot be ended", cause_reason), "; ".join([*sentences, _evidence(plan, raw)])
        return Status(word="failed", failure="unkillable", reasons=reasons, evidence=evidence)
    if cause in _STATUS_BY_CAUSE:
        word, failure, reason = _STATUS_BY_CAUSE[cause]
        if cause == "interrupted" and not (raw.outcome.get("ends") or raw.first_step_start_ns or raw.node_ends):
            word = "not-run"  # while its environment was made, or while it was queued: no rank has started
        if cause == "hang" and _has_all_steps(plan, raw):
            reason = "the run hung after its last step"
        return Status(word=word, failure=failure, reasons=(reason,), evidence=_evidence(plan, raw))
    if raw.errors or cause == "rank-failed":
        return _failure_status(plan, raw, paths)
    return _validity_status(plan, raw)


def _has_all_steps(plan: Plan, raw: RawRecords) -> bool:
    """Return whether every rank finished every step, however the run ended."""
    return raw.steps_done >= plan.work.training.steps


def step_rule_reasons(plan: Plan, raw: RawRecords) -> tuple[str, ...]:
    """Return why the steps of a run are not right, by the rules that need no end of it."""
    clock = platform_clock_reasons(raw.steps, raw.seen, plan.work.window)
    return (
        *(str(r) for r in validity_reasons(raw.steps, raw.weights, plan.work, plan.tuning.layout)),
        *(f"clock: {r}" for r in clock),
    )


def _evidence(plan: Plan, raw: RawRecords) -> str:
    """Return the launcher's evidence, the nodes that ended badly, and the number of finished steps."""
    launcher = raw.outcome.get("evidence") if raw.outcome["cause"] != "interrupted" else None
    nodes = node_evidence(raw, launcher or "")
    done = _steps_done(plan, raw) if raw.steps_done or not (launcher or nodes) else None
    return "; ".join(filter(None, (launcher, nodes, done)))


def _validity_status(plan: Plan, raw: RawRecords) -> Status:
    chips = ", ".join(sorted(set(raw.pretended.values())))
    reasons = [f"{PRETENDED}: a stand-in for {chips} computed nothing"] if chips else []
    versions = {rank: event.get("version") for rank, event in sorted(raw.framework_events.items())}
    first = next(iter(versions.values()), None)
    if other := [rank for rank, version in versions.items() if version != first]:
        reasons.append(f"framework: ranks 0 and {other[0]} report versions {first} and {versions[other[0]]}")
    reasons += _device_reasons(plan, raw)
    reasons += step_rule_reasons(plan, raw)
    window = plan.work.window
    windows = {part.name: times for part in node_parts(plan, raw) if part.name and (times := part.window_ns(window))}
    reasons += [f"clock: {r}" for r in node_clock_reasons(windows, window.last_step - window.first_step + 1)]
    reasons += [
        f"gradients: {r}" for r in gradient_reasons(raw.gradients, raw.steps, plan.work, plan.window_gradient_steps)
    ]
    reasons += [f"final weights: {r}" for r in final_weight_reasons(raw.final, plan.work, plan.tuning.layout)]
    reasons += [f"routing: {r}" for r in routing_reasons(raw.experts, plan.work)]
    reasons += [f"choices: {r}" for r in _choice_reasons(plan, raw)]
    reasons += [f"auxiliary loss: {r}" for r in auxiliary_reasons(raw.steps, plan.work.model)]
    reasons += [f"raw files: {sentence}" for sentence in raw.damage_sentences]
    reasons += [
        f"raw files: telemetry/node{telemetry.node}.jsonl: the run has {plan.hardware.nodes} node(s)"
        for telemetry in raw.telemetry
        if telemetry.node is not None and telemetry.node >= plan.hardware.nodes
    ]
    silent = [rank for rank in range(plan.world_size) if rank not in raw.ranks_with_end_event]
    reasons += [f"rank {rank} did not write its end" for rank in silent[:MAX_REASONS]]
    reasons += [f"and {len(silent) - MAX_REASONS} more ranks"] if len(silent) > MAX_REASONS else []
    changed = _code_reasons(plan, raw)
    reasons += changed
    failure = PRETENDED if raw.pretended else "code" if changed else None
    return Status(word="invalid", failure=failure, reasons=tuple(reasons)) if reasons else Status(word="valid")


def _device_reasons(plan: Plan, raw: RawRecords) -> list[str]:
    """Return which ranks got another device of this machine than the planned one, where both show its identity."""
    rows = [mapping(row) for key in ("devices", "other_devices") for row in sequence(raw.provenance.get(key))]
    reasons = []
    for rank, planned in enumerate(() if plan.launch else plan.hardware.device_indices):
        identities = sequence(mapping(raw.framework_events.get(rank, {}).get("details")).get("device_identities"))
        # dies of a card may have the card's identity, so several devices may match
        indices = [row.get("index") for row in rows if row.get("identity") and row["identity"] in identities]
        if indices and planned not in indices:
            reasons.append(
                f"device: rank {rank} trained on device {indices[0]} of the vendor's tool, planned {planned}"
            )
    return reasons[:MAX_REASONS]


def _choice_reasons(plan: Plan, raw: RawRecords) -> list[str]:
    training, experts = plan.work.training, plan.work.model.experts
    if experts is None:
        return ["choices of experts were recorded, and the model has none"] if raw.choices_digests else []
    planned = plan.choices.follows if plan.choices else None
    if other := [rank for rank, digest in raw.choices_digests.items() if digest != planned]:
        return [f"rank {other[0]} follows {str(raw.choices_digests[other[0]])[:19]}, planned {str(planned)[:19]}"]
    layers, choices = mixture_layers(plan.work.model), training.tokens_per_step * experts.chosen
    return choice_reasons(raw.compared_choices, raw.choices_digests, layers, training.steps, choices)


def _code_reasons(plan: Plan, raw: RawRecords) -> list[str]:
    """Return where the code that trained differs from the planned code. Earlier versions did not record it."""
    planned, digests = plan.implementation.rests_on, raw.outcome.get("code")
    if planned is None or not isinstance(digests, dict):
        return []
    return [
        f"code: it changed after the plan was made: {where} {str(digest)[:19]}, planned {planned[:19]}"
        for where, digest in digests.items()
        if digest != planned
    ]


def _failure_status(plan: Plan, raw: RawRecords, paths: RunPaths) -> Status:
    """Return the first cause: a rank killed from outside, else a worker's first error, else the end of a log.

    Errors that follow from another rank's count only where there is nothing else: gloo, NCCL, paddle and OneFlow end a
    rank that has lost its peer by an error or by SIGABRT.
    """
    ends = [end for end in raw.outcome.get("ends", ()) if not end.get("stopped_by_us")]
    killed_ends = [end for end in ends if end.get("signal")]
    killed_end = min(killed_ends, key=lambda end: end["signal"] == signal.SIGABRT, default=None)
    if killed_end and killed_end["signal"] != signal.SIGABRT:
        return _killed_status(killed_end, plan, raw)
    likelihood, rank = min(
        ((_consequence_likelihood(error), rank) for rank, error in raw.errors.items()),
        default=(_LOST_PEER_LIKELIHOOD, None),
    )
    if likelihood == _LOST_PEER_LIKELIHOOD and (status := _status_from_memory_line(plan, raw, paths, ends)):
        return status
    failed_ends = [end for end in ends if end.get("exit_code")]
    silent_end = next((end for end in failed_ends if end["rank"] not in raw.errors), None)  # it recorded no error
    if killed_end and likelihood == _LOST_PEER_LIKELIHOOD and not silent_end:
        return _killed_status(killed_end, plan, raw)
    if rank is None or (likelihood == _LOST_PEER_LIKELIHOOD and silent_end):
        status = _status_from_log(plan, raw, paths, silent_end)
    else:
        status = _status_from_error(plan, raw, rank)
    if killed_end:
        evidence = f"{status.evidence}; {rank_text(plan, raw, killed_end['rank'])} was ended by SIGABRT"
        return status.model_copy(update={"evidence": evidence})
    return status


def _status_from_error(plan: Plan, raw: RawRecords, rank: int) -> Status:
    """Return the status by the error event of a rank."""
    error = raw.errors[rank]
    failure, message = _error_class(error), str(error.get("message"))
    if error.get("type") == "SystemExit":  # its message: a number, a text, or the type's name for none
        message = f"the training code ended itself by sys.exit({'' if message == 'SystemExit' else message})"
    evidence = f"{rank_text(plan, raw, rank)}: {error.get('type')}: {message}; {_steps_done(plan, raw)}"
    reasons = (message, *_advice(failure, message, plan))
    return Status(word=_WORD_BY_ERROR_CLASS.get(failure, "failed"), failure=failure, reasons=reasons, evidence=evidence)


def _error_class(error: Mapping[str, Any]) -> str:
    """Return the class of an error event. Libraries say in many ways that memory ran out; some only have the words."""
    error_class, message = str(error.get("class") or "error"), str(error.get("message"))
    if error_class == "error" and is_memory_error(message):
        return "oom"
    if error_class == "oom" and has_memory_words(message):
        return "environment" if error.get("type") == "ImportError" else "error"
    return error_class


def _consequence_likelihood(error: Mapping[str, Any]) -> int:
    """Return how likely an error follows from another rank's, from 0 to 2: 0 where its class names a cause, 2 for a
    lost peer."""
    if _error_class(error) != "error":
        return 0
    if error.get("type") in _PIPE_ERRORS:
        return 1
    return _LOST_PEER_LIKELIHOOD if _LOST_PEER.search(str(error.get("message"))) else 1


def _advice(failure: str, message: str, plan: Plan) -> tuple[str, ...]:
    """Return what to do about what an import lacks: a library of the system, its own module, or a package."""
    if failure != "environment":
        return ()
    advice = []
    if library := _LIBRARY.search(message):
        advice.append(f"install the system's package that has {library[1]}; on Debian libgomp1 has libgomp.so.1")
    code, module = plan.implementation, _MODULE.search(message)
    if module and module[1] in {name.partition(".")[0] for name in plan.access.preload}:
        python = plan.environment.python
        return (
            *advice,
            f"{plan.hardware.vendor}'s vendor.yaml asks for {module[1]} (`preload`), and {python} lacks it",
        )
    if code.folder in message:
        return (*advice, f"correct the file of {code.framework} that the message names")
    built = (text for step in plan.environment.builds for text in step.packages)
    packages = [text.lower().replace("-", "_") for text in (*plan.environment.requirements, *built)]
    if module and not any(package.startswith(module[1]) for package in packages):  # a package may have a longer name
        advice.append(f"if {module[1]} is a module of {code.framework} itself, put it back: {code.folder} lacks it")
    if folder := plan.environment.folder:
        advice.append(f"if {folder} has lost a package, remove that folder: the next run makes it again")
    return tuple(advice)


def _killed_status(end: dict[str, int], plan: Plan, raw: RawRecords) -> Status:
    name = signal.Signals(end["signal"]).name if end["signal"] in set(signal.Signals) else f"signal {end['signal']}"
    evidence = f"{rank_text(plan, raw, end['rank'])} was ended by {name}; {_steps_done(plan, raw)}"
    oom_kills, oom_evidence = raw.oom_kills
    if end["signal"] == signal.SIGKILL and oom_kills:
        evidence = f"{evidence}; {oom_evidence}" if oom_evidence else evidence
        return Status(word="oom", failure="oom", reasons=("the kernel killed a rank for memory",), evidence=evidence)
    return Status(word="failed", failure="killed", reasons=("a rank was killed",), evidence=evidence)


def _status_from_log(plan: Plan, raw: RawRecords, paths: RunPaths, end: Mapping[str, Any] | None) -> Status:
    """Return the status of a rank that ended without an error event. Its log's last line is the evidence."""
    rank = end["rank"] if end else 0
    line = last_line(paths.logs / f"rank{rank}.log")
    launcher = str(raw.outcome.get("evidence"))
    failure = "environment" if line and line.startswith(("ModuleNotFoundError", "ImportError")) else "error"
    if DISK_IS_FULL in launcher:  # the rank could not write why it ended
        failure, line = "storage", "; ".join(filter(None, (line, launcher)))
    ended = f" ended with exit code {end['exit_code']}; its log ends with" if end and line else ""
    evidence = f"{rank_text(plan, raw, rank)}{ended}: {line or launcher}"
    reasons = ("a rank ended with an error", *_advice(failure, line or "", plan))
    return Status(word="failed", failure=failure, reasons=reasons, evidence=evidence)


def _status_from_memory_line(
    plan: Plan, raw: RawRecords, paths: RunPaths, ends: Sequence[Mapping[str, Any]]
) -> Status | None:
    """Return the status of a rank whose log says that memory ran out: native code ends the process, and no error is
    recorded. None without one."""
    for end in ends:
        if end["rank"] not in raw.errors and (line := last_memory_line(paths.logs / f"rank{end['rank']}.log")):
            evidence = f"{rank_text(plan, raw, end['rank'])}: its log has: {line}; {_steps_done(plan, raw)}"
            return Status(word="oom", failure="oom", reasons=(line,), evidence=evidence)
    return None


def last_line(log: Path) -> str | None:
    """Return the last line of a log that is not empty; None without one."""
    try:
        lines = read_last(log, _LOG_TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), None)


def _steps_done(plan: Plan, raw: RawRecords) -> str:
    if _has_all_steps(plan, raw):
        return f"all {raw.steps_done} of {plan.work.training.steps} steps were finished"
    return "1 step was finished" if raw.steps_done == 1 else f"{raw.steps_done} steps were finished"


def node_results(plan: Plan, raw: RawRecords, parts: Sequence[NodePart]) -> tuple[NodeResult, ...]:
    """Return one entry for each node; none for a run on the platform's machine alone."""
    if not raw.node_ends and (parts[0].name is None or not raw.node_facts):
        return ()
    silent, results = {part.name for part in parts if part.silence_reason}, list[NodeResult]()
    for node in range(plan.hardware.nodes):
        facts, end = raw.node_facts.get(node, {}), raw.node_ends.get(node, {})
        missing = list(filter(None, map(clipped_text, sequence(end.get("missing")))))
        missing += [what for what, lacks in (("facts", not facts), ("telemetry", f"node{node}" in silent)) if lacks]
        counts = {
            key: count
            for key in ("usable_cores", "memory_bytes")
            if isinstance(count := facts.get(key), int) and not isinstance(count, bool) and 0 < count < 2**63
        }
        results.append(
            NodeResult(
                node=node,
                name=_reported_name(raw, node),
                word=clipped_text(end.get("word")),
                detail=clipped_text(end.get("detail")),
                missing=tuple(dict.fromkeys(missing)),
                kernel=clipped_text(facts.get("kernel")),
                software=clipped_texts(raw.node_software.get(node)),
                cores=counts.get("usable_cores"),
                memory_bytes=counts.get("memory_bytes"),
            )
        )
    return tuple(results)


def _reported_name(raw: RawRecords, node: int) -> str | None:
    return clipped_text(raw.node_ends.get(node, {}).get("name")) or clipped_text(
        raw.node_facts.get(node, {}).get("hostname")
    )


def missing_evidence_warnings(nodes: Sequence[NodeResult]) -> Iterator[str]:
    """Yield a sentence for each node of which evidence is missing."""
    for node in nodes:
        if node.missing:
            yield f"{_node_name(node.node, node.name)}: its {', '.join(node.missing)} did not arrive"


def rank_text(plan: Plan, raw: RawRecords, rank: int) -> str:
    """Return a rank for a sentence, with its node in a run over several machines."""
    if not raw.node_ends:
        return f"rank {rank}"
    node = rank // plan.hardware.devices_per_node
    return f"rank {rank} on {_node_name(node, _reported_name(raw, node))}"


def node_evidence(raw: RawRecords, launcher: str) -> str | None:
    """Return which nodes ended badly, without what the launcher's evidence has already; None for nothing."""
    bad = {node: end for node, end in sorted(raw.node_ends.items()) if end.get("word") not in GOOD_ENDS}
    bad = {node: end for node, end in bad.items() if not (end.get("detail") and str(end["detail"]) in launcher)}
    sentences = []
    for node, end in islice(bad.items(), _MAX_NODES_SHOWN):
        parts = (
            _node_name(node, _reported_name(raw, node)),
            clipped_text(end.get("word")),
            clipped_text(end.get("detail")),
        )
        sentences.append(": ".join(filter(None, parts)))
    more = [f"and {len(bad) - _MAX_NODES_SHOWN} more nodes"] if len(bad) > _MAX_NODES_SHOWN else []
    return "; ".join([*sentences, *more]) or None


def _node_name(node: int, name: str | None) -> str:
    return f"node{node}" if name in (None, f"node{node}") else f"node{node} ({name})"

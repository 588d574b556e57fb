"""Runs a preflight: an ordinary launch of all ranks of a plan, with another program, and its judgement.

The same launcher, nodes, environment and variables are used as by the training. Nothing is trained.
"""

from __future__ import annotations

import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from levelfield.catalog.machine import devices_of
from levelfield.contracts.execution import Launcher, Outcome, ReadyRuntime, Say
from levelfield.contracts.phases import PreparedRun, RunFeature
from levelfield.contracts.vendor import Vendor
from levelfield.judge.status import GOOD_ENDS, last_line
from levelfield.preflight.node_findings import DeviceState, node_findings, preflight_word
from levelfield.preflight.preflight_events import read_preflight
from levelfield.rundir import directory
from levelfield.rundir.directory import write_atomically
from levelfield.rundir.event_lines import measured_events
from levelfield.rundir.node_readings import write_node_readings
from levelfield.rundir.raw_files import read_raw
from levelfield.rundir.telemetry_files import read_telemetry
from levelfield.specs.base import dump, load
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, PreflightPlan, job_content
from levelfield.specs.preflight_report import PreflightReport

PREFLIGHTS_FOLDER = "preflights"  # below the runs: these folders hold no run
# For a framework without a preflight of its own: it checks the nodes and measures no collectives.
NODE_ONLY_PROGRAM = ("{python}", "-m", "levelfield.worker.preflight")
SILENCE_SECONDS = 120.0  # without a new measurement, after which a preflight counts as hung
# What rank 0 has done, by the event that it then records.
_PROGRESS_WORDS = {"node": "the node's checks are done", "matmul": "products measured", "barrier": "collectives begin"}


class Preflight(RunFeature):
    """The preflight of a run, for plans that have one."""

    def before_training(self, run: PreparedRun) -> Outcome | None:
        """Run the preflight and write its report. Return the outcome where a rank or a node failed, as the training
        starts the same way, or where others use a machine that is to be quiet."""
        if run.plan.preflight is None:
            return None
        report = run_preflight(run.plan, run.vendor, run.paths.root.parent, run.runtime, run.launcher, run.say)
        write_atomically(run.paths.preflight, dump(report))
        if report.was_interrupted:
            raise KeyboardInterrupt
        if report.word == "failed":
            return Outcome("preflight", (), report.evidence or "nothing is known about it")
        run.say(f"preflight: {report.sentence}")
        for finding in report.findings:
            run.say(finding.sentence)
        if run.plan.preflight.quiet and report.other_use_findings:
            others = "; ".join(finding.sentence for finding in report.other_use_findings)
            return Outcome("device-taken", (), f"{others}; a quiet machine was asked for")
        return None


def run_preflight(
    plan: Plan, vendor: Vendor, runs: Path, runtime: ReadyRuntime, launcher: Launcher, say: Say
) -> PreflightReport:
    """Run the preflight of a plan in an environment that is ready, and return the report.

    Its folder is kept when it failed: the ranks' logs are there.
    """
    plan = preflight_plan(plan)
    paths = directory.create_run(runs / PREFLIGHTS_FOLDER, plan.run_id)
    states = _device_states(plan, vendor)
    say(f"preflight of {plan.hardware.nodes} node(s), {plan.world_size} rank(s): no training yet")
    outcome = _launch_ranks(plan, paths, runtime, launcher, say)
    states += _recorded_states(plan, paths, vendor)
    facts, evidence = read_preflight(paths, plan), _failure_evidence(outcome, paths)
    findings = node_findings(facts, states, plan.hardware.nodes > 1 and not plan.hardware.is_host)
    missing_reason = None
    if plan.world_size == 1:
        missing_reason = "one rank has no group"
    elif plan.implementation.argv[: len(NODE_ONLY_PROGRAM)] == NODE_ONLY_PROGRAM:
        missing_reason = f"{plan.implementation.framework} has no program for them"
    elif not facts.is_group_joined:
        missing_reason = "the process group did not come up"
    elif not facts.collectives:
        missing_reason = "the ranks recorded none"
    report = PreflightReport(
        **_report_head(plan, launcher),
        word="failed" if evidence else preflight_word(findings, facts.nodes),
        evidence=evidence,
        backend=facts.backend,
        nodes=facts.nodes,
        barrier_seconds=facts.barrier_seconds,
        collectives=facts.collectives,
        collectives_missing=missing_reason,
        pairs=facts.pairs,
        findings=tuple(findings),
    )
    write_atomically(paths.preflight, dump(report))
    directory.write_status(paths, "done", report.word)
    if report.word != "failed":
        shutil.rmtree(paths.root, ignore_errors=True)
    return report


def failed_preflight(plan: Plan, launcher: Launcher, reason: str) -> PreflightReport:
    """Return the report of a preflight that could not start."""
    return PreflightReport(**_report_head(plan, launcher), word="failed", evidence=reason)


def preflight_plan(plan: Plan) -> Plan:
    """Return the plan of a preflight: the same launch of the same ranks, with the program that measures."""
    choice = plan.preflight or PreflightPlan()
    options = (*(("--short",) if choice.short else ()), *(("--pairs",) if choice.pairs else ()))
    framework_program = load(
        ImplementationFile, Path(plan.implementation.folder) / "implementation.yaml"
    ).launch.preflight
    limits = {"start_seconds": SILENCE_SECONDS, "step_seconds": SILENCE_SECONDS}
    work = plan.work.model_copy(update={"limits": plan.work.limits.model_copy(update=limits)})
    implementation = plan.implementation.model_copy(
        update={"argv": (*(framework_program or NODE_ONLY_PROGRAM), *options)}
    )
    run_id = directory.new_run_id("preflight", plan.implementation.framework, plan.hardware.vendor)
    changes = {"run_id": run_id, "work": work, "implementation": implementation}
    return plan.model_copy(update=changes | {"capture_step": None, "save_weights": False, "spot_check": False})


def _launch_ranks(plan: Plan, paths: RunPaths, runtime: ReadyRuntime, launcher: Launcher, say: Say) -> Outcome:
    """Launch the ranks, and say how far rank 0 is."""
    seen_events: set[str] = set()

    def watch() -> None:
        for name in measured_events(paths.events / "rank0.jsonl"):
            if name in _PROGRESS_WORDS and name not in seen_events:
                say(f"preflight: {_PROGRESS_WORDS[name]}")
            seen_events.add(name)

    request = launcher.request(plan, paths, runtime)
    write_atomically(paths.plan, dump(plan))
    directory.write_json(paths.job, job_content(plan, paths))
    directory.write_json(paths.request, request.to_dict())
    outcome = launcher.execute(request, watch)
    directory.write_json(paths.outcome, outcome.to_dict())
    return outcome


def _report_head(plan: Plan, launcher: Launcher) -> dict[str, Any]:
    """Return the fields that every report has."""
    return {
        "run_id": plan.run_id,
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "launcher": launcher.name,
        "framework": f"{plan.implementation.framework} {plan.implementation.version}",
        "short": (plan.preflight or PreflightPlan()).short,
    }


def _failure_evidence(outcome: Outcome, paths: RunPaths) -> str | None:
    """Return why the launch failed, with the ranks' own first error or last line; None where all ranks ended well."""
    if outcome.cause == "exited":
        return None
    errors = read_raw(paths).errors
    last_words = [f"rank {rank}: {error.get('message')}" for rank, error in sorted(errors.items())][:1]
    failed = next((end.rank for end in outcome.ends if end.exit_code), None)
    if not last_words and failed is not None:
        last_words = [line for line in [last_line(paths.logs / f"rank{failed}.log")] if line]
    evidence = outcome.evidence or ""
    failed_nodes = [
        node for node in outcome.nodes if node.word not in GOOD_ENDS and not (node.detail and node.detail in evidence)
    ]
    node_words = [f"{node.name}: {node.word}" + (f": {node.detail}" if node.detail else "") for node in failed_nodes]
    return "; ".join([outcome.cause, *filter(None, [evidence]), *last_words, *node_words[:4]])


def _device_states(plan: Plan, vendor: Vendor) -> list[DeviceState]:
    """Return what the vendor's tool shows of this machine's devices, before anything is started on them.

    Shares of the host have no tool, and a launcher's nodes record their own.
    """
    if plan.launch or plan.hardware.is_host:
        return []
    devices = [device for device in devices_of(vendor) if device.index in plan.hardware.device_indices]
    memory = plan.hardware.memory_bytes_per_device
    try:
        samples = vendor.sample(devices)
    except Exception:  # an adapter may raise anything; the training's own telemetry says what
        return []
    return [DeviceState("node0", str(s.index), s.memory_used_bytes, memory, s.utilisation) for s in samples]


def _recorded_states(plan: Plan, paths: RunPaths, vendor: Vendor) -> list[DeviceState]:
    """Return what the vendor's tool showed on each node of a launcher before its ranks started."""
    if plan.launch is None or plan.hardware.is_host:
        return []
    write_node_readings(paths, plan, vendor)
    memory = plan.hardware.memory_bytes_per_device
    return [
        DeviceState(f"node{node.node}", reading.device, reading.memory_used_bytes, memory, reading.utilisation)
        for node in read_telemetry(paths, [])
        for reading in {reading.device: reading for reading in node.readings if reading.before}.values()
    ]

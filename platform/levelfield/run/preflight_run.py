"""Runs a preflight: an ordinary launch of all ranks of a plan, with another program, and its judgement.

The same launcher, nodes, environment and variables are used as by the training. Nothing is trained.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from levelfield.catalog.machine import devices_of
from levelfield.contracts.execution import Launcher, Outcome, ReadyRuntime, Say
from levelfield.contracts.vendor import Vendor
from levelfield.errors import RunFailed
from levelfield.judge.node_comparison import DeviceState, findings, word_of
from levelfield.judge.status import GOOD, last_line
from levelfield.node.device_files import DeviceInUse
from levelfield.run.launchers import LOCAL, means, speaking
from levelfield.run.run_devices import devices_locked
from levelfield.rundir import directory
from levelfield.rundir.node_readings import read_nodes
from levelfield.rundir.preflight_events import PreflightFacts, measured_by, read_preflight
from levelfield.rundir.raw_files import read_raw
from levelfield.rundir.telemetry_files import read_telemetry
from levelfield.specs.base import dump, load
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, PreflightPlan, job_of
from levelfield.specs.preflight_report import PreflightReport, PreflightWord

FOLDER = "preflights"  # below the runs: these folders hold no run
NODE_ONLY = ("{python}", "-m", "levelfield.worker.preflight")
SECONDS = 120.0  # without a new measurement, after which a preflight counts as hung
_SAID = {"node": "the node's checks are done", "matmul": "products measured", "barrier": "collectives begin"}


def preflight(plan: Plan, vendor: Vendor, runs: Path, say: Say) -> PreflightReport:
    """Prepare the plan's environment, run its preflight and return the report, also when the launch failed."""
    runtime, launcher = means(plan)
    try:
        with devices_locked(plan), runtime.in_use(plan, say) as ready:
            return preflight_in(plan, vendor, runs, ready, launcher, say)
    except (DeviceInUse, RunFailed) as error:
        evidence = " ".join(str(error).split())
        return PreflightReport.model_validate({**_head(plan), "word": "failed", "evidence": evidence})


def preflight_in(
    plan: Plan, vendor: Vendor, runs: Path, ready: ReadyRuntime, launcher: Launcher, say: Say
) -> PreflightReport:
    """Run the preflight of a plan in an environment that is ready, and return the report.

    Its folder is kept when it failed: the ranks' logs are there.
    """
    own = plan_of(plan)
    paths = directory.create(runs / FOLDER, own.run_id)
    here = _device_states(own, vendor)
    say(f"preflight of {own.hardware.nodes} node(s), {own.world_size} rank(s): no training yet")
    outcome = _outcome(own, paths, ready, launcher, say)
    report = _report(own, paths, outcome, [*here, *_recorded_states(own, paths, vendor)])
    directory.write_atomically(paths.preflight, dump(report))
    directory.write_status(paths, "done", report.word)
    if report.word != "failed":
        shutil.rmtree(paths.root, ignore_errors=True)
    return report


def plan_of(plan: Plan) -> Plan:
    """Return the plan of a preflight: the same launch of the same ranks, with the program that measures."""
    chosen = plan.preflight or PreflightPlan()
    options = (*(("--short",) if chosen.short else ()), *(("--pairs",) if chosen.pairs else ()))
    written = load(ImplementationFile, Path(plan.implementation.folder) / "implementation.yaml").launch.preflight
    limits = {"start_seconds": SECONDS, "step_seconds": SECONDS}
    work = plan.work.model_copy(update={"limits": plan.work.limits.model_copy(update=limits)})
    implementation = plan.implementation.model_copy(update={"argv": (*(written or NODE_ONLY), *options)})
    own = directory.new_run_id("preflight", plan.implementation.framework, plan.hardware.vendor)
    changed = {"run_id": own, "work": work, "implementation": implementation}
    return plan.model_copy(update=changed | {"capture_step": None, "save_weights": False})


def _outcome(plan: Plan, paths: RunPaths, ready: ReadyRuntime, launcher: Launcher, say: Say) -> Outcome:
    request = launcher.request(plan, paths, ready)
    directory.write_atomically(paths.plan, dump(plan))
    directory.write_json(paths.job, job_of(plan, paths))
    directory.write_json(paths.request, request.to_dict())
    outcome = speaking(launcher, say).execute(request, _progress(paths, say))
    directory.write_json(paths.outcome, outcome.to_dict())
    return outcome


def _progress(paths: RunPaths, say: Say) -> Callable[[], None]:
    """Return what is called during the launch: it says how far rank 0 is."""
    done: set[str] = set()

    def watch() -> None:
        for name in measured_by(paths.events / "rank0.jsonl"):
            if name in _SAID and name not in done:
                say(f"preflight: {_SAID[name]}")
            done.add(name)

    return watch


def _report(plan: Plan, paths: RunPaths, outcome: Outcome, devices: Sequence[DeviceState]) -> PreflightReport:
    facts = read_preflight(paths, plan)
    locks_memory = plan.hardware.nodes > 1 and not plan.hardware.is_host
    found = findings(facts, devices, locks_memory)
    evidence = _evidence(outcome, paths)
    word: PreflightWord = "failed" if evidence else word_of(found, facts.nodes)
    return PreflightReport(
        **_head(plan),
        word=word,
        evidence=evidence,
        backend=facts.backend,
        nodes=facts.nodes,
        barrier_seconds=facts.barrier_seconds,
        collectives=facts.collectives,
        collectives_missing=_why_no_collectives(plan, facts),
        pairs=facts.pairs,
        findings=tuple(found),
    )


def _head(plan: Plan) -> dict[str, object]:
    chosen = plan.preflight or PreflightPlan()
    return {
        "run_id": plan.run_id,
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "launcher": plan.launch.launcher if plan.launch else "containers" if plan.runtime == "docker" else LOCAL,
        "framework": f"{plan.implementation.framework} {plan.implementation.version}",
        "short": chosen.short,
    }


def _evidence(outcome: Outcome, paths: RunPaths) -> str | None:
    """Return why the launch failed, with the ranks' own first error or last line; None where all ranks ended well."""
    if outcome.cause == "exited":
        return None
    errors = read_raw(paths).errors
    said = [f"rank {rank}: {error.get('message')}" for rank, error in sorted(errors.items())][:1]
    failed = next((end.rank for end in outcome.ends if end.exit_code), None)
    if not said and failed is not None:
        said = [line for line in [last_line(paths.logs / f"rank{failed}.log")] if line]
    known = outcome.evidence or ""
    bad = [node for node in outcome.nodes if node.word not in GOOD and not (node.detail and node.detail in known)]
    lost = [f"{node.name}: {node.word}" + (f": {node.detail}" if node.detail else "") for node in bad]
    return "; ".join([outcome.cause, *filter(None, [known]), *said, *lost[:4]])


def _why_no_collectives(plan: Plan, facts: PreflightFacts) -> str | None:
    if plan.world_size == 1:
        return "one rank has no group"
    if plan.implementation.argv[: len(NODE_ONLY)] == NODE_ONLY:
        return f"{plan.implementation.framework} has no program for them"
    if not facts.joined:
        return "the process group did not come up"
    return None if facts.collectives else "the ranks recorded none"


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
    read_nodes(paths, plan, vendor)
    memory = plan.hardware.memory_bytes_per_device
    return [
        DeviceState(f"node{each.node}", reading.device, reading.memory_used_bytes, memory, reading.utilisation)
        for each in read_telemetry(paths, [])
        for reading in {reading.device: reading for reading in each.readings if reading.before}.values()
    ]

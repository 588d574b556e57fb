"""--dry-run: shows exactly what would run, as text or JSON, and creates nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from levelfield.catalog import lookup
from levelfield.catalog.lookup import Selection
from levelfield.catalog.registry import Registry
from levelfield.cli.plan_tables import arithmetic_lines
from levelfield.contracts.execution import ContainerWork, ProcessWork, Request
from levelfield.errors import UsageError
from levelfield.measure.parameter_counts import count_parameters
from levelfield.node.common_work import COMMON_KEY
from levelfield.plan.default_layout import LayoutTask, layout_question
from levelfield.plan.peak import remeasure_reason
from levelfield.predict.layout_search import predict
from levelfield.predict.machines import fill_assumed_rates
from levelfield.preflight.preflight_run import preflight_plan
from levelfield.report import tables
from levelfield.report.sheets import LabelledText, labelled_line, pad_row
from levelfield.report.words import age_in_words, gib, parameters_in_words, wrapped
from levelfield.run.launchers import runtime_and_launcher
from levelfield.run.runtimes.environments import is_ready
from levelfield.specs.certificate import CertificateNeed
from levelfield.specs.free_fields import FREE_FIELDS
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import EnvironmentPlan, Plan, PreflightPlan, job_content
from levelfield.specs.readable_json import json_text
from levelfield.specs.variables import mask_secrets

FILE_PLACEHOLDER = "shown below"
ROW_LABELS = {"environment": "variables"}  # the packages have a row of that name


def show(plans: Sequence[Plan], runs: Path, as_json: bool) -> int:
    """Print every plan with its request and job, and the plans of suites as tables. Return 0."""
    if as_json:
        contents = []
        for plan in plans:
            request, paths = _launch_request(plan, runs)
            job = job_content(plan, paths)
            contents.append({"plan": plan.model_dump(mode="json"), "request": request.to_dict(), "job": job})
        print(json_text(contents))
    else:
        single_runs = [_plan_text(plan, runs) for plan in plans if plan.entry is None]
        suites = ["\n".join(tables.plan_lines(suite)) for suite in tables.group_by_suite(plans)]
        print("\n\n".join([*single_runs, *suites]))
    return 0


def _plan_text(plan: Plan, runs: Path) -> str:
    """Return the plan in lines that fit the terminal. What a launcher sends is shown as it is, without new breaks."""
    request, paths = _launch_request(plan, runs)
    return "\n".join(
        [*(labelled_line(*row, 13) for row in _plan_rows(plan, request, paths)), *_submission_lines(request)]
    )


def explain(plans: Sequence[Plan], registry: Registry, dry_run: bool) -> int:
    """Print the arithmetic of each plan's memory and time. Return 0. Raises UsageError where nothing is predicted."""
    if not dry_run:
        raise UsageError("--explain: found no --dry-run; add it")
    print("\n\n".join("\n".join(_arithmetic_lines(plan, registry)) for plan in plans))
    return 0


def _arithmetic_lines(plan: Plan, registry: Registry) -> Iterator[str]:
    hardware = plan.hardware
    selection = lookup.find_selection(registry, plan.selector)
    question = layout_question(LayoutTask(selection, plan.work, hardware.nodes, hardware.devices_per_node))
    if question is None:
        raise UsageError(f"--explain: {_reason_without_prediction(selection, plan)}")
    _, assumed = fill_assumed_rates(selection.chip, plan.work.training.precision, plan.world_size)
    if assumed:
        yield wrapped(f"assumed, as not public of {selection.chip.name}: {', '.join(assumed)}, of an A100-SXM4-80GB", 2)
    yield f"{plan.case} ({plan.scale}) on {hardware.nodes} x {hardware.devices_per_node} {hardware.chip.name}: "
    yield from arithmetic_lines(question, predict(question, plan.tuning), assumed=bool(assumed))


def _reason_without_prediction(selection: Selection, plan: Plan) -> str:
    chip, framework = plan.hardware.chip.name, plan.implementation.framework
    if plan.hardware.is_host:
        return f"a dry run measures no rates of this machine; use `plan {plan.case} --chip {chip} --explain 1`"
    if selection.constants is None:
        return f"configs/planner has no constants of {framework}; add {framework}.yaml to a folder of --plugins"
    return f"the memory of {chip} is not known; add memory_bytes to its vendor.yaml or to your --chips file"


def _launch_request(plan: Plan, runs: Path) -> tuple[Request, RunPaths]:
    paths = RunPaths(runs.absolute() / plan.run_id)
    runtime, launcher = runtime_and_launcher(plan)
    return launcher.request(plan, paths, runtime).redacted(), paths


def _plan_rows(plan: Plan, request: Request, paths: RunPaths) -> Iterator[LabelledText]:
    hardware, training, memory = plan.hardware, plan.work.training, plan.expected_memory
    yield "case", f"{plan.case} ({plan.scale}: {plan.scale_reason})"
    yield (
        "work",
        parameters_in_words(plan.parameters, count_parameters(plan.work.model, training.sequence_length).active),
    )
    yield "", f"{training.steps} steps of {training.tokens_per_step:,} tokens"
    yield "", f"sequences of {training.sequence_length}, {training.global_batch} a step, {training.precision}"
    yield "corpus", f"{plan.corpus.kind} {plan.corpus.prefix or ''} {plan.corpus.digest[:19]}"
    yield "hardware", f"{hardware.nodes} x {hardware.devices_per_node} {hardware.chip.name} ({hardware.description})"
    preload = f", importing {', '.join(plan.access.preload)}" if plan.access.preload else ""
    yield "reached as", f"device {plan.access.device}, backend {plan.access.backend}{preload}"
    if hardware.assumed:
        yield "", "ASSUMED: these devices are not here; this plan cannot run"
    for name, value in {**plan.tuning.values, "environment": plan.tuning.environment}.items():
        origin = plan.origins.get(name, "default")
        if origin != "default" or name not in FREE_FIELDS or not FREE_FIELDS[name].is_framework_specific:
            yield ROW_LABELS.get(name, name), f"{_value_text(value)}  ({origin})"
    yield "accumulation", str(plan.accumulation)
    yield from _prediction_rows(plan)
    yield "memory", f"{gib(memory.total_bytes)} expected on the fullest device, of {gib(memory.available_bytes)}"
    yield "", ", ".join(f"{name} {gib(size)}" for name, size in memory.parts.items())
    peak = f"{plan.peak.tflops:.4g} TFLOP/s" if plan.peak.tflops else "unknown"
    yield "peak", f"{plan.peak.dtype} {peak}: {plan.peak.source}"
    yield from _labelled_once("", _peak_age_lines(plan))
    if plan.certificate:
        yield "certificate", _certificate_text(plan.certificate)
    yield "environment", _environment_text(plan)
    if plan.environment.lacking:
        lines = [line.strip() for line in plan.environment.lacking.splitlines()]
        yield from _labelled_once("", [f"CANNOT BE MADE here: {lines[0]}", *lines[1:]])
    yield from _labelled_once("", plan.environment.left_out)
    if plan.preflight is not None:
        yield from _preflight_rows(plan, plan.preflight, paths)
    yield "run", str(paths.root)
    yield "files", "plan.json request.json job.json provenance.json events/ telemetry.jsonl logs/"
    yield "", "outcome.json status.json result.json report.md"
    yield from _labelled_once("differs", plan.deviations)
    yield from _labelled_once("notice", plan.notices)
    for node in request.nodes:
        if node.container:
            yield from _container_rows(node.node_rank, node.container)
            yield from _labelled_once(
                "", [f"allowed: {what}" for what in (plan.container.allowed if plan.container else ())]
            )
        yield from _rank_rows(node.processes, request.nodes[0].processes[0])
    yield "", f"removed variables: {' '.join(request.removed_variables) or 'every variable of this host'}"


def _rank_rows(processes: Sequence[ProcessWork], first: ProcessWork) -> Iterator[LabelledText]:
    """Return the first rank in full, and how the others of a node differ from it. --json has every rank."""
    if first in processes:
        yield f"rank {first.rank}", shlex.join(first.argv)
        yield from _variable_rows(first.environment)
    others = [process for process in processes if process != first]
    if not others:
        return
    name = f"rank {others[0].rank}" if len(others) == 1 else f"ranks {others[0].rank}-{others[-1].rank}"
    yield name, f"as rank {first.rank}, but for"
    for variable in sorted({key for process in others for key in process.environment}):
        values = [process.environment.get(variable, "") for process in others]
        if any(value != first.environment.get(variable) for value in values):
            different = [shlex.quote(value) for value in dict.fromkeys(values)]
            shown_values = different if len(different) < 3 else [different[0], "...", different[-1]]
            yield "", f"{variable}={' '.join(shown_values)}"
    if different_argv := next((process.argv for process in others if process.argv != first.argv), None):
        yield "", shlex.join(different_argv)


def _preflight_rows(plan: Plan, preflight: PreflightPlan, paths: RunPaths) -> Iterator[LabelledText]:
    """Return what runs before the training: the same launch with the program of the preflight."""
    request, _ = _launch_request(preflight_plan(plan), paths.root.parent)
    ranks = f"{plan.hardware.nodes} x {plan.hardware.devices_per_node} ranks"
    yield "before it", f"a preflight of {ranks}: {shlex.join(request.nodes[0].processes[0].argv)}"
    if preflight.quiet:
        yield "", "no training beside others on a device or on the processors"


def _submission_lines(request: Request) -> Iterator[str]:
    """Return what a launcher gives to its engine: files, command and standard input. --json has the exact bytes."""
    for submission in request.submissions:
        for name, text in submission.files.items():
            yield f"file {name}:"
            yield from text.splitlines()
        yield f"submit {submission.name}: {shlex.join(submission.argv)}"
        content = _parse_standard_input(submission.stdin)
        if content and COMMON_KEY not in content:
            yield "standard input, sent as JSON in one line:"
            yield from _content_lines(content)
        elif submission.stdin is not None:
            yield f"standard input: {submission.stdin.rstrip()}"
    if request.common_stdin:
        yield "standard input of each node goes on with this, sent as JSON in one line:"
        yield from _content_lines(_parse_standard_input(request.common_stdin))


def _parse_standard_input(text: str | None) -> dict[str, Any]:
    """Return the JSON object of a standard input; an empty one for anything else."""
    try:
        content = json.loads(text or "")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _content_lines(content: Mapping[str, Any]) -> Iterator[str]:
    """Return an object in readable form: its JSON indented, and after it the files that it contains."""
    files = content.get("files", {})
    content_without_files = {**content, "files": {name: FILE_PLACEHOLDER for name in files}} if files else content
    yield from json_text(content_without_files).splitlines()
    for name, file in files.items():
        yield f"its file {name}:"
        yield from file.splitlines()


def _peak_age_lines(plan: Plan) -> Iterator[str]:
    peak, now = plan.peak, datetime.now(timezone.utc)
    if peak.measured_tflops is None:
        return
    if peak.measurement:
        yield f"measured {age_in_words(now - datetime.fromisoformat(peak.measurement.at))} ago"
    reason = remeasure_reason(peak.measurement, now)
    if reason and peak.tflops == peak.measured_tflops:
        yield f"the run measures it again: {reason}"


def _labelled_once(label: str, texts: Iterable[str]) -> Iterator[LabelledText]:
    """Return a row for each text, the first with the label and the others without."""
    yield from (("" if index else label, text) for index, text in enumerate(texts))


def _prediction_rows(plan: Plan) -> Iterator[LabelledText]:
    """Return the planner's prediction for the chosen layout, and its next best layouts."""
    for number, row in enumerate(plan.predicted):
        chunks = f" chunks {row.virtual_pipeline}" if row.virtual_pipeline > 1 else ""
        rate = "no rate"
        if row.tokens_per_second is not None:
            rate = pad_row((f"{row.tokens_per_second:,.0f}", "tokens/s/device"), (-7,), " ")
        figures = f"{rate}, {gib(row.memory_bytes)}: {row.layout} micro {row.micro_batch} {row.recomputation}{chunks}"
        yield f"next best {number}" if number else "predicted", figures


def _certificate_text(certificate: CertificateNeed) -> str:
    if certificate.digest:
        return f"aligned in fp32 at smoke scale: run {certificate.run_id}"
    if certificate.reason:
        return f"none, so no verdict is better than consistent: {certificate.reason}"
    return "none yet: the run first trains this code in fp32 at smoke scale, about a minute"


def _environment_text(plan: Plan) -> str:
    environment, packages = plan.environment, _packages_text(plan.environment)
    if plan.container:
        base = plan.container.image.base.reference
        return f"{environment.name} on {base}: {packages}"
    if not packages:
        return f"{environment.name}: {environment.python}, unchanged; give it with --python or --runtime inside"
    return f"{environment.name} ({'ready' if is_ready(environment) else 'would be made'}): {packages}"


def _packages_text(environment: EnvironmentPlan) -> str:
    parts = [", ".join(environment.requirements), *(", ".join(step.packages) for step in environment.builds)]
    index = f" (with the index of {environment.index})" if environment.index else ""
    return "; then built against them: ".join(parts) + index


def _container_rows(node_rank: int, work: ContainerWork) -> Iterator[LabelledText]:
    """Return a node's container: its image, and every mount, option and variable."""
    yield f"node {node_rank}", f"container {work.name} from {work.image}"
    yield "", shlex.join(work.argv)
    limit = f"memory {gib(work.memory_bytes)}" if work.memory_bytes else "no memory limit"
    yield "", f"user {work.user}, network {work.network}, {limit}"
    yield from (("", f"{mode} {path}") for path, mode in sorted(work.mounts.items()))
    options = {key: value for key, value in asdict(work.options).items() if value}
    yield from (("", f"{key}: {options[key]}") for key in options if key not in ("environment", "network"))
    yield from _variable_rows(work.environment)


def _variable_rows(environment: dict[str, str]) -> Iterator[LabelledText]:
    yield from (("", f"{name}={shlex.quote(value)}") for name, value in sorted(environment.items()))


def _value_text(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{k}={v}" for k, v in mask_secrets(value).items()) or "none"
    if value is None:
        return "the rank's share of its cores"
    return {"True": "yes", "False": "no"}.get(str(value), str(value))

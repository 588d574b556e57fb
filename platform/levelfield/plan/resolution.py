"""Makes a plan from a decision. Nothing is started or written here."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import levelfield
from levelfield.catalog.lookup import framework_access
from levelfield.contracts.vendor import Vendor, replayable_commands
from levelfield.corpus.facts import CorpusFacts
from levelfield.errors import CorpusError, DocumentError, LayoutError, NotHere
from levelfield.measure.parameter_counts import count_parameters
from levelfield.node import code_digest as node_code
from levelfield.node.code_digest import folder_digest, shared_folders
from levelfield.plan.arrangement import Arrangement, arrange, choose_scale, expected_footprint, refuse_unsupported
from levelfield.plan.devices import device_use_notices, plan_container, plan_hardware
from levelfield.plan.environment import image_environment, missing_needs, plan_environment, plan_requirements
from levelfield.plan.peak import MeasuredPeaks, mfu_peak
from levelfield.plan.permissions import refuse_device_choice
from levelfield.plan.request import Decision, UserRequest
from levelfield.predict import layout_rules
from levelfield.predict.machines import fill_assumed_rates
from levelfield.specs.case import Scale, Work
from levelfield.specs.derivation import split_name
from levelfield.specs.implementation import SIMULATED, ImplementationFile
from levelfield.specs.plan import (
    ChoicesPlan,
    ContainerPlan,
    CorpusUsed,
    EnvironmentPlan,
    ImplementationUsed,
    MemoryExpected,
    Plan,
    PredictedLayout,
    PreflightPlan,
)
from levelfield.specs.reference import Reference
from levelfield.specs.requirements import EnvironmentPackages
from levelfield.specs.site import LaunchPlan, NodePowerPlan
from levelfield.specs.vendor import Chip, FrameworkAccess
from levelfield.worker.choices import digest_of
from levelfield.worker.synthetic import synthetic_entropy

# In a refused plan, whose framework and vendor do not say how the one reaches the other.
NO_ACCESS = FrameworkAccess(device="none", backend="none")

STEP_PROFILE = "step_profile.py"  # of a framework: how its steps are recorded
STEP_MODULE = "levelfield.worker.step_profile"  # the program of a rank whose steps are recorded

__all__ = ["code_digest", "folder_digest", "implementation_used", "shared_folders"]
# Of a run. Each choice is a byte of events/rank0.choices.jsonl, before it is compressed.
MAX_RECORDED_ROUTING_CHOICES = 2**22


def resolve(decision: Decision, run_id: str, corpus: CorpusFacts | None = None) -> Plan:
    """Return the whole plan of the first repeat, without a measured peak (see `set_measured_peak`).

    Raises LayoutError, DoesNotFit, NotHere, CorpusError or UsageError.
    """
    arrangement, reason = choose_scale(decision)
    if decision.refusal is None:
        _check_free_fields(decision, arrangement, reason)
    selection, scale, work, tuning = decision.selection, arrangement.scale, arrangement.work, arrangement.tuning
    hardware, memory = plan_hardware(decision, arrangement), expected_footprint(decision, arrangement)
    packages = plan_requirements(selection.implementation, selection.vendor.device_kind, tuning, work)
    container = None if decision.refusal else plan_container(decision, hardware, packages)
    implementation = implementation_used(selection.implementation, selection.folder, selection.vendor.device_kind)
    is_simulated, name = selection.implementation.simulated, selection.implementation.framework
    simulated_notice = (f"framework {name}: {SIMULATED}",) if is_simulated else ()
    power_site, available_bytes = decision.request.node_power, hardware.memory_bytes_per_device
    return Plan(
        run_id=run_id,
        asked=decision.text,
        selector=decision.selector,
        case=selection.case.name,
        case_digest=selection.case.fingerprint(),
        scale=scale,
        scale_reason=reason,
        parameters=count_parameters(work.model, work.training.sequence_length).total,
        work=work,
        work_digest=work.fingerprint(),
        implementation=_add_step_recording(decision.request.explain_steps, implementation),
        hardware=hardware,
        access=framework_access(selection.implementation, selection.vendor) or NO_ACCESS,
        tuning=tuning,
        origins=arrangement.origins,
        predicted=_predicted_layouts(decision, arrangement),
        accumulation=max(1, layout_rules.accumulation(work, tuning.layout, tuning.micro_batch)),
        corpus=_planned_corpus(corpus, work, scale),
        environment=_planned_environment(decision, container, packages, None if hardware.assumed else hardware.chip),
        runtime=decision.request.runtime,
        container=container,
        peak=mfu_peak(hardware.chip, work, MeasuredPeaks()),
        expected_memory=MemoryExpected(
            parts=memory._asdict(), total_bytes=memory.total, available_bytes=available_bytes
        ),
        repeat=1,
        repeats=decision.selector.repeats,
        save_weights=decision.request.save_weights,
        capture_step=decision.request.capture_step,
        probe_peak=decision.request.probe,
        deviations=_deviations(decision, arrangement),
        entry=decision.suite_entry,
        refusal=decision.refusal,
        notices=(
            *selection.notices,
            *simulated_notice,
            *device_use_notices(selection, hardware),
            *_unused_hosts(decision),
        ),
        launch=_planned_launch(decision.request.launch, hardware.nodes, selection.adapter),
        preflight=plan_preflight(decision.request, hardware.nodes),
        node_power=NodePowerPlan(seconds=power_site.seconds, reader=power_site) if power_site else None,
        explain_steps=decision.request.explain_steps,
        window_gradients=records_window_gradients(scale, work),
        spot_check=selection.implementation.spot_check,
        platform_version=levelfield.__version__,
    )


def records_window_gradients(scale: Scale, work: Work) -> bool:
    """Return whether each step of the window records its gradients' norms by parameter.

    At full scale that may cost more than 1 % of a step, and a model with experts would record its routing in all steps
    as well. An fp32 training needs no norms: its losses alone show where products were computed in fewer bits.
    """
    return scale == "smoke" and work.training.precision != "fp32" and work.model.experts is None


def _check_free_fields(decision: Decision, arrangement: Arrangement, reason: str) -> None:
    """Raises LayoutError for an impossible layout, NotHere for a choice that the implementation does not offer, and
    where steps are to be recorded and the framework has no profile of its steps."""
    manifest, folder, vendor = decision.selection.implementation, decision.selection.folder, decision.selection.vendor
    try:
        _require_possible_layout(decision, arrangement)
    except LayoutError as error:
        message = _full_scale_problem(decision, arrangement) or f"{error}\n  {_origin_words(arrangement, reason)}"
        raise LayoutError(message) from None
    captures_tensors = decision.request.capture_step is not None
    refuse_unsupported(manifest, arrangement.work, arrangement.tuning, vendor.device_kind, captures_tensors)
    refuse_device_choice(vendor, arrangement.tuning)
    profiles = (source_folder / STEP_PROFILE for source_folder in (folder, *shared_folders(folder)))
    if decision.request.explain_steps is not None and not any(profile.exists() for profile in profiles):
        raise NotHere(
            f"--explain-step: framework {manifest.framework} has no {STEP_PROFILE} beside its train.py, so its steps "
            "cannot be recorded; leave the option out, or see docs/explain.md for how to add one"
        )


def _require_possible_layout(decision: Decision, arrangement: Arrangement) -> None:
    """Raises LayoutError for a layout that is impossible at this scale."""
    work, tuning, selection = arrangement.work, arrangement.tuning, decision.selection
    nodes, devices, chunks = arrangement.nodes, arrangement.devices_per_node, tuning.virtual_pipeline
    uneven = "uneven" in selection.implementation.offered_parallelism(selection.vendor.device_kind)
    is_default = arrangement.layout_is_default
    layout_rules.require_possible(work, tuning.layout, tuning.micro_batch, nodes, devices, chunks, uneven, is_default)
    if arrangement.scale == "full":
        layout_rules.require_layers(work, tuning.layout, chunks, tuning.recompute_layers)


def _full_scale_problem(decision: Decision, arrangement: Arrangement) -> str | None:
    """Return why the layout is impossible at full scale as well, where the scale was not asked for; else None.

    The sizes of the smoke scale would mislead: nobody wrote them.
    """
    if arrangement.scale == "full" or decision.scale != "auto":
        return None
    full = arrange(decision, "full")
    try:
        _require_possible_layout(decision, full)
    except LayoutError as error:
        batch, per_pass = full.work.training.global_batch, full.tuning.micro_batch * full.tuning.layout.data
        other_batch = ""
        if batch % per_pass:
            larger_batch = -(-batch // per_pass) * per_pass
            other_batch = f"\n  --global-batch {larger_batch}, or another multiple of {per_pass}, makes a derived case"
        return f"{error}\n  {_origin_words(full, 'the smoke scale is not possible either')}{other_batch}"
    return None


def _origin_words(arrangement: Arrangement, reason: str) -> str:
    """Return the scale with its reason, and the source of each number of the layout."""
    names = ("layout", "micro_batch", "virtual_pipeline")
    sources = [f"{name} from {arrangement.origins[name]}" for name in names if name in arrangement.origins]
    batch = arrangement.work.training.global_batch
    return f"scale {arrangement.scale} ({reason}), global batch {batch}; {'; '.join(sources)}"


def _predicted_layouts(decision: Decision, arrangement: Arrangement) -> tuple[PredictedLayout, ...]:
    _, assumed = fill_assumed_rates(
        decision.selection.chip, arrangement.work.training.precision, arrangement.nodes * arrangement.devices_per_node
    )
    return tuple(
        PredictedLayout(
            layout=row.layout,
            micro_batch=row.tuning.micro_batch,
            virtual_pipeline=row.tuning.virtual_pipeline,
            recompute=row.tuning.recompute,
            recompute_layers=row.tuning.recompute_layers,
            memory_bytes=row.memory.total,
            tokens_per_second=None if assumed else row.tokens_per_second,
        )
        for row in arrangement.estimates
    )


def _planned_environment(
    decision: Decision, container: ContainerPlan | None, packages: EnvironmentPackages, chip: Chip | None
) -> EnvironmentPlan:
    request, selection = decision.request, decision.selection
    manifest, kind, devices_may_be_absent = (
        selection.implementation,
        selection.vendor.device_kind,
        request.may_lack_hardware or decision.refusal is not None,
    )
    if container and not container.image.requirements:
        return image_environment(container.image)
    if container:  # with --offline its wheels are there already
        lacking = missing_needs(manifest, kind, packages, decision.driver, request.offline, devices_may_be_absent, chip)
        return image_environment(container.image, lacking, packages)
    if request.launch and request.python:  # it is a Python of other machines
        packages = replace(packages, builds=())
    return plan_environment(
        manifest,
        kind,
        packages,
        request.python,
        request.runtime,
        devices_may_be_absent,
        request.offline,
        decision.driver,
        chip,
    )


def _deviations(decision: Decision, arrangement: Arrangement) -> tuple[str, ...]:
    """Return every difference between the request and the plan, as sentences."""
    request, nodes, present = decision.request, arrangement.nodes, len(decision.selection.devices)
    unused_devices: tuple[str, ...] = ()
    if arrangement.layout_is_default and not decision.selector.devices and arrangement.devices_per_node < present:
        used_words = f"{arrangement.devices_per_node} of the {present} devices here are used"
        unused_devices = (f"{used_words}: no layout of {present} devices divides the case",)
    is_one_machine = (
        nodes > 1 and request.runtime == "docker" and not request.may_lack_hardware and request.launch is None
    )
    one_machine = (
        (f"{nodes} nodes were asked for; they are {nodes} containers of one machine",) if is_one_machine else ()
    )
    base, changes = split_name(decision.selection.case.name)
    derived = (f"the case is derived from {base}: {changes.description}",) if changes.suffix else ()
    return (*derived, *unused_devices, *one_machine, *decision.deviations)


def _planned_corpus(facts: CorpusFacts | None, work: Work, scale: Scale) -> CorpusUsed:
    """Return the corpus of the plan. Raises CorpusError for tokens outside the vocabulary, or for too few tokens."""
    if facts is None:
        entropy = synthetic_entropy(work.data.branching)
        digest = work.data.fingerprint()
        return CorpusUsed(kind="synthetic", digest=digest, entropy_nats=entropy)
    if facts.max_token >= work.model.vocab_size:
        raise CorpusError(
            f"{facts.prefix}: token {facts.max_token} is outside the vocabulary of {work.model.vocab_size} tokens at "
            f"scale {scale}. Prepare the text with a smaller tokenizer: `data prepare --input TEXT --output FOLDER "
            "--tokenizer bytes`"
        )
    if facts.tokens <= work.training.sequence_length:
        raise CorpusError(
            f"{facts.prefix}: found {facts.tokens} tokens, expected at least {work.training.sequence_length + 1}: one "
            "sample. Prepare a longer text"
        )
    return CorpusUsed(kind=facts.kind, prefix=str(facts.prefix), digest=facts.digest, tokens=facts.tokens)


def _planned_launch(launch: LaunchPlan | None, nodes: int, vendor: Vendor) -> LaunchPlan | None:
    """Return how the plan's nodes are reached, and what each runs for the vendor; None for this machine alone."""
    if launch is None:
        return None
    commands = replayable_commands(vendor)
    node_commands = {
        "samples": commands.sampling_commands,
        "facts": dict(commands.fact_commands),
        "pci_vendor": vendor.spec.pci_vendor,
    }
    return launch.model_copy(update={"hosts": launch.hosts[:nodes], **node_commands})


def _unused_hosts(decision: Decision) -> tuple[str, ...]:
    """Return a sentence where there are more hosts than the run uses, and the case string has no number of nodes."""
    launch, nodes, text = decision.request.launch, decision.selector.nodes, decision.text
    if decision.suite_entry or launch is None or len(launch.hosts) <= nodes or len(text.split(":")) > 3:
        return ()
    return (
        f"{nodes} of {len(launch.hosts)} hosts is used, as '{text}' has no number of nodes; write "
        f"case:framework:chip:{len(launch.hosts)} for all",
    )


def plan_preflight(request: UserRequest, nodes: int) -> PreflightPlan | None:
    """Return the short preflight of a run; None for a run without one.

    Without the user's choice a run has one where its hosts are named and there are several. An engine that chooses the
    nodes would queue a second job, and might give it other nodes than the training.
    """
    has_several_hosts = request.launch is not None and bool(request.launch.hosts) and nodes > 1
    is_requested = has_several_hosts if request.preflight is None else request.preflight
    return PreflightPlan(quiet=request.quiet_machine) if is_requested or request.quiet_machine else None


def implementation_used(manifest: ImplementationFile, folder: Path, kind: str) -> ImplementationUsed:
    """Return what a plan records of an implementation. Raises DocumentError where its program is not there."""
    for text in manifest.launch.argv:
        program = Path(text.replace("{folder}", str(folder)))
        if text.startswith("{folder}/") and "{" not in text[1:] and not program.is_file():
            raise DocumentError(
                f"{folder / 'implementation.yaml'}: key 'launch.argv': found '{text}', and there is no file {program}; "
                "expected the program of the training: write it, or correct its name"
            )
    return ImplementationUsed(
        framework=manifest.framework,
        version=manifest.version,
        folder=str(folder.absolute()),  # a container and another working directory know no relative one
        digest=folder_digest(folder),
        argv=manifest.launch.argv,
        environment=manifest.environment(kind),
        peak_probe=manifest.launch.peak_probe,
        rests_on=code_digest(folder),
        is_further=manifest.is_further,
    )


def _add_step_recording(steps: int | None, used: ImplementationUsed) -> ImplementationUsed:
    """Return the implementation with the module that records steps as the program, which runs the training's own."""
    python, *program = used.argv
    return used if steps is None else used.model_copy(update={"argv": (python, "-m", STEP_MODULE, *program)})


def code_digest(folder: Path) -> str:
    """Return the digest of all code that a training in this folder runs, besides its framework.

    The plan's `rests_on` has it. Certificates and tested.json have other digests, of less code: see
    `plan/certificate_need.py` and `catalog/code_basis.py`.
    """
    return node_code.code_digest(folder, _platform_code_digest())


@cache
def _platform_code_digest() -> str:
    """Return the digest of the platform's code within a training: it does not change while a command runs."""
    return node_code.platform_digest()


def routing_choices_for(plan: Plan, reference: Reference | None) -> ChoicesPlan | None:
    """Return the reference's choices for a run of the same work and tokens. Else a run of one process records its own,
    so that it may become a reference. None where neither is so, and for a model without experts."""
    experts, training = plan.work.model.experts, plan.work.training
    if experts is None:
        return None
    if reference is not None and reference.choices is not None:
        is_same_work = reference.identity.work == plan.work_digest and reference.identity.corpus == plan.corpus.digest
        return ChoicesPlan(follows=digest_of(reference.choices), known=reference.choices) if is_same_work else None
    layers = experts.mixtures_before(plan.work.model.layers)
    is_small = training.steps * training.tokens_per_step * layers * experts.chosen <= MAX_RECORDED_ROUTING_CHOICES
    return ChoicesPlan(follows=None) if is_small and plan.world_size == 1 else None

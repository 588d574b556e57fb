"""From what was found to a plan. Nothing is started, made or written here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import levelfield
from levelfield.catalog.host_cores import usable_cores
from levelfield.catalog.lookup import Found
from levelfield.contracts.vendor import Device, container_options
from levelfield.corpus.facts import CorpusFacts
from levelfield.errors import CorpusError, DoesNotFit, UsageError
from levelfield.measure.parameters import parameters
from levelfield.plan.image_recipe import image_plan
from levelfield.plan.implementations import (
    check_offered,
    deviations,
    environment_of,
    image_environment,
    implementation_used,
    requirements_of,
)
from levelfield.plan.peak import Measured, peak_of
from levelfield.predict import layout_rules
from levelfield.predict.footprint import expected_memory
from levelfield.specs.case import Scale, Work
from levelfield.specs.container import ContainerPlan
from levelfield.specs.hardware import NamedHardware
from levelfield.specs.layout import Layout, LayoutText, parse_layout
from levelfield.specs.plan import (
    CorpusUsed,
    Hardware,
    MemoryExpected,
    Plan,
    RuntimeName,
)
from levelfield.specs.selector import Selector
from levelfield.specs.suite import EntryUsed
from levelfield.specs.tuning import Tuning, TuningChoice, TuningRow
from levelfield.specs.vendor import FrameworkAccess
from levelfield.worker.synthetic import synthetic_entropy

GIB = 2**30
NO_ACCESS = FrameworkAccess(device="none", backend="none")  # of a refused plan: the vendor has not this framework


@dataclass(frozen=True)
class Asked:
    """What the command line says beside the case string.

    python: an interpreter to use as it is. assume: plan for devices that are not here. probe: measure the peak anew.
    capture_step: the step whose tensors are kept, if any. The three of containers are of runtime docker.
    hardware: what --assume-hardware names. suggested, suggested_by: what a suite's entry chooses; the command line wins
    over it.
    why_scale: why the scale is the one asked for. refusal: why this cannot run here; the plan is for the
    record and not checked.
    """

    scale: Literal["auto", "smoke", "full"] = "auto"
    choice: TuningChoice = field(default_factory=TuningChoice)
    python: str | None = None
    assume: bool = False
    save_weights: bool = False
    capture_step: int | None = None
    probe: bool = False
    runtime: RuntimeName = "process"
    base_image: str | None = None
    offline: bool = False
    container_memory_bytes: int | None = None
    hardware: NamedHardware | None = None
    suggested: TuningChoice = field(default_factory=TuningChoice)
    suggested_by: str = ""
    why_scale: str | None = None
    deviations: tuple[str, ...] = ()
    entry: EntryUsed | None = None
    refusal: str | None = None


def resolve(
    found: Found,
    selector: Selector,
    text: str,
    asked: Asked,
    run_id: str,
    corpus: CorpusFacts | None = None,
    measured: Measured | None = None,
    repeat: int = 1,
) -> Plan:
    """The whole plan. Raises LayoutError, DoesNotFit, CorpusError or UsageError; changes nothing silently."""
    scale, reason = choose_scale(found, selector, asked)
    return _plan(found, selector, text, asked, run_id, corpus, measured or Measured(), repeat, scale, reason)


def choose_scale(found: Found, selector: Selector, asked: Asked) -> tuple[Scale, str]:
    """The scale and why, in a sentence with the numbers. Raises DoesNotFit for `--scale full` that cannot be."""
    if asked.scale == "smoke":
        return "smoke", asked.why_scale or "asked for with --scale smoke"
    refusal = _why_not_full(found, selector, asked)
    if asked.scale == "full":
        if refusal and not asked.assume:
            raise DoesNotFit(f"--scale full: {refusal}. Use --scale smoke, another --layout, or more devices")
        return "full", asked.why_scale or "asked for with --scale full"
    accelerator = found.vendor.device_kind != "cpu"
    if refusal is None and accelerator:
        return "full", "the estimate says that it fits"
    no_chip = None if accelerator else "there is no accelerator here"
    return "smoke", "; ".join(part for part in (no_chip, refusal) if part)


def _why_not_full(found: Found, selector: Selector, asked: Asked) -> str | None:
    plan = _plan(found, selector, "", asked, "", None, Measured(), 1, "full", "", check=False)
    memory = plan.expected_memory
    if memory.available_bytes is None or memory.total_bytes <= memory.available_bytes:
        return None
    return (
        f"{plan.case} has {plan.parameters:,} parameters and needs {memory.total_bytes / GIB:,.1f} GiB on the fullest "
        f"of {plan.world_size} device(s) as {plan.tuning.layout}; there are {memory.available_bytes / GIB:,.1f} GiB"
    )


def _plan(
    found: Found,
    selector: Selector,
    text: str,
    asked: Asked,
    run_id: str,
    corpus: CorpusFacts | None,
    measured: Measured,
    repeat: int,
    scale: Scale,
    reason: str,
    check: bool = True,
) -> Plan:
    work = found.case.work(scale)
    choice, origins = choose(found, selector, asked, scale)
    layout, nodes, devices = _place(found, selector, choice, origins)
    shares = nodes * devices if found.vendor.divisible else devices
    tuning = _tuning(choice, layout, found, shares, origins)
    if check and asked.refusal is None:
        layout_rules.require(work, layout, tuning.micro_batch, nodes, devices, tuning.virtual_pipeline)
        check_offered(found.implementation, work, tuning, found.vendor.device_kind)
    hardware = _hardware(found, nodes, devices, asked)
    implementation = found.implementation
    memory = expected_memory(work.model, work.training, layout, tuning, found.vendor.device_kind, found.keeping)
    requirements = requirements_of(implementation, found.vendor.device_kind, tuning, work)
    container = None if asked.refusal else _container(found, hardware, requirements, asked)
    return Plan(
        run_id=run_id,
        asked=text,
        selector=selector,
        case=found.case.name,
        case_digest=found.case.fingerprint(),
        scale=scale,
        scale_reason=reason,
        parameters=parameters(work.model, work.training.sequence_length).total,
        work=work,
        work_digest=work.fingerprint(),
        implementation=implementation_used(implementation, found.folder),
        hardware=hardware,
        access=found.vendor.frameworks.get(implementation.framework, NO_ACCESS),
        tuning=tuning,
        origins=origins,
        accumulation=max(1, layout_rules.accumulation(work, layout, tuning.micro_batch)),
        corpus=_corpus(corpus, work, scale),
        environment=image_environment(container.image)
        if container
        else environment_of(
            implementation,
            found.vendor.device_kind,
            requirements,
            asked.python,
            asked.runtime,
            asked.assume or asked.refusal is not None,
        ),
        runtime=asked.runtime,
        container=container,
        peak=peak_of(hardware.chip, work, measured, shares),
        expected_memory=MemoryExpected(
            parts=memory.parts(), total_bytes=memory.total, available_bytes=hardware.memory_bytes_per_device
        ),
        repeat=repeat,
        repeats=selector.repeats,
        save_weights=asked.save_weights,
        capture_step=asked.capture_step,
        probe_peak=asked.probe,
        deviations=(*deviations(selector, implementation), *_shared_machine(nodes, asked), *asked.deviations),
        entry=asked.entry,
        refusal=asked.refusal,
        platform_version=levelfield.__version__,
    )


def choose(found: Found, selector: Selector, asked: Asked, scale: Scale) -> tuple[TuningChoice, dict[str, str]]:
    """The free fields by who chose last: case, vendor's tuning, case string, suite, command line; and who that was."""
    named = TuningChoice(layout=selector.layout)
    sources = [
        (f"case {found.case.name}", found.case.tuning.get(scale, TuningChoice())),
        *((f"vendor {found.vendor.name}: {row.why}", row.set) for row in _rows(found, selector, scale)),
        ("case string", named),
        (asked.suggested_by, asked.suggested),
        ("command line", asked.choice),
    ]
    merged: dict[str, object] = {}
    origins: dict[str, str] = {}
    for origin, choice in sources:
        for key, value in choice.model_dump(exclude_none=True).items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value  # type: ignore[dict-item]
            origins[key] = origin
    return TuningChoice.model_validate(merged), origins


def _rows(found: Found, selector: Selector, scale: Scale) -> Iterator[TuningRow]:
    devices = selector.devices or len(found.devices)
    for row in found.tuning_rows:
        if row.applies(scale, found.chip.name, found.implementation.framework, devices):
            yield row


def _place(found: Found, selector: Selector, choice: TuningChoice, origins: dict[str, str]) -> tuple[Layout, int, int]:
    """Layout, nodes and devices per node; what is not said follows from what is."""
    written = parse_layout(choice.layout) if choice.layout else None
    nodes = written.nodes if written and written.nodes else selector.nodes
    devices = selector.devices or (written and written.devices) or _devices_for(written, nodes, found)
    if written:
        return written.layout, nodes, devices
    origins["layout"] = "default: data parallel over all devices"
    return Layout(data=nodes * devices), nodes, devices


def _devices_for(written: LayoutText | None, nodes: int, found: Found) -> int:
    if written is None:
        return 1 if found.vendor.divisible else max(1, len(found.devices))
    return max(1, written.layout.world_size // nodes)


def _tuning(choice: TuningChoice, layout: Layout, found: Found, shares: int, origins: dict[str, str]) -> Tuning:
    fields = choice.model_dump(exclude_none=True, exclude={"layout"})
    if "threads" not in fields and found.vendor.divisible:
        fields["threads"] = max(1, usable_cores() // shares)
        origins["threads"] = f"default: {usable_cores()} usable cores over {shares} process(es)"
    return Tuning(layout=layout, **fields)


def _hardware(found: Found, nodes: int, devices: int, asked: Asked) -> Hardware:
    here = len(found.devices) * (10**6 if found.vendor.divisible else 1)
    within = found.vendor.divisible and asked.runtime == "docker"  # containers divide the host into nodes
    assumed = (nodes > 1 and not within) or devices > here
    if assumed and not asked.assume:
        raise UsageError(_absent(found, nodes, devices))
    memory = found.chip.memory_bytes
    if found.devices:
        memory = found.devices[0].memory_bytes or memory
    if found.vendor.divisible and memory:
        memory //= devices * nodes
    return Hardware(
        vendor=found.vendor.name,
        device_kind=found.vendor.device_kind,
        chip=found.chip,
        description=found.devices[0].description if found.devices else found.chip.name,
        nodes=nodes,
        devices_per_node=devices,
        device_indices=() if found.vendor.divisible else tuple(d.index for d in found.devices[:devices]),
        memory_bytes_per_device=memory,
        visible=_visible(found, devices),
        environment=found.vendor.environment,
        assumed=assumed,
        overlay=found.overlay,
    )


def _visible(found: Found, devices: int) -> dict[str, str]:
    variable = found.vendor.visible_devices_variable
    indices = ",".join(str(d.index) for d in found.devices[:devices])
    return {variable: indices} if variable and indices else {}


def _container(found: Found, hardware: Hardware, requirements: tuple[str, ...], asked: Asked) -> ContainerPlan | None:
    """How a node's container is made and what it is shown; None for another runtime. Raises UsageError."""
    if asked.runtime != "docker":
        given = {"--base-image": asked.base_image, "--container-memory": asked.container_memory_bytes}
        given |= {"--offline": asked.offline}
        if unused := [name for name, value in given.items() if value]:
            raise UsageError(f"{', '.join(unused)}: of use with --runtime docker only")
        return None
    if asked.python:
        raise UsageError("--python: a container has its own; leave it out, or use --runtime inside or process")
    indices = hardware.device_indices or range(hardware.devices_per_node)
    chosen = [d for d in found.devices if d.index in hardware.device_indices]
    devices = chosen or [Device(i, found.chip.name, found.chip.name, None) for i in indices]
    expose = found.expose or partial(container_options, found.vendor.container)
    return ContainerPlan(
        image=image_plan(found.implementation, found.folder, found.vendor, requirements, asked.base_image),
        options=expose(devices),
        visible={} if found.vendor.container.renumbered else hardware.visible,
        memory_bytes=asked.container_memory_bytes,
        offline=asked.offline,
    )


def _shared_machine(nodes: int, asked: Asked) -> tuple[str, ...]:
    if nodes == 1 or asked.assume or asked.runtime != "docker":
        return ()
    return (f"{nodes} nodes were asked for; they are {nodes} containers of one machine",)


def _absent(found: Found, nodes: int, devices: int) -> str:
    if nodes > 1:
        return (
            f"{nodes} nodes were asked for; the local launcher reaches one. --dry-run shows the plan; for vendor cpu "
            "--runtime docker takes a container for each"
        )
    return (
        f"{devices} x {found.chip.name} (vendor {found.vendor.name}) asked for, {len(found.devices)} found here. "
        "`list vendors` shows what is here; --dry-run shows the plan without the hardware"
    )


def _corpus(facts: CorpusFacts | None, work: Work, scale: Scale) -> CorpusUsed:
    """The corpus in use. Raises CorpusError when the case's vocabulary does not hold its largest token."""
    if facts is None:
        entropy = synthetic_entropy(work.data.branching)
        digest = work.data.fingerprint()
        return CorpusUsed(kind="synthetic", digest=digest, entropy_nats=entropy)
    if facts.max_token >= work.model.vocab_size:
        raise CorpusError(
            f"{facts.prefix}: token {facts.max_token} is outside the vocabulary of {work.model.vocab_size} tokens at "
            f"scale {scale}. Prepare the text with a smaller tokenizer (`data prepare --tokenizer bytes`)"
        )
    if facts.tokens <= work.training.sequence_length:
        raise CorpusError(
            f"{facts.prefix}: {facts.tokens} tokens, expected at least {work.training.sequence_length + 1}, one sample"
        )
    return CorpusUsed(kind=facts.kind, prefix=str(facts.prefix), digest=facts.digest, tokens=facts.tokens)

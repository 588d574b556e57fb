"""A plan: one frozen value that describes one run completely before it starts."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from levelfield.specs.base import (
    MAX_DEVICES,
    MAX_NODES,
    MAX_RANKS,
    MAX_REPEATS,
    MAX_SIZE,
    Document,
    Value,
    json_digest,
    sha256_of,
)
from levelfield.specs.case import Scale, Work
from levelfield.specs.certificate import CertificateNeed
from levelfield.specs.chips import OverlayUsed
from levelfield.specs.layout import Layout
from levelfield.specs.paths import RunPaths
from levelfield.specs.requirements import BuildStep
from levelfield.specs.selector import Selector, versioned_framework
from levelfield.specs.site import LaunchPlan, NodePowerPlan
from levelfield.specs.suite import EntryUsed
from levelfield.specs.tuning import LATER_FIELDS, Recompute, Tuning, recomputation
from levelfield.specs.variables import mask_secrets
from levelfield.specs.vendor import HOST_KIND, Chip, ContainerOptions, FrameworkAccess, Image

RuntimeName = Literal["process", "inside", "docker"]

MAX_EXPLAINED_STEPS = 20  # steps that are recorded after a training
MAX_RECORD_BYTES = 2**26  # of one step of one rank, compressed


class Hardware(Value):
    """The devices of the plan."""

    vendor: str
    device_kind: str
    chip: Chip
    description: str
    nodes: int = Field(ge=1, le=MAX_NODES)
    devices_per_node: int = Field(ge=1, le=MAX_DEVICES)
    device_indices: tuple[int, ...]
    memory_bytes_per_device: int | None
    visible: dict[str, str]  # variables that make exactly these devices visible to the training processes
    environment: dict[str, str] = Field(default_factory=dict)  # further variables of the vendor for every process
    assumed: bool  # this machine does not have them, and the plan cannot run
    # The private file that gave some of the chip's fields; None: vendor.yaml gave all.
    overlay: OverlayUsed | None = None

    @property
    def is_host(self) -> bool:
        """Whether the devices are shares of the host's processors and memory."""
        return self.device_kind == HOST_KIND

    @model_validator(mode="after")
    def _ranks_are_bounded(self) -> Hardware:
        if (ranks := self.nodes * self.devices_per_node) > MAX_RANKS:
            raise ValueError(f"nodes x devices_per_node: found {ranks:,}, expected at most {MAX_RANKS:,}")
        return self


# oneDNN computes float32 products where its rate is at least this share of MKL's.
MIN_ONEDNN_RATIO = 0.9


class PeakMeasurement(Value):
    """When a peak was measured, in UTC, and beside what. Null: not known."""

    at: str
    spread: float | None = None  # the best rate less the median, over the best
    repeats: int | None = Field(default=None, ge=1)  # how often the best shape was timed
    other_cores: float | None = None  # that other programs used, of `cores`
    cores: int | None = None
    # On a processor, the rate of a layer's float32 products by oneDNN, over that by MKL.
    onednn_over_mkl: float | None = Field(default=None, gt=0)
    # On a processor, the float32 rate over that of numpy's product, shortly after.
    numpy_ratio: float | None = Field(default=None, gt=0)

    @property
    def products(self) -> Literal["onednn", "mkl"] | None:
        """The library for a layer's float32 products on this processor; None where it was not measured.

        Both round differently. So where they are about as fast, it is always oneDNN, and all runs have the same bits.
        """
        if self.onednn_over_mkl is None:
            return None
        return "onednn" if self.onednn_over_mkl >= MIN_ONEDNN_RATIO else "mkl"


class PeakUsed(Value):
    """The matmul peak that MFU refers to."""

    dtype: str
    tflops: float | None = Field(ge=1e-6, le=1e9)  # a quotient by less or more is no number
    source: str  # where `tflops` is from, or the reason why it is None
    measured_tflops: float | None = None  # the result of the platform's own probe, beside the number of a datasheet
    measurement: PeakMeasurement | None = None  # of `measured_tflops`; None in plans of versions that did not keep it
    # What this share of the host cannot exceed, by its processor; None on another device, and where the processor
    # is another machine's.
    limit_tflops: float | None = Field(default=None, gt=0)


class ImplementationUsed(Value):
    """The implementation of a plan."""

    framework: str
    version: str
    folder: str
    digest: str  # of its own folder
    argv: tuple[str, ...]
    environment: dict[str, str]
    peak_probe: tuple[str, ...]
    rests_on: str | None = None  # the digest of all code that a result rests on; None in a plan of an earlier version
    is_further: bool = False  # whether the version is another than the manifest's default one

    @property
    def label(self) -> str:
        """The framework as a case string names it: `jax`, or `jax_0.10.1` for a further version."""
        return versioned_framework(self.framework, self.version if self.is_further else None)


class EnvironmentPlan(Value):
    """The Python that the training runs in."""

    name: str
    folder: str
    python: str
    made_with: str | None = None  # the interpreter that creates the environment; None: the platform does not create it
    requirements: tuple[str, ...]  # empty: the user's own Python, used unchanged
    digest: str
    lacking: str | None = None  # why this machine cannot create it; only a plan that does not run has a reason
    offline: bool = False  # no package index is used
    builds: tuple[BuildStep, ...] = ()  # what pip builds against the requirements, one step after another
    index: str | None = None  # the variable that names a package index beside pip's own; its value is in no plan
    left_out: tuple[str, ...] = ()  # what the environment is made without, as sentences


class ImagePlan(Value):
    """The recipe of a run's image."""

    name: str
    base: Image
    python: str  # the interpreter in the image
    requirements: tuple[str, ...]
    dockerfile: str  # complete, except for the wheels of `requirements`
    builds: tuple[BuildStep, ...] = ()  # of the wheels, as in an environment's plan
    index: str | None = None  # as there

    @property
    def packages(self) -> tuple[str, ...]:
        """All packages that are installed in the image."""
        return (*self.requirements, *(package for step in self.builds for package in step.packages))


class ContainerPlan(Value):
    """The container of each node."""

    image: ImagePlan
    options: ContainerOptions
    visible: dict[str, str]  # the visible-devices variable with its value inside the container
    memory_bytes: int | None = None  # the memory limit of a node's container
    offline: bool = False  # neither wheels nor a base image are downloaded
    allowed: tuple[str, ...] = ()  # what the user allowed beyond the closed list, as values of --allow


class CorpusUsed(Value):
    """The corpus of a run."""

    kind: Literal["synthetic", "megatron", "paddle"]
    prefix: str | None = None  # None: the synthetic corpus
    digest: str
    tokens: int | None = None
    entropy_nats: float | None = None  # per token, of the synthetic corpus: the floor of the loss


class MemoryExpected(Value):
    """Estimated bytes of the rank that needs most, by part, and the memory of one device."""

    parts: dict[str, int]
    total_bytes: int
    available_bytes: int | None


class PredictedLayout(Value):
    """The planner's prediction for one layout."""

    layout: Layout
    micro_batch: int
    virtual_pipeline: int
    recompute: Recompute
    recompute_layers: int | None = None
    memory_bytes: int
    # Of one device; None where the chip's rates are not public, so that another chip's put the layouts in an
    # order.
    tokens_per_second: float | None

    @property
    def recomputation(self) -> str:
        """What is computed again, such as `full`, or `full 12` for the first 12 layers of each chunk."""
        return recomputation(self.recompute, self.recompute_layers)


class PreflightPlan(Value):
    """What is measured before the training."""

    short: bool = True  # less time for each check
    pairs: bool = False  # messages between every two nodes
    quiet: bool = False  # others on a device or on the processors refuse the run


class ChoicesPlan(Value):
    """The choices of experts of a mixture: those that the run follows, or that it records its own."""

    # The digest of the reference's choices (worker/choices.py); None: the run makes its own and records them.
    follows: str | None
    # The choices themselves, which reference.json and job.json hold; plan.json does not.
    known: str | None = Field(default=None, exclude=True)


# What may differ in the plans of two repeats, by key, with the reason. All other keys must be equal.
KEYS_OF_ONE_RUN = {
    "run_id": "names the run",
    "repeat": "numbers the run within its command",
    "repeats": "how many runs the command has",
    "asked": "the words of the request; the other keys are what came of them",
    "selector": "the same request, read",
    "notices": "what is known about the machine and does not change the plan",
    "implementation.folder": "a place on a disk; `digest` and `rests_on` are of what lies there",
    "environment.folder": "a place on a disk; `digest` is of what lies there",
    "environment.python": "a place on a disk; it counts where the user gave it, as there is no digest",
    "environment.made_with": "a place on a disk; `digest` has the version",
    "corpus.prefix": "a place on a disk; `digest` is of the tokens",
    "certificate.digest": "the certificate that was there; `subject` is what it must certify, and the result has it",
    "certificate.run_id": "as certificate.digest",
    "certificate.failed_run": "as certificate.digest",
    "certificate.reason": "as certificate.digest",
    "peak.tflops": "a measured peak may be measured again before the next repeat, and only MFU refers to it; a "
    "published one counts as part of the chip",
    "peak.source": "as peak.tflops",
    "peak.measured_tflops": "as peak.tflops",
    "peak.measurement": "as peak.tflops; what the training takes from it, the library of products, counts",
    "choices.known": "no plan.json has it; `follows` is its digest",
    "node_power.reader": "no plan.json has the command; its `seconds` count",
}


class Plan(Document):
    """Everything about one run before it starts."""

    KIND: ClassVar[str] = "plan"

    run_id: str
    asked: str  # the case string as the user wrote it
    selector: Selector  # the same, read
    case: str
    case_digest: str
    scale: Scale
    scale_reason: str
    parameters: int  # of the model at this scale
    work: Work
    work_digest: str
    implementation: ImplementationUsed
    hardware: Hardware
    access: FrameworkAccess  # how the framework reaches the devices
    tuning: Tuning
    origins: dict[str, str]  # the source of each free field
    # The planner's best layouts, the chosen one first; empty where something else sets the layout.
    predicted: tuple[PredictedLayout, ...] = ()
    accumulation: int = Field(ge=1, le=MAX_SIZE)
    corpus: CorpusUsed
    environment: EnvironmentPlan
    runtime: RuntimeName = "process"
    container: ContainerPlan | None = None
    peak: PeakUsed
    expected_memory: MemoryExpected
    repeat: int = Field(ge=1, le=MAX_REPEATS)  # which repeat this run is, from 1
    repeats: int = Field(ge=1, le=MAX_REPEATS)  # how many runs the command has
    save_weights: bool = False
    capture_step: int | None = None  # the step whose tensors are written; None: none
    probe_peak: bool = False  # the devices' peak is measured again
    deviations: tuple[str, ...] = ()  # the differences from the request
    entry: EntryUsed | None = None  # the suite's entry that this run is
    refusal: str | None = None  # why the machine cannot run it
    # Sentences about the machine that do not change the plan, such as a maker's tool without an answer.
    notices: tuple[str, ...] = ()
    certificate: CertificateNeed | None = None  # that an aligned run needs; None: it needs none
    launch: LaunchPlan | None = None  # how other machines are reached; None: this machine's own processes or containers
    preflight: PreflightPlan | None = None  # what is measured before the training; None: nothing
    choices: ChoicesPlan | None = None
    node_power: NodePowerPlan | None = None  # how the power of whole nodes is read; None: it is not
    # How many steps after the last one are recorded for `report explain`.
    explain_steps: int | None = Field(default=None, ge=1, le=MAX_EXPLAINED_STEPS)
    # Whether each step of the window records its gradients' norms by parameter, which a training below fp32 is
    # compared by.
    window_gradients: bool = False
    # Whether one step of the window is sampled, for the platform to compute its products and its update again.
    spot_check: bool = False
    platform_version: str

    @property
    def world_size(self) -> int:
        return self.hardware.nodes * self.hardware.devices_per_node

    def ranks_of(self, node: int) -> range:
        """Return the ranks on a node. All nodes have equally many."""
        size = self.hardware.devices_per_node
        return range(node * size, (node + 1) * size)

    @property
    def variables_digest(self) -> str:
        """The digest of the environment variables that the vendor or the user sets. Secrets are masked, as in files."""
        variables = mask_secrets({**self.hardware.environment, **self.tuning.environment})
        return sha256_of(json.dumps(variables, sort_keys=True).encode())

    @property
    def repeats_digest(self) -> str:
        """The digest of all that the plans of repeats have in common: everything but the keys of KEYS_OF_ONE_RUN."""
        content = self.model_dump(mode="json")
        for key in KEYS_OF_ONE_RUN:
            *sections, name = key.split(".")
            section: dict[str, Any] | None = content
            for section_name in sections:
                section = section and section[section_name]
            if section and not (key == "environment.python" and not self.environment.digest):
                section.pop(name, None)
        measurement = self.peak.measurement
        return json_digest([content, measurement.products if measurement else None])

    @property
    def needs_certificate(self) -> bool:
        """Whether the run is aligned only together with a certificate: it is not in fp32 at smoke scale."""
        return self.scale != "smoke" or self.work.training.precision != "fp32"

    @property
    def window_gradient_steps(self) -> range:
        """The steps of the window that record their gradients' norms by parameter."""
        window = self.work.window
        return range(window.first_step, window.last_step + 1) if self.window_gradients else range(0)


def job_content(plan: Plan, paths: RunPaths) -> dict[str, Any]:
    """Return the content of job.json for the worker. It holds nothing about vendors, plans or hosts."""
    work = plan.work.model_dump(mode="json")
    tuning = plan.tuning.model_dump(mode="json", exclude={"layout", "environment"})
    unused_later = LATER_FIELDS.difference(plan.tuning.non_default_fields)  # left out as in the jobs that bundles have
    tuning = {name: value for name, value in tuning.items() if name not in unused_later}
    # The library of a layer's float32 products on a processor, where the probe of the peak has measured it.
    products = plan.peak.measurement.products if plan.peak.measurement and plan.hardware.is_host else None
    # The steps after the last one of a training that is explained, and where they are recorded.
    step_recording = {"steps": plan.explain_steps, "folder": str(paths.profile), "most_bytes": MAX_RECORD_BYTES}
    return {
        "schema": "levelfield.job/1",
        "run_id": plan.run_id,
        "case": plan.case,
        "scale": plan.scale,
        **{key: work[key] for key in ("model", "training", "data", "window", "limits")},
        "corpus": plan.corpus.model_dump(mode="json", include={"kind", "prefix", "digest"}),
        "layout": plan.tuning.layout.model_dump(mode="json"),
        "tuning": tuning,
        "accumulation": plan.accumulation,
        "device": plan.access.device,
        "backend": plan.access.backend,
        "preload": list(plan.access.preload),
        **({"products": products} if products else {}),
        **({"choices": {"known": plan.choices.known}} if plan.choices else {}),
        "gradient_steps": [*plan.work.evidence.gradient_steps, *plan.window_gradient_steps],
        "capture": None if plan.capture_step is None else {"step": plan.capture_step, "folder": str(paths.capture)},
        "events_dir": str(paths.events),
        "save_weights_dir": str(paths.weights) if plan.save_weights else None,
        **({"explain_step": step_recording} if plan.explain_steps is not None else {}),
        **({"spot_check": True} if plan.spot_check else {}),
    }

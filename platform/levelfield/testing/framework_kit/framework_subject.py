"""The checked framework: its manifest, its program on one kind of device, and torch's curves to compare it with."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from levelfield.catalog.lookup import framework_access
from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import Say
from levelfield.errors import LevelfieldError, UnknownName
from levelfield.plan.environment import plan_environment
from levelfield.run.runtimes.environments import is_ready, use_environment
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.requirements import EnvironmentPackages
from levelfield.specs.selector import split_label
from levelfield.specs.vendor import HOST_KIND, FrameworkAccess, VendorFile
from levelfield.testing.findings import Fails, Missing, NotApplicable
from levelfield.testing.framework_kit.small_jobs import MODELS, SINGLE, has_parts, small_job
from levelfield.testing.framework_kit.small_runs import RankProgram, SmallRun, run_small
from levelfield.testing.framework_kit.training_curves import Curve, read_curve

RECORDED_FOLDER = Path(__file__).with_name("recorded")
TORCH = "torch"
DEFINING_KEYS = ("model", "training", "corpus", "data")  # keys of a job that say what is trained; the others say how


def ignore_progress(line: str) -> None:
    """Show nothing of the progress."""


class FrameworkSubject:
    """The state that all checks of one framework share. Raises UnknownName for an unknown framework.

    name: the framework, or a further version of its manifest, such as `jax_0.10.1`.
    kind: the kind of devices to train on. python: an interpreter in place of the manifest's environment.
    report_progress: called with a line about each training. report_environment: called with a line when an
    environment is made, which may take minutes.
    """

    def __init__(
        self,
        name: str,
        plugins: Sequence[Path] = (),
        kind: str = HOST_KIND,
        python: str | None = None,
        report_progress: Say = ignore_progress,
        report_environment: Say = ignore_progress,
    ) -> None:
        self.kind, self.report_progress, self._report_environment = kind, report_progress, report_environment
        self.registry = Registry(tuple(folder.absolute() for folder in plugins))
        self.name, self.version = (name, None) if name in self.registry.frameworks else split_label(name)
        if self.name not in self.registry.frameworks:
            hint = self.registry.absence_hint("framework", self.name, "`framework new NAME` begins one.")
            raise UnknownName("framework", name, self.registry.frameworks, hint=hint)
        self.file = self.registry.frameworks[self.name]
        self.folder = self.file.parent.absolute()
        self.shared: dict[str, Any] = {}  # what one check leaves for others
        self._python = python
        self.exit_stack = ExitStack()  # releases the environments in use

    @cached_property
    def manifest(self) -> ImplementationFile:
        """The content of implementation.yaml. Raises DocumentError when it does not fit its schema."""
        return self.registry.implementation(self.name, self.version)[0]

    @cached_property
    def vendor(self) -> VendorFile:
        """The vendor whose devices the checks train on. Raises NotApplicable without such a device here."""
        for name in sorted(self.registry.vendors):
            if self.registry.vendor_file(name).device_kind == self.kind and self.registry.machine.devices(name):
                return self.registry.vendor_file(name)
        raise NotApplicable(f"found no device of kind '{self.kind}' on this machine")

    @cached_property
    def access(self) -> FrameworkAccess:
        """How the framework reaches the device. Raises Fails where nothing says it."""
        access = framework_access(self.manifest, self.vendor)
        if access is None:
            add = f"add `reaches: {{{self.kind}: {{device: ..., backend: ...}}}}` to implementation.yaml"
            raise Fails(f"nothing says how {self.name} reaches devices of kind '{self.kind}'", add)
        return access

    @cached_property
    def program(self) -> RankProgram:
        """The framework's ranks in its environment, which is made where it is missing. Raises Fails without one."""
        try:
            manifest, requirements = self.manifest, self.manifest.requirements.get(self.kind)
            plan = plan_environment(
                manifest,
                self.kind,
                requirements.environment_packages() if requirements else EnvironmentPackages(),
                python=self._python,
                runtime="process",
            )
            self.exit_stack.enter_context(use_environment(plan, self._report_environment))
        except LevelfieldError as error:
            raise Fails(f"no Python for it: {error}", "correct `requirements`, or give --python") from None
        environment = {**manifest.environment(self.kind), **self.vendor.environment}
        return RankProgram(manifest.launch.argv, self.folder, plan.python, environment)

    @cached_property
    def models(self) -> dict[str, dict[str, Any]]:
        """The small models whose parts the manifest has, by family. Raises Fails when there is none."""
        models = {name: model for name, model in MODELS.items() if has_parts(self.manifest, model)}
        if not models:
            raise Fails("architecture: found the parts of no small model", "write the parts of GPT or of Llama first")
        return models

    def job_on_device(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the job for the device of the check."""
        access = self.access
        return {**job, "device": access.device, "backend": access.backend, "preload": list(access.preload)}

    @contextmanager
    def scratch_folder(self) -> Iterator[Path]:
        """Yield a temporary folder for a run, and delete it with all that the framework leaves there."""
        with tempfile.TemporaryDirectory(prefix="levelfield-check-", ignore_cleanup_errors=True) as name:
            yield Path(name)

    def run_job(
        self, job: Mapping[str, Any], folder: Path, rank_jobs: Mapping[int, Mapping[str, Any]] | None = None
    ) -> SmallRun:
        """Return a job's run in which every rank has finished. Raises Fails for another one.

        rank_jobs: of ranks that have another job.
        """
        run = run_small(self.program, self.job_on_device(job), folder, rank_jobs=rank_jobs)
        for number, rank in enumerate(run.ranks):
            if rank.exit_code:
                last_line = (rank.output.strip().splitlines() or ["no output"])[-1]
                message = rank.error["message"] if rank.error else last_line
                fault = f"rank {number} ended with {rank.exit_code}: {message}"
                raise Fails(fault, "run the job alone: its rank's log says more")
        return run

    def train(self, job: Mapping[str, Any], rank_jobs: Mapping[int, Mapping[str, Any]] | None = None) -> Curve:
        """Return the curve of a job. Raises Fails when a rank fails or leaves a process behind.

        rank_jobs: of ranks that have another job.
        """
        ranks = {rank: self.job_on_device(content) for rank, content in (rank_jobs or {}).items()}
        with self.scratch_folder() as folder:
            run = self.run_job(job, folder, ranks)
        try:
            return read_curve([list(rank.events) for rank in run.ranks])
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            message = f"the events make no curve: {type(error).__name__}: {error}"
            raise Fails(message, "compare them with section 3 of docs/writing-a-framework.md") from None


@dataclass(frozen=True)
class TorchCurve:
    """torch's curve, and where it comes from."""

    curve: Curve
    source: str


def torch_curve(subject: FrameworkSubject, family: str) -> TorchCurve:
    """Return torch's curve of a small model in float32. Raises Missing where it is neither trained nor recorded."""
    return torch_curve_of_job(subject, small_job(subject.models[family], SINGLE))


def torch_curve_of_job(subject: FrameworkSubject, job: Mapping[str, Any]) -> TorchCurve:
    """Return torch's curve of a job in one process, computed once. Raises Missing as `torch_curve`."""
    key = f"curve {definition_digest(job)}"
    computed: TorchCurve | None = subject.shared.get(key)
    if computed is not None:
        return computed
    if TORCH not in subject.shared:
        subject.shared[TORCH] = None  # where its environment is not made
        with suppress(LevelfieldError):
            torch_subject = FrameworkSubject(TORCH, report_progress=subject.report_progress)
            packages = torch_subject.manifest.requirements[HOST_KIND].environment_packages()
            if is_ready(plan_environment(torch_subject.manifest, HOST_KIND, packages, python=None, runtime="process")):
                subject.shared[TORCH] = torch_subject
    torch: FrameworkSubject | None = subject.shared[TORCH]
    try:
        reference = torch and TorchCurve(torch.train(job), f"torch {torch.manifest.version}, trained here")
    except Fails as error:
        raise Missing(f"torch's own curve cannot be trained: {error.says}", "check torch first") from None
    computed = subject.shared[key] = reference or recorded_curve(job)
    return computed


def definition_digest(job: Mapping[str, Any]) -> str:
    """Return the digest of what a job trains, whatever the layout."""
    defined = json.dumps({key: job[key] for key in DEFINING_KEYS}, sort_keys=True)
    return hashlib.sha256(defined.encode()).hexdigest()


def recorded_curve(job: Mapping[str, Any]) -> TorchCurve:
    """Return the recorded curve of a job. Raises Missing without one."""
    digest = definition_digest(job)
    curve = _recorded_curves().get(digest)
    if curve is None:
        raise Missing(f"found no recorded curve of definition {digest[:12]}", "make torch's environment: run it once")
    return curve


@cache
def _recorded_curves() -> dict[str, TorchCurve]:
    """Return the curves of `recorded`, whose keys and lists JSON has changed, by the digest of what they trained.

    auxiliary: the routers' losses. final: the norm and the projections of each parameter after the last step.
    """
    curves = {}
    for content in (json.loads(path.read_text()) for path in sorted(RECORDED_FOLDER.glob("*.json"))):
        series = ("losses", "grad_norms", "tokens", "token_checksums", "auxiliary")
        curve = Curve(
            **{name: tuple(content[name]) for name in series},
            weights=content["weights"],
            gradients={int(step): squares for step, squares in content["gradients"].items()},
            final={name: tuple(values) for name, values in content["final"].items()},
            experts={
                int(step): {int(layer): tuple(counts) for layer, counts in layers.items()}
                for step, layers in content["experts"].items()
            },
        )
        curves[content["definition"]] = TorchCurve(curve, f"torch {content['torch']}'s recorded curve")
    return curves

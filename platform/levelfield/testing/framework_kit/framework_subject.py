"""The checked framework: its manifest, its program on one kind of device, and the runs that checks share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from levelfield.catalog.lookup import access_of
from levelfield.catalog.registry import Registry
from levelfield.errors import LevelfieldError, UnknownName
from levelfield.plan.environment import environment_of
from levelfield.run.runtimes.environments import environment_in_use
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.requirements import Stages
from levelfield.specs.selector import split_label
from levelfield.specs.vendor import HOST_KIND, FrameworkAccess, VendorFile
from levelfield.testing.findings import Fails, NotApplicable
from levelfield.testing.framework_kit.small_models import MODELS
from levelfield.testing.framework_kit.small_runs import RankProgram, SmallRun, Watch, imported_by_all, run_small
from levelfield.testing.framework_kit.training_curves import Curve, read_curve
from levelfield.testing.framework_kit.variants import has_parts

Say = Callable[[str], None]


def silent(line: str) -> None:
    """Show nothing of the progress."""


class FrameworkSubject:
    """The state that all checks of one framework share. Raises UnknownName for an unknown framework.

    name: also with a further version of the manifest, such as `jax_0.10.1`.
    kind: of the devices to train on. python: an interpreter to use in place of the environment of the manifest.
    say: hears what is trained. tell: hears that an environment is made, which may take minutes.
    """

    def __init__(
        self,
        name: str,
        plugins: Sequence[Path] = (),
        kind: str = HOST_KIND,
        python: str | None = None,
        say: Say = silent,
        tell: Say = silent,
    ) -> None:
        self.kind, self.say, self._tell = kind, say, tell
        self.registry = Registry(tuple(folder.absolute() for folder in plugins))
        self.name, self.version = (name, None) if name in self.registry.frameworks else split_label(name)
        if self.name not in self.registry.frameworks:
            raise UnknownName("framework", name, self.registry.frameworks, hint="`framework new NAME` begins one.")
        self.file = self.registry.frameworks[self.name]
        self.folder = self.file.parent.absolute()
        self.kept: dict[str, Any] = {}  # what one check leaves for others
        self._python = python
        self._closing = ExitStack()

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
        found = access_of(self.manifest, self.vendor)
        if found is None:
            add = f"add `reaches: {{{self.kind}: {{device: ..., backend: ...}}}}` to implementation.yaml"
            raise Fails(f"nothing says how {self.name} reaches devices of kind '{self.kind}'", add)
        return found

    @cached_property
    def program(self) -> RankProgram:
        """The framework's ranks in its environment, which is made where it is missing. Raises Fails without one."""
        try:
            python = self._environment(self.manifest, self._python)
        except LevelfieldError as error:
            raise Fails(f"no Python for it: {error}", "correct `requirements`, or give --python") from None
        environment = {**self.manifest.environment(self.kind), **self.vendor.environment}
        return RankProgram(self.manifest.launch.argv, self.folder, python, environment)

    def _environment(self, manifest: ImplementationFile, python: str | None) -> str:
        needs = manifest.requirements.get(self.kind)
        plan = environment_of(manifest, self.kind, needs.stages() if needs else Stages(), python, "process")
        self._closing.enter_context(environment_in_use(plan, self._tell))
        return plan.python

    @property
    def most_ranks(self) -> int | None:
        """The number of devices here; None for a host, which is divided into any number of shares."""
        return None if self.vendor.is_host else len(self.registry.machine.devices(self.vendor.name))

    @cached_property
    def models(self) -> dict[str, dict[str, Any]]:
        """The small models whose parts the manifest has, by family. Raises Fails when there is none."""
        found = {name: model for name, model in MODELS.items() if has_parts(self.manifest, model)}
        if not found:
            raise Fails("architecture: found the parts of no small model", "write the parts of GPT or of Llama first")
        return found

    def on_device(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the job for the device of the check."""
        access = self.access
        return {**job, "device": access.device, "backend": access.backend, "preload": list(access.preload)}

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A temporary folder for a run, without what the framework leaves there."""
        with tempfile.TemporaryDirectory(prefix="levelfield-check-", ignore_cleanup_errors=True) as name:
            yield Path(name)

    def run(self, job: Mapping[str, Any], folder: Path, watch: Watch | None = None) -> SmallRun:
        return run_small(self.program, self.on_device(job), folder, watch=watch)

    def train(self, job: Mapping[str, Any], others: Mapping[int, Mapping[str, Any]] | None = None) -> Curve:
        """Return the curve of a job. Raises Fails when a rank fails or leaves a process behind."""
        return self.trained(job, others)[0]

    def trained(
        self, job: Mapping[str, Any], others: Mapping[int, Mapping[str, Any]] | None = None
    ) -> tuple[Curve, frozenset[str]]:
        """Return the curve of a job and the files that its ranks imported. Raises Fails as `train`."""
        ranks = {rank: self.on_device(own) for rank, own in (others or {}).items()}
        with self.scratch() as folder:
            run = run_small(self.program, self.on_device(job), folder, others=ranks)
        if run.failure:
            raise Fails(run.failure, "run the job alone: its rank's log says more")
        try:
            curve = read_curve([list(rank.events) for rank in run.ranks])
            return curve, imported_by_all([rank.imported for rank in run.ranks])
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            why = f"the events make no curve: {type(error).__name__}: {error}"
            raise Fails(why, "compare them with section 3 of docs/writing-a-framework.md") from None

    def close(self) -> None:
        """Release the environments in use."""
        self._closing.close()

"""The Python environment of a run: made from pinned requirements, given by the user, or part of an image."""

from __future__ import annotations

import hashlib
import shutil

from levelfield.checkout import checkout
from levelfield.errors import NotHere, UsageError
from levelfield.plan.interpreters import Interpreter, find_interpreter
from levelfield.specs.case import Work
from levelfield.specs.container import ImagePlan
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.plan import EnvironmentPlan, RuntimeName
from levelfield.specs.tuning import Tuning


def environment_of(
    file: ImplementationFile,
    kind: str,
    requirements: tuple[str, ...],
    python: str | None,
    runtime: RuntimeName,
    assume: bool = False,
    offline: bool = False,
) -> EnvironmentPlan:
    """Return the Python environment: made by the platform from pinned requirements, or an existing one.

    Raises NotHere when the machine has no suitable Python, or the implementation has no requirements for this kind of
    device. `assume`: return the vendor's own Python or a reason instead of raising.
    """
    if runtime == "inside":
        python = python or "python3"
    if python:
        return _given(python)
    if kind not in file.requirements:
        if assume:
            return EnvironmentPlan(name="the vendor's own", folder="", python="python3", requirements=(), digest="")
        raise NotHere(
            f"{file.label} on {kind}: the vendor's own Python brings the framework. Name it with --python, or use "
            "--runtime inside in the vendor's container, or --runtime docker with the vendor's image"
        )
    folder = checkout() / ".venvs" / f"{file.stem}-{kind}"
    interpreter, lacking = _interpreter(file, kind, assume)
    version = ".".join(map(str, interpreter.version)) if interpreter else file.requirements[kind].python
    return EnvironmentPlan(
        name=folder.name,
        folder=str(folder),
        python=str(folder / "bin" / "python"),
        made_with=interpreter.python if interpreter else None,
        requirements=requirements,
        digest=_digest((version, *requirements)),
        lacking=lacking,
        offline=offline,
    )


def _interpreter(file: ImplementationFile, kind: str, assume: bool) -> tuple[Interpreter | None, str | None]:
    """Return the interpreter that makes the environment, or with `assume` the reason why there is none."""
    try:
        return interpreter_for(file, kind), None
    except NotHere as error:
        if assume:
            return None, str(error)
        raise


def _given(python: str) -> EnvironmentPlan:
    if not shutil.which(python):
        raise UsageError(f"--python {python}: found no interpreter there; give the path of an executable Python")
    return EnvironmentPlan(name="given", folder="", python=python, requirements=(), digest="")


def image_environment(image: ImagePlan) -> EnvironmentPlan:
    """Return the Python of a container. It is part of the image; nothing is made on the host."""
    digest = _digest((image.dockerfile, *image.requirements))
    return EnvironmentPlan(
        name=f"image {image.name}", folder="", python=image.python, requirements=image.requirements, digest=digest
    )


def requirements_of(file: ImplementationFile, kind: str, tuning: Tuning, work: Work) -> tuple[str, ...]:
    """Return the pinned requirements of this choice; none where the vendor provides the framework."""
    if kind not in file.requirements:
        return ()
    needs = file.requirements[kind]
    wanted = {"flash-attn": tuning.attention == "flash_attn", "transformer-engine": work.training.precision == "fp8"}
    optional = tuple(p for p in needs.optional if any(used and p.startswith(name) for name, used in wanted.items()))
    return (*needs.packages, *optional)


def _digest(lines: tuple[str, ...]) -> str:
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def interpreter_for(file: ImplementationFile, kind: str) -> Interpreter:
    try:
        return find_interpreter(file.requirements[kind].python)
    except UsageError as error:
        raise NotHere(f"{file.label} on {kind}: {error}") from None

"""The recipe of a run's image: a Dockerfile from the templates in docker/, and the wheels that go into it.

This module only reads the templates. A plugin's framework may have a template beside its implementation.yaml:
`Dockerfile.j2`. Without one its image is the base image.
"""

from __future__ import annotations

from pathlib import Path

import jinja2

from levelfield.checkout import checkout
from levelfield.errors import UsageError
from levelfield.specs.base import parse
from levelfield.specs.container import ImagePlan
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.vendor import GIVEN, Image, VendorFile

ENVIRONMENT = "/opt/levelfield"
PIP = "pip-26.3-py3-none-any.whl"
PIP_REQUIREMENT = "pip==26.3"


def image_plan(
    implementation: ImplementationFile,
    folder: Path,
    vendor: VendorFile,
    requirements: tuple[str, ...],
    given: str | None,
) -> ImagePlan:
    """Return the recipe for one framework on one vendor.

    given: the user's base image. It has the system's packages, and the framework where there are no requirements.
    Raises UsageError when neither the vendor nor the user names a base image, and for a further version where the
    vendor's image brings the framework.
    """
    base = _base(implementation.framework, vendor, given, bool(requirements))
    needed = () if base.has_framework else requirements
    if implementation.is_further and base.has_framework:
        raise UsageError(
            f"{implementation.label} on {vendor.name}: found the image {base.reference}, which brings a version of its "
            f"own; name an image without the framework with --base-image, or take the default: "
            f"`{implementation.framework}`"
        )
    if not needed and not base.has_framework:
        raise UsageError(
            f"{implementation.framework} on {vendor.name}: {folder / 'implementation.yaml'} has no requirements for "
            f"'{vendor.device_kind}', so the image must have the framework: set has_framework in the vendor's images"
        )
    return ImagePlan(
        name=f"levelfield/{implementation.stem.replace('+', '_')}-{vendor.name}",
        base=base,
        python=f"{ENVIRONMENT}/bin/python" if needed else base.python,
        requirements=needed,
        dockerfile=_render(implementation.framework, folder, vendor.name, base, needed),
    )


def _base(framework: str, vendor: VendorFile, given: str | None, installs: bool) -> Image:
    named = vendor.images.get(framework) or vendor.images.get("base")
    if given:
        version = named.python_version if named else "3.11"
        content = {
            "image": given,
            "python_version": version,
            "has_framework": not installs,
            "source": GIVEN,
        }
        return parse(Image, content, "--base-image or LEVELFIELD_BASE_IMAGE")
    if named is None:
        raise UsageError(
            f"vendor {vendor.name} has no image for {framework}: add one to images in its vendor.yaml, or give "
            "--base-image IMAGE"
        )
    return named


def _render(framework: str, folder: Path, vendor: str, base: Image, requirements: tuple[str, ...]) -> str:
    own = folder / "Dockerfile.j2"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([checkout() / "docker", folder]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    named = f"{framework}.Dockerfile.j2"
    template = own.name if own.exists() else named if (checkout() / "docker" / named).exists() else "base.Dockerfile.j2"
    try:
        return environment.get_template(template).render(
            base=base, framework=framework, vendor=vendor, requirements=requirements, environment=ENVIRONMENT, pip=PIP
        )
    except jinja2.TemplateError as error:
        raise UsageError(f"{template}: {type(error).__name__}: {error}") from None

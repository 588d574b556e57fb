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
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.plan import ImagePlan
from levelfield.specs.requirements import EnvironmentPackages, takes_python
from levelfield.specs.vendor import FROM_USER, Image, VendorFile

VENV_PATH = "/opt/levelfield"  # of the environment in the image
PIP_WHEEL = "pip-26.3-py3-none-any.whl"
PIP_REQUIREMENT = "pip==26.3"


def image_plan(
    implementation: ImplementationFile,
    folder: Path,
    vendor: VendorFile,
    packages: EnvironmentPackages,
    base_image: str | None,
    base_has_framework: bool = False,
) -> ImagePlan:
    """Return the recipe for one framework on one vendor.

    folder: of the framework. base_image: the user's, with the system's packages. It brings the framework too where
    there are no requirements or where base_has_framework is set.

    Raises UsageError when neither the vendor nor the user names a base image, for an image of another Python than the
    requirements', and for a further version of the framework where the image brings one.
    """
    if base_has_framework and not base_image:
        raise UsageError("--base-has-framework: found no base image; name it with --base-image")
    base = _choose_base_image(
        implementation.framework, vendor, base_image, bool(packages.pip_packages) and not base_has_framework
    )
    installed_packages = EnvironmentPackages() if base.has_framework else packages
    if implementation.is_further and base.has_framework:
        raise UsageError(
            f"{implementation.label} on {vendor.name}: found the image {base.reference}, which brings a version of its "
            f"own; name an image without the framework with --base-image, or take the default: "
            f"`{implementation.framework}`"
        )
    if not installed_packages.pip_packages and not base.has_framework:
        raise UsageError(
            f"{implementation.framework} on {vendor.name}: {folder / 'implementation.yaml'} has no requirements for "
            f"'{vendor.device_kind}', so the image must have the framework: set has_framework in the vendor's images"
        )
    python_clauses = implementation.requirements[vendor.device_kind].python if installed_packages.pip_packages else None
    major, _, minor = base.python_version.partition(".")
    if python_clauses and not takes_python(python_clauses, (int(major), int(minor))):
        raise UsageError(
            f"{implementation.label} on {vendor.name}: found Python {base.python_version} in the image "
            f"{base.reference}, expected {python_clauses}; name an image with such a Python for "
            f"{implementation.framework} in `images` of {vendor.name}'s vendor.yaml"
        )
    return ImagePlan(
        name=f"levelfield/{implementation.stem.replace('+', '_')}-{vendor.name}",
        base=base,
        python=f"{VENV_PATH}/bin/python" if installed_packages.pip_packages else base.python,
        requirements=installed_packages.pip_packages,
        dockerfile=_dockerfile(implementation.framework, folder, vendor, base, bool(installed_packages.pip_packages)),
        builds=installed_packages.build_steps,
        index=installed_packages.index.setting if installed_packages.index else None,
    )


def _choose_base_image(framework: str, vendor: VendorFile, base_image: str | None, installs_packages: bool) -> Image:
    image = vendor.images.get(framework) or vendor.images.get("base")
    if base_image:
        version = image.python_version if image else "3.11"
        content = {
            "image": base_image,
            "python_version": version,
            "has_framework": not installs_packages,
            "source": FROM_USER,
        }
        return parse(Image, content, "--base-image or LEVELFIELD_BASE_IMAGE")
    if image is None:
        raise UsageError(
            f"vendor {vendor.name} has no image for {framework}: add one to images in its vendor.yaml, or give "
            "--base-image IMAGE"
        )
    return image


def _dockerfile(framework: str, folder: Path, vendor: VendorFile, base: Image, installs_packages: bool) -> str:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader([checkout() / "docker", folder]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    candidates = (folder / "Dockerfile.j2", checkout() / "docker" / f"{framework}.Dockerfile.j2")
    template = next((path.name for path in candidates if path.exists()), "base.Dockerfile.j2")
    try:
        return templates.get_template(template).render(
            base=base,
            framework=framework,
            vendor=vendor.name,
            is_accelerator=not vendor.is_host,
            installs=installs_packages,
            environment=VENV_PATH,
            pip=PIP_WHEEL,
        )
    except jinja2.TemplateError as error:
        raise UsageError(f"{template}: {type(error).__name__}: {error}") from None

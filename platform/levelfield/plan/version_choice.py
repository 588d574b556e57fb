"""The version of a framework that runs on the chip, and with the driver here, where nobody named a version."""

from __future__ import annotations

from dataclasses import replace

from levelfield.catalog.lookup import Selection
from levelfield.catalog.registry import Registry
from levelfield.plan.build_checks import is_enough, unmet
from levelfield.plan.request import UserRequest
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.requirements import LeastVersion
from levelfield.specs.selector import Selector, labelled
from levelfield.specs.vendor import Chip


def version_that_runs(
    registry: Registry, selector: Selector, found: Selection, request: UserRequest
) -> tuple[Selector, Selection, str | None, tuple[str, ...]]:
    """Return the selector and its selection with a version that the chip and the driver can run, and why it is another.

    The third value is the driver's version; None where the packages need no certain one, or nobody knows the driver:
    for devices of other machines, and for packages that the platform does not install. A version that the user named
    stays, and so does that of devices that are only assumed, as such a plan cannot run.
    """
    file, kind = found.implementation, found.vendor.device_kind
    needs = file.requirements.get(kind)
    is_here = found.devices and not request.hardware
    if needs is None or _is_brought(found, request) or not (is_here or request.launch):
        return selector, found, None, ()
    driver = registry.machine.driver(found.vendor.name) if needs.driver and is_here else None
    faults = [
        f"found {what}, and it needs {need.least} or newer ({need.reason})"
        for what, need, _ in unmet(needs, driver, found.chip)
    ]
    if not faults:
        return selector, found, driver, _unknown(file, needs.driver, driver)
    version = _other(file, kind, driver, found.chip)
    if selector.version is not None or version is None:
        return selector, found, driver, ()
    other, _folder = registry.implementation(selector.framework, version)
    named = selector.model_copy(update={"version": version})
    why = f"{labelled(file.framework, version)} in place of {file.framework} {file.version}: {'; '.join(faults)}"
    return named, replace(found, implementation=other), driver, (why,)


def _is_brought(found: Selection, request: UserRequest) -> bool:
    """Return whether the user's Python or the image brings the packages."""
    if request.runtime != "docker":
        return request.runtime == "inside" or request.python is not None
    image = found.vendor.images.get(found.implementation.framework) or found.vendor.images.get("base")
    return request.base_has_framework or (request.base_image is None and image is not None and image.has_framework)


def _other(file: ImplementationFile, kind: str, driver: str | None, chip: Chip) -> str | None:
    """Return the first further version whose packages run on this chip with this driver."""
    for version, further in file.versions.items():
        needs = further.requirements.get(kind)
        if needs is not None and not any(unmet(needs, driver, chip)):
            return version
    return None


def _unknown(file: ImplementationFile, need: LeastVersion | None, driver: str | None) -> tuple[str, ...]:
    if need is None or driver is None or is_enough(need, driver) is not None:
        return ()
    return (
        f"{file.label} needs driver {need.least} or newer ({need.reason}); this machine's was not checked: {driver}",
    )

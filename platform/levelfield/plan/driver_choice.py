"""The version of a framework that runs with the driver of the devices here, where nobody named a version."""

from __future__ import annotations

from dataclasses import replace

from levelfield.catalog.lookup import Selection
from levelfield.catalog.registry import Registry
from levelfield.plan.build_checks import is_enough
from levelfield.plan.request import UserRequest
from levelfield.specs.build_needs import DriverNeed
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.selector import Selector, labelled


def for_driver(
    registry: Registry, selector: Selector, found: Selection, request: UserRequest
) -> tuple[Selector, Selection, str | None, tuple[str, ...]]:
    """Return the selector and its selection with a version that the driver here can run, and why it is another one.

    The third value is the driver's version; None where the packages need no certain one, or nobody knows the driver:
    for devices that are not here, and for packages that the platform does not install. A version that the user named
    stays.
    """
    need = _need(found.implementation, found.vendor.device_kind)
    if need is None or not found.devices or request.hardware or _is_brought(found, request):
        return selector, found, None, ()
    driver = registry.machine.driver(found.vendor.name)
    if is_enough(need, driver) is not False:
        return selector, found, driver, _unknown(found, need, driver)
    version = _older(found.implementation, found.vendor.device_kind, driver)
    if selector.version is not None or version is None:
        return selector, found, driver, ()
    file, _folder = registry.implementation(selector.framework, version)
    named = selector.model_copy(update={"version": version})
    return named, replace(found, implementation=file), driver, (_chosen(found.implementation, version, driver, need),)


def _is_brought(found: Selection, request: UserRequest) -> bool:
    """Return whether the user's Python or the image brings the packages."""
    if request.runtime != "docker":
        return request.runtime == "inside" or request.python is not None
    image = found.vendor.images.get(found.implementation.framework) or found.vendor.images.get("base")
    return request.base_has_framework or (request.base_image is None and image is not None and image.has_framework)


def _need(file: ImplementationFile, kind: str) -> DriverNeed | None:
    return file.requirements[kind].driver if kind in file.requirements else None


def _older(file: ImplementationFile, kind: str, driver: str) -> str | None:
    """Return the first further version whose packages run with this driver."""
    for version, further in file.versions.items():
        need = further.requirements[kind].driver if kind in further.requirements else None
        if need and is_enough(need, driver):
            return version
    return None


def _chosen(file: ImplementationFile, version: str, driver: str, need: DriverNeed) -> str:
    return (
        f"{labelled(file.framework, version)} in place of {file.framework} {file.version}: found driver {driver}, and "
        f"{file.version} needs {need.least} or newer ({need.reason})"
    )


def _unknown(found: Selection, need: DriverNeed, driver: str) -> tuple[str, ...]:
    if is_enough(need, driver) is not None:
        return ()
    name = found.implementation.label
    return (f"{name} needs driver {need.least} or newer ({need.reason}); this machine's was not checked: {driver}",)

"""The conformance suites for plugin authors: `vendor check`, or classes for their own tests, which pytest runs.

from levelfield.testing import FrameworkConformance, LauncherConformance, VendorConformance

class TestAcme(VendorConformance):
    vendor = "acme"

class TestTensors(FrameworkConformance):
    framework = "tensors"

class TestPbs(LauncherConformance):
    launcher = "pbs"
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest import SkipTest

from levelfield.specs.vendor import HOST_KIND
from levelfield.testing import check_suite
from levelfield.testing.framework_kit import framework_suite
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject
from levelfield.testing.launcher_conformance import LauncherConformance
from levelfield.testing.subject import VendorSubject

__all__ = ["FrameworkConformance", "LauncherConformance", "VendorConformance"]
_vendor, _framework = cache(VendorSubject), cache(FrameworkSubject)


class Conformance:
    """The base of the suites for vendors and frameworks.

    plugins: folders of a plugin that is neither installed nor in the checkout. fast: without the checks that train or
    wait. suite: the module with the checks.
    """

    plugins: ClassVar[Sequence[Path]] = ()
    fast: ClassVar[bool] = False
    suite: ClassVar[ModuleType]

    def subject(self) -> Any:
        """Return the state that all checks of this plugin share."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Generate one test for each check, with the name of the check."""
        if "check_name" in metafunc.fixturenames:
            names = [check.name for check in self.suite.CHECKS if check.is_selected(self.fast)]
            metafunc.parametrize("check_name", names)

    def test_conformance(self, check_name: str) -> None:
        check = next(check for check in self.suite.CHECKS if check.name == check_name)
        subject = self.subject()
        finding = self.suite.run_one_check(subject, check)
        if finding.status == "not applicable":
            raise SkipTest(f"{subject.name}: {finding.says}")
        assert finding.is_good, f"{finding.check} {finding.status}: {finding.says}. {finding.do}"


class VendorConformance(Conformance):
    """The base of a test class: a subclass named Test... with `vendor` has one test for each check."""

    suite: ClassVar[ModuleType] = check_suite
    vendor: ClassVar[str]

    def subject(self) -> VendorSubject:
        return _vendor(self.vendor, tuple(self.plugins))


class FrameworkConformance(Conformance):
    """The base of a test class: a subclass named Test... with `framework` has one test for each check.

    device: the kind of devices to train on. python: an interpreter in place of the manifest's environment.
    """

    suite: ClassVar[ModuleType] = framework_suite
    framework: ClassVar[str]
    device: ClassVar[str] = HOST_KIND
    python: ClassVar[str | None] = None

    def subject(self) -> FrameworkSubject:
        return _framework(self.framework, tuple(self.plugins), self.device, self.python)

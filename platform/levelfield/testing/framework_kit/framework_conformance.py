"""The suite for frameworks as a test class for an author's own CI. pytest runs it; this module does not import it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

from levelfield.specs.vendor import HOST_KIND
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject
from levelfield.testing.framework_kit.framework_suite import CHECKS, find


@cache
def _subject(framework: str, plugins: tuple[Path, ...], device: str, python: str | None) -> FrameworkSubject:
    return FrameworkSubject(framework, plugins, device, python)


class FrameworkConformance:
    """The base of a test class: a subclass named Test... with `framework` has one test for each check.

    plugins: folders with models/, for a framework that is neither installed nor in the checkout. device: the kind of
    devices to train on. python: an interpreter in place of the manifest's environment. fast: without slow checks.
    """

    framework: ClassVar[str]
    plugins: ClassVar[Sequence[Path]] = ()
    device: ClassVar[str] = HOST_KIND
    python: ClassVar[str | None] = None
    fast: ClassVar[bool] = False

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Generate one test for each check, with the name of the check."""
        names = [item.name for item in CHECKS if not (item.slow if self.fast else item.name == "one-process")]
        if "check_name" in metafunc.fixturenames:
            metafunc.parametrize("check_name", names)

    def test_conformance(self, check_name: str) -> None:
        item = next(item for item in CHECKS if item.name == check_name)
        found = find(_subject(self.framework, tuple(self.plugins), self.device, self.python), item)
        if found.status == "not applicable":
            raise SkipTest(f"{self.framework}: {found.says}")
        assert found.is_good, f"{found.check} {found.status}: {found.says}. {found.do}"

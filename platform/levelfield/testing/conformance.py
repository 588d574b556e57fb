"""The suite as a test class for an author's own CI. pytest runs it, but this module does not import pytest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

from levelfield.testing.check_suite import CHECKS, find
from levelfield.testing.subject import VendorSubject


@cache
def _subject(vendor: str, plugins: tuple[Path, ...]) -> VendorSubject:
    return VendorSubject(vendor, plugins)


class VendorConformance:
    """The base of a test class: a subclass named Test... with `vendor` has one test for each check.

    plugins: folders with vendors/, for a vendor that is neither installed nor in the checkout. fast: no whole runs.
    """

    vendor: ClassVar[str]
    plugins: ClassVar[Sequence[Path]] = ()
    fast: ClassVar[bool] = False

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Generate one test for each check, with the name of the check."""
        names = [check.name for check in CHECKS if not (self.fast and check.whole)]
        if "check_name" in metafunc.fixturenames:
            metafunc.parametrize("check_name", names)

    def test_conformance(self, check_name: str) -> None:
        check = next(check for check in CHECKS if check.name == check_name)
        found = find(_subject(self.vendor, tuple(self.plugins)), check)
        if found.status == "not applicable":
            raise SkipTest(f"{self.vendor}: {found.says}")
        assert found.is_good, f"{found.check} {found.status}: {found.says}. {found.do}"

"""The suite as a class of tests, for an author's own CI. pytest calls it; nothing here needs pytest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

from levelfield.testing.subject import Subject
from levelfield.testing.suite import CHECKS, find


@cache
def _subject(vendor: str, plugins: tuple[Path, ...]) -> Subject:
    return Subject(vendor, plugins)


class VendorConformance:
    """Make a subclass whose name begins with Test, and say which vendor: one test for each check.

    plugins: folders with vendors/, where the vendor is neither installed nor in the checkout. fast: without whole runs.
    """

    vendor: ClassVar[str]
    plugins: ClassVar[Sequence[Path]] = ()
    fast: ClassVar[bool] = False

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """A test for each check, named like it."""
        names = [check.name for check in CHECKS if not (self.fast and check.whole)]
        if "check_name" in metafunc.fixturenames:
            metafunc.parametrize("check_name", names)

    def test_conformance(self, check_name: str) -> None:
        check = next(check for check in CHECKS if check.name == check_name)
        found = find(_subject(self.vendor, tuple(self.plugins)), check)
        if found.status == "not applicable":
            raise SkipTest(f"{self.vendor}: {found.says}")
        assert found.is_good, f"{found.check} {found.status}: {found.says}. {found.do}"

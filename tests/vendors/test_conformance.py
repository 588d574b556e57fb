"""Every vendor of the checkout passes the conformance suite, with its tools replayed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.testing.check_suite import CHECKS, run_checks, run_one_check
from levelfield.testing.subject import VendorSubject

VENDORS = sorted(Registry().vendors)


FAST = [item for item in CHECKS if not item.slow]


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_vendor_of_the_checkout_passes(vendor: str) -> None:
    findings = list(run_checks(VendorSubject(vendor), fast=True))
    assert [f"{f.check}: {f.says}" for f in findings if not f.is_good] == []
    assert len(findings) == len(FAST)


@pytest.mark.thorough
@pytest.mark.parametrize("vendor", VENDORS)
def test_a_vendor_of_the_checkout_passes_also_what_trains_and_waits(vendor: str) -> None:
    """test_vendor_command.py has a vendor of its own pass them each time."""
    whole = [run_one_check(VendorSubject(vendor), item) for item in CHECKS if item.slow]
    assert [f"{f.check}: {f.says}" for f in whole if not f.is_good] == []
    assert len(whole) == len(CHECKS) - len(FAST) > 0


def test_only_the_cpu_has_nothing_to_replay() -> None:
    assert [name for name in VENDORS if not VendorSubject(name).recordings] == ["cpu"]


def test_the_class_has_a_test_for_each_check_and_needs_no_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from levelfield.testing import VendorConformance\n"
        "class TestAll(VendorConformance):\n    vendor = 'nvidia'\n"
        "class TestFast(TestAll):\n    fast = True\n"
    )
    collected = output("-m", "pytest", "--collect-only", "-q", str(tmp_path))
    for item in CHECKS:
        assert f"TestAll::test_conformance[{item.name}]" in collected
        assert (f"TestFast::test_conformance[{item.name}]" in collected) is not item.slow
    code = "import sys, levelfield.testing; print('pytest' in sys.modules)"
    assert output("-c", code).strip() == "False"


def output(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout

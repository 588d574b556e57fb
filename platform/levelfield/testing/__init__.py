"""The conformance suites for plugin authors: `vendor check`, or classes for their own tests.

from levelfield.testing import LauncherConformance, VendorConformance

class TestAcme(VendorConformance):
    vendor = "acme"

class TestPbs(LauncherConformance):
    launcher = "pbs"
"""

from levelfield.testing.conformance import VendorConformance
from levelfield.testing.launcher_conformance import LauncherConformance

__all__ = ["LauncherConformance", "VendorConformance"]

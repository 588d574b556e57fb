"""The conformance suites for plugin authors: `vendor check`, or classes for their own tests.

from levelfield.testing import FrameworkConformance, LauncherConformance, VendorConformance

class TestAcme(VendorConformance):
    vendor = "acme"

class TestTensors(FrameworkConformance):
    framework = "tensors"

class TestPbs(LauncherConformance):
    launcher = "pbs"
"""

from levelfield.testing.conformance import FrameworkConformance, VendorConformance
from levelfield.testing.launcher_conformance import LauncherConformance

__all__ = ["FrameworkConformance", "LauncherConformance", "VendorConformance"]

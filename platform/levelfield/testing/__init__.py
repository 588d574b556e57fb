"""The conformance suite for plugin authors: `vendor check`, or a class for their own tests.

from levelfield.testing import VendorConformance

class TestAcme(VendorConformance):
    vendor = "acme"
"""

from levelfield.testing.conformance import VendorConformance

__all__ = ["VendorConformance"]

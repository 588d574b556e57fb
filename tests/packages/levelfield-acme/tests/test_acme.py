"""Every check of Levelfield's conformance suite as a test: `pip install -e LEVELFIELD -e . pytest && pytest`."""

from levelfield.testing import VendorConformance


class TestAcme(VendorConformance):
    vendor = "acme"

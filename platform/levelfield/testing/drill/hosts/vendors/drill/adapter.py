"""Shares of any host for the simulated training. Nothing of them is measured."""

from __future__ import annotations

from collections.abc import Sequence

from levelfield.contracts.vendor import ContainerOptions, Device, Sample
from levelfield.specs.vendor import VendorFile


class Adapter:
    def __init__(self, spec: VendorFile) -> None:
        self.spec = spec

    def devices(self) -> Sequence[Device]:
        return [Device(0, "drill-share", "share of a host", None)]

    def container(self, devices: Sequence[Device]) -> ContainerOptions:
        return ContainerOptions()

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        return [Sample(device.index) for device in devices]

    def software(self) -> dict[str, str]:
        return {}

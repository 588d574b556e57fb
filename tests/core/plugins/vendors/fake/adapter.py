"""As many F1 dies as FAKE_DEVICES says; without it none."""

from __future__ import annotations

import os
from collections.abc import Sequence

from levelfield.contracts.vendor import ContainerOptions, Device, Sample
from levelfield.specs.vendor import VendorFile


class Adapter:
    def __init__(self, spec: VendorFile) -> None:
        self.spec = spec

    def devices(self) -> Sequence[Device]:
        count = int(os.environ.get("FAKE_DEVICES", "0"))
        return [Device(index, "F1", "Fake F1 8GB", 8 * 2**30) for index in range(count)]

    def container(self, devices: Sequence[Device]) -> ContainerOptions:
        return ContainerOptions()

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        return [Sample(d.index, power_watts=100.0, memory_used_bytes=2**28) for d in devices]

    def software(self) -> dict[str, str]:
        return {"driver": "0.0"}

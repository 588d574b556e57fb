"""The devices of this machine, by vendor. Each maker's tool runs once in a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from levelfield.contracts.vendor import DeviceList, Vendor


class Machine:
    """What the vendors' tools show on this machine. vendor: returns the adapter of a vendor by its name."""

    def __init__(self, vendor: Callable[[str], Vendor]) -> None:
        self._vendor = vendor
        self._devices: dict[str, DeviceList] = {}

    def devices(self, vendor: str) -> DeviceList:
        """Return the vendor's devices, as its tool showed them when it was first asked in this command."""
        if vendor not in self._devices:
            self._devices[vendor] = devices_of(self._vendor(vendor))
        return self._devices[vendor]

    def silent(self, vendors: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Return the vendors whose tool is here and shows no device, each with the reason."""
        for name in vendors:
            found = self.devices(name)
            if found.problem and not found:
                yield name, found.problem


def devices_of(vendor: Vendor) -> DeviceList:
    """Return the devices of an adapter. One that raises has no devices, and the problem is its error."""
    try:
        found = vendor.devices()
    except Exception as error:  # an adapter may raise anything
        return DeviceList(problem=f"the adapter raised {type(error).__name__}: {error}".rstrip(": "))
    return found if isinstance(found, DeviceList) else DeviceList(found)

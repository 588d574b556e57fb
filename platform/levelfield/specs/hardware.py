"""Hardware as size and chip: "4x8 V100-SXM2-16GB" is four nodes with eight devices each."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from levelfield.specs.base import MOST_DEVICES, MOST_NODES, Value

WITHHELD = "withheld"
_FORM = re.compile(r"(\d+)x(\d+) +(\S.*)")


class NamedHardware(Value):
    """Nodes, devices per node and chip. `chip`: a name or an alias of vendor.yaml, or `withheld` when not public."""

    nodes: int = Field(ge=1, le=MOST_NODES)
    devices: int = Field(ge=1, le=MOST_DEVICES)
    chip: str

    def __str__(self) -> str:
        return f"{self.nodes}x{self.devices} {self.chip}"


def read_hardware(text: str) -> NamedHardware:
    """Read hardware from its text form. Raises ValueError with what was found and expected."""
    match = _FORM.fullmatch(text.strip())
    if match is None or 0 in (int(match[1]), int(match[2])):
        raise ValueError(f"found '{text}', expected nodes x devices per node and a chip, as in '4x8 V100-SXM2-16GB'")
    return NamedHardware(nodes=int(match[1]), devices=int(match[2]), chip=match[3])


def _from_text(value: Any) -> Any:
    return read_hardware(value) if isinstance(value, str) else value


HardwareText = Annotated[NamedHardware, BeforeValidator(_from_text)]

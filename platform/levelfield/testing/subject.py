"""The checked vendor: its folder, its recordings, and adapters whose tools are replaced by the recordings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.contracts.checked_adapter import CheckedAdapter
from levelfield.contracts.command import CommandOutput
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.vendor import Device, Vendor
from levelfield.errors import UnknownName
from levelfield.specs.vendor import VendorFile
from levelfield.testing.findings import Fails, Missing, NotApplicable
from levelfield.testing.recordings import Recording, commands, file_name, recordings
from levelfield.testing.stage import Outputs, Stage, fake_nodes


class VendorSubject:
    """The state that all checks of one vendor share. Raises UnknownName for an unknown vendor."""

    def __init__(self, name: str, plugins: Sequence[Path] = ()) -> None:
        self.name = name
        self.plugins = tuple(folder.absolute() for folder in plugins)
        self.registry = Registry(self.plugins)
        if name not in self.registry.vendors:
            raise UnknownName("vendor", name, self.registry.vendors, hint=_location_hint(name, self.plugins))
        self.file = self.registry.vendors[name]
        self.folder = self.file.parent
        self.stage = Stage()
        self.kept: dict[str, object] = {}  # findings of one check for others

    @cached_property
    def spec(self) -> VendorFile:
        """The content of vendor.yaml. Raises DocumentError when it does not fit its schema."""
        return self.registry.vendor_file(self.name)

    @property
    def has_adapter(self) -> bool:
        return (self.folder / "adapter.py").exists()

    @cached_property
    def recordings(self) -> tuple[Recording, ...]:
        return recordings(self.folder / "recorded", self.spec)

    @property
    def outputs(self) -> dict[tuple[str, ...], bytes]:
        return {recording.argv: recording.content for recording in self.recordings}

    @contextmanager
    def surroundings(self, **variables: str) -> Iterator[None]:
        with self.stage.entered(self.spec.visible_devices_variable, **variables):
            yield

    def adapter(self, spec: VendorFile | None = None) -> Vendor:
        """Return a new adapter, with another spec if given. It runs the tools on PATH."""
        made = self.registry.vendor(self.name)
        if isinstance(made, CheckedAdapter):
            return made if spec is None else made.with_spec(spec)
        return DeclaredVendor(spec or self.spec, root=self._root(self.outputs))

    def over(self, outputs: Outputs) -> Vendor:
        """Return a new adapter whose tools print these outputs: directly, or through fake tools for an adapter.py."""
        made = self.registry.vendor(self.name)
        if isinstance(made, CheckedAdapter):
            self.stage.replay(outputs)
            return made
        answers = {argv: _answer(content) for argv, content in outputs.items()}
        return DeclaredVendor(
            self.spec,
            lambda argv, seconds: answers.get(tuple(argv)) or CommandOutput(None, "not recorded"),
            self._root(self.outputs),
        )

    def needs_recordings(self) -> tuple[Recording, ...]:
        """Return the recordings of the tools for devices and samples. Raises Missing or NotApplicable without them."""
        found = tuple(r for r in self.recordings if not r.role.startswith("software."))
        for role, (argv, tool) in commands(self.spec).items():
            if tool and role not in [recording.role for recording in found]:
                raise Missing(f"no recorded/{file_name(role, tool)}", self._how_to_record(argv))
        if blank := next((r for r in found if not r.content.strip()), None):
            raise Missing(f"recorded/{blank.path.name} is empty", self._how_to_record(blank.argv))
        if foreign := next((r for r in found if not r.is_text), None):
            raise Fails(f"recorded/{foreign.path.name} is not UTF-8 text", self._how_to_record(foreign.argv))
        if found:
            self.asks_its_tools()
            return found
        if self.has_adapter:
            raise NotApplicable("found no recording of a tool of adapter.py (recorded/tool.<name>.<suffix>)")
        raise Missing("vendor.yaml has no monitor", "add the command that prints power, memory and other values")

    def asks_its_tools(self) -> None:
        """Check that the adapter runs its replayed tools.

        Raises NotApplicable for an adapter that finds devices without them, because this machine has the hardware.
        Raises Fails for an adapter that does not run them and finds nothing.
        """
        if not self.has_adapter or self.stage.asked.exists() or not self.recordings:
            return
        found = self.over(self.outputs).devices()
        if not self.stage.asked.exists():
            if found:
                raise NotApplicable("adapter.py reads devices of this machine, not the recorded tools")
            names = ", ".join(recording.path.name for recording in self.recordings)
            raise Fails("adapter.py runs none of the recorded tools", f"run them by name, found by PATH: {names}")

    def _how_to_record(self, argv: Sequence[str]) -> str:
        return (
            f"on a machine with the chip: run_benchmarks.py vendor record {self.name}; or store there the whole output "
            f"of `{' '.join(argv)}`"
        )

    def devices(self) -> list[Device]:
        """Return the devices of the recordings."""
        self.needs_recordings()
        return list(self.over(self.outputs).devices())

    def devices_or_two(self) -> list[Device]:
        """Return the recordings' devices, or two invented ones for checks that do not depend on a tool."""
        try:
            found = self.devices()
        except (Missing, NotApplicable):
            found = []
        return found or [
            Device(index, None, f"{self.name} device {index}", None, f"device-{index}") for index in (0, 1)
        ]

    def nodes(self) -> Path:
        """Return the folder for /dev that replayed adapters see."""
        return self._root(self.outputs)

    def _root(self, outputs: Mapping[tuple[str, ...], bytes]) -> Path:
        """Return the folder for /dev, with nodes for the devices of the monitor's recording."""
        discovery, root = self.spec.discovery, self.stage.root / "host"
        if discovery and discovery.device_nodes and not root.exists():
            seen = DeclaredVendor(
                self.spec.model_copy(update={"discovery": None}),
                lambda argv, seconds: _answer(outputs.get(tuple(argv), b"")),
            )
            fake_nodes(root, discovery.device_nodes, [device.index for device in seen._all_devices()])
        return root


def _location_hint(name: str, plugins: Sequence[Path]) -> str:
    """Return a hint for a vendor that is not found. It may be deeper than --plugins, as in a package."""
    places = ("*/vendors", "*/*/vendors", ".")  # the last: --plugins is the folder `vendors` itself
    found = (path for folder in plugins for place in places for path in folder.glob(f"{place}/{name}/vendor.yaml"))
    root = next((path.parents[2] for path in found if path.parents[1].name == "vendors"), None)
    if root is None:
        return "`vendor new NAME` creates one."
    return f"--plugins is the folder that holds vendors/: give --plugins {root}, or install the package by pip."


def _answer(content: bytes) -> CommandOutput:
    try:
        return CommandOutput(content.decode())
    except UnicodeDecodeError as error:
        return CommandOutput(None, f"the tool printed no UTF-8 text: byte {error.start}")

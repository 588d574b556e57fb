"""The vendor under test: its folder, its recordings, and adapters whose tools are replaced by the recordings.

The checks run on a stage: a temporary folder, fake tools as the only PATH, and a marked environment, by which the
processes that a check starts are recognised.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import psutil

from levelfield.catalog.registry import Registry
from levelfield.checkout import checkout
from levelfield.contracts.checked_adapter import CheckedAdapter
from levelfield.contracts.command import CommandOutput, encoding_problem
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.vendor import Device, ReplayableVendor, Vendor, replayable_commands
from levelfield.errors import UnknownName
from levelfield.specs.vendor import VendorFile
from levelfield.testing.findings import Fails, Missing, NotApplicable
from levelfield.testing.recordings import Recording, declared_commands, read_recordings, recording_file_name

MARK_VARIABLE = "LEVELFIELD_CHECK"
END_SECONDS = 5
Outputs = Mapping[tuple[str, ...], bytes]


class VendorSubject:
    """The state that all checks of one vendor share. Raises UnknownName for an unknown vendor."""

    def __init__(self, name: str, plugins: Sequence[Path] = ()) -> None:
        self.name = name
        self.plugins = tuple(folder.absolute() for folder in plugins)
        self.plugin_options = Registry(plugins).options  # --plugins and its folders, as the user wrote them
        self.registry = Registry(self.plugins)
        if name not in self.registry.vendors:
            hint = self.registry.absence_hint("vendor", name, "`vendor new NAME` creates one.")
            raise UnknownName("vendor", name, self.registry.vendors, hint=hint)
        self.file = self.registry.vendors[name]
        self.folder = self.file.parent
        self.has_adapter = (self.folder / "adapter.py").exists()
        self.stage = Stage()
        self.shared: dict[str, object] = {}  # what one check computes and others use
        self.has_hardware = False  # the adapter finds devices without its tools

    @cached_property
    def spec(self) -> VendorFile:
        """The content of vendor.yaml. Raises DocumentError when it does not fit its schema."""
        return self.registry.vendor_file(self.name)

    @cached_property
    def recordings(self) -> tuple[Recording, ...]:
        return read_recordings(self.folder / "recorded", self.spec)

    @property
    def outputs(self) -> dict[tuple[str, ...], bytes]:
        return {recording.argv: recording.content for recording in self.recordings}

    def adapter(self, spec: VendorFile | None = None) -> Vendor:
        """Return a new adapter, with another spec if there is one. It runs the tools on PATH."""
        adapter = self.registry.vendor(self.name)
        if isinstance(adapter, CheckedAdapter):
            return adapter if spec is None else CheckedAdapter(type(adapter.adapter)(spec), adapter.path)  # type: ignore[call-arg]
        return DeclaredVendor(spec or self.spec, root=self.device_files_folder())

    def replayed_adapter(self, outputs: Outputs, name: str | None = None) -> Vendor:
        """Return a new adapter whose tools print these outputs: directly, or through fake tools for an adapter.py.

        name: of another vendor.
        """
        adapter = self.registry.vendor(name or self.name)
        answers = {argv: _decoded_output(content) for argv, content in outputs.items()}

        def run_tool(argv: Sequence[str], seconds: float) -> CommandOutput:
            answer = answers.get(tuple(argv)) or answers.get((argv[0],))
            return answer or CommandOutput(None, "not recorded", absent=True)

        if isinstance(adapter, CheckedAdapter):
            if self.has_hardware and isinstance(adapter, ReplayableVendor) and (replay := adapter.replayed(run_tool)):
                return replay
            self.stage.replay(outputs)
            return adapter
        return DeclaredVendor(adapter.spec, run_tool, self.device_files_folder())

    def required_recordings(self) -> tuple[Recording, ...]:
        """Return the recordings of the tools for devices and samples. Raises Missing or NotApplicable without them."""
        device_recordings = tuple(r for r in self.recordings if not r.role.startswith("software."))
        for role, (argv, tool) in declared_commands(self.spec).items():
            if tool and role not in [recording.role for recording in device_recordings]:
                raise Missing(f"no recorded/{recording_file_name(role, tool)}", self._recording_advice(argv))
        if empty := next((r for r in device_recordings if not r.content.strip()), None):
            raise Missing(f"recorded/{empty.path.name} is empty", self._recording_advice(empty.argv))
        if undecodable := next((r for r in device_recordings if _decoded_output(r.content).text is None), None):
            reason = _decoded_output(undecodable.content).reason
            raise Fails(
                f"recorded/{undecodable.path.name} cannot be read: {reason}", self._recording_advice(undecodable.argv)
            )
        if device_recordings:
            self.check_runs_tools()
            return device_recordings
        if self.has_adapter:
            raise NotApplicable("found no recording of a tool of adapter.py (recorded/tool.<name>.<suffix>)")
        raise Missing("vendor.yaml has no monitor", "add the command that prints power, memory and other values")

    def check_runs_tools(self) -> None:
        """Check that the adapter runs its replayed tools.

        An adapter that finds devices without them, because this machine has the hardware, then reads the recordings
        (`replayed`). Raises NotApplicable for one that has no such way. Raises Fails for an adapter that does not run
        them and finds nothing.
        """
        if not self.has_adapter or self.has_hardware or self.stage.tool_ran.exists() or not self.recordings:
            return
        devices = self.replayed_adapter(self.outputs).devices()
        if not self.stage.tool_ran.exists():
            if devices and replayable_commands(self.registry.vendor(self.name)).sampling_commands:
                self.has_hardware = True
                return
            if devices:
                raise NotApplicable("adapter.py reads devices of this machine, not the recorded tools")
            names = ", ".join(recording.path.name for recording in self.recordings)
            raise Fails("adapter.py runs none of the recorded tools", f"run them by name, found by PATH: {names}")

    def _recording_advice(self, argv: Sequence[str]) -> str:
        command = shlex.join(("run_benchmarks.py", "vendor", "record", self.name, *self.plugin_options))
        return f"on a machine with the chip: {command}; or store there the whole output of `{' '.join(argv)}`"

    def recorded_devices(self) -> list[Device]:
        """Return the devices of the recordings."""
        self.required_recordings()
        return list(self.replayed_adapter(self.outputs).devices())

    def recorded_or_invented_devices(self) -> list[Device]:
        """Return the recordings' devices, or two invented ones for checks that do not depend on a tool."""
        try:
            devices = self.recorded_devices()
        except (Missing, NotApplicable):
            devices = []
        return devices or [
            Device(index, None, f"{self.name} device {index}", None, f"device-{index}") for index in (0, 1)
        ]

    def device_files_folder(self) -> Path:
        """Return the folder that stands for / when replayed adapters look for files of /dev.

        It has a file for each device of the monitor's recording.
        """
        discovery, root = self.spec.discovery, self.stage.root / "host"
        if discovery and discovery.device_nodes and not root.exists():
            monitored = DeclaredVendor(
                self.spec.model_copy(update={"discovery": None}),
                lambda argv, seconds: _decoded_output(self.outputs.get(tuple(argv), b"")),
            )
            prefix = re.split(r"[*?[]", discovery.device_nodes.lstrip("/"), maxsplit=1)[0]
            for device in monitored._all_devices():
                path = root / f"{prefix}{device.index}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        return root


def _decoded_output(content: bytes) -> CommandOutput:
    try:
        return CommandOutput(content.decode())
    except UnicodeDecodeError as error:
        return CommandOutput(None, f"the tool printed {encoding_problem(error)}")


class Stage:
    """The surroundings of all checks: folders, fake tools and environment variables."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="levelfield-check-")
        self.root = Path(self._folder.name)
        self.bin = self.root / "bin"  # the only folder on PATH
        self.runs = self.root / "runs"
        self.temporary_folder = self.root / "tmp"  # must stay empty
        self.working_folder = self.root / "here"  # must stay empty
        self.tool_ran = self.root / "asked"  # a file that exists after a replayed tool has run
        for folder in (self.bin, self.runs, self.temporary_folder, self.working_folder):
            folder.mkdir()

    @contextmanager
    def activate(self, unset_variable: str | None, **variables: str) -> Iterator[None]:
        """Enter the surroundings of a check. unset_variable: the variable with the user's own choice of devices."""
        environment_before, tempdir_before, working_folder_before = dict(os.environ), tempfile.tempdir, Path.cwd()
        stage_variables = {"PATH": str(self.bin), "TMPDIR": str(self.temporary_folder), MARK_VARIABLE: str(self.root)}
        stage_variables |= {"XDG_CACHE_HOME": str(self.root / "cache"), "LEVELFIELD_LOCKS": str(self.root / "locks")}
        stage_variables |= {"LEVELFIELD_ROOT": str(checkout().absolute())}
        os.environ.update({**stage_variables, **variables})
        if unset_variable and unset_variable not in variables:
            os.environ.pop(unset_variable, None)
        tempfile.tempdir = str(self.temporary_folder)
        os.chdir(self.working_folder)
        try:
            yield
        finally:
            os.chdir(working_folder_before)
            tempfile.tempdir = tempdir_before
            os.environ.clear()
            os.environ.update(environment_before)

    def replay(self, outputs: Outputs) -> None:
        """Put fake tools on PATH that print these outputs. A command of one word accepts any arguments."""
        self.remove_tools()
        cat = shutil.which("cat", path="/bin:/usr/bin") or "/bin/cat"
        for name in {argv[0] for argv in outputs}:
            lines = [f": > {shlex.quote(str(self.tool_ran))}"]
            answers = [(argv, content) for argv, content in outputs.items() if argv[0] == name]
            for argv, content in sorted(answers, key=lambda item: -len(item[0])):  # exact arguments before any
                file = self.root / f"output-{hashlib.sha256(shlex.join(argv).encode()).hexdigest()[:16]}"
                file.write_bytes(content)
                show = f"exec {shlex.join([cat, str(file)])}"
                lines.append(show if len(argv) == 1 else f'[ "$*" = {shlex.quote(" ".join(argv[1:]))} ] && {show}')
            lines.append('echo "these arguments were not recorded: $*" >&2; exit 64')
            self.add_tool(name, "\n".join(lines))

    def add_tool(self, name: str, body: str) -> None:
        path = self.bin / Path(name).name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def remove_tools(self) -> None:
        for path in self.bin.iterdir():
            path.unlink()

    def processes(self, patience_seconds: float = 2.0) -> list[psutil.Process]:
        """Return all marked processes that still run after a short wait for killed ones."""
        deadline = time.monotonic() + patience_seconds
        while (processes := marked_processes(MARK_VARIABLE, str(self.root))) and time.monotonic() <= deadline:
            time.sleep(0.05)
        return processes

    def end_all(self) -> None:
        """End all marked processes, and those that they started meanwhile."""
        deadline = time.monotonic() + END_SECONDS
        while (processes := self.processes(patience_seconds=0)) and time.monotonic() < deadline:
            for process in processes:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.02)


def marked_processes(variable: str, value: str) -> list[psutil.Process]:
    """Return the processes of this machine in whose environment the variable has this value."""
    processes = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(variable) == value:
                processes.append(process)
    return processes

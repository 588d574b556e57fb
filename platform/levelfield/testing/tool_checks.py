"""Checks of tools: a missing, failing or slow tool; versions; the choice of devices."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Sequence

from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.readings import SAMPLED_FIELDS, SEVERAL_HOST_DEVICES, visible_value_tool
from levelfield.contracts.vendor import Device
from levelfield.specs.base import MAX_DEVICES
from levelfield.specs.vendor import VendorFile
from levelfield.testing import recordings
from levelfield.testing.findings import Fails, Missing, NotApplicable, Warns
from levelfield.testing.recordings import find_unexplained_null
from levelfield.testing.subject import VendorSubject

SLOW_TOOL_SECONDS = 0.3  # the time limit for a tool that the suite makes slow
MAX_WAIT_SECONDS = 45.0  # a driver may need half a minute for its first answer
# Programs that are on hosts without the chip: shells, interpreters, and what starts another program.
COMMON_PROGRAMS = frozenset(
    (
        *("sh", "bash", "dash", "ash", "zsh", "ksh", "busybox", "env", "python", "python3", "perl", "awk", "gawk"),
        *("sed", "grep", "cat", "sudo", "timeout", "nice", "nohup", "stdbuf", "xargs"),
        *("docker", "podman", "ssh", "chroot"),
    )
)
UNKNOWN_DEVICE = Device(0, None, "a device", None)


def tool_names(subject: VendorSubject) -> list[str]:
    """Return the executables for devices and samples. Raises NotApplicable without any, Fails for a path."""
    subject.check_runs_tools()
    if subject.has_hardware:
        raise NotApplicable("adapter.py reads devices of this machine, whatever its tools do")
    names = [argv[0] for argv, tool in recordings.declared_commands(subject.spec).values() if tool]
    names += [recording.argv[0] for recording in subject.recordings if recording.role == "tool"]
    if not names:
        raise NotApplicable("found no tool: neither monitor nor recorded/tool.<name>.<suffix>")
    for name in names:
        if "/" in name:
            raise Fails(f"command {name} is a path", "use the name alone, so that PATH finds it, or a fake of it")
    return names


def check_commands(subject: VendorSubject) -> str:
    """Warn of a command whose program every host has: where the chip is not, it fails and is not absent."""
    argvs = {role: argv for role, (argv, tool) in recordings.declared_commands(subject.spec).items() if tool}
    if not argvs:
        raise NotApplicable("no monitor and no discovery.tool")
    for role, argv in argvs.items():
        if argv[0] in COMMON_PROGRAMS:
            key = role if role == "monitor" else f"{role}.tool"
            raise Warns(
                f"{key}.command begins with {argv[0]}, which hosts without the chip have too: there it fails, so that "
                "a run that names no vendor is refused",
                "name the maker's tool itself, and choose its output by format, columns and patterns; what needs a "
                "shell goes into an adapter.py",
            )
    return f"{', '.join(argv[0] for argv in argvs.values())}: absent where the chip is not"


def check_missing_tool(subject: VendorSubject) -> str:
    names = tool_names(subject)
    subject.stage.remove_tools()
    _check_empty(subject, subject.spec, "is missing", is_installed=False)
    subject.adapter().software()  # must not raise either
    return f"{', '.join(names)} missing: no devices, samples of nulls with reasons"


def check_failing_tool(subject: VendorSubject) -> str:
    """Check a tool that ends with an error, with and without right output."""
    names = tool_names(subject)
    recording_path = next((r.path for r in subject.recordings if not r.role.startswith("software.")), None)
    print_recording = f"{shutil.which('cat', path='/bin:/usr/bin')} '{recording_path}'; " if recording_path else ""
    for body in ("echo no driver >&2; exit 9", f"{print_recording}exit 1", "kill -9 $$"):
        subject.stage.remove_tools()
        for name in names:
            subject.stage.add_tool(name, body)
        _check_empty(subject, subject.spec, "fails")
        subject.adapter().software()
    return f"{', '.join(names)} failing: no devices, samples of nulls with reasons"


def check_slow_tool(subject: VendorSubject) -> str:
    """Check that a tool that does not answer is ended in time, with all its processes."""
    names = tool_names(subject)
    sleep = shutil.which("sleep", path="/bin:/usr/bin")
    subject.stage.remove_tools()
    for name in names:
        subject.stage.add_tool(name, f"{sleep} 300 & wait")
    errors: list[Exception] = []

    def read() -> None:
        try:
            _check_empty(subject, _with_short_limits(subject.spec), "does not answer")
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=read, daemon=True)  # an adapter that waits for ever does not block the suite
    try:
        thread.start()
        thread.join(MAX_WAIT_SECONDS)
        if thread.is_alive():
            subject.stage.end_all()
            thread.join(MAX_WAIT_SECONDS)
            raise Fails(
                f"the adapter still waited for its tool after {MAX_WAIT_SECONDS:g} s", "give the tool a time limit"
            )
        if errors:
            raise errors[0]
        processes_left = subject.stage.processes()
    finally:
        subject.stage.end_all()  # also where the adapter raised
    if processes_left:
        raise Fails(
            f"{len(processes_left)} process(es) of a slow tool still run", "end the tool and its child processes"
        )
    return f"{', '.join(names)} not answering: ended in time, no process left"


def _check_empty(subject: VendorSubject, spec: VendorFile, failure: str, is_installed: bool = True) -> None:
    """Check that the adapter returns no devices, and a null with a reason for every value.

    is_installed: the tool exists, so the list of devices needs a problem: without one, a run would take the cpu.
    """
    adapter = subject.adapter(spec)
    devices = adapter.devices()
    samples = list(adapter.sample([UNKNOWN_DEVICE]))
    if devices and not (spec.discovery and spec.discovery.device_nodes):
        raise Fails(f"the tool {failure}, but devices() returns {len(devices)}", "return no devices without output")
    check_problem(devices, failure, is_installed)
    if [s.index for s in samples] != [UNKNOWN_DEVICE.index]:
        raise Fails(
            f"the tool {failure}: {len(samples)} samples for one device", "return one sample for each given device"
        )
    if value := next((field for field in SAMPLED_FIELDS if getattr(samples[0], field) is not None), None):
        raise Fails(f"the tool {failure}, but {value} is {getattr(samples[0], value)}", "return null, with a reason")
    if blank := find_unexplained_null(samples):
        raise Fails(f"the tool {failure}: {blank}", "give a reason in Sample.reasons")


def check_problem(devices: Sequence[Device], failure: str, is_installed: bool) -> None:
    """Raise Fails when a list of devices lacks a problem for an installed tool, or has one for a missing tool."""
    problem = getattr(devices, "problem", None)
    if is_installed and not problem:
        raise Fails(
            f"the tool {failure}, but devices() gives no problem, so that a run would take the cpu",
            "return DeviceList([], reason) of levelfield.contracts.vendor",
        )
    if problem and not is_installed:
        raise Fails(f"the tool {failure}, but devices() has the problem '{problem}'", "return an empty list")


def _with_short_limits(spec: VendorFile) -> VendorFile:
    """Return the same declarations with short time limits."""
    short_limit = {"timeout_seconds": SLOW_TOOL_SECONDS}
    tool = spec.discovery.tool if spec.discovery else None
    discovery = spec.discovery and spec.discovery.model_copy(
        update={"tool": tool and tool.model_copy(update=short_limit)}
    )
    software = {name: version.model_copy(update=short_limit) for name, version in spec.software.items()}
    monitor = spec.monitor and spec.monitor.model_copy(update=short_limit)
    numbering, numbering_tool = spec.numbering, spec.numbering.tool if spec.numbering else None
    numbering = numbering and numbering.model_copy(
        update={"tool": numbering_tool and numbering_tool.model_copy(update=short_limit)}
    )
    tools = {"monitor": monitor, "discovery": discovery, "numbering": numbering, "software": software}
    return spec.model_copy(update=tools)


def check_versions(subject: VendorSubject) -> str:
    """Check that the pattern of each recorded version finds the version. An adapter.py may read versions by itself."""
    if not subject.spec.software:
        declared_versions = DeclaredVendor(subject.spec.model_copy(update={"software": {}})).software()
        adapter_versions = {
            name: text
            for name, text in subject.replayed_adapter(subject.outputs).software().items()
            if name not in declared_versions
        }
        if not adapter_versions:
            raise NotApplicable("vendor.yaml has no software: runs will not record the driver's version")
        if bad := next((name for name, text in adapter_versions.items() if text.startswith("unreadable")), None):
            what = f"adapter.py: {bad} is {adapter_versions[bad]}, with its tool's recording"
            raise Fails(what, "read it from the recorded output")
        return "by adapter.py: " + ", ".join(f"{name} {text}" for name, text in adapter_versions.items())
    recorded = {r.role.removeprefix("software.") for r in subject.recordings if r.role.startswith("software.")}
    if not recorded:
        names = ", ".join(f"recorded/software.{name}.txt" for name in subject.spec.software)
        raise NotApplicable(f"no {names}: `vendor record` creates it, or store the command's output there")
    texts = subject.replayed_adapter(subject.outputs).software()
    for name in sorted(recorded):
        if texts[name].startswith("unreadable"):
            raise Fails(f"software.{name}: {texts[name]}", "correct its pattern")
    for name in sorted(recorded):
        if re.search(r"\s", texts[name]) or not re.search(r"\d", texts[name]):
            raise Warns(
                f"software.{name} is recorded as '{texts[name]}'",
                "put the version alone into the pattern's first group, as in 'driver (\\S+)'",
            )
    return ", ".join(f"{name} {texts[name]}" for name in sorted(recorded))


def check_visible_devices(subject: VendorSubject) -> str:
    """Check that the visible-devices variable shows exactly the devices that it names."""
    variable = subject.spec.visible_devices_variable
    if variable is None:
        if subject.spec.is_divided:
            if (count := len(subject.recorded_devices())) > 1:
                raise Fails(SEVERAL_HOST_DEVICES.format(count), "print one record, or name a visible_devices_variable")
            raise NotApplicable("one machine, divided into devices: there is no choice")
        raise Missing("no visible_devices_variable", "name the variable that restricts a process to some devices")
    devices = subject.recorded_devices()
    if not devices:
        raise NotApplicable("the recordings show no device")
    unnumbered_reason = next((device.unnumbered_reason for device in devices if device.unnumbered_reason), None)
    if unnumbered_reason and visible_value_tool(subject.spec):
        raise Fails(unnumbered_reason, "compare numbering.tool with its recording")
    if subject.spec.numbering is None and not any(device.visible_as for device in devices):
        indices = [device.index for device in devices]
        if indices != list(range(len(indices))):
            message = f"the recording has devices {', '.join(map(str, indices))}; {variable} counts from 0"
            if max(indices) >= MAX_DEVICES:
                raise Fails(f"{message}, and no node has {max(indices) + 1} devices", "compare the place of `index`")
            raise Warns(
                f"{message}, and a run on a machine with such a gap is refused",
                "compare the place of `index`; it is right where the other devices were not recorded. Where the "
                "variable takes these numbers, write `numbering: {keeps_gaps: true}`; where a tool prints its numbers, "
                "`numbering.tool`",
            )
    last = devices[-1].visible
    for text, expected in ((last, [devices[-1].index]), ("", []), ("99999", [])):
        with subject.stage.activate(variable, **{variable: text}):
            seen = [device.index for device in subject.replayed_adapter(subject.outputs).devices()]
        if seen != expected:
            raise Fails(
                f"with {variable}='{text}' the adapter lists devices {seen}, expected {expected}",
                "choose devices by index",
            )
    return f"{variable} chooses among {len(devices)} device(s)"

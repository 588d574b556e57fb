"""The generic adapter around its tools: missing, slow, failing; discovery, versions, and what a spec may say."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from adapters import tool
from declared_specs import CSV, KEYED, LIST, MX, NPU, recorded, spec_of
from levelfield.contracts.command import CommandOutput, ask
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.readings import SAMPLED_FIELDS
from levelfield.contracts.vendor import Device, DeviceList
from levelfield.errors import DocumentError
from levelfield.node import bounded_command as command

MIB = 2**20
Script = Callable[[str, str], None]


@pytest.fixture
def script(tools: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """script(name, body): a tool of this name, first on PATH."""
    monkeypatch.delenv("ACME_VISIBLE_DEVICES", raising=False)
    return partial(tool, tools)


def replay(**outputs: str) -> Callable[[Sequence[str], float], CommandOutput]:
    """An `ask` that answers by the tool's name, `_` for `-`."""
    return lambda argv, timeout_seconds: CommandOutput(outputs[argv[0].replace("-", "_")])


# -- the tool itself


def test_a_tool_is_found_by_path_and_run_with_its_arguments_in_the_c_locale(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LANG", "LANGUAGE", "LC_ALL", "LC_MESSAGES", "LC_NUMERIC"):
        monkeypatch.setenv(name, "zh_CN.UTF-8")
    script("acme-smi", 'echo "$1 $LC_ALL $LANG [$LANGUAGE$LC_MESSAGES$LC_NUMERIC]"; cat')
    assert (ask(["acme-smi", "--query"], 5).text or "").split() == ["--query", "C", "C", "[]"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (None, "acme-smi cannot be started: No such file or directory"),
        ("exit 9", "acme-smi ended with exit code 9"),
        ("echo 12; echo 'no driver' >&2; echo more >&2; exit 1", "acme-smi ended with exit code 1: no driver"),
        ("kill -9 $$", "acme-smi ended with exit code -9"),
        ("printf '0\\377'", "acme-smi printed no UTF-8 text: byte 1"),
        ("printf '61 \\260C'", "acme-smi printed no UTF-8 text: byte 3"),
        ("printf '\\317\\324\\264\\346 1'",
         "acme-smi printed no UTF-8 text: byte 0; perhaps GBK: let the tool print English, or UTF-8"),
        ("exec sleep 30", "acme-smi did not answer within 0.3 s"),
        ("sleep 30 & wait", "acme-smi did not answer within 0.3 s"),
    ],
)  # fmt: skip
def test_a_tool_without_an_answer_gives_the_reason_for_every_value(
    script: Script, body: str | None, reason: str
) -> None:
    if body is not None:
        script("acme-smi", body)
    adapter = DeclaredVendor(spec_of(CSV.replace("timeout_seconds: 2", "timeout_seconds: 0.3")))
    before = time.monotonic()
    assert adapter.devices() == []
    (sample,) = adapter.sample([Device(0, None, "", None)])
    assert time.monotonic() - before < 10
    assert sample.reasons == dict.fromkeys(SAMPLED_FIELDS, reason)


def test_a_tool_that_is_too_slow_is_ended_with_what_it_started(script: Script, tmp_path: Path) -> None:
    script("acme-smi", f"sleep 30 & echo $! > {tmp_path}/child; wait")
    assert ask(["acme-smi"], 0.5).text is None
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while _lives(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(child)


def _lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (None, None),
        ("exit 9", "acme-smi ended with exit code 9"),
        ("exec sleep 30", "acme-smi did not answer within 0.3 s"),
        (":", "acme-smi printed nothing"),
        ("echo", "acme-smi printed nothing"),
        ("echo rubbish", "acme-smi printed no device that vendor.yaml can read: a line of 1 columns, expected 10"),
        ("exec cat /dev/zero", "acme-smi printed more than 65536 bytes"),
        ("exec cat /dev/zero >&2", "acme-smi printed more than 65536 bytes"),
    ],
)
def test_a_tool_that_is_here_and_shows_no_device_is_a_problem_and_an_absent_one_is_none(
    script: Script, monkeypatch: pytest.MonkeyPatch, body: str | None, problem: str | None
) -> None:
    monkeypatch.setattr(command, "MAX_OUTPUT_BYTES", 65536)
    if body is not None:
        script("acme-smi", body)
    listing = DeclaredVendor(spec_of(CSV.replace("timeout_seconds: 2", "timeout_seconds: 0.3"))).devices()
    assert isinstance(listing, DeviceList) and not listing and listing.problem == problem


@pytest.mark.parametrize(
    ("shape", "output", "problem"),
    [
        (LIST, "[]", None),
        (KEYED, "{}", None),
        (KEYED, '{"error": "no driver"}', "found no record in the mapping"),
        (KEYED, "0", "found int at [], expected a list or a mapping"),
        (LIST, "[{]", "found no JSON as it should be"),
        (LIST, "[1, 2]", "found the index"),
        (MX, "mx-smi version 2.0\n", "found no record"),
        (MX, "", "mx-smi printed nothing"),
        (LIST, "", "acme-smi printed nothing"),
    ],
)
def test_an_empty_list_says_that_there_is_no_device_and_other_texts_say_nothing(
    shape: str, output: str, problem: str | None
) -> None:
    listing = DeclaredVendor(spec_of(shape), replay(acme_smi=output, mx_smi=output)).devices()
    assert isinstance(listing, DeviceList) and not listing
    assert listing.problem is None if problem is None else problem in (listing.problem or "")


def test_hidden_devices_are_not_asked_for(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script("acme-smi", f"touch {tmp_path}/asked; exit 9")
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "")
    hidden = DeclaredVendor(spec_of(CSV)).devices()
    assert isinstance(hidden, DeviceList) and hidden.problem is None
    assert not (tmp_path / "asked").exists()


def test_nodes_without_an_answer_of_the_monitor_are_devices_with_a_problem(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/davinci4").touch()
    spec = spec_of(NPU, "\ndiscovery: {device_nodes: /dev/davinci*}\n")
    hung = DeclaredVendor(spec, lambda argv, seconds: CommandOutput(None, "npu-smi hangs"), root=tmp_path).devices()
    assert isinstance(hung, DeviceList) and len(hung) == 1 and hung.problem == "npu-smi hangs"


def test_a_folder_of_path_that_cannot_be_read_makes_no_tool_present(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Popen reports such a folder as 'Permission denied' for every tool that is nowhere."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("subprocess.Popen", refused)
    answer = ask(["acme-smi"], 1)
    assert (answer.text, answer.absent) == (None, True) and answer.reason.startswith("acme-smi ")
    (tmp_path / "acme-smi").touch()
    assert not ask(["acme-smi"], 1).absent


def test_long_output_on_both_streams_is_read_whole(script: Script) -> None:
    script("acme-smi", "head -c 300000 /dev/zero | tr '\\0' e >&2; head -c 300000 /dev/zero | tr '\\0' o")
    assert ask(["acme-smi"], 10) == CommandOutput("o" * 300000, complaint="e" * 4096)


def test_the_tools_of_a_thread_are_ended_and_no_others(script: Script) -> None:
    script("acme-smi", "exec sleep 30")
    answers: dict[str, CommandOutput] = {}
    threads = {
        name: threading.Thread(target=lambda n=name: answers.update({n: ask(["acme-smi"], 30)})) for name in "ab"
    }
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + 10
    while len(command._thread_by_tool) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    command.end_tools(threads["a"].ident or 0)
    threads["a"].join(10)
    assert set(answers) == {"a"} and answers["a"].text is None and answers["a"].reason.endswith(" -9")
    assert threads["b"].is_alive()
    command.end_tools(threads["b"].ident or 0)
    threads["b"].join(10)
    assert not threads["b"].is_alive() and command._thread_by_tool == {}


def test_a_file_that_is_no_program_is_no_tool(script: Script, tools: Path) -> None:
    script("acme-smi", "")
    (tools / "acme-smi").chmod(0o644)
    assert "Permission denied" in ask(["acme-smi"], 1).reason


# -- discovery


def test_a_second_command_says_which_devices_there_are_and_the_monitor_the_rest() -> None:
    spec = spec_of(
        KEYED,
        """
discovery:
  tool:
    command: [acme-list]
    format: csv
    columns: 3
    fields: {index: {column: 1}, name: {column: 2}, memory_total: {column: 3, unit: GiB, printed: GB}}
""",
    )
    table = "0, MXC500, 64 GB\n1, MXC500, 64 GB\n"
    adapter = DeclaredVendor(spec, replay(acme_list=table, acme_smi=recorded("keyed")))
    assert adapter.devices() == [Device(index, "X", "MXC500", 64 * 2**30) for index in (0, 1)]
    assert adapter.sample(adapter.devices())[1].power_watts == 58.5


def test_device_nodes_are_devices_and_the_monitor_names_them(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("davinci10", "davinci4", "davinci_manager", "davinci4x", "tty0"):
        (tmp_path / "dev" / name).touch()
    spec = spec_of(NPU, "\ndiscovery: {device_nodes: /dev/davinci*}\n")
    adapter = DeclaredVendor(spec, replay(npu_smi=recorded("npu")), root=tmp_path)
    first, second = adapter.devices()
    assert replace(first, unnumbered_reason=None) == Device(4, "X", "910A", 21534 * MIB, "0000:81:00.0")
    assert (second.index, second.chip, second.memory_bytes, second.identity) == (10, None, None, None)
    sample = adapter.sample([first, second])[1]
    assert sample.power_watts is None and "device 10" in sample.reasons["power_watts"]
    assert DeclaredVendor(spec, replay(npu_smi=recorded("npu")), root=tmp_path / "absent").devices() == []


def test_a_vendor_without_a_monitor_has_devices_and_samples_of_reasons(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/acme0").touch()
    adapter = DeclaredVendor(spec_of("discovery: {device_nodes: '/dev/acme[0-9]*'}\n"), root=tmp_path)
    (sample,) = adapter.sample(adapter.devices())
    (reason,) = set(sample.reasons.values())
    assert re.search(r"\bvendor\.yaml\b.*\bmonitor\b", reason)
    assert DeclaredVendor(spec_of("")).devices() == []


# -- versions


def test_versions_are_what_the_first_group_matches_else_the_reason(script: Script) -> None:
    line, pattern = "Driver Version: 6.7.0", r"^Firmware: (\w+)"
    script("acme-smi", f"echo '{line}'; echo 'Firmware: '")
    versions = DeclaredVendor(
        spec_of(
            rf"""
software:
  driver: {{command: [acme-smi], pattern: 'Driver Version: (\S+)'}}
  whole: {{command: [acme-smi], pattern: '^Driver.*$'}}
  firmware: {{command: [acme-smi], pattern: '{pattern}'}}
  kit: {{command: [acme-kit], pattern: '\d+'}}
"""
        )
    ).software()
    assert versions["kernel"].startswith("Linux")
    assert (versions["driver"], versions["whole"]) == ("6.7.0", line)
    assert re.match(rf"unreadable:.*\bacme-smi\b.*{re.escape(pattern)}$", versions["firmware"])
    assert re.match(rf"unreadable: acme-kit\b.*{os.strerror(errno.ENOENT)}$", versions["kit"])


# -- units and scales


@pytest.mark.parametrize(
    ("field", "printed", "where", "read", "right"),
    [
        ("power", "0.2505", "unit: kW", "power_watts", 250.5),
        ("power", "2505", "unit: W, scale: 0.1", "power_watts", 250.5),
        ("power", "250500000", "unit: uW", "power_watts", 250.5),
        ("power", "0.2505 kW", "unit: kW, printed: kW", "power_watts", 250.5),
        ("power", "0.2505 kW", "unit: W, printed: W", "power_watts", None),
        ("energy", "1.5", "unit: kWh", "energy_joules", 5.4e6),
        ("energy", "3", "unit: J, scale: 15.3", "energy_joules", 45.9),
        ("memory_used", "1024", "unit: KiB, scale: 4", "memory_used_bytes", 2**22),
        ("memory_used", "0.001", "unit: TB", "memory_used_bytes", 10**9),
        ("utilisation", "970", "unit: ratio, scale: 0.001", "utilisation", 0.97),
        ("temperature", "41500", "unit: celsius, scale: 0.001", "temperature_celsius", 41.5),
        ("temperature", "314.65 K", "unit: kelvin, printed: K", "temperature_celsius", 41.5),
        ("temperature", "3147", "unit: kelvin, scale: 0.1", "temperature_celsius", 41.55),
    ],
)
def test_any_unit_of_a_field_is_a_unit_or_a_scale_of_one(
    field: str, printed: str, where: str, read: str, right: float | None
) -> None:
    keys = f"fields: {{index: {{column: 1}}, {field}: {{column: 2, {where}}}}}"
    spec = spec_of(f"monitor: {{command: [x], format: csv, columns: 2, {keys}}}")
    ask = lambda argv, seconds: CommandOutput(f"0, {printed}\n", "")  # noqa: E731
    (sample,) = DeclaredVendor(spec, ask).sample([Device(0, None, "", None)])
    assert getattr(sample, read) == (None if right is None else pytest.approx(right, rel=1e-15))


# -- what a vendor.yaml may say

BARE = "monitor: {command: [x], format: pattern, %sfields: {index: {}}}"


@pytest.mark.parametrize(
    ("part", "old", "new", "message"),
    [
        (CSV, "columns: 10", "columns: 10 parts", "found '10 parts', expected a whole number, without a unit"),
        (CSV, "[acme-smi, --query]", "acme-smi",
         "key 'monitor.command': found 'acme-smi', expected a list, as in [a, b]"),
        (CSV, "format: csv", "format: xml", "key 'monitor.format': found 'xml', expected 'csv'"),
        (CSV, "[acme-smi, --query]", "[]", "key 'monitor.command': found []"),
        (CSV, "timeout_seconds: 2", "timeout_seconds: 0", "key 'monitor.timeout_seconds': found 0"),
        (CSV, "timeout_seconds", "timeout", "key 'monitor.timeout': unknown key"),
        (CSV, "power:", "watts:", "key 'monitor.fields.watts"),
        (CSV, "unit: W}", "unit: hp}", "key 'monitor': fields.power.unit: found 'hp', expected one of W, mW, uW, kW"),
        (CSV, "unit: W}", "unit: W, scale: 0}", "key 'monitor.fields.power.scale': found 0, expected more than 0"),
        (CSV, "index: {column: 1}", "index: {column: 1, scale: 2}", "fields.index.scale: found 2, expected none"),
        (CSV, ", unit: W}", "}", "key 'monitor': fields.power.unit: found None, expected one of W, mW"),
        (CSV, "index: {column: 1}", "index: {column: 1, unit: W}", "fields.index.unit: found 'W', expected none"),
        (CSV, "    index: {column: 1}\n", "", "fields.index: missing; a record needs the index of its device"),
        (CSV, "column: 1}", "column: 0}", "key 'monitor.fields.index.column"),
        (CSV, "column: 1}", "path: [gpu]}", "fields.index.column: missing; format csv needs it"),
        (CSV, "column: 1}", "column: gpu}", "numbers and names of columns, expected one kind"),
        (CSV, "  columns: 10\n", "", "key 'monitor': columns: missing"),
        (CSV, "columns: 10", "columns: 7", "found column 8, expected at most 7"),
        (CSV, "GPU-.*", "GPU-(", "key 'monitor.fields.identity.matching': found 'GPU-(', expected a regular"),
        (CSV, "GPU-.*", "(a|b)" * 180_000, "found 900,000 characters, expected a pattern of at most 2,000"),
        (CSV, "GPU-.*", "a{99999999999}", "expected a regular expression"),
        (CSV, "GPU-.*", ".*", "found '.*', which matches an empty text"),
        (LIST, "path: [gpu]", "column: 1", "fields.index.path: missing; format json needs it"),
        (LIST, "path: [gpu]", "path: [gpu], column: 1", "fields.index: format json uses 'path' only"),
        (LIST, "path: [gpu]", "path: []", "key 'monitor.fields.index.path': found []"),
        (NPU, "    power: {unit: W}\n", "", "found the groups index, name, power, temperature, identity"),
        (NPU, "index: {}", "index: {column: 1}", "format pattern uses neither 'column' nor 'path'"),
        (NPU, r"(?P<identity>\S+)", r"(?P<index>\S+)", "found the groups index, name, power, temperature, index"),
        (MX, r"(?P<index>\d+)", r"(?P<index>\d+", "expected a regular expression"),
        ("discovery: {}", "", "", "key 'discovery': expected one of the keys 'tool' and 'device_nodes'"),
        ("discovery: {device_nodes: davinci*}", "", "", "key 'discovery.device_nodes': found 'davinci*'"),
        ("software: {driver: {command: [x]}}", "", "", "key 'software.driver.pattern': missing"),
        (BARE % "", "", "", "found the groups none"),
        (BARE % "patterns: ['G', '(?P<index>[0-9])'], ", "", "", "the first pattern begins a record"),
    ],
)  # fmt: skip
def test_a_wrong_spec_is_refused_naming_the_key(part: str, old: str, new: str, message: str) -> None:
    assert old in part
    with pytest.raises(DocumentError, match=r"^vendor\.yaml: key ") as refusal:
        spec_of(part.replace(old, new, 1) if old else part)
    assert message in str(refusal.value)

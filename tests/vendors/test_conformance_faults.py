"""Every check of the conformance suite, on a vendor that is broken in just the way that it is there to find."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from acme_folder import MONITOR, VENDOR, replace, write_acme
from levelfield.catalog.lookup import Selection
from levelfield.contracts.checked_adapter import CheckedAdapter
from levelfield.errors import UsageError
from levelfield.specs.case import Scale
from levelfield.specs.selector import Selector
from levelfield.testing import plan_checks, tool_checks
from levelfield.testing.check_suite import CHECKS, run_checks, run_one_check
from levelfield.testing.findings import CheckFinding
from levelfield.testing.subject import Stage, VendorSubject

HEAD = """
import subprocess
from pathlib import Path
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.vendor import ContainerOptions, Device, DeviceList, Sample
from levelfield.contracts.readings import SAMPLED_FIELDS, empty_sample


class Adapter(DeclaredVendor):
"""
# An adapter that reads its tool's lines by itself, and badly. `{}` is what it does with them.
READS = (
    HEAD
    + """
    def lines(self):
        done = subprocess.run(["acme-smi", "--query"], capture_output=True)
        return [line.split(",") for line in done.stdout.decode(errors="replace").splitlines()]

    def devices(self):
        found = [Device(i, "A1", "Acme A1", 64 * 2**30, f"SN-10{i}") for i, _ in enumerate(self.lines())]
        return DeviceList(found, None if found else "acme-smi printed no line")

    def sample(self, devices):
        lines, made = self.lines(), []
        for device in devices:
            values = dict.fromkeys(SAMPLED_FIELDS)
            try:
                values["power_watts"] = power(lines, device)
            except (ValueError, IndexError):
                pass
            reasons = {f: "none" for f in SAMPLED_FIELDS if values[f] is None}
            made.append(Sample(device.index, **values, reasons=reasons))
        return made


def power(lines, device):
    %s
"""
)
BY_PLACE = READS % "return float(lines[device.index][5])"
BY_INDEX = "row = next((row for row in lines if row[0] == str(device.index)), [])\n    "
LOOSE = r"""monitor:
  command: [acme-smi, --query]
  format: pattern
  patterns: ['^(?P<index>\d+), (?P<identity>\S+), (?P<name>[^,]+), .*?, (?P<power>[0-9.]+|N/A)']
  fields: {index: {}, identity: {}, name: {}, power: {unit: W}}
"""
SAMPLES = HEAD + "    def sample(self, devices):\n        %s\n        return super().sample(devices)\n"
SILENT = HEAD + "    def devices(self):\n        return list(super().devices())\n"
ALARMED = HEAD + "    def devices(self):\n        return super().devices() or DeviceList([], 'no tool')\n"
LATE = HEAD + "    def sample(self, devices):\n        if len(devices) == 2: raise OSError('gone')\n"

ROW = "{chip: A1, set: {micro_batch: 2}"
BEYOND = "{chip: A1, framework: torch, devices: 8, nodes: 1, set: {layout: DP8TP1PP1, micro_batch: 128}"

PEAKS = "    peaks: {bf16: {tflops: 100, source: made up}}\n"
BF16 = "tflops: 100"


def peaks(**tflops: float) -> str:
    entries = ", ".join(f"{dtype}: {{tflops: {value}, source: made up}}" for dtype, value in tflops.items())
    return f"    peaks: {{{entries}}}\n"


SPARSE_BF16, SLOW_FP8 = peaks(tf32=494, bf16=1978.8), peaks(bf16=100, fp8=50)
FP16_HALF, FP64_HIGH, FP32_HIGH = peaks(bf16=200, fp16=100), peaks(fp64=60, fp32=30), peaks(fp32=200, bf16=100)
BARELY = PEAKS + "    achievable: {bf16: {tflops: 10, source: made up}}\n"
BANDWIDTH = PEAKS + "    memory_bandwidth_bytes_per_second: %s\n    bandwidth_source: made up\n"
LINK = BANDWIDTH % 1e12 + "    interconnect: {description: made up, each_way_bytes_per_second: %s, source: made up}\n"


FULL = re.sub(r"64, \d+,", "64, 65536,", MONITOR)
ACCESS = "device: acme, backend: accl"


class Plant(NamedTuple):
    """One fault: which check finds it, the file that is changed, how, and what the finding says.

    old "" and new: the file is written whole; new None: it is removed.
    """

    check: str
    file: str
    old: str
    new: str | None
    says: str


PLANTS = [
    Plant("schema", "vendor.yaml", "device_kind: acme\n", "", "key 'device_kind': missing"),
    Plant("schema", "vendor.yaml", "verified: none", "verified: none  # FILL IN", "'FILL IN' in line 36"),
    Plant("schema", "vendor.yaml", "verified: none", "verified: ''", "key 'verified' is empty"),
    Plant("schema", "adapter.py", "", "import nothing_of_this_name", "cannot be loaded"),
    Plant("schema", "vendor.yaml", VENDOR[VENDOR.index("monitor:") : VENDOR.index("software:")], "", "found neither"),
    Plant("readme", "README.md", "", None, "found no README.md"),
    Plant("readme", "README.md", "Made up", "FILL IN", "'FILL IN' in line 3"),
    Plant("chips", "vendor.yaml", "    memory_source: made up\n", "", "memory_bytes has no memory_source"),
    Plant(
        *("chips", "vendor.yaml", "    memory_source: made up\n"),
        "    memory_source: made up\n    interconnect: {description: links, bytes_per_second: 9.0e+11, source: a b}\n",
        "interconnect.bytes_per_second does not say whether it counts both ways",
    ),
    Plant("chips", "vendor.yaml", "match: [Acme A1]", "match: ['']", "empty text"),
    Plant("chips", "vendor.yaml", "container:", "  - {name: B, match: [New Acme A1], device_is: card}\ncontainer:",
        "A1"),
    Plant("chips", "vendor.yaml", VENDOR[VENDOR.index("chips:") : VENDOR.index("container:")], "chips: []\n",
        "no chips"),
    Plant("chips", "vendor.yaml", "match: [Acme A1]", "aliases: [H100]\n    match: [Acme A1]", "H100-SXM5-80GB"),
    Plant("chips", "vendor.yaml", "match: [Acme A1]", "aliases: [NVidia]\n    match: [Acme A1]", "the vendor nvidia"),
    Plant("recordings", "recorded/monitor.csv", "", None, "no recorded/monitor.csv"),
    Plant("recordings", "recorded/README.md", "", None, "no recorded/README.md"),
    Plant("recordings", "recorded/README.md", "`monitor.csv`", "one", "does not name monitor.csv"),
    Plant("devices", "recorded/monitor.csv", "", "another tool\n", "found no device in the recordings"),
    Plant("devices", "recorded/monitor.csv", "", None, "no recorded/monitor.csv"),
    Plant("devices", "recorded/monitor.csv", "", "", "monitor.csv is empty"),
    Plant("devices", "recorded/monitor.csv", MONITOR, MONITOR.replace("Acme", "Acm\udce9"),
        "monitor.csv cannot be read: the tool printed no"),
    Plant("devices", "recorded/monitor.csv", "2, SN", "0, SN", "monitor.csv: more than one record of index '0'; none"),
    Plant("devices", "recorded/monitor.csv", "SN-102", "SN-100", "more than one record of identity 'SN-100'"),
    Plant("devices", "vendor.yaml", "match: [Acme A1]", "match: [Acme A2]", "'Acme A1', which ends with no chip"),
    Plant("values", "vendor.yaml", "power: {column: 6", "power: {column: 3", "name and power are read from one place"),
    Plant("values", "vendor.yaml", "index: {column: 1}", "index: {column: 5}",
        "index and memory_used are read from one"),
    Plant("values", "recorded/monitor.csv", "N/A", "0.5", "device 1: power: null, where another device has a value"),
    Plant("values", "vendor.yaml", "printed: C", "printed: F", "monitor.fields.temperature is read on no device"),
    Plant("values", "adapter.py", "", HEAD + "    def sample(self, d): return [Sample(x.index) for x in d]\n",
        "reason"),
    Plant("truncated", "recorded/monitor.csv", "2, SN", "0, SN",
        "monitor.csv: more than one record of index '0'; none"),
    Plant("truncated", "adapter.py", "", BY_PLACE, "expected null or 250.5"),
    Plant("reordered", "adapter.py", "", BY_PLACE, "expected null or"),
    Plant("repeated", "adapter.py", "", BY_PLACE, "expected null or"),
    Plant("decimal-comma", "adapter.py", "", READS % (BY_INDEX + "return float(row[5])"), "power_watts is"),
    Plant("decimal-comma", "vendor.yaml", VENDOR[VENDOR.index("monitor:") : VENDOR.index("software:")], LOOSE, "is"),
    Plant(
        "not-available",
        *("adapter.py", "", READS % (BY_INDEX + "return 0.0 if row[5].strip() == 'NA' else float(row[5])")),
        "power_watts is 0.0",
    ),
    Plant("other-units", "vendor.yaml", "unit: W}", "unit: W, matching: '([0-9.]+|N/A).*'}", "power_watts is 250.5"),
    Plant("extra-devices", "adapter.py", "", READS % "return float(lines[0][5])", "has values"),
    Plant("no-text", "adapter.py", "", READS % "return 0.0 if not lines else float(lines[device.index][5])", "is 0"),
    Plant("tool-missing", "adapter.py", "", BY_PLACE, "FileNotFoundError"),
    Plant("tool-failing", "adapter.py", "", BY_PLACE, "the tool fails, but devices() returns 3"),
    Plant("tool-slow", "adapter.py", "", BY_PLACE, "still waited for its tool after 2 s"),
    Plant("tool-slow", "adapter.py", "", SAMPLES % "subprocess.Popen(['acme-smi'], start_new_session=True)",
        "process(es) of a slow tool still run"),
    Plant("versions", "vendor.yaml", "driver ([0-9.]+)", "Driver: ([0-9.]+)", "software.driver: unreadable"),
    Plant("visible", "vendor.yaml", "visible_devices_variable: ACME_VISIBLE_DEVICES\n", "", "no visible_devices"),
    Plant("schema", "vendor.yaml", "ACME_VISIBLE_DEVICES", "ACME-VISIBLE", "found the name 'ACME-VISIBLE'"),
    Plant("visible", "vendor.yaml", "device_kind: acme\nvisible_devices_variable: ACME_VISIBLE_DEVICES\n",
        "device_kind: cpu\n", "found 3 devices, expected one record"),
    Plant("visible", "adapter.py", "", HEAD + "    def devices(self): return self._all_devices()\n",
        "devices [0, 1, 2]"),
    Plant("container", "vendor.yaml", '"/dev/acme{index}"', '"/dev/acme{number}"', "device node '/dev/acme{number}'"),
    Plant("container", "vendor.yaml", '"/dev/acme{index}"', "/srv/acme0", "device node '/srv/acme0'"),
    Plant("container", "vendor.yaml", 'device_nodes: ["/dev/acme{index}", /dev/acmectl]', "renumbered: true",
        "the same for every choice of devices"),
    Plant(
        "container",
        "adapter.py",
        "",
        HEAD + "    def container(self, d): return ContainerOptions(device_nodes=('/dev/acme0', '/dev/acme1'))\n",
        "vendor.yaml has options for each device, but container() ignores them",
    ),
    Plant(
        "container",
        "adapter.py",
        "",
        HEAD
        + "    count = 0\n    def container(self, d):\n        Adapter.count += 1\n"
        + "        return ContainerOptions(device_nodes=(f'/dev/acme{Adapter.count}',))\n",
        "another value at the second call",
    ),
    Plant("privileges", "vendor.yaml", "the driver raises its threads' priority", "''", "SYS_NICE has no reason"),
    Plant("privileges", "vendor.yaml", "SYS_NICE", "CAP_SYS_ADMIN", "opens the whole host"),
    Plant("privileges", "vendor.yaml", "/opt/acme/lib", "/", "is the host itself"),
    Plant("privileges", "vendor.yaml", "/opt/acme/lib", "/srv/docker.sock", "is the host itself"),
    Plant(
        "privileges",
        "adapter.py",
        "",
        HEAD + "    def container(self, d): return ContainerOptions(capabilities=('NET_ADMIN',))\n",
        "NET_ADMIN has no reason",
    ),
    Plant("images", "vendor.yaml", "  torch: {image", "  tensorflow: {image", "tensorflow is not a framework"),
    Plant("tuning", "tuning/nothing.yaml", "", "case: nothing\n", "nothing.yaml: unknown case 'nothing'"),
    Plant("tuning", "tuning/gpt3_6.7B.yaml", "chip: A1", "chip: A9", "unknown chip of acme 'A9'"),
    Plant("tuning", "tuning/gpt3_6.7B.yaml", "micro_batch: 2", "global_batch: 2", "global_batch"),
    Plant("tuning", "tuning/gpt3_6.7B.yaml", "micro_batch: 2", "micro_batch: 7", "key 'rows.0': torch on 1 x 8 A1"),
    Plant("tuning", "tuning/gpt3_6.7B.yaml", "micro_batch: 2", "layout: TP8, micro_batch: 2", "torch on 2 x 8 A1"),
    Plant("tuning", "tuning/gpt3_6.7B.yaml", ROW, BEYOND, "tuning/gpt3_6.7B.yaml: key 'rows.0': torch on 1 x 8 A1"),
    Plant("tuning", "tuning/gpt3_6.7B.yaml", ROW, BEYOND, "needs 1,208.4 GiB on the fullest device; there are 64"),
    Plant("tuning", "tuning/gpt3_6.7B.yaml", "chip: A1", "chip: A1, framework: paddle", "it applies nowhere"),
    Plant("tool-failing", "adapter.py", "", SILENT, "the tool fails, but devices() gives no problem"),
    Plant("no-text", "adapter.py", "", SILENT, "prints b'', but devices() gives no problem"),
    Plant("tool-missing", "adapter.py", "", ALARMED, "the tool is missing, but devices() has the problem 'no tool'"),
    Plant("plausible", "vendor.yaml", BF16, "tflops: 100000", "the bf16 peak in TFLOP/s is 1e+05, expected 5 to 20000"),
    Plant("plausible", "vendor.yaml", BF16, "tflops: 0.1", "the bf16 peak in TFLOP/s is 0.1"),
    Plant("plausible", "vendor.yaml", PEAKS, SPARSE_BF16, "tf32 over bf16 is 0.2496, expected 0.3 to 1.05"),
    Plant("plausible", "vendor.yaml", PEAKS, SLOW_FP8, "fp8 over bf16 is 0.5, expected 0.95 to 4.2"),
    Plant("plausible", "vendor.yaml", PEAKS, FP16_HALF, "bf16 over fp16 is 2, expected 0.45 to 1.05"),
    Plant("plausible", "vendor.yaml", PEAKS, FP64_HIGH, "fp64 over fp32 is 2, expected 0.005 to 1.05"),
    Plant("plausible", "vendor.yaml", PEAKS, FP32_HIGH, "bf16 over fp32 is 0.5, expected 0.95 to 64"),
    Plant("plausible", "vendor.yaml", PEAKS, BARELY, "achievable over the peak in bf16 is 0.1, expected 0.15 to 1"),
    Plant("plausible", "vendor.yaml", "68719476736", "64", "memory_bytes in GiB is 5.96e-08, expected 2 to 4096"),
    Plant("plausible", "vendor.yaml", PEAKS, BANDWIDTH % 3350, "bandwidth in GB/s is 3.35e-06, expected 50 to 50000"),
    Plant("plausible", "vendor.yaml", PEAKS, BANDWIDTH % 2e13, "FLOP per byte of bandwidth is 5, expected 20 to 1000"),
    Plant("plausible", "vendor.yaml", PEAKS, LINK % 900,
        "a rate of interconnect in GB/s is 9e-07, expected 1 to 10000"),
    Plant("plausible", "vendor.yaml", PEAKS, LINK % 7.2e12, "sends 7200 GB/s each way, above the memory's 1000 GB/s"),
    Plant("values", "recorded/monitor.csv", MONITOR, FULL, "memory_used equals memory_total on every device"),
    Plant("claims", "../twin/vendor.yaml", "", VENDOR.replace("name: acme\n", "name: twin\n"),
        "vendor twin claims device 0 (Acme A1) as well"),
    Plant("commands", "vendor.yaml", "command: [acme-smi, --query]", "command: [sh, -c, acme-smi]", "begins with sh"),
    Plant(*("cases", "vendor.yaml", VENDOR[VENDOR.index("frameworks:") : VENDOR.index("chips:")]),
        *("", "no framework or no chip")),
    Plant("launch", "vendor.yaml", "  torch: {device", "  tensorflow: {device", "unknown 'tensorflow'"),
    Plant("schema", "vendor.yaml", ACCESS, "device: 'acme:0', backend: accl", "torch.device: found 'acme:0', expected"),
    Plant("schema", "vendor.yaml", ACCESS, "device: acme A1, backend: accl", "torch.device: found 'acme A1', expected"),
    Plant("schema", "vendor.yaml", ACCESS, "device: acme, backend: 'accl '", "torch.backend: found 'accl ', expected"),
    Plant("visible", "recorded/monitor.csv", "2, SN", "1204, SN", "devices 0, 1, 1204; ACME_VISIBLE_DEVICES counts"),
    Plant("launch", "vendor.yaml", "[torch_acme]", "[torch-acme]", "frameworks.torch"),
    Plant("launch", "vendor.yaml", "{device: acme,", "{device: cpu,", "device cpu, so every figure would be of the"),
    Plant("launch", "vendor.yaml", "{device: acme,", "{device: CPU,", "carry the name of A1"),
    Plant("launch", "vendor.yaml", "has_framework: true, ", "", "no plan for torch"),
    Plant("launch", "vendor.yaml", "verified:", "environment: {RANK: '0'}\nverified:", "RANK"),
    Plant("launch", "vendor.yaml", "verified:", "environment: {ACME_VISIBLE_DEVICES: '9'}\nverified:", "ACME_VISIBLE"),
    Plant("telemetry", "vendor.yaml", "verified:", "environment: {PYTHONHASHSEED: none}\nverified:",
        "the run is failed"),
    Plant("telemetry", "adapter.py", "", LATE + "        return super().sample(devices)\n",
        "sample() raised in the run"),
    Plant("failures", "vendor.yaml", "verified:", "environment: {PYTHONHASHSEED: none}\nverified:",
        "fault 'killed' is"),
    Plant("cleanup", "adapter.py", "", SAMPLES % "subprocess.Popen(['/bin/sleep', '60'])", "left behind: process"),
    Plant("cleanup", "adapter.py", "", SAMPLES % "Path(__file__).with_name('cache').touch()", "left behind: file"),
    Plant("cleanup", "adapter.py", "", SAMPLES % "Path('cache').touch()", "left behind: file"),
]  # fmt: skip


def test_the_command_that_records_knows_the_same_folder(tmp_path: Path) -> None:
    (write_acme(tmp_path) / "recorded/monitor.csv").unlink()
    command = f"run_benchmarks.py vendor record acme --plugins {tmp_path};"
    assert command in finding_of(tmp_path, "devices").do


def test_a_reason_is_cut_between_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_acme(tmp_path)

    def refuse_one(selection: Selection, selector: Selector, scale: Scale) -> None:
        if selector.case == "gpt2_small":
            raise UsageError("precisely " * 20)

    monkeypatch.setattr(plan_checks, "make_plan", refuse_one)
    reason = finding_of(tmp_path, "cases").says
    assert f": gpt2_small: {'precisely ' * 15}..." in reason and reason.count("precisely") == 15


def finding_of(plugins: Path, name: str) -> CheckFinding:
    return run_one_check(VendorSubject("acme", [plugins]), next(item for item in CHECKS if item.name == name))


def test_there_is_a_plant_for_every_check() -> None:
    assert {plant.check for plant in PLANTS} == {item.name for item in CHECKS}


def test_the_vendor_is_well_before_it_is_broken(tmp_path: Path) -> None:
    """test_vendor_command.py makes the checks that train, too."""
    write_acme(tmp_path)
    findings = run_checks(VendorSubject("acme", [tmp_path]), fast=True)
    assert [(f.check, f.status, f.says) for f in findings if f.status != "ok"] == []


# test_what_is_left_behind_is_ended has a process and a file at once.
LATER = tuple(plant for plant in PLANTS if plant.says.startswith("left behind: "))


@pytest.mark.parametrize(
    "plant",
    [pytest.param(p, marks=[pytest.mark.thorough] if p in LATER else []) for p in PLANTS],
    ids=lambda plant: f"{plant.check}: {plant.says}",
)
def test_the_check_finds_what_was_planted(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_checks, "MAX_WAIT_SECONDS", 2.0)
    path = write_acme(tmp_path) / plant.file
    if plant.new is None:
        path.unlink()
    elif plant.old:
        replace(path, plant.old, plant.new)
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(plant.new)
    finding = finding_of(tmp_path, plant.check)
    assert plant.says in finding.says, finding
    assert finding.status in (("warns",) if plant.check == "commands" else ("missing", "fails"))


@pytest.mark.parametrize(
    ("check_name", "file", "old", "new", "says"),
    [
        ("visible", "recorded/monitor.csv", "2, SN", "5, SN", "has devices 0, 1, 5; ACME_VISIBLE_DEVICES counts from"),
        ("versions", "vendor.yaml", "driver ([0-9.]+)", r"driver \S+", "software.driver is recorded as 'driver 6.7.0'"),
        ("plausible", "vendor.yaml", BF16, "tflops: 4000", "the bf16 peak is 4000 TFLOP/s, and the highest of another"),
        ("plausible", "vendor.yaml", PEAKS, peaks(bf16=400, fp16=800), "A1: fp16 is exactly twice bf16 (400): is it"),
        ("versions", "vendor.yaml", "driver ([0-9.]+)", "(driver)", "software.driver is recorded as 'driver'"),
    ],
)
def test_what_may_be_right_is_warned_of(
    check_name: str, file: str, old: str, new: str, says: str, tmp_path: Path
) -> None:
    replace(write_acme(tmp_path) / file, old, new)
    finding = finding_of(tmp_path, check_name)
    assert finding.status == "warns" and says in finding.says and finding.do, finding


NUMBERING = """numbering:
  tool: {command: [acme-smi, list], format: csv, columns: 2, fields: {index: {column: 1}, visible: {column: 2}}}
"""


@pytest.mark.parametrize(
    ("numbering", "printed", "status", "says"),
    [
        ("numbering: {keeps_gaps: true}\n", None, "ok", "chooses among 3 device(s)"),
        (NUMBERING, "0, 2\n1, 1\n5, 0\n", "ok", "chooses among 3 device(s)"),
        (NUMBERING, "0, 2\n1, 1\n", "fails", "does not say by which number ACME_VISIBLE_DEVICES means each of"),
        (NUMBERING, "0, 2\n1, 1\n5, 2\n", "fails", "two have one number"),
        (NUMBERING, None, "missing", "no recorded/numbering.csv"),
    ],
)
def test_a_gap_is_right_where_the_numbers_are_known(
    numbering: str, printed: str | None, status: str, says: str, tmp_path: Path
) -> None:
    folder = write_acme(tmp_path)
    replace(folder / "recorded/monitor.csv", "2, SN", "5, SN")
    replace(folder / "vendor.yaml", "monitor:\n", f"{numbering}monitor:\n")
    if printed is not None:
        (folder / "recorded/numbering.csv").write_text(printed)
    finding = finding_of(tmp_path, "visible")
    assert finding.status == status and says in finding.says, finding


def test_a_recording_of_parts_of_a_card_fails(tmp_path: Path) -> None:
    folder = write_acme(tmp_path)
    (folder / "recorded/monitor.csv").write_text(MONITOR.replace(", 64, ", ", 32, "))
    finding = finding_of(tmp_path, "devices")
    assert finding.status == "fails"
    assert re.search(rf"\bdevices {', '.join('012')}:.*\b{32 * 2**30}\b.*\b{64 * 2**30}\b", finding.says)


@pytest.mark.parametrize("words", ["sh, -c, 'acme-smi --query'", "sudo, acme-smi, --query", "timeout, '5', acme-smi"])
def test_a_command_that_every_host_has_is_warned_of(words: str, tmp_path: Path) -> None:
    """On a host without the chip it fails, so that a run that names no vendor would be refused there."""
    replace(write_acme(tmp_path) / "vendor.yaml", "command: [acme-smi, --query]", f"command: [{words}]")
    finding = finding_of(tmp_path, "commands")
    program = words.split(",")[0]
    assert (finding.status, finding.is_good) == ("warns", True)
    assert re.search(rf"^monitor\.command.*\b{program},", finding.says) and finding.do


def test_the_cases_are_planned_and_missing_peaks_are_named(tmp_path: Path) -> None:
    file = write_acme(tmp_path) / "vendor.yaml"
    finding = finding_of(tmp_path, "cases")
    assert finding.status == "ok" and re.match(r"\d+\D+\d+\D.*\bA1\b", finding.says)
    absent = re.findall(r"\bNo\s(\w+)\speak", finding.says)
    assert "fp16" in absent and "bf16" not in absent
    assert re.search(r"\bflagperf_llama3_8b_fp8: torch.*\bfp8\b.*\bacme\b.*\bfp32,.*bf16,.*fp16\b", finding.says)
    replace(file, PEAKS, "")
    assert "bf16" in re.findall(r"\bNo\s(\w+)\speak", finding_of(tmp_path, "cases").says)
    replace(file, "  torch: {device", "  paddle: {device")
    replace(file, "  torch: {image", "  paddle: {image")
    assert re.search(r"\bpaddle\b.*\bhead_dim\b", finding_of(tmp_path, "cases").says)


def test_a_vendor_on_which_no_case_can_be_planned_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UsageError("nothing is\n  possible")

    write_acme(tmp_path)
    monkeypatch.setattr(plan_checks, "resolve", refuse)
    finding = finding_of(tmp_path, "cases")
    assert finding.status == "fails"
    assert re.search(r"\bA1: deepseek_v3:.*nothing.*possible", finding.says)


UNASKED = HEAD + "    def devices(self): return [Device(0, 'A1', 'Acme A1', None)][:%d]\n"


def test_devices_of_the_machine_itself_are_not_judged_by_recordings(tmp_path: Path) -> None:
    """As NVML's are where there is an NVIDIA GPU: nvidia-smi is then not asked."""
    (write_acme(tmp_path) / "adapter.py").write_text(UNASKED % 1)
    for name in ("devices", "truncated", "tool-missing"):
        finding = finding_of(tmp_path, name)
        assert (finding.status, "this machine" in finding.says) == ("not applicable", True), name


def test_nvidia_is_judged_by_its_recordings_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML answers there, so nvidia-smi is not asked; `replayed` reads the recording all the same."""
    subject = VendorSubject("nvidia")
    adapter = subject.registry.vendor("nvidia")
    assert isinstance(adapter, CheckedAdapter)
    names = type(adapter.adapter).devices.__globals__
    library = SimpleNamespace(
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda _: "GPU-1",
        nvmlDeviceGetName=lambda _: "NVIDIA A100-SXM4-40GB",
    )
    monkeypatch.setitem(names, "open_nvml", lambda: names["Nvml"](library))
    checks = ("devices", "values", "truncated", "tool-missing")
    findings = {item.name: run_one_check(subject, item) for item in CHECKS if item.name in checks}
    assert all(findings[name].status == "ok" for name in checks[:3]), findings
    assert "H100-SXM5-80GB" in findings["devices"].says, "of the recording, not of this machine"
    assert "whatever" in findings["tool-missing"].says


def test_an_adapter_that_asks_no_recorded_tool_fails(tmp_path: Path) -> None:
    (write_acme(tmp_path) / "adapter.py").write_text(UNASKED % 0)
    finding = finding_of(tmp_path, "devices")
    assert (finding.status, "recorded tools" in finding.says) == ("fails", True)


ADDS = HEAD + "    def software(self): return super().software() | %s\n"


@pytest.mark.parametrize(
    ("adds", "status", "says"),
    [
        ("{'driver': '6.7.0'}", "ok", "by adapter.py: driver 6.7.0"),
        ("{'driver': 'unreadable: no tool'}", "fails", "driver is unreadable: no tool"),
        ("{}", "not applicable", "runs will not record the driver's version"),
    ],
)
def test_versions_that_an_adapter_reads_are_shown(adds: str, status: str, says: str, tmp_path: Path) -> None:
    folder = write_acme(tmp_path)
    text = (folder / "vendor.yaml").read_text()
    (folder / "vendor.yaml").write_text(re.sub(r"software:\n(  .*\n)+", "", text))
    (folder / "recorded/software.driver.txt").unlink()
    (folder / "adapter.py").write_text(ADDS % adds)
    finding = finding_of(tmp_path, "versions")
    assert finding.status == status and says in finding.says


def test_the_driver_of_nvidia_is_recorded() -> None:
    finding = run_one_check(VendorSubject("nvidia"), next(item for item in CHECKS if item.name == "versions"))
    assert finding.status == "ok" and "driver 580.159.04" in finding.says


def test_a_container_that_sees_all_devices_is_reported(tmp_path: Path) -> None:
    replace(write_acme(tmp_path) / "vendor.yaml", '"/dev/acme{index}"', "/dev/acme")
    finding = finding_of(tmp_path, "container")
    assert (finding.status, "ACME_VISIBLE_DEVICES" in finding.says) == ("ok", True)


def test_a_first_pattern_that_matches_nothing_is_named_with_its_recording(tmp_path: Path) -> None:
    folder = write_acme(tmp_path)
    text = (folder / "vendor.yaml").read_text()
    unmatched = LOOSE.replace("'^(?P<index>", r"'^Card\n(?P<index>")
    (folder / "vendor.yaml").write_text(re.sub(r"monitor:\n(  .*\n)+", lambda _: unmatched, text))
    (folder / "recorded/monitor.csv").rename(folder / "recorded/monitor.txt")
    finding = finding_of(tmp_path, "devices")
    assert re.search(r"\brecorded/monitor\.txt:.*'monitor\.patterns\.0'", finding.says)
    assert r"'^Card\n(?P<index>" in finding.says
    assert finding_of(tmp_path, "reordered").status == "not applicable"


def test_a_wrong_vendor_yaml_ends_the_suite(tmp_path: Path) -> None:
    replace(write_acme(tmp_path) / "vendor.yaml", "chips:", "chip:")
    assert [finding.check for finding in run_checks(VendorSubject("acme", [tmp_path]))] == ["schema"]


def test_what_is_left_behind_is_ended(tmp_path: Path) -> None:
    write_acme(tmp_path)
    once = "file.exists() or subprocess.Popen(['/bin/sleep', '60']); file.touch()"
    (tmp_path / "vendors/acme/adapter.py").write_text(SAMPLES % f"file = Path(__file__).with_name('cache'); {once}")
    subject = VendorSubject("acme", [tmp_path])
    finding = run_one_check(subject, next(item for item in CHECKS if item.name == "cleanup"))
    assert finding.status == "fails" and re.match(r"left behind: process \d+ .*, file /.*/cache", finding.says), finding
    assert subject.stage.processes() == []


def test_a_slow_tool_is_ended_where_the_adapter_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    subject = SimpleNamespace(stage=stage, spec=None)

    def raising(*_: object) -> None:
        subprocess.Popen(["/bin/sh", str(stage.bin / "acme-smi")])
        raise ValueError("planted")

    monkeypatch.setattr(tool_checks, "tool_names", lambda subject: ["acme-smi"])
    monkeypatch.setattr(tool_checks, "_with_short_limits", lambda spec: spec)
    monkeypatch.setattr(tool_checks, "_check_empty", raising)
    try:
        with stage.activate(None), pytest.raises(ValueError, match="planted"):
            tool_checks.check_slow_tool(subject)  # type: ignore[arg-type]
        assert stage.processes() == []
    finally:
        stage.end_all()

"""`vendor record` from the command line, and identities out of what it keeps."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from acme_folder import MONITOR, replace, write_acme
from adapters import tool
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import RunFailed, UsageError
from levelfield.testing import recorder
from levelfield.testing.recorder import LABELS, redact_texts
from levelfield.testing.subject import VendorSubject

ROOT = Path(__file__).resolve().parents[2]
Captured = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    return main(["vendor", *map(str, arguments)])


@pytest.fixture
def machine(tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vendor without recordings, on a machine with its tool. Gives the folder of recordings."""
    folder = write_acme(tmp_path)
    for path in (folder / "recorded").iterdir():
        path.unlink()
    (tmp_path / "monitor").write_text(MONITOR)
    tool(tmp_path / "bin", "acme-smi", f'[ "$1" = --version ] && echo "driver 6.7.0" || cat {tmp_path}/monitor')
    monkeypatch.delenv("ACME_VISIBLE_DEVICES", raising=False)
    return folder / "recorded"


def record(machine: Path, *options: str) -> int:
    return run("record", "acme", "--plugins", machine.parents[2], *options)


def test_what_the_tools_print_is_kept_with_its_origin(machine: Path, capsys: Captured) -> None:
    assert record(machine) == 0
    assert (machine / "monitor.csv").read_text() == MONITOR
    assert (machine / "software.driver.txt").read_text() == "driver 6.7.0\n"
    origins = (machine / "README.md").read_text()
    (line,) = (line for line in origins.splitlines() if line.startswith("- `monitor.csv`: "))
    assert re.search(r"`acme-smi\s--query`,\s20.*\b3\sx\sAcme\sA1\b.*\b6\.7\.0\b", line)
    assert re.search(r"\bmonitor\.csv holds\b", capsys.readouterr().out)
    assert run("check", "acme", "--fast", "--plugins", machine.parents[2]) == 0


@pytest.mark.parametrize("name", ["monitor.csv", "README.md", "monitor.d", "recorded"])
def test_no_link_and_no_folder_is_written_through(machine: Path, tmp_path: Path, capsys: Captured, name: str) -> None:
    assert record(machine) == 0
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    text = "years of work"
    (foreign / "monitor.csv").write_text(text)
    place = machine if name == "recorded" else machine / name
    if name == "monitor.d":
        place.mkdir()
    else:
        place.rename(tmp_path / "away")
        place.symlink_to(foreign if name == "recorded" else foreign / "monitor.csv")
    before = {path.name: path.read_bytes() for path in machine.iterdir() if path.is_file()}
    capsys.readouterr()
    assert record(machine, "--force") == 2
    assert str(place) in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in machine.iterdir() if path.is_file()} == before
    assert [path.read_text() for path in foreign.iterdir()] == [text]


def test_what_is_there_is_replaced_by_force_only(machine: Path, capsys: Captured) -> None:
    assert record(machine) == 0
    note = "Words of the author's."
    (machine / "README.md").write_text((machine / "README.md").read_text() + f"\n{note}\n")
    (machine.parents[2] / "monitor").write_text(MONITOR.replace("250.5", "260.5"))
    assert record(machine) == 2
    assert "--force" in capsys.readouterr().err and "250.5" in (machine / "monitor.csv").read_text()
    assert record(machine, "--force") == 0
    origins = (machine / "README.md").read_text()
    assert "260.5" in (machine / "monitor.csv").read_text()
    assert origins.count("- `monitor.csv`") == 1 and note in origins


SMI = (
    "0, GPU-4e2d71a0-9f3b-11ee-8c90-0242ac120002, NVIDIA H100 80GB HBM3, 81559, 0, 72.91, 0, 35, Disabled, 580.159.04\n"
)


def test_what_an_adapter_asks_is_recorded_too(tmp_path: Path, tools: Path) -> None:
    """adapter.py of nvidia has no tool in vendor.yaml; it asks nvidia-smi on other nodes."""
    tool(tools, "nvidia-smi", f"printf '%s\\n' '{SMI.strip()}'")
    folder = tmp_path / "nvidia"
    (folder / "recorded").mkdir(parents=True)
    recording = folder / "recorded/tool.nvidia-smi.csv"
    recording.write_text("older\n")
    (folder / "recorded/README.md").write_text("# x\n\n- `tool.nvidia-smi.csv`: older,\n  in two lines\n- `b`: stays\n")
    vendor = Registry().vendor("nvidia")
    with pytest.raises(UsageError, match=r"tool\.nvidia-smi\.csv exists"):
        recorder.record_tools(vendor, folder, redact=True, force=False)
    lines = recorder.record_tools(vendor, folder, redact=True, force=True)
    assert recording.read_text() == SMI.replace(
        "4e2d71a0-9f3b-11ee-8c90-0242ac120002", "0a0a00a0-0a0a-00aa-0a00-0000aa000001"
    )
    assert any(re.search(r"\b1 identity\b", line) for line in lines)
    origins = (folder / "recorded/README.md").read_text()
    assert "two lines" not in origins and "- `b`: stays" in origins and "query-gpu=index,uuid" in origins
    tool(tools, "nvidia-smi", "exit 9")
    with pytest.raises(RunFailed, match="nvidia-smi"):
        recorder.record_tools(vendor, folder, redact=True, force=True)


def test_a_tool_that_hangs_is_waited_for_as_long_as_a_run_waits(machine: Path, capsys: Captured) -> None:
    """acme's vendor.yaml gives its monitor two seconds, and its version the default of five."""
    tool(machine.parents[2] / "bin", "acme-smi", '[ "$1" = --version ] || exec sleep 50')
    begin = time.monotonic()
    assert record(machine) == 3 and time.monotonic() - begin < 20
    text = " ".join(capsys.readouterr().err.split())
    assert re.search(r"\bacme-smi\b.*\b2 s\b.*`timeout_seconds`", text)


def test_identities_are_replaced_and_nothing_else(machine: Path) -> None:
    assert record(machine, "--redact") == 0
    recording = (machine / "monitor.csv").read_text()
    assert (
        "SN-100" not in recording
        and "250.5, 41C" in recording
        and "identities replaced" in (machine / "README.md").read_text()
    )
    identities = [line.split(", ")[1] for line in recording.splitlines()]
    assert len(set(identities)) == 3 and all(identity.startswith("SN-") for identity in identities)
    assert run("check", "acme", "--fast", "--plugins", machine.parents[2]) == 0


def test_the_command_reports_what_was_replaced_and_no_identity(machine: Path, capsys: Captured) -> None:
    assert record(machine, "--redact") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\bmonitor\.csv: 3\b.*\bSN-", text) and "SN-100" not in text
    assert "driver" in text and "software.driver.txt: 3" not in text
    (line,) = [line for line in (machine / "README.md").read_text().splitlines() if "software.driver" in line]
    assert "identities replaced" not in line


def test_the_command_reports_that_there_is_nothing_to_replace(machine: Path, capsys: Captured) -> None:
    """Places on the bus as identities: they stay, with and without --redact, and nobody is told to replace them."""
    output = machine.parents[2] / "monitor"
    output.write_text(MONITOR.replace("SN-10", "0000:3b:00."))
    for options in (["--redact"], ["--force"]):
        assert record(machine, *options) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert ("to replace" in text) is ("--redact" in options) and "holds identities" not in text
        assert "replaced" not in text and "identities replaced" not in (machine / "README.md").read_text()
        assert (machine / "monitor.csv").read_text() == output.read_text()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, "acme-smi cannot be started: No such file or directory"),
        ("echo no driver >&2; exit 9", "acme-smi ended with exit code 9: no driver"),
        ("exit 0", "`acme-smi --query` printed nothing"),
    ],
)
def test_a_tool_that_does_not_answer_leaves_nothing(
    machine: Path, capsys: Captured, body: str | None, message: str
) -> None:
    if body is None:
        (machine.parents[2] / "bin/acme-smi").unlink()
    else:
        tool(machine.parents[2] / "bin", "acme-smi", body)
    assert record(machine) == 3
    text = capsys.readouterr().err
    assert message in text and (body == "exit 0" or "the chip" in text)
    assert list(machine.iterdir()) == []


def test_output_that_vendor_yaml_does_not_read_is_stored_and_reported(machine: Path, capsys: Captured) -> None:
    (machine.parents[2] / "monitor").write_text("0, SN-100, Acme A1, 64\n")
    assert record(machine) == 4
    text = " ".join(capsys.readouterr().err.split())
    assert re.search(r"\bmonitor\.csv:.*\bvendor\.yaml\b.*\b4 columns\b", text)


def test_an_error_message_of_a_tool_is_no_recording(machine: Path, capsys: Captured) -> None:
    """A tool that cannot reach its driver, and ends with exit code 0 all the same."""
    output = machine.parents[2] / "monitor"
    output.write_text("acme-smi: cannot open driver: Permission denied\n")
    assert record(machine, "--redact") == 4
    text = " ".join(capsys.readouterr().err.split())
    assert f"'{output.read_text().strip()}'" in text
    command = f"run_benchmarks.py vendor record acme --redact --force --plugins {machine.parents[2]}"
    assert f"`{command}`" in text
    assert (machine / "monitor.csv").read_text() == output.read_text()
    output.write_text(MONITOR)
    assert record(machine, "--redact", "--force") == 0 and "Acme A1" in (machine / "monitor.csv").read_text()


def test_what_no_rules_read_yet_is_recorded(tmp_path: Path, machine: Path, capsys: Captured) -> None:
    """A new folder with its command: the author writes the rules by what is recorded."""
    assert run("new", "zeta", "--output", tmp_path) == 0
    replace(tmp_path / "vendors/zeta/vendor.yaml", "[zeta-smi, --query]  # FILL IN", "[acme-smi]")
    (tmp_path / "monitor").write_text("Card 0  Zeta 1\n")
    assert run("record", "zeta", "--plugins", tmp_path) == 0
    assert re.search(r"\bno device\b.*\bvendor\.yaml\b", " ".join(capsys.readouterr().out.split()))
    replace(tmp_path / "vendors/zeta/vendor.yaml", "csv  # FILL IN", "csv  #")
    assert run("record", "zeta", "--plugins", tmp_path, "--force") == 4


def test_a_vendor_without_a_tool_has_nothing_to_record(tmp_path: Path, capsys: Captured) -> None:
    assert run("record", "cpu") == 2
    assert "vendor.yaml" in capsys.readouterr().err


# -- redaction

FIRST, SECOND = "470a7e3c-8d6f-4b1e-9a55-0123456789ab", "470a7e3c-8d6f-4b1e-9a55-0123456789ac"
UUIDS = f"GPU 0: {FIRST}\nGPU 1: {SECOND}\nUUID: {FIRST}\n"


def test_one_identity_is_one_everywhere_and_two_stay_two() -> None:
    lines = redact_texts({"a.txt": UUIDS, "b.txt": UUIDS}, {})["b.txt"].splitlines()
    first, second, again = (line.split(": ")[1] for line in lines)
    assert first == again != second and "470a7e3c" not in "".join(lines) and len(first) == 36


@pytest.mark.parametrize("label", ["Serial Number : {}", '"serial": "{}"', "SN: {}", "Board ID={}", "MAC Address : {}"])
def test_what_stands_behind_a_label_is_an_identity(label: str) -> None:
    rest = "\nPower : 45.00 W\n"
    text = redact_texts({"a.txt": label.format("1C:34:DA:77:AB:09") + rest}, {})["a.txt"]
    assert "DA:77" not in text and text.endswith(rest)


def test_places_on_the_bus_stay() -> None:
    text = "| 0 | 0000:81:00.0 | Bus-Id 00000000:3D:00.0 |\n"
    assert redact_texts({"a.txt": text}, {}) == {"a.txt": text}


def test_a_redaction_that_would_change_what_is_read_is_refused(tmp_path: Path) -> None:
    replace(write_acme(tmp_path) / "vendor.yaml", "identity: {column: 2}", "identity: {column: 5}")
    monitor = VendorSubject("acme", [tmp_path]).spec.monitor
    assert monitor is not None
    with pytest.raises(UsageError, match=r"\bidentities\b"):
        redact_texts({"monitor.csv": MONITOR}, {"monitor.csv": monitor})


def test_identities_that_would_become_one_are_refused(tmp_path: Path) -> None:
    monitor = VendorSubject("acme", [write_acme(tmp_path).parents[1]]).spec.monitor
    assert monitor is not None
    many = "".join(f"{n}, {chr(65 + n)}, Acme A1, 64, 1, 1, 1C\n" for n in range(7))
    with pytest.raises(UsageError, match=r"\bunique\b"):
        redact_texts({"monitor.csv": many}, {"monitor.csv": monitor})


FORMS = {
    "colon": "{label} : {word}\n", "json": '{{"{label}": "{word}"}}\n', "equals": "{label}={word}\n",
    "xml": "<{label}>{word}</{label}>\n", "csv": "index, {label}, power\n0, {word}, 45.00 W\n",
    "bars": "| index | device_{label} |\n| 0 | {word} |\n",
}  # fmt: skip
EXAMPLES = {
    "serial numbers": ("Serial Number", "serial_no", "SN"),
    "UUIDs": ("GPU UUID", "guid"),
    "MAC addresses": ("MAC", "mac_address"),
    "board ids": ("Board ID", "board_id"),
    "asset tags": ("Asset Tag",),
    "host names": ("Host Name", "hostname", "Host"),
    "IP addresses": ("ip", "IPv4 Address"),
}


@pytest.mark.parametrize("form", FORMS)
def test_everything_that_the_docs_name_is_replaced_in_every_form(form: str) -> None:
    for label in (label for labels in EXAMPLES.values() for label in labels):
        text = FORMS[form].format(label=label, word="AB12-CD34.9")
        masked = redact_texts({"a.txt": text}, {})["a.txt"]
        assert "AB12" not in masked and len(masked) == len(text) and label in masked, (label, masked)
        assert masked.count("45.00 W") == text.count("45.00 W"), (label, masked)


def test_the_docs_name_what_the_code_replaces() -> None:
    """One list: docs/writing-a-vendor.md has the names in the code's order, and a test has examples of each."""
    page = " ".join((ROOT / "docs/writing-a-vendor.md").read_text().split())
    assert re.search(rf"{', '.join(LABELS)},.*`identity`", page)
    assert list(EXAMPLES) == list(LABELS)


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("Host: node17.corp.example", ["node17", "corp", "example"]),
        ("Hostname: n17", ["n17"]),
        ("host=lab-box\nnote for lab-box", ["lab", "box"]),
        ("Host: node17.corp.example\nnode17 is up", ["node17"]),
        ("Host n17  Driver 6.7.0", ["n17"]),
        ("index, host\n0, n17", ["n17"]),
        ("S/N ZN77881122  IP 10.3.4.17", ["ZN77881122", "10.3.4.17"]),
        ("Asset Tag 004711", ["004711"]),
        ("file server 141.3.4.17/24", ["141.3.4.17"]),
        ("inet6 fe80::be24:11ff:fe5a:1 up", ["be24"]),
        ("range 10.3.4.17-10.3.4.19", ["4.17", "4.19"]),
        ("'host' => 'cambridge-gpu'", ["cambridge", "gpu"]),
        ("http://[2001:db8::7]:80", ["2001"]),
    ],
)
def test_names_serials_and_addresses_as_tools_print_them(text: str, secrets: list[str]) -> None:
    masked = redact_texts({"a.txt": text + "\n"}, {})["a.txt"]
    assert not [word for word in secrets if word in masked] and len(masked) == len(text) + 1, masked


def test_a_version_that_vendor_yaml_reads_is_no_address() -> None:
    """Four numbers without a word that says so; the pattern does."""
    text = "acme-smi 10.3.4.17 on 10.3.4.18\n"
    assert redact_texts({"a.txt": text}, {"a.txt": r"smi (\S+)"}) == {"a.txt": text.replace("10.3.4.18", "00.0.0.01")}
    assert "10.3.4.17" not in redact_texts({"a.txt": text}, {})["a.txt"]


def test_no_shipped_recording_has_an_identity_by_its_form_alone() -> None:
    """Places on the bus, versions and times of the makers' tools are none."""
    for path in sorted(ROOT.glob("vendors/*/recorded/*.*")):
        text = path.read_text()
        assert not [*recorder._ip_addresses(text), *recorder._host_names(text)], path


@pytest.mark.parametrize("word", ["1c:34:da:77:ab:09", "1C-34-DA-77-AB-09", FIRST])
def test_an_address_or_a_uuid_needs_no_label(word: str) -> None:
    assert word not in redact_texts({"a.txt": f"link 0 {word} up\n"}, {})["a.txt"]


@pytest.mark.parametrize(
    "text",
    [
        "Driver Version: 550.54.15\n",
        "chip: Acme A1-64\n",
        "time 10:20:30:40\n",
        "skip: ABCD12\n",
        "MACA Version: 3.1.0.14              BIOS Version: 1.26.1.0  |\n",
        "index, driver_version\n0, 10.3.4.17\n",
        "listens on 127.0.0.1 and ::1, mask 255.255.255.0\n",
        "VBIOS 96.00.74.00.01, libacme-1.2.3.4, 1.2.3.4-rc1, std::abc, 0000:3b:00.0\n",
        "Host:\n  Memory: 512 GiB\n",
        "Host Memory: 512 GiB\nHost: N/A\nHost: 65536 MiB\nHost driver.\nhost-side: A1B2\n",
        "Serial port speed 9600\n",
    ],
)
def test_what_is_no_identity_stays(text: str) -> None:
    assert redact_texts({"a.txt": text}, {}) == {"a.txt": text}

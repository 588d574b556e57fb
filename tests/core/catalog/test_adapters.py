"""What an adapter.py may return or raise: the command goes on or ends with the file's name, never by the adapter."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.contracts import checked_adapter
from levelfield.contracts.vendor import Device
from levelfield.node import sampling
from levelfield.run.run_devices import device_sampler

HEAD = """
from levelfield.contracts.vendor import ContainerOptions, Device, DeviceList, Sample

class Adapter:
    def __init__(self, spec):
        self.spec = spec
    def devices(self):
        return [Device(0, "F1", "Fake One", None)]
    def sample(self, devices):
        return [Sample(device.index, 1.0) for device in devices]
    def container(self, devices):
        return ContainerOptions()
    def software(self):
        return {"driver": "1"}
"""
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def adapted(plugins: Path) -> Callable[..., list[str]]:
    """adapted(method, body, ...): the options for a folder of plugins whose adapter has this method, or these."""

    def write(method: str, body: str, *others: str) -> list[str]:
        parameters = "self, spec" if method == "__init__" else "self, devices=()"
        methods = "".join(f"\n    def {name}({parameters}):\n        {body}\n" for name in (method, *others))
        text = HEAD + methods if method else body
        (plugins / "vendors" / "fake" / "adapter.py").write_text(text)
        return ["--plugins", str(plugins)]

    return write


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "devices() returned None, expected a list of Device"),
        ("return -1", "devices() returned -1, expected a list of Device"),
        ("return 'two'", "devices() returned 'two', expected a list of Device"),
        ("return [None]", "found None, expected a Device"),
        ("return [Device('0', 'F1', 'x', None)]", "key 'index': found '0', expected a whole number"),
        ("return [Device(-1, 'F1', 'x', None)]", "key 'index': found -1, expected a whole number from 0"),
        ("return [Device(0, 'F1', 'x', 'much')]", "key 'memory_bytes': found 'much'"),
        ("return [Device(0, 'F1', 'x', -1)]", "key 'memory_bytes': found -1"),
        ("return [Device(0, 5, 'x', None)]", "key 'chip': found 5, expected a text or None"),
        ("return [Device(0, 'F1', 'x', None)] * 2", "key 'index': found 0 twice"),
        ("return [Device(i, 'F1', 'x', None) for i in range(10**4)]", "found more than 1,024 devices"),
        ("return (Device(i, 'F1', 'x', None) for i in iter(int, 1))", "found more than 1,024 devices"),
        ("import sys; sys.exit(7)", "devices() called sys.exit(7), expected an answer"),
        ("raise SystemExit", "devices() called sys.exit(None)"),
        ("raise ValueError('no')", "the adapter raised ValueError: no"),
        ("import queue; raise queue.Empty", "the adapter raised Empty"),
    ],
)
def test_a_wrong_list_of_devices_is_reported(
    adapted: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], body: str, message: str
) -> None:
    options = adapted("devices", body)
    assert main(["show", "vendors", *options]) == 0
    assert message in " ".join(capsys.readouterr().out.split())
    assert main(["--case", "tiny:fake:fake:1:1", *options, "--python", sys.executable]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "container() returned None, expected ContainerOptions"),
        ("return {'network': 'host'}", "container() returned {'network': 'host'}, expected ContainerOptions"),
        ("raise ValueError('no')", "container() raised ValueError: no"),
        ("import sys; sys.exit(7)", "container() called sys.exit(7)"),
    ],
)
def test_wrong_options_of_a_container_are_refused(
    adapted: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], body: str, message: str
) -> None:
    words = ["--case", "tiny:fake:F1:1:1", "--dry-run", "--runtime", "docker", "--base-image", "a"]
    assert main([*words, *adapted("container", body)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error and "adapter.py" in error


READINGS = (
    "return [Sample(0, '12 W')]",
    "return [Sample(0, float('nan'))]",
    "return [Sample('0', 12.0)]",
    "return [Sample(0, reasons='none')]",
)


@pytest.mark.parametrize("body", READINGS)
def test_a_reading_that_is_no_number_ends_no_command(
    adapted: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], body: str
) -> None:
    assert main(["--case", "tiny:fake:F1:1:1", "--dry-run", "--no-store", *adapted("sample", body)]) == 0
    assert "fault" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "body",
    [
        *(pytest.param(body, marks=pytest.mark.thorough) for body in ("return None", "return -1", READINGS[0])),
        "import sys; sys.exit(7)",
    ],
)
def test_a_run_goes_on_without_readings(
    adapted: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str
) -> None:
    words = ["--case", "tiny:fake:F1:1:1", "--python", sys.executable, "--runs", str(tmp_path / "runs")]
    assert main([*words, *adapted("sample", body, "software")]) == 0
    assert re.search(r"^result +valid", capsys.readouterr().out, re.MULTILINE)
    (root,) = (tmp_path / "runs").iterdir()
    for method, file in (("sample", "telemetry.jsonl"), ("software", "provenance.json")):
        recorded = (root / file).read_text()
        assert f"{method}()" in recorded and "expected" in recorded, method


@pytest.mark.parametrize(
    "body", ["import time; time.sleep(9)", "from levelfield.contracts.command import ask; ask(['sleep', '9'], 9)"]
)
def test_an_adapter_that_never_answers_is_reported(
    adapted: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    body: str,
) -> None:
    monkeypatch.setattr(checked_adapter, "ANSWER_LIMIT_SECONDS", 0.5)
    assert main(["show", "vendors", *adapted("devices", body)]) == 0
    assert re.search(r"devices\(\).*0\.5 s", " ".join(capsys.readouterr().out.split()))
    wait_for_no_tool()


def test_a_tool_of_an_adapter_ends_with_the_telemetry(
    adapted: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "FIRST_READ_SECONDS", 0.5)
    monkeypatch.setattr(sampling, "END_WAIT_SECONDS", 0.1)
    _, plugins = adapted("sample", "from levelfield.contracts.command import ask; ask(['sleep', '9'], 9)")
    vendor = Registry([Path(plugins)]).vendor("fake")
    with device_sampler(vendor, [Device(0, "F1", "Fake One", None)], tmp_path / "telemetry.jsonl"):
        time.sleep(0.5)
        assert ["sleep", "9"] in commands()
    wait_for_no_tool()


def wait_for_no_tool() -> None:
    deadline = time.monotonic() + 5
    while ["sleep", "9"] in commands() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ["sleep", "9"] not in commands()


def commands() -> list[list[str]]:
    """Return the command line of every child of this process, also of those that another thread started."""
    lines = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            lines.append(child.cmdline())
    return lines


@pytest.mark.thorough
@pytest.mark.parametrize("body", ["raise ValueError('no')", "import sys; sys.exit(7)"])
def test_a_preflight_goes_on_without_readings(adapted: Callable[..., list[str]], tmp_path: Path, body: str) -> None:
    words = ["--case", "tiny:fake:F1:1:1", "--python", sys.executable, "--preflight", "--runs", str(tmp_path / "runs")]
    assert main([*words, *adapted("sample", body)]) in (0, 3)  # a fault of the platform would be another code


@pytest.mark.parametrize(
    ("method", "body", "message"),
    [
        ("", "import sys; sys.exit(7)", "adapter.py: cannot be loaded: SystemExit: 7"),
        ("", "class Adapter: pass", "adapter.py: Adapter(spec) raised TypeError"),
        ("__init__", "import sys; sys.exit(7)", "adapter.py: Adapter(spec) raised SystemExit: 7"),
        ("__init__", "pass", "adapter.py: Adapter(spec) raised AttributeError"),
    ],
)
def test_an_adapter_that_cannot_be_made_is_refused(
    adapted: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], method: str, body: str, message: str
) -> None:
    assert main(["--case", "tiny:fake:F1:1:1", "--dry-run", *adapted(method, body)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())

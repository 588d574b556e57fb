"""Surroundings that no command chose: packages of others, folders that are gone, names, limits, a noexec disk.

Each ends with exit code 2 and a sentence that says what to do, or the command goes on.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, suppress
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.specs.paths import RunPaths
from plans import PLUGINS, ROOT

GROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
FOREIGN_ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00" + bytes(200)  # of 64-bit Arm, without an end
FURTHER = (("report", "RUN"), ("store", "info"))  # commands that start what a listing or a run starts
FAKE = ["--case", "tiny:fake:fake:1:1", "--plugins", str(PLUGINS), "--python", sys.executable, "--quiet"]


def started(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, by the Python of the tests."""
    environment = {**os.environ, "LEVELFIELD_NO_BOOTSTRAP": "1", "FAKE_DEVICES": "1", **variables}
    argv = [sys.executable, str(ROOT / "run_benchmarks.py"), *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)


PACKAGES: dict[str, tuple[str, bytes]] = {
    "an empty yaml": ("yaml.py", b""),
    "an empty pydantic": ("pydantic.py", b""),
    "a pydantic of an earlier version": ("pydantic/__init__.py", b"class BaseModel: pass\nVERSION = '1.10'\n"),
    "a package that raises": ("yaml/__init__.py", b"raise RuntimeError('mine')\n"),
    "a package with a fault": ("pydantic/__init__.py", b"import nothing_of_this_name\n"),
    "a package of another machine": ("pydantic_core/__init__.py", b"from ._core import SchemaValidator\n"),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_does_not_fit_is_named(tmp_path: Path, name: str) -> None:
    file, content = PACKAGES[name]
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(content)
    if name == "a package of another machine":
        (tmp_path / "pydantic_core/_core.abi3.so").write_bytes(FOREIGN_ELF)
    done = started("show", "cases", PYTHONPATH=str(tmp_path))
    message = " ".join(done.stderr.split())
    assert done.returncode == 2 and "Traceback" not in message, message
    if name == "a package with a fault":
        assert "package 'nothing_of_this_name'" in message
    else:
        assert f"'{file.partition('/')[0].removesuffix('.py')}' ({tmp_path}" in message
        assert f"PYTHONPATH names {tmp_path}," in message


def test_a_package_on_a_noexec_disk_is_named(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["mount", "-o", "remount,noexec", str(small_disk)], check=True)
    script = (
        "import sys; sys.prefix = sys.argv[1]; from levelfield.cli.main import package_fault\n"
        "try: import core_of\nexcept ImportError as error: print(package_fault(error))"
    )
    core = next(Path(next(iter(sys.modules["pydantic_core"].__path__))).glob("_pydantic_core*.so"))
    library = small_disk / f"core_of{''.join(core.suffixes)}"
    with suppress(OSError):  # its beginning is enough
        shutil.copy(core, library)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "platform"), str(small_disk))))
    done = subprocess.run([sys.executable, "-c", script, str(small_disk)], capture_output=True, text=True)
    assert "package 'core_of'" in done.stdout and "ImportError" in done.stdout, done
    monkeypatch.setattr(sys, "prefix", str(small_disk))
    from levelfield import installer

    assert str(small_disk) in installer.renewed() and "noexec" in installer.renewed()


def test_a_run_in_a_folder_that_is_removed_keeps_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "1")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main([*FAKE, "--runs", str(tmp_path / "runs")]) == 0
    assert f"run      {tmp_path}/runs/" in capsys.readouterr().out
    assert main([*FAKE, "--runs", "here"]) == 2
    assert "was removed:" in " ".join(capsys.readouterr().err.split())


def test_names_that_are_no_text_are_taken_or_named(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "1")
    odd, long = "\udcff\udcfe", "a" * 300
    runs = str(tmp_path / odd / "runs")
    done = started(*FAKE, "--runs", runs)
    assert done.returncode == 0, done.stderr
    for words in (["show", "runs"], ["report", "latest"], ["evidence", "collect", "latest"]):
        assert main([*words, "--runs", runs]) == 0, words
    for words, says in (
        (["report", odd], "unknown run '\\udcff"),
        (["report", long], f"unknown run '{long}'"),
        (["evidence", "collect", f"/{long}"], f"unknown run '/{long}'"),
        ([*FAKE, "--runs", str(tmp_path / long)], "cannot be written: File name too long. Name another with --runs"),
        ([*FAKE, "--data", f"/{odd}"], "found no corpus"),
        ([*FAKE, "--data", f"/{long}"], "File name too long"),
        ([*FAKE, "--env", f"A={odd}"], "A: found a byte that is not UTF-8"),
        (["report", str(run.root), "--output", f"/{long}"], "cannot be written: File name too long"),
        (["evidence", "bundle", str(run.root), "--output", f"/{long}"], "File name too long"),
        (["report", "pages", f"/{long}", str(run.root)], "cannot be made: File name too long"),
        (["store", "import", str(run.root), "--store", f"/{odd}"], "found a byte that is not UTF-8"),
        (["store", "info", "--store", f"/{long}"], "File name too long"),
        (["evidence", "verify", f"/{long}"], "File name too long"),
        (["show", "tiny", "--plugins", f"/{long}"], "File name too long"),
    ):
        written = io.TextIOWrapper(io.BytesIO(), "ascii", "backslashreplace")
        with redirect_stderr(written):
            code = main(words)
        written.seek(0)
        message = " ".join(written.read().split())
        assert code == 2 and says in message, (words, message)


def test_a_variable_of_the_shell_that_is_no_text_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "1")
    monkeypatch.setenv("OMP_ODD", "\udcff")
    assert main([*FAKE, "--runs", str(tmp_path)]) == 0
    (provenance,) = tmp_path.glob("*/provenance.json")
    assert '"OMP_ODD": "\\udcff"' in provenance.read_text()


@pytest.fixture
def one_process() -> Iterator[Path]:
    """A control group in which nothing but one process is started."""
    group = next((root / f"levelfield-{os.getpid()}" for root in GROUPS if (root / "cgroup.procs").exists()), None)
    try:
        assert group is not None
        group.mkdir()
        (group / "pids.max").write_text("1")
    except (OSError, AssertionError):
        pytest.skip("no control group can be made here")
    yield group
    group.rmdir()


@pytest.mark.parametrize(
    "words", [("show", "cases"), FAKE, *(pytest.param(w, marks=pytest.mark.thorough) for w in FURTHER)]
)
def test_a_machine_without_a_further_process_is_said(
    run: RunPaths, tmp_path: Path, one_process: Path, words: tuple[str, ...]
) -> None:
    arguments = [word.replace("RUN", str(run.root)) for word in words]
    program = [sys.executable, str(ROOT / "run_benchmarks.py"), *arguments]
    line = f'echo $$ > {one_process}/cgroup.procs && exec "$@"'
    environment = {
        **{**os.environ, "LEVELFIELD_NO_BOOTSTRAP": "1", "FAKE_DEVICES": "1", "LEVELFIELD_RUNS": str(tmp_path / "new")},
        "LEVELFIELD_STORE": str(tmp_path / "no.sqlite"),
    }
    done = subprocess.run(
        ["sh", "-c", line, "sh", *program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode in ((0,) if "cases" in words else (0, 2, 3)), (done.returncode, done.stderr)
    assert "fault of" not in done.stderr and "Traceback" not in done.stderr
    if done.returncode == 2 and "store" not in words:
        assert "processes or threads" in " ".join(done.stderr.split())


def test_numbers_without_end_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    digits = "1" * 5000
    for words, says in (
        (["--case", "tiny:fake:F1:1:1", "--layout", f"DP{digits}"], "found a number of 5,000 digits"),
        (["--case", "tiny:fake:F1:1:1", "--layout", f"{digits}x1x1"], "found a number of 5,000 digits"),
        (["--case", f"tiny:fake:DP{digits}F1"], "found a number of 5,000 digits"),
        (["--case", f"tiny+steps{digits}:fake:F1:1:1"], "found a number of 5,000 digits"),
        (["--case", f"tiny:fake:F1:{digits}"], "expected a whole number from 1 to"),
    ):
        assert main([*words, "--dry-run", "--plugins", str(PLUGINS)]) == 2
        message = capsys.readouterr().err
        assert says in message and len(message) < 6000, words
    assert main(["plan", "gpt3_6.7B", "--framework", "torch", "--chip", "H100", "--nodes", "9" * 26]) == 2
    assert "--nodes x" in capsys.readouterr().err


@pytest.mark.parametrize("days", ["99999999999", "9999999", "36501", "-1"])
def test_days_beyond_the_calendar_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], days: str) -> None:
    assert main(["store", "prune", "--keep-days", days, "--store", str(tmp_path / "s.sqlite")]) == 2
    message = capsys.readouterr().err
    assert f"--keep-days: found {days}," in message and "0 to 36500" in message

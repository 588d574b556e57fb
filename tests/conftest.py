"""Shared by all tests: the processor that a run was made on, and at its end what was skipped and why.

With CI=true a skip that a machine could have avoided fails the run.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

collect_ignore = ["packages"]  # their own tests, which need them installed; vendors/test_example_package.py runs them

# Tests press Ctrl-C; a shell that starts them in the background has it ignored, by them and by all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup; a handler is not inherited by what tests start
    signal.signal(signal.SIGHUP, lambda number, frame: None)
os.environ["XDG_CONFIG_HOME"] = os.devnull  # nobody's private chips have a part in these tests
os.environ["LEVELFIELD_STORE"] = "none"  # no test writes to the user's store; tests of stores name their own


# Instructions that kernels choose by, so that a figure or an error may depend on them.
INSTRUCTIONS = (
    *("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16"),
    *("asimd", "asimdhp", "bf16", "sve"),  # of Arm
)
HELD_BY = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
CPUINFO = Path("/proc/cpuinfo")


def processor() -> str:
    """Model, usable cores, instructions, and environment variables that hold libraries to fewer instructions."""
    text = CPUINFO.read_text() if CPUINFO.exists() else ""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    flags = named.get("flags", named.get("Features", "")).split()
    found = " ".join(name for name in INSTRUCTIONS if name in flags) or "no instructions known"
    held = [f"{name}={os.environ[name]}" for name in HELD_BY if name in os.environ]
    model = named.get("model name", "unknown model")
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {found}{''.join(f', held by {each}' for each in held)}"


def pytest_report_header() -> str:
    """The processor, before the first test."""
    return f"processor: {processor()}"


# How the reasons begin that no machine for tests need be free of. Each has a word on why.
ALLOWED_SKIPS = (
    "ascend: no ",  # the example of a vendor whose folder lacks recordings and tuning
    "this Python is the one that is needed",  # of two kinds of machine each test can run on one
    "tests/e2e/test_pythons.py installs them all",  # one of both tests runs
    "this machine has no cgroup freezer",  # no root, or version 2; test_launcher.py also has one without it
    "no control group can be made here",  # no root; recorded files are tested anywhere
    "the kernel's log does not tell this machine's processes",  # inside a container, or not readable
    "no Python older than 3.10 lies in ~/.pyenv/versions",  # old Pythons are no requirement
    "no Python 3.",  # of those that pyproject.toml promises; .github/workflows/ci.yml has each
    "no package index answers",  # a machine without network
    "no CUDA build of torch",  # 5 GB that no machine for tests need have: LEVELFIELD_CUDA_PYTHON names one
    "the pins for NVIDIA devices are looked up for",  # other systems have other wheels
    "needs the program zstd",  # an archive packed by gzip goes the same way
    "LEVELFIELD_CUDA_PYTHON is not set",  # 5 GB of CUDA; tests/gpu/test_judgement.py has the same judgement without it
)


@pytest.fixture(scope="session", autouse=True)
def own_device_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder of locks for each process of the tests: they run at a time, on devices that only pretend."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVELFIELD_LOCKS", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Of several processes one collects first. It compiles all tests, and the others read what it compiled."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with kept_to_the_end():
            return (yield)
    with Path(__file__).open() as lock, kept_to_the_end():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        return (yield)


@contextmanager
def kept_to_the_end() -> Iterator[None]:
    """Search for no garbage in the block, and never in what it leaves: tests and imports stay to the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(
            50_000, 20, 20
        )  # tests make little garbage in circles: a search for it costs more than it frees
        gc.enable()


def skip_reasons(config: pytest.Config) -> Counter[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    return Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)


def forbidden_skips(config: pytest.Config) -> list[str]:
    return [r for r in skip_reasons(config) if os.environ.get("CI") and not r.startswith(ALLOWED_SKIPS)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and forbidden_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The processor where no header had it; how many tests were skipped, and for which reasons."""
    if terminalreporter.verbosity < 0:  # a quiet run has no header
        terminalreporter.write_line(f"processor: {processor()}")
    forbidden = forbidden_skips(terminalreporter.config)
    for reason, count in sorted(skip_reasons(terminalreporter.config).items()):
        word = "skipped, which CI forbids," if reason in forbidden else "skipped"
        terminalreporter.write_line(f"{word} {count}: {reason}")

"""Shared by all tests: the last lines of a run say what was skipped and why. With CI=true a skip that a machine could
have avoided fails the run."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

collect_ignore = ["packages"]  # their own tests, which need them installed; vendors/test_example_package.py runs them

# Tests press Ctrl-C; a shell that starts them in the background has it ignored, by them and by all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["XDG_CONFIG_HOME"] = os.devnull  # nobody's private chips have a part in these tests


# How the reasons begin that no machine for tests need be free of. Each has a word on why.
ALLOWED_SKIPS = (
    "ascend: no ",  # the example of a vendor whose folder lacks recordings and tuning
    "this Python is the one that is needed",  # of two kinds of machine each test can run on one
    "no Python older than 3.10 lies in ~/.pyenv/versions",  # old Pythons are no requirement
)


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
    """How many tests were skipped, and for which reasons; nothing when none was."""
    forbidden = forbidden_skips(terminalreporter.config)
    for reason, count in sorted(skip_reasons(terminalreporter.config).items()):
        word = "skipped, which CI forbids," if reason in forbidden else "skipped"
        terminalreporter.write_line(f"{word} {count}: {reason}")

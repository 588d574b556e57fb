"""Shared by all tests: the last lines of a run say what was skipped and why."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

collect_ignore = ["packages"]  # their own tests, which need them installed; vendors/test_example_package.py runs them

# Tests press Ctrl-C; a shell that starts them in the background has it ignored, by them and by all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["XDG_CONFIG_HOME"] = os.devnull  # nobody's private chips have a part in these tests


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests were skipped, and for which reasons; nothing when none was."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"skipped {count}: {reason}")

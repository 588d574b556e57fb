"""A month of planted events through `nightly run` itself: what the first line of each morning says.

The training alone is replayed (replayed_nights.py), so a night takes a fraction of a second. Of two series `first` has
most events, and the workload of `second` changes.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from levelfield.nights.build_pairs import WEEKLY_NULL_PAIRS
from plans import PLUGINS
from replayed_nights import NOISE, Killed, ReplayedNights

FIRST = date(2026, 3, 2)
SUITE = """\
schema: levelfield.suite/1
title: Two entries
entries:
  - {case: "tiny:fake:F1:1:1", name: first, scale: smoke}
  - {case: "other:fake:F1:1:1", name: second, scale: smoke}
"""
SLOWER = r"2 series slower, the most: tokens/s -[45]\.\d % \[-\d\.\d, -\d\.\d\]"
FASTER = r"1 series faster: tokens/s \+[45]\.\d % \[\+\d\.\d, \+\d\.\d\]"


def day(number: int) -> str:
    """Return the date of a day of the month, from 1."""
    return (FIRST + timedelta(days=number - 1)).isoformat()


@dataclass
class Month:
    nights: ReplayedNights
    suite: Path
    capture: Callable[[], Any]

    def run(self, name: int | str, subject: str = "docs", cost: float | None = None) -> Morning:
        """Commit a build and run a night with it."""
        if subject:
            self.nights.commit(f"{subject} of {name}", cost)
        return Morning(*self.nights.night(self.capture, day(name) if isinstance(name, int) else name, self.suite))

    def do_next(self, morning: Morning, command: str) -> None:
        """Run a command of a mail as it is printed."""
        lines = [
            line.split(maxsplit=2)
            for line in morning.mail.replace("\\\n", " ").splitlines()
            if " run_benchmarks.py " in line
        ]
        commands = dict.fromkeys(rest for *_, rest in lines if rest.startswith(f"nightly {command} "))
        assert commands
        for words in commands:
            code, out = self.nights.command(self.capture, *shlex.split(words))
            assert code == 0, out


@pytest.fixture
def month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Month:
    plugins = Path(shutil.copytree(PLUGINS, tmp_path / "plugins"))
    cases = plugins / "configs/cases"
    (cases / "other.yaml").write_text((cases / "tiny.yaml").read_text().replace("name: tiny", "name: other"))
    suite = tmp_path / "two.yaml"
    suite.write_text(SUITE)
    nights = ReplayedNights(tmp_path, monkeypatch, plugins=plugins)
    return Month(nights, suite, capsys.readouterr)


@dataclass(frozen=True)
class Morning:
    """What a night ended with."""

    code: int
    mail: str

    def says(self, code: int, line: str, *more: str) -> None:
        """Assert the exit code, the whole first line without its date, and texts that the mail has."""
        text = " ".join(self.mail.replace("\\\n", " ").split())
        first, _, _ = text.partition(" compared ")
        assert (self.code, bool(re.fullmatch(rf"night \S+ {line}", first))) == (code, True), self.mail
        assert all(part in text for part in more), self.mail


def test_a_slower_commit_is_named_and_held_until_it_is_accepted(month: Month) -> None:
    """The shortest of the stories that the month below has."""
    for number in range(1, 9):
        month.run(number).says(0, "passes: no change" if number > 7 else "passes: 2 new series")
    named = month.run(9, "Wait longer", 1.05)
    commit = next(reversed(month.nights.machine.costs))[:12]
    since = f"1 commit since night {day(8)}, the last without the change {commit} Ann: Wait longer"
    named.says(4, f"fails: {SLOWER}", since, f"next: revert {commit}, or accept the change:", "why tiny:fake:F1:1:1")
    held = month.run(10)
    held.says(4, f"fails: {SLOWER}", since, f"found in night {day(9)}", "one pair shows -")
    month.do_next(held, "accept")
    month.run(11).says(0, "passes: no change")


@pytest.mark.thorough
def test_each_morning_of_the_month_names_what_was_planted(month: Month) -> None:
    nights, machine = month.nights, month.nights.machine
    for number in range(1, 11):
        month.run(number).says(0, "passes: no change" if number > 7 else "passes: 2 new series")
        if number == 2:
            nights.promote(sorted(path.name for path in (nights.folder / "runs").glob("*_tiny_*"))[:2])

    # a commit makes both series 5 % slower; it is named, held, not lost by a night that does not decide, and mended
    named = month.run(11, "Wait longer", 1.05)
    commit = next(reversed(machine.costs))[:12]
    since = f"1 commit since night {day(10)}, the last without the change {commit} Ann: Wait longer"
    named.says(4, f"fails: {SLOWER}", since, f"next: revert {commit}, or accept the change:", "why tiny:fake:F1:1:1")
    month.run(12).says(4, f"fails: {SLOWER}", since, f"found in night {day(11)}", "one pair shows -")
    machine.pair_noise = 0.06
    month.run(13).says(4, f"fails: {SLOWER}", since, f"found in night {day(11)}")
    machine.pair_noise = NOISE
    month.run(14).says(4, f"fails: {SLOWER}", since, f"found in night {day(11)}", "one pair shows -")
    month.run(15, "Revert", 1.0).says(0, "passes: no change")

    # it comes back, is named in its night again, and is accepted with the printed command
    month.run(16, "Wait again", 1.05).says(4, f"fails: {SLOWER}", f"since night {day(15)}, the last without")
    held = month.run(17)
    held.says(4, f"fails: {SLOWER}", f"found in night {day(16)}")
    month.do_next(held, "accept")
    month.run(18).says(0, "passes: no change")

    # no night on day 19; a machine that others use; a clock that was set back
    month.run(20).says(0, f"passes: no change; 1 night after {day(18)} did not run")
    machine.load_cost = 1.15
    month.run(21).says(0, "passes: 1 bad night", "the control copy is 1", "the baseline build is -1")
    machine.load_cost = 1.0
    line = rf"is incomplete: 1 incomparable; dated before night {day(21)}"
    month.run("2025-02-14").says(3, line, "is the clock wrong?", "not judged yet: 0 of the 7 nights")
    month.run(22).says(0, "passes: no change")

    # a changed workload, a training that differs
    other = nights.plugins / "configs/cases/other.yaml"
    other.write_text(other.read_text().replace("global_batch: 8", "global_batch: 16"))
    month.run(23).says(3, "is incomplete: 1 incomparable: global_batch 8 -> 16", "two/second")
    machine.loss_factor = 1.01
    differs = month.run(24, "Round the loss")
    differs.says(4, "fails: 1 training differs", f"since night {day(23)}, the last without", "next: revert ")
    machine.loss_factor = 1.0
    month.run(25, "Revert it").says(0, "passes: 1 new series")

    # a gain waits for a second night
    month.run(26, "Faster", 1.0).says(0, rf"passes: {FASTER} \(to be confirmed by a second night\), 1 new series")
    month.run(27).says(0, f"passes: {FASTER}, 1 new series", "next: accept the gain with `nightly accept` after three")
    for number in (28, 29):
        month.run(number).says(0, f"passes: {FASTER}(?:, 1 new series)?")

    # a night is killed in its second entry: the first one does not run again
    made, machine.killed_at = nights.runs_made, 2
    with pytest.raises(Killed):
        month.run(30)
    machine.killed_at = None
    month.run(30, "").says(0, f"passes: {FASTER}")
    assert nights.runs_made - made in (2, 2 + 2 * WEEKLY_NULL_PAIRS), "with or without the week's A/A pairs"

    # a new driver makes all steps longer, and is accepted with the printed command
    machine.driver, machine.driver_cost = "560", 1.06
    month.run(31).says(0, "passes: 1 inconclusive: driver 550 -> 560", "a bad night, or driver 550 -> 560")
    step = month.run(32)
    step.says(4, "fails: 1 environment step: driver 550 -> 560", "next: undo the change of conditions, or accept it:")
    month.do_next(step, "accept-step")
    month.run(33).says(0, "passes: 1 new series", "not judged yet: 2 of the 7 nights that a baseline needs")

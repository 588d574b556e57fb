"""A control out of line shows the machine: slower counts, faster and usual noise do not."""

from __future__ import annotations

import math
import platform
import re
from pathlib import Path

import pytest
from levelfield.nights import machine_control
from levelfield.nights.machine_control import (
    MAX_CONTROL_NIGHTS,
    MAX_MEASUREMENTS,
    MIN_CONTROL_NIGHTS,
    control_file,
    read_controls,
    slow_machine_reason,
    slow_rate_reason,
    store_control,
)

QUIET = [{"copy": 100.0 + shift} for shift in (0.0, 0.5, -0.4, 0.2, -0.1, 0.3, -0.6)]
NOISY = [{"copy": 100.0 + shift} for shift in (0.0, 9.0, -8.0, 4.0, -5.0, 7.0, -9.0)]


@pytest.mark.parametrize(
    ("earlier", "now", "is_out"),
    [
        (QUIET, 100.0, False),
        (QUIET, 95.5, False),
        (QUIET, 94.5, True),
        (QUIET, 130.0, False),
        (QUIET, math.nan, True),
        (QUIET, 0.0, True),
        (NOISY, 90.0, False),
        (NOISY, 50.0, True),
        (QUIET[: MIN_CONTROL_NIGHTS - 1], 10.0, False),
    ],
)
def test_only_a_rate_below_its_own_band_is_out_of_line(
    earlier: list[dict[str, float]], now: float, is_out: bool
) -> None:
    assert (slow_rate_reason(earlier, {"copy": now}) is not None) == is_out


def test_the_sentence_names_rate_and_band() -> None:
    sentence = slow_rate_reason(QUIET, {"copy": 80.0})
    assert sentence is not None and "copy" in sentence
    assert re.findall(r"[\d.]+%?", sentence) == ["20.0%", "7", "5.0%"]


def test_controls_are_kept_and_damaged_lines_count_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "controls.jsonl"
    assert read_controls(path) == []
    store_control(path, {"copy": 1.0})
    path.write_text(path.read_text() + '[1]\n{"copy": NaN}\n{"copy": "x"}\n{"copy": 1e999}\nno\n' + "[" * 5000 + "\n")
    store_control(path, {"copy": 2.0})
    assert read_controls(path) == [{"copy": 1.0}, {"copy": 2.0}]
    for _ in range(MAX_CONTROL_NIGHTS + 5):
        store_control(path, {"copy": 3.0})
    assert len(read_controls(path)) == MAX_CONTROL_NIGHTS
    blocked = tmp_path / "file"
    blocked.write_text("")
    store_control(blocked / "below", {"copy": 1.0})


@pytest.mark.parametrize(
    ("rates", "rate", "is_out"), [([100.0], 100.0, False), ([50.0, 50.0, 99.0], 99.0, False), ([50.0] * 4, 50.0, True)]
)
def test_only_what_stays_low_is_the_machine(
    rates: list[float], rate: float, is_out: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    left = iter(rates)
    monkeypatch.setattr(machine_control, "measure_control_rates", lambda: {"copy": next(left)})
    monkeypatch.setattr("levelfield.nights.machine_control.time.sleep", lambda seconds: None)
    path = control_file(platform.node())
    for _ in range(MIN_CONTROL_NIGHTS):
        store_control(path, {"copy": 100.0})
    assert (slow_machine_reason() is not None) == is_out
    assert read_controls(path)[-1] == {"copy": rate} and len(rates) <= MAX_MEASUREMENTS

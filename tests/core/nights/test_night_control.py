"""The control of a night: a short dip of the machine is no quarantine, a lasting one is."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace

import pytest
from levelfield.nights import night_session
from levelfield.nights.machine_control import FEWEST, control_file, keep_control, read_controls
from levelfield.nights.night_session import CONTROLS, NightSession


@pytest.mark.parametrize(
    ("rates", "kept", "is_out"), [([100.0], 100.0, False), ([50.0, 50.0, 99.0], 99.0, False), ([50.0] * 4, 50.0, True)]
)
def test_only_what_stays_low_is_the_machine(
    rates: list[float], kept: float, is_out: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    left = iter(rates)
    monkeypatch.setattr(night_session, "control_rates", lambda: {"copy": next(left)})
    monkeypatch.setattr(night_session.time, "sleep", lambda seconds: None)
    path, said = control_file(platform.node()), []
    for _ in range(FEWEST):
        keep_control(path, {"copy": 100.0})
    session = SimpleNamespace(output=SimpleNamespace(note=said.append))
    why = NightSession._control(session)  # type: ignore[arg-type]
    assert (why is not None, bool(said)) == (is_out, is_out)
    assert read_controls(path)[-1] == {"copy": kept} and len(rates) <= CONTROLS

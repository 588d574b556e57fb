"""The runs that predictions are held to: every setting is a valid case, and the committed file is whole."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import host_runs
import pytest
from host_runs import PAGE, SETTINGS, Setting
from levelfield.specs.base import load, parse
from levelfield.specs.case import Case
from levelfield.specs.host_rates import HostRuns
from levelfield.specs.layout import parse_layout


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_a_setting_is_a_case_with_room_for_its_layout(setting: Setting) -> None:
    case = parse(Case, host_runs.case_of(setting), setting.case)
    layout = parse_layout(setting.layout).layout
    assert case.training.global_batch % (setting.micro_batch * layout.data) == 0
    assert case.model.layers % layout.pipeline == case.model.kv_heads % layout.tensor == 0
    assert layout.world_size in (1, 2)


def test_no_run_is_made_twice() -> None:
    assert max(Counter(s.name for s in SETTINGS).values()) == 1


def test_cases_are_found_in_the_folder(tmp_path: Path) -> None:
    host_runs.write_cases(tmp_path)
    written = {load(Case, path).name for path in (tmp_path / "configs" / "cases").glob("*.yaml")}
    assert written == {s.case for s in SETTINGS}


def test_a_busy_machine_is_waited_for_and_then_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_runs, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(host_runs.psutil, "cpu_percent", lambda interval: 50.0)
    with pytest.raises(SystemExit, match="the machine was busy"):
        host_runs.wait_until_quiet()


def test_a_disturbed_run_is_made_again_and_the_least_disturbed_one_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    others = iter((0.9, 0.3, 0.5, 0.05, math.nan, 0.2, 0.15))
    monkeypatch.setattr(host_runs, "run", lambda *of: SimpleNamespace(other_cores=next(others)))
    kept = [host_runs.least_disturbed(SETTINGS[0], tmp_path, tmp_path).other_cores for _ in range(2)]
    assert kept == [0.3, 0.05]
    assert next(others) is math.nan  # the fourth was left alone, so that no further one was made


def test_the_committed_file_has_every_run_and_none_beside_others() -> None:
    found = load(HostRuns, PAGE)
    assert [run.name for run in found.runs] == [s.name for s in SETTINGS]
    assert all(run.status == "valid" and run.step_seconds and run.process_peak_bytes for run in found.runs)
    assert not [run.name for run in found.runs if host_runs.is_disturbed(run)]

"""What a host reaches: the fit of messages, what the probe may answer, and what is kept of it."""

from __future__ import annotations

import json
import math
import sys
import time
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import pytest
from levelfield.catalog.registry import Registry
from levelfield.errors import DocumentError, RunFailed
from levelfield.predict.machines import fit_messages
from levelfield.run import measurement
from levelfield.specs.base import dump, load
from levelfield.specs.host_rates import HostRates
from levelfield.specs.plan import EnvironmentPlan

SIZES = [2**power for power in range(10, 25, 2)]


def times(alpha: float = 2e-4, rate: float = 1.5e9) -> dict[int, float]:
    return {size: alpha + size / rate for size in SIZES}


def share(processes: int = 1, threads: int = 2, **changes: Any) -> dict[str, Any]:
    fields = {
        "processes": processes,
        "threads": threads,
        "matmul": {"fp32": {"64": 5e10, "256": 9e10}},
        "triad": {"65536": 8e10, "134217728": 2e10},
        "copy": 1.8e10,
        "operation": 1e-6,
        "collectives": {"all_reduce": times()} if processes > 1 else {},
    }
    return {**fields, **changes}


def answer(*shares: dict[str, Any]) -> str:
    return json.dumps({"torch": "2.13.0", "cores": 2, "shares": shares or [share(), share(2, 1)]})


def test_a_fit_finds_what_the_times_were_made_of() -> None:
    alpha, rate = fit_messages(times())
    assert alpha == pytest.approx(2e-4, rel=1e-9) and rate == pytest.approx(1.5e9, rel=1e-9)


def test_a_fit_is_as_good_for_small_messages_as_for_large_ones() -> None:
    """Plain least squares would follow the largest message alone: 30 % more there would double alpha."""
    disturbed = times()
    disturbed[SIZES[-1]] *= 1.3
    alpha, _ = fit_messages(disturbed)
    assert alpha == pytest.approx(2e-4, rel=0.05)


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        ({}, "times of 0 message size"),
        ({1024: 1e-3}, "times of 1 message size"),
        ({1024: 1e-3, 2048: math.nan}, "found a message of nan s"),
        ({1024: 1e-3, 2048: math.inf}, "found a message of inf s"),
        ({1024: 1e-3, 2048: 0.0}, "found a message of 0.0 s"),
        ({1024: 1e-3, 2048: -1.0}, "found a message of -1.0 s"),
        ({1024: 2e-3, 2048: 1e-3}, "larger messages do not take longer"),
        ({1024: 1e-3, 4096: 5e-3}, "larger messages do not take longer: alpha -0.000333 s"),
    ],
)
def test_times_that_no_message_takes_are_refused(measured: dict[int, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        fit_messages(measured)


def test_rates_are_found_by_the_division_of_the_cores() -> None:
    rates = measurement.parse_host_rates("a warning\n" + answer())
    alone, two = rates.share(1, 2), rates.share(2, 1)
    assert alone is not None and two is not None and rates.share(4, 1) is None
    assert alone.memory_bytes_per_second == 2e10 and alone.per_operation_seconds == 1e-6
    messages = two.collectives["all_reduce"]
    assert messages.alpha_seconds + 1.5e9 / messages.bytes_per_second == pytest.approx(1.0002)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0, -1, None, "fast"])
@pytest.mark.parametrize("key", ["matmul", "triad", "copy", "operation", "collectives"])
def test_what_is_no_rate_refuses_the_whole_answer(key: str, value: Any) -> None:
    table: dict[str, Any] = {
        "matmul": {"fp32": {"64": value}},
        "triad": {"64": value},
        "collectives": {"all_reduce": {**times(), 1024: value}},
    }
    with pytest.raises(RunFailed, match="this host: "):
        measurement.parse_host_rates(answer(share(2, 1, **{key: table.get(key, value)})))


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        ("", "IndexError"),
        ("not json", "JSONDecodeError"),
        ("[1]", "TypeError"),
        ("{}", "KeyError: 'torch'"),
        (answer().replace('"torch": "2.13.0"', '"torch": null'), "key 'torch': found None"),
        ('{"torch": "2", "cores": 2, "shares": []}', "key 'shares': found \\[\\]"),
        (answer(share(2, 1, collectives={})), "collectives: found 0 for 2 process"),
        (answer(share(1, 1, collectives={"all_reduce": times()})), "collectives: found 1 for 1 process"),
        (answer(share(matmul={})), "matmul_flops_per_second': found {}"),
        (answer(share(matmul={"fp32": {}})), "a precision without sizes"),
        (answer(share(matmul={"int8": {"64": 1.0}})), "matmul_flops_per_second.int8"),
        (answer(share(2, 1, collectives={"all_reduce": dict.fromkeys(SIZES, 1.0)})), "all_reduce: larger messages do"),
        (answer(share(2, 1, collectives={"broadcast": times()})), "broadcast"),
    ],
)
def test_an_answer_that_is_none_is_refused_and_named(printed: str, says: str) -> None:
    with pytest.raises(RunFailed, match=says):
        measurement.parse_host_rates(printed)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Torch's folder holds no probe yet, and this Python stands for torch's."""
    environment = EnvironmentPlan(name="given", folder="", python=sys.executable, requirements=(), digest="")
    real = Registry().implementation("torch")[0]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(measurement, "plan_environment", lambda *of: environment)
    planted = Registry()
    monkeypatch.setattr(planted, "implementation", lambda name: (real, tmp_path))
    return planted


def probe(folder: Path, *lines: str) -> None:
    (folder / "host_rates.py").write_text("\n".join(lines))


def test_a_probe_is_remembered(registry: Registry, tmp_path: Path) -> None:
    assert measurement.load_host_rates(registry) is None
    probe(tmp_path, f"print('''{answer()}''')")
    sentences: list[str] = []
    rates = measurement.measure_host_rates(registry, sentences.append)
    assert measurement.load_host_rates(registry) == rates and "a minute" in sentences[0]


def test_rates_have_the_time_and_the_load_at_which_they_were_measured(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(tmp_path, f"print('''{answer()}''')")
    counters = {"time_ns": 0, "busy_seconds": 0.0, "own_seconds": 0.0, "cores": 2}
    after = {"time_ns": 10**10, "busy_seconds": 19.0, "own_seconds": 5.0, "cores": 2}
    readings = iter((counters, after))
    monkeypatch.setattr(measurement, "host_counters", lambda ranks_are_children: next(readings))
    rates = measurement.measure_host_rates(registry, print)
    assert rates.other_cores == pytest.approx(1.4)
    assert rates.measured_at is not None and (datetime.now(timezone.utc) - rates.measured_at).total_seconds() < 60


def test_what_is_installed_for_the_probe_is_said_before(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = EnvironmentPlan(name="t", folder=str(tmp_path / "t"), python=sys.executable, requirements=(), digest="x")
    sentences: list[str] = []
    monkeypatch.setattr(measurement, "plan_environment", lambda *of: absent)
    monkeypatch.setattr(measurement, "use_environment", lambda plan, say: nullcontext(say("making it")))
    probe(tmp_path, f"print('''{answer()}''')")
    measurement.measure_host_rates(registry, sentences.append)
    assert "torch" in sentences[0] and absent.folder in sentences[0], sentences
    assert [sentences[1], sentences[2][:9]] == ["making it", "measuring"]


def test_a_run_s_environment_is_the_probe_s_too(registry: Registry, tmp_path: Path) -> None:
    probe(tmp_path, "import os, sys", "sys.exit(os.environ['GOMP_SPINCOUNT'] + ' '.join(sys.argv[1:]))")
    with pytest.raises(RunFailed) as caught:
        measurement.measure_host_rates(registry, print)
    assert str(caught.value).split()[-5:] == ["1:", "1000--dtype", "fp32,bf16", "--seconds", "0.1"]


@pytest.mark.parametrize("lines", [("raise SystemExit(3)",), ("import sys", "sys.exit('no room')"), ("print('no')",)])
def test_a_probe_that_fails_leaves_nothing_behind(registry: Registry, tmp_path: Path, lines: tuple[str, ...]) -> None:
    probe(tmp_path, *lines)
    with pytest.raises(RunFailed, match="this host"):
        measurement.measure_host_rates(registry, print)
    assert measurement.load_host_rates(registry) is None


def test_an_interpreter_that_cannot_be_started_is_named(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = EnvironmentPlan(name="given", folder="", python=str(tmp_path / "gone"), requirements=(), digest="")
    monkeypatch.setattr(measurement, "plan_environment", lambda *of: gone)
    with pytest.raises(RunFailed, match=gone.python):
        measurement.measure_host_rates(registry, print)


def test_a_probe_that_hangs_is_ended_with_all_it_started(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    sleeper = f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    probe(
        tmp_path,
        "import os, subprocess, sys, time",
        f'subprocess.Popen([sys.executable, "-c", """import os, time; {sleeper}"""]).wait()',
    )
    monkeypatch.setattr(measurement, "HOST_TIMEOUT_SECONDS", 2.0)
    with pytest.raises(RunFailed, match=r"\b2 s\b"):
        measurement.measure_host_rates(registry, print)
    end = time.monotonic() + 5
    while psutil.pid_exists(int(pid.read_text())) and time.monotonic() < end:
        time.sleep(0.05)
    assert not psutil.pid_exists(int(pid.read_text()))


@pytest.mark.parametrize("content", ["", "{", "[1]", "{}"])
def test_a_damaged_cache_is_none(registry: Registry, tmp_path: Path, content: str) -> None:
    probe(tmp_path, f"print('''{answer()}''')")
    measurement.measure_host_rates(registry, print)
    (file,) = (tmp_path / "cache/levelfield/hosts").iterdir()
    file.write_text(content)
    assert measurement.load_host_rates(registry) is None


def test_a_kept_rate_is_validated_like_a_measured_one(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_text(dump(measurement.parse_host_rates(answer())).replace("1e-06", "-1e-06"))
    with pytest.raises(DocumentError, match=r"per_operation_seconds'.*-1e-06"):
        load(HostRates, path)

"""The wait for a quiet machine before a pair: by a planted load and a clock that only the measurements move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import pytest
from levelfield.measure.other_use import HostUse
from levelfield.node import node_facts
from levelfield.run import quiet
from levelfield.run.quiet import MAX_WAIT_SECONDS, REPORT_INTERVAL_SECONDS, QuietWait, measure_host_load

BUSY, QUIET, UNKNOWN = HostUse(1.72, 2), HostUse(0.2, 2), HostUse(None, None)


class PlantedLoad:
    """Loads in turn, each measured for a second."""

    def __init__(self, *loads: Iterable[HostUse]) -> None:
        self.loads: Iterator[HostUse] = chain(*loads)
        self.now, self.said = 100.0, list[str]()
        self.wait = QuietWait(self.said.append, self.measure, lambda: self.now)

    def measure(self) -> HostUse:
        self.now += 1
        return next(self.loads)


@pytest.mark.parametrize("load", [QUIET, UNKNOWN])
def test_a_quiet_machine_is_not_waited_for(load: HostUse) -> None:
    planted = PlantedLoad([load])
    planted.wait()
    assert (planted.now, planted.said, planted.wait.waited_seconds) == (101, [], 0)


def test_the_wait_ends_with_the_load_and_says_what_it_waits_for() -> None:
    planted = PlantedLoad(repeat(BUSY, 70), [QUIET])
    planted.wait()
    assert planted.wait.waited_seconds == 70 and next(planted.loads, None) is None
    assert len(planted.said) == 1 + 70 // REPORT_INTERVAL_SECONDS
    for sentence, left in zip(planted.said, ("4:59", "4:29", "3:59"), strict=True):
        assert all(part in sentence for part in ("waiting", left, "1.72 of 2 cores", "limit: 0.2"))


def test_a_load_that_stays_is_waited_for_once_and_named() -> None:
    planted = PlantedLoad(repeat(BUSY))
    planted.wait()
    assert planted.wait.waited_seconds == MAX_WAIT_SECONDS == planted.now - 100
    assert all(part in planted.said[-1] for part in ("1.72 of 2 cores", "waited 5:00", "beside this load"))
    said = len(planted.said)
    planted.wait()
    assert (planted.now, len(planted.said)) == (100 + MAX_WAIT_SECONDS, said)


def test_the_limit_is_that_of_all_pairs_together() -> None:
    planted = PlantedLoad(repeat(BUSY, 200), [QUIET], repeat(BUSY))
    planted.wait()
    planted.wait()
    assert planted.wait.waited_seconds == MAX_WAIT_SECONDS and planted.now == 100 + MAX_WAIT_SECONDS + 1


def test_the_load_is_that_of_others_on_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_facts, "LOAD_SECONDS", 0.01)
    load = measure_host_load()
    assert load.other_cores is not None and load.cores is not None and load.other_cores >= 0 < load.cores

    def without_counters(first: int) -> None:
        raise OSError

    monkeypatch.setattr(quiet, "measure_load_of_others", without_counters)
    assert measure_host_load().other_cores is None and not measure_host_load().is_noticeable

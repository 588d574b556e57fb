"""The runs of a side by their names: ids, patterns, series labels, and the repeats of one command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from compared_records import record, with_result
from levelfield.compare.series_runs import recent_runs
from levelfield.errors import UnknownName, UsageError
from levelfield.specs.layout import Layout
from levelfield.specs.record import RunRecord, Series
from levelfield.studies.compared_runs import BundleRuns, runs_of_side


class ListedRuns(BundleRuns):
    """Records in a list, in the place of a bundle. taken: how many were read."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self.records, self.taken = sorted(records, key=lambda r: r.began), 0
        self._records = {record.run_id: record for record in self.records}

    def find_key(self, name: str) -> str:
        matching = [r.run_id for r in self.records if name in r.run_id]
        if not matching:
            raise UnknownName("run", name, [])
        return matching[0]

    def record(self, key: str) -> RunRecord:
        self.taken += 1
        return self._records[key]

    def newest_runs(self, series: Series) -> Iterator[RunRecord]:
        yield from (self.record(r.run_id) for r in reversed(self.records) if r.series == series)


def numbered(number: int, repeat: int, **changes: Any) -> RunRecord:
    return with_result(record(number, **changes), repeat=repeat)


@pytest.fixture
def runs() -> ListedRuns:
    """Two commands with three repeats, one run of paddle between them, one of another layout, and an older build."""
    first = [numbered(n, n) for n in (1, 2, 3)]
    second = [numbered(n + 10, n) for n in (1, 2, 3)]
    others = [record(5, framework="paddle"), record(20, devices=2, layout=Layout(data=2)), numbered(0, 1, commit="old")]
    return ListedRuns([*first, *second, *others])


def numbers(matching: Sequence[RunRecord]) -> list[int]:
    return sorted(int(run.run_id[13:15]) for run in matching)


def test_a_name_is_one_run_and_commas_join_several(runs: ListedRuns) -> None:
    assert numbers(runs_of_side(runs, "T100001Z").runs) == [1]
    assert numbers(runs_of_side(runs, "T100001Z, T100012Z,T100001Z").runs) == [1, 12]
    assert runs_of_side(runs, " , ").runs == ()


def test_a_pattern_is_every_run_that_fits(runs: ListedRuns) -> None:
    assert numbers(runs_of_side(runs, "20261122T10001*").runs) == [11, 12, 13]
    with pytest.raises(UnknownName, match=r"run '2027\*'"):
        runs_of_side(runs, "2027*")


@pytest.mark.parametrize("name", ["T100011Z", "T100012Z", "T100013Z"])
def test_repeats_are_those_of_the_runs_command(runs: ListedRuns, name: str) -> None:
    assert numbers(runs_of_side(runs, name, with_repeats=True).runs) == [11, 12, 13]


def test_repeats_of_an_earlier_command_are_its_own(runs: ListedRuns) -> None:
    assert numbers(runs_of_side(runs, "T100002Z", with_repeats=True).runs) == [1, 2, 3]
    assert numbers(runs_of_side(runs, "T100005Z", with_repeats=True).runs) == [5]


def test_a_series_is_the_repeats_of_its_newest_command(runs: ListedRuns) -> None:
    assert numbers(runs_of_side(runs, "gpt:paddle").runs) == [5]
    assert numbers(runs_of_side(runs, "gpt:torch:X1:1:1").runs) == [11, 12, 13]
    assert numbers(runs_of_side(runs, "gpt:torch:acme DP2TP1PP1").runs) == [20]


def test_a_run_that_ended_early_begins_no_build(runs: ListedRuns) -> None:
    """It may not know its software. It is among the runs of the side, and the command before it too."""
    stopped = record(30, word="failed", framework_version="not known", packages=None)
    source = ListedRuns([*runs.records, stopped])
    assert numbers(runs_of_side(source, "gpt:torch:X1:1:1").runs) == [11, 12, 13, 30]
    assert numbers(runs_of_side(ListedRuns([stopped]), "gpt:torch").runs) == [30]


def test_a_label_of_several_series_lists_them(runs: ListedRuns) -> None:
    with pytest.raises(UsageError) as error:
        runs_of_side(runs, "gpt:torch")
    labels = [series.label for series in runs.series() if series.framework == "torch"]
    assert "found 2" in str(error.value) and str(error.value).split("\n  ")[1:] == labels


@pytest.mark.parametrize(
    "changes", [{"threads": 2}, {"compile": True}, {"work": "sha256:" + "9" * 64}, {"runtime": "docker"}]
)
def test_a_printed_label_names_its_series_alone(changes: dict[str, Any]) -> None:
    """Also where labels differ in nothing that a label has."""
    source = ListedRuns([record(1), record(2, **changes), record(3, micro_batch=4)])
    with pytest.raises(UsageError) as caught:
        runs_of_side(source, "gpt:torch")
    labels = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert sorted(number for label in labels for number in numbers(runs_of_side(source, label).runs)) == [1, 2, 3]
    assert all(len(runs_of_side(source, label).runs) == 1 for label in labels), labels


@pytest.mark.parametrize("label", ["gpt:jax", "gpt:torch:Y9", "gpt:torch:X1:1:1:1", "gpt:torch full"])
def test_an_unknown_label_is_no_run(runs: ListedRuns, label: str) -> None:
    with pytest.raises(UnknownName, match="unknown series"):
        runs_of_side(runs, label)


def test_the_latest_of_a_series_ends_with_the_newest_good_repeats(runs: ListedRuns) -> None:
    series = runs.records[1].series
    assert numbers(list(recent_runs(runs.newest_runs(series)))) == [11, 12, 13]
    assert runs.taken == 4  # one older run is read, for its time


def test_the_latest_of_a_series_goes_on_beyond_bad_runs(runs: ListedRuns) -> None:
    bad = [numbered(n + 30, n, word="failed") for n in (1, 2)]
    source = ListedRuns([*runs.records, *bad])
    assert numbers(list(recent_runs(source.newest_runs(bad[0].series)))) == [11, 12, 13, 31, 32]


def test_the_latest_of_too_few_repeats_goes_on_within_a_day(runs: ListedRuns) -> None:
    """One more run after three repeats: all of the day are read too, and not those of days before."""
    source = ListedRuns([*runs.records, numbered(21, 1, began="2026-11-23T09:00:00+00:00")])
    series = source.records[-1].series
    of_the_day = [run for run in source.records if run.series == series]
    assert numbers(list(recent_runs(source.newest_runs(series)))) == numbers(of_the_day) and numbers(of_the_day)[
        -2:
    ] == [
        13,
        21,
    ]
    later = ListedRuns([*runs.records, numbered(21, 1, began="2026-11-25T09:00:00+00:00")])
    assert numbers(list(recent_runs(later.newest_runs(later.records[-1].series)))) == [21]


def test_repeats_that_began_in_one_second_are_one_command_in_any_order() -> None:
    runs = [
        run.model_copy(update={"began": "2026-11-22T10:00:00+00:00"})
        for run in (numbered(7, 2), numbered(8, 1), numbered(9, 3))
    ]
    source = ListedRuns([numbered(1, 1, began="2026-11-22T09:00:00+00:00"), *runs])
    for name in ("T100007Z", "T100008Z", "T100009Z"):
        assert numbers(runs_of_side(source, name, with_repeats=True).runs) == [7, 8, 9]
    assert numbers(list(recent_runs(source.newest_runs(runs[0].series)))) == [7, 8, 9]


def test_a_framework_alone_is_its_default_and_a_version_is_named() -> None:
    further = [record(n, further_version="2.11.0", framework_version="2.11.0") for n in (7, 8)]
    runs = ListedRuns([record(1), record(2), *further])
    assert numbers(runs_of_side(runs, "gpt:torch").runs) == [1, 2]
    assert numbers(runs_of_side(runs, "gpt:torch_2.11.0:X1").runs) == [7, 8]
    with pytest.raises(UnknownName, match=r"gpt:torch_2\.11\.0:X1:1:1"):
        runs_of_side(runs, "gpt:torch_2.11")

"""`nightly gate`, `history` and `accept` on a real store: a month of nights as a CI system drives them."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from gate_points import noise
from levelfield.cli.main import main
from levelfield.specs.record import RunRecord, StoredResult
from levelfield.store.database import Store
from plans import PLUGINS
from postgresql import server
from stored_records import FIRST, changed, real_record

NIGHTS = 20
BISECT = ("nightly", "bisect", "--case", "tiny:fake:cpu", "--plugins", PLUGINS)
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def stored_run(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return real_record(Path(shutil.copytree(recorded, tmp_path_factory.mktemp("gate") / recorded.name)))


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    address = f"sqlite:///{tmp_path / 'results.sqlite'}"
    monkeypatch.setenv("LEVELFIELD_STORE", address)
    return address


def compared(output: str) -> str:
    """Return what the gate compared, such as `1 of 1`, from its first lines or its note on stderr."""
    (match,) = re.findall(r"^compared (\d+ of \d+) series", output, re.MULTILINE)
    return str(match)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(list(map(str, arguments)))
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run


def night(number: int) -> str:
    return f"{FIRST + timedelta(days=number):%Y-%m-%d}"


def nightly(record: RunRecord, number: int, factor: float = 1.0, **change: Any) -> RunRecord:
    """A night's run: 1,000 tokens/s, with half a percent of noise."""
    rate = 1000 * factor * math.exp(noise(200, 0.005, 3)[number])
    fields = {
        "purpose": "nightly",
        "night": night(number),
        "entry": "smoke/tiny",
        "evidence": "sealed",
        "verdict": "aligned",
    }
    return changed(record, number, tokens_per_second_per_device=rate, word="valid", **{**fields, **change})


def fill(
    url: str, records: Iterator[RunRecord] | list[RunRecord], expected: dict[str, str | None] | None = None
) -> str:
    """Add records, and what the last night expects; return the series."""
    with Store.open(url) as store:
        store.add(records)
        (series,) = (stored.digest for stored in store.series())
        for number in range(NIGHTS + 5):
            store.add_expected_entries(night(number), "smoke", expected or {"tiny": series})
        return series


def quiet(record: RunRecord, count: int = NIGHTS) -> list[RunRecord]:
    return [nightly(record, number) for number in range(count)]


def test_a_quiet_night_is_green(command: Command, url: str, stored_run: RunRecord) -> None:
    fill(url, quiet(stored_run))
    code, out, _ = command("nightly", "gate", "--night", night(NIGHTS - 1))
    assert (code, compared(out)) == (0, "1 of 1") and night(NIGHTS - 1) in out
    assert max(map(len, out.splitlines())) <= 80


def test_two_slow_nights_fail_and_the_findings_are_stored(command: Command, url: str, stored_run: RunRecord) -> None:
    slow = [nightly(stored_run, NIGHTS + i, 0.9) for i in range(2)]
    fill(url, [*quiet(stored_run), *slow])
    assert command("nightly", "gate", "--night", night(NIGHTS))[0] == 0
    code, out, _ = command("nightly", "gate", "--night", night(NIGHTS + 1))
    assert code == 4 and "two nights" in out
    with Store.open(url) as store:
        words = [(finding["night"], finding["word"]) for finding in store.findings()]
    assert words == [(night(NIGHTS), "inconclusive"), (night(NIGHTS + 1), "regression")]
    command("nightly", "gate", "--night", night(NIGHTS + 1))
    with Store.open(url) as store:
        assert len(store.findings()) == 2, "the same finding is not stored twice"


def test_a_gate_of_a_night_with_pairs_has_the_word_of_the_night(
    command: Command, url: str, stored_run: RunRecord
) -> None:
    """The pairs are in the store. Without them the same night is only a suspicion, with exit code 0."""
    pairs = [
        nightly(stored_run, NIGHTS, 0.9 if arm == "b" else 1.0, run_id=f"pair{number}", content=f"sha256:{number}",
                began=f"{night(NIGHTS)}T05:{number:02}:00+00:00", purpose=f"confirm-{arm}")
        for number, arm in enumerate("abbaabba")
    ]  # fmt: skip
    fill(url, [*quiet(stored_run), nightly(stored_run, NIGHTS, 0.9), *pairs])
    code, out, _ = command("nightly", "gate", "--night", night(NIGHTS))
    assert code == 4 and "by 3 pairs" in " ".join(out.split())
    assert " nightly accept " in out and "--store" not in out
    _, out, _ = command("nightly", "gate", "--store", url)
    assert f"--store {url.removeprefix('sqlite:///')}" in " ".join(out.replace("\\\n", "").split())


def test_a_series_that_runs_once_a_week_is_read_as_a_whole(command: Command, url: str, stored_run: RunRecord) -> None:
    weeks = [nightly(stored_run, 7 * number) for number in range(20)]
    with Store.open(url) as store:
        store.add([*weeks, nightly(stored_run, 140, 0.9)])
    code, out, _ = command("nightly", "gate", "--night", night(140), "--format", "json")
    (finding,) = [f for f in json.loads(out)["findings"] if f["figure"] == "tokens_per_second_per_device"]
    assert (code, finding["word"], finding["nights"], finding["level_since"]) == (0, "inconclusive", 20, night(0))


def test_days_of_runs_by_hand_are_nights(command: Command, url: str, stored_run: RunRecord) -> None:
    with Store.open(url) as store:
        store.add(nightly(stored_run, number, purpose="manual", night=None, entry=None) for number in range(NIGHTS))
    for arguments in ((), ("--night", night(NIGHTS - 1))):
        code, out, _ = command("nightly", "gate", *arguments)
        assert (code, compared(out)) == (0, "1 of 1") and night(NIGHTS - 1) in out


@pytest.mark.parametrize(
    "trial",
    [
        {"evidence": "unsealed", "series": {"case": "other"}},
        {"verdict": "different", "series": {"case": "other"}},
        {"factor": 0.5},
        {"factor": 0.5, "verdict": "different"},
    ],
)
def test_a_trial_by_hand_changes_nothing_of_its_day(
    command: Command, url: str, stored_run: RunRecord, trial: dict[str, Any]
) -> None:
    """Neither of the night of its day nor, as a part of the level, of a later one."""
    fill(url, quiet(stored_run))
    gates = [
        ("nightly", "gate", "--format", "json", "--night", night(NIGHTS - 1)),
        ("nightly", "gate", "--format", "json", "--night", night(NIGHTS - 1), "--suite", "smoke"),
        ("nightly", "history", "tiny", "--json"),
    ]
    before = [json.loads(command(*gate)[1]) for gate in gates]
    by_hand = {"purpose": "manual", "night": None, "entry": None, **trial}
    trials = [
        nightly(stored_run, NIGHTS - days, run_id=f"trial{days}", content=f"sha256:t{days}",
                began=f"{night(NIGHTS - days)}T23:00:00+00:00", **by_hand)
        for days in (1, 2, 3, 4, 5)
    ]  # fmt: skip
    with Store.open(url) as store:
        store.add(trials)
    after = [json.loads(command(*gate)[1]) for gate in gates]
    assert [gate.pop("notes") for gate in after[:2]] == [["1 run by hand is not in it"]] * 2
    assert [gate.pop("notes") for gate in before[:2]] == [[]] * 2
    assert after == before
    assert "by hand is not in it" in command(*gates[0][:2], *gates[0][4:])[1]


def test_every_format_is_written_to_a_file(command: Command, url: str, stored_run: RunRecord, tmp_path: Path) -> None:
    fill(url, [*quiet(stored_run), nightly(stored_run, NIGHTS, 0.9), nightly(stored_run, NIGHTS + 1, 0.9)])
    where = ("nightly", "gate", "--night", night(NIGHTS + 1), "--output", tmp_path / "gate")
    command("nightly", "gate", "--night", night(NIGHTS))
    code, out, err = command(*where, "--format", "junit")
    assert (code, out, compared(err)) == (4, "", "1 of 1")
    assert ElementTree.fromstring((tmp_path / "gate").read_text()).find(".//failure") is not None
    assert command(*where, "--format", "markdown", "--advisory")[0] == 0
    heading = (tmp_path / "gate").read_text().splitlines()[0]
    assert heading.startswith(f"**night {night(NIGHTS + 1)} fails:") and "1 series slower: tokens/s -10.0 %" in heading
    command(*where, "--format", "json")
    assert json.loads((tmp_path / "gate").read_text())["exit_code"] == 4


def test_a_missing_entry_is_exit_code_3(command: Command, url: str, stored_run: RunRecord) -> None:
    fill(url, quiet(stored_run))
    code, out, _ = command("nightly", "gate", "--night", night(NIGHTS))
    assert (code, compared(out)) == (3, "0 of 1")
    assert out.startswith(f"night {night(NIGHTS)} ") and out.splitlines()[0].endswith("1 missing")


def test_a_run_that_failed_has_its_reason(command: Command, url: str, stored_run: RunRecord) -> None:
    status = {"word": "failed", "evidence": "No matching distribution found for torch==2.31.0"}
    result = StoredResult({**stored_run.stored_result.content, "status": status})
    failed = {"word": "failed", "reason": "the environment is not usable", "stored_result": result}
    fill(url, [*quiet(stored_run), nightly(stored_run, NIGHTS).model_copy(update=failed)])
    gate = ("nightly", "gate", "--night", night(NIGHTS))
    reason = f"failed: {failed['reason']}: {status['evidence']}"
    for form in ("text", "junit"):
        code, out, _ = command(*gate, "--format", form)
        assert code == 3 and reason in " ".join(out.split())


def test_a_level_of_few_nights_says_from_when_on_it_counts(command: Command, url: str, stored_run: RunRecord) -> None:
    fill(url, quiet(stored_run, 4))
    alone = " ".join(command("nightly", "accept", "tiny", "--reason", "first")[1].split())
    assert "are 7," in alone and ": 4 so" in alone
    assert "are 7 nights:" in command("nightly", "accept", "--all", "--reason", "first", "--night", night(3))[1]
    fill(url, quiet(stored_run, 7))
    assert "once there" not in command("nightly", "accept", "tiny", "--reason", "more")[1]


def test_a_suite_is_compared_alone(command: Command, url: str, stored_run: RunRecord) -> None:
    fill(url, quiet(stored_run))
    with Store.open(url) as store:
        store.add_expected_entries(night(NIGHTS - 1), "other", {"x": None})
    assert command("nightly", "gate", "--night", night(NIGHTS - 1))[0] == 3
    assert command("nightly", "gate", "--night", night(NIGHTS - 1), "--suite", "smoke")[0] == 0
    code, _, err = command("nightly", "gate", "--night", night(NIGHTS - 1), "--suite", "absent")
    assert code == 2 and "no entry" in err and "absent" in err


def test_accepting_a_level_ends_the_regression(command: Command, url: str, stored_run: RunRecord) -> None:
    series = fill(url, [*quiet(stored_run), *(nightly(stored_run, NIGHTS + i, 0.9) for i in range(4))])
    for number in range(4):
        code = command("nightly", "gate", "--night", night(NIGHTS + number))[0]
    assert code == 4
    cause = "a fix costs 10 %"
    code, out, _ = command("nightly", "accept", series[7:17], "--reason", cause, "--who", "ann")
    assert code == 0 and f"by ann: {cause}" in " ".join(out.split()) and "no pairs" in out
    assert command("nightly", "gate", "--night", night(NIGHTS + 3))[0] == 0
    assert cause in command("nightly", "levels")[1]
    (event,) = json.loads(command("nightly", "levels", "tiny", "--json")[1])
    assert event["kind"] == "baseline" and event["level"]["tokens_per_second_per_device"] == pytest.approx(
        900, rel=0.02
    )


class TestAcceptAll:
    """Three series: ten quiet nights, two nights, and ten of which the last two are slower."""

    @pytest.fixture
    def filled(self, url: str, stored_run: RunRecord) -> dict[str, str]:
        records = [
            nightly(stored_run, number, 0.9 if case == "worse" and number >= 8 else 1.0, series={"case": case},
                    run_id=f"{case}{number}", content=f"sha256:{case}{number}")
            for case, numbers in (("calm", range(10)), ("young", range(8, 10)), ("worse", range(10)))
            for number in numbers
        ]  # fmt: skip
        with Store.open(url) as store:
            store.add(records)
            return {stored.series.case: stored.digest for stored in store.series()}

    def accepted(self, command: Command, *more: str) -> tuple[int, dict[str, str], dict[str, str]]:
        code, out, _ = command(
            "nightly", "accept", "--all", "--reason", "first levels", "--who", "ann", "--json", *more
        )
        levels = json.loads(out)
        refused = {refusal["label"].split(":")[0]: refusal["why"] for refusal in levels["refused"]}
        return code, {event["series"]: event["why"] for event in levels["accepted"]}, refused

    def test_every_series_whose_evidence_suffices_is_accepted_for_one_reason(
        self, command: Command, url: str, filled: dict[str, str]
    ) -> None:
        command("nightly", "gate", "--night", night(8))
        command("nightly", "gate", "--night", night(9))
        dry = self.accepted(command, "--dry-run")
        assert command("nightly", "levels")[1].startswith("no events;")
        code, accepted, refused = self.accepted(command)
        assert (code, accepted, refused) == dry and code == 0
        assert accepted == {filled["calm"]: "first levels"}
        assert refused.keys() == {"young", "worse"}
        assert "2 valid" in refused["young"] and "least 3" in refused["young"]
        assert refused["worse"].startswith("regression ") and "--worse" in refused["worse"]
        with Store.open(url) as store:
            (event,) = store.events()
        assert (event.series, event.kind, event.who) == (filled["calm"], "baseline", "ann")

    def test_what_the_night_found_worse_is_accepted_by_its_own_rule(
        self, command: Command, filled: dict[str, str]
    ) -> None:
        """One changed night is no level yet."""
        command("nightly", "gate", "--night", night(8))
        command("nightly", "gate", "--night", night(9))
        assert "1 valid" in self.accepted(command, "--worse")[2]["worse"]

    def test_it_is_readable_and_says_what_was_not_accepted(self, command: Command, filled: dict[str, str]) -> None:
        code, out, _ = command("nightly", "accept", "--all", "--reason", "first levels", "--night", night(9))
        assert code == 0 and max(map(len, out.splitlines())) <= 80 and out.count("not accepted:") == 2
        assert out.count("no pairs") == 1 and out.splitlines()[-1].split() == ["1", "accepted,", "2", "not"]

    def test_none_that_could_be_accepted_is_exit_code_2(
        self, command: Command, url: str, stored_run: RunRecord
    ) -> None:
        fill(url, [nightly(stored_run, NIGHTS)])
        code, out, _ = command("nightly", "accept", "--all", "--reason", "x", "--night", night(NIGHTS))
        assert code == 2 and out.splitlines()[-1].split() == ["0", "accepted,", "1", "not"]

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("--all", "tiny"), "found also a series or --run"),
            (("--all", "--run", "x"), "found also a series or --run"),
            ((), "found no series without --all"),
            (("tiny", "--dry-run"), "found --dry-run without --all"),
        ],
    )
    def test_options_that_do_not_go_together(self, command: Command, arguments: tuple[str, ...], says: str) -> None:
        code, _, err = command("nightly", "accept", *arguments, "--reason", "x")
        assert code == 2 and says in " ".join(err.split())


def test_a_driver_that_costs_is_a_step_until_it_is_accepted(command: Command, url: str, stored_run: RunRecord) -> None:
    driver = stored_run.conditions.model_copy(update={"software": {"driver": "560"}})
    later = [nightly(stored_run, NIGHTS + i, 0.93, conditions=driver) for i in range(3)]
    fill(url, [*quiet(stored_run), *later])
    code, out, _ = command("nightly", "gate", "--night", night(NIGHTS + 2))
    assert code == 4 and "environment step" in out and "-> 560" in out
    assert command("nightly", "accept-step", "tiny", "--reason", "driver 560", "--everywhere")[0] == 0
    code, out, _ = command("nightly", "gate", "--night", night(NIGHTS + 2))
    assert code == 0 and "2 of the 7 nights" in out


def test_history_shows_segments_level_events_and_what_it_sees(
    command: Command, url: str, stored_run: RunRecord
) -> None:
    driver = stored_run.conditions.model_copy(update={"software": {"driver": "560"}})
    fill(url, [*quiet(stored_run), *(nightly(stored_run, NIGHTS + i, conditions=driver) for i in range(3))])
    command("nightly", "note", "tiny", "--reason", "the rack\x1b[31m was moved")
    code, out, _ = command("nightly", "history", "tiny", "--chart")
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    text = " ".join(out.split())
    for part in ("tokens/s/device, 23 nights", "it shows", "in three", "driver none -> 560", "was moved", "|"):
        assert part in text
    (row,) = json.loads(command("nightly", "history", "tiny", "--json")[1])
    figure = row["figures"][0]
    assert row["schema"] == "levelfield.history/1" and len(figure["nights"]) == 23 and len(figure["segments"]) == 2
    assert figure["level"] == pytest.approx(1000, rel=0.01) and 0.01 < figure["shows_in_three"] <= figure["shows"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nightly", "gate"), "results.sqlite has no run"),
        (("nightly", "gate", "--night", "2026-01-02"), "unknown night"),
        (("nightly", "gate", "--night", "x"), "unknown night 'x'"),
        (("nightly", "gate", "--format", "pdf"), "invalid choice: 'pdf'"),
        (("nightly", "accept", "tiny", "--reason", "x"), "unknown series 'tiny'"),
        (("nightly", "accept", "tiny"), "the following arguments are required: --reason"),
        (("nightly", "accept", "tiny", "--reason", "x", "--until", "soon"), "--until: found 'soon', expected a date"),
        (
            ("nightly", "accept", "tiny", "--reason", "x", "--until", "2026-02-30"),
            "--until: found '2026-02-30', expected",
        ),
        (("nightly", "accept", "tiny", "--reason", "x", "--until", "2020-01-01"), "which is past, expected "),
        (("nightly", "run", "--suite", "smoke", "--night", "banana"), "found 'banana', expected a date, such as"),
        (("nightly", "run", "--suite", "smoke", "--night", "2026-13-45"), "found '2026-13-45', expected a date"),
        (("nightly", "note", "tiny", "--reason", "x"), "unknown series 'tiny'"),
        ((*BISECT, "HEAD", "no-such"), "nightly bisect: found 'no-such', expected a commit of this checkout"),
        ((*BISECT, "HEAD", "HEAD"), "found no commits between them; expected a good commit before the bad one"),
    ],
)
def test_wrong_usage_is_exit_code_2(command: Command, url: str, arguments: tuple[object, ...], says: str) -> None:
    with Store.open(url):
        pass
    code, out, err = command(*arguments)
    assert code == 2 and says in " ".join(err.split()) and out == ""


def test_a_name_of_several_series_lists_them(command: Command, url: str, stored_run: RunRecord) -> None:
    with Store.open(url) as store:
        store.add([nightly(stored_run, 0), nightly(stored_run, 1, series={"micro_batch": 1})])
    code, _, err = command("nightly", "note", "tiny", "--reason", "x")
    assert code == 2 and "found 2," in " ".join(err.split())
    assert command("nightly", "history", "tiny")[1].count("tokens/s/device,") == 2


@pytest.fixture
def both(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URLs of an empty store on SQLite and of one on a real PostgreSQL."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base  # of xdist's processes
    with server(shared / "postgresql") as url:
        yield f"sqlite:///{tmp_path / 'results.sqlite'}", url


def test_gate_history_and_levels_are_the_same_on_postgresql(
    command: Command, stored_run: RunRecord, both: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [nightly(stored_run, NIGHTS + i, 0.9) for i in range(4)]
    outcomes = []
    for url in both:
        monkeypatch.setenv("LEVELFIELD_STORE", url)
        series = fill(url, [*quiet(stored_run), *slow])
        ends = [
            command("nightly", "gate", "--night", night(number), "--format", "json")[:2]
            for number in range(NIGHTS - 1, NIGHTS + 4)
        ]
        history = command("nightly", "history", "tiny", "--json")[:2]
        code, _, err = command("nightly", "accept", series, "--reason", "slower on purpose", "--who", "ann")
        with Store.open(url) as store:
            (event,) = store.events()
        after = command("nightly", "gate", "--night", night(NIGHTS + 3), "--format", "json")[:2]
        assert [end[0] for end in ends] == [0, 0, 4, 4, 4], "the drill finds the regression"
        assert after[0] == 0 and len(event.runs) == 3, "the three nights that were found changed are the new level"
        outcomes.append((ends, history, code, err, event.level, event.runs, after))
    on_sqlite, on_postgresql = outcomes
    assert on_sqlite == on_postgresql

"""Tickets: the commits and packages between two builds, and a search that keeps to its budget and to what is known."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.nights import tickets as module
from levelfield.nights.stored_nights import gate_input
from levelfield.nights.tickets import NightBisection, NightTickets
from levelfield.run import builds
from levelfield.series.findings import Finding
from levelfield.series.segments import differences
from levelfield.series.ticket import Ticket
from levelfield.specs.record import RunRecord
from levelfield.store.database import Store
from stored_records import changed, real_record

TOKENS = "tokens_per_second_per_device"
SUBJECTS = ("first", "Faster kernels", "Steps wait", "Docs", "More docs")


@dataclass
class Repository:
    """A repository with one commit for each of SUBJECTS, the oldest first."""

    folder: Path
    commits: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.git("init", "-q")
        for number, subject in enumerate(SUBJECTS):
            self.git("commit", "-q", "--allow-empty", "-m", subject, author=f"Author {number}")
            self.commits.append(self.git("rev-parse", "HEAD"))

    def git(self, *words: str, author: str = "a") -> str:
        who = ("-c", f"user.name={author}", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        argv = ["git", *who, "-C", str(self.folder), *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    (tmp_path / "repository").mkdir()
    outcome = Repository(tmp_path / "repository")
    monkeypatch.setattr(builds, "checkout", lambda: outcome.folder)
    return outcome


@pytest.fixture(scope="module")
def stored_run(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return real_record(Path(shutil.copytree(recorded, tmp_path_factory.mktemp("tickets") / recorded.name)))


@dataclass
class Night:
    """Ten quiet nights of the first commit, and one of the last. runs: the folder of runs."""

    store: Store
    runs: Path
    record: RunRecord
    night: str = ""
    series: str = ""

    def add(self, number: int, commit: str, rate: float = 1000.0, **subject: Any) -> RunRecord:
        options = self.record.subject.model_copy(
            update={"commit": commit, "is_dirty": False, "packages": None, **subject}
        )
        made = changed(self.record, number, purpose="nightly", evidence="sealed", verdict="aligned", subject=options,
                       night=f"2026-01-{number + 2:02}", word="valid", tokens_per_second_per_device=rate)  # fmt: skip
        self.store.add([made])
        self.night, self.series = made.night or "", made.series.fingerprint()
        return made

    def finding(self, **more: Any) -> Finding:
        last = max(self.store.points()[self.series], key=lambda p: p.began).run_id
        arguments: dict[str, Any] = {"series": self.series, "label": "tiny", "figure": TOKENS, "word": "regression",
                                 "change": -0.2, "pairs": 4, "run_id": last, "night": self.night}  # fmt: skip
        return Finding.model_validate({**arguments, **more})

    def tickets(self, **more: Any) -> NightTickets:
        return NightTickets(self.store, gate_input(self.store, self.night), self.runs, **more)

    def ticket(self, finding: Finding | None = None, **more: Any) -> Ticket:
        return self.tickets(**more).ticket(finding or self.finding())

    def list_packages(self, run_id: str, **packages: str) -> None:
        """Give a run the packages that it listed."""
        folder = self.runs / run_id
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text("{}")
        (folder / "provenance.json").write_text(json.dumps({"environment_packages": packages}))


@pytest.fixture
def night(tmp_path: Path, repository: Repository, stored_run: RunRecord) -> Any:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        outcome = Night(store, tmp_path / "runs", stored_run)
        for number in range(10):
            outcome.add(number, repository.commits[0])
        outcome.add(10, repository.commits[-1])
        yield outcome


def test_a_ticket_has_the_commits_with_author_and_subject_the_newest_first(
    night: Night, repository: Repository
) -> None:
    outcome = night.ticket(page_url="https://ci.example.org/site/")
    assert (outcome.accepted, outcome.tonight) == (repository.commits[0], repository.commits[-1])
    assert [(entry.author, entry.subject) for entry in outcome.commits] == [
        (f"Author {number}", SUBJECTS[number]) for number in (4, 3, 2, 1)
    ]
    assert outcome.all_commits == 4 and outcome.commits_unknown is None
    ends = (repository.commits[0][:12], repository.commits[-1][:12])
    assert outcome.command[2:] == ("nightly", "bisect", *ends, "--case", "tiny:fake:F1:1:2", "--scale", "smoke",
                                 "--figure", "speed")  # fmt: skip
    assert (
        outcome.page
        and outcome.page.startswith("https://ci.example.org/site/case-tiny-")
        and "#tiny-fake" in outcome.page
    )


@pytest.mark.parametrize(("launch", "has_command"), [(None, True), ({"launcher": "slurm"}, False)])
def test_a_run_of_other_machines_has_no_command_that_bisects_here(
    launch: dict[str, str] | None, has_command: bool, night: Night
) -> None:
    finding = night.finding()
    folder = night.runs / str(finding.run_id)
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"launch": launch}))
    ticket = night.ticket(finding)
    assert bool(ticket.command) is has_command and ticket.all_commits == 4


def test_the_list_of_commits_is_bounded_and_all_are_counted(
    night: Night, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_COMMITS", 2)
    outcome = night.ticket()
    assert [entry.subject for entry in outcome.commits] == ["More docs", "Docs"] and outcome.all_commits == 4


LEVEL: dict[str, Any] = {"change": -0.05, "level": 1000.0, "detectable": 0.02}


def test_the_commits_are_those_since_the_last_night_without_the_change(night: Night, repository: Repository) -> None:
    """The accepted build is the first one. A slow night that no gate named has the change already."""
    night.add(11, repository.commits[2], 1001.0)
    night.add(12, repository.commits[3], 951.0)
    night.add(13, repository.commits[4], 949.0)
    outcome = night.ticket(night.finding(**LEVEL))
    assert (outcome.accepted, outcome.since) == (repository.commits[0], repository.commits[2])
    assert outcome.since_night == "2026-01-13" and [c.subject for c in outcome.commits] == ["More docs", "Docs"]
    assert outcome.command[4:6] == (repository.commits[2][:12], repository.commits[4][:12])


@pytest.mark.parametrize("change", [{"detectable": 0.06}, {"detectable": None}, {"level": None}, {"change": None}])
def test_where_one_night_cannot_show_the_change_the_commits_are_those_since_the_accepted_build(
    change: dict[str, Any], night: Night, repository: Repository
) -> None:
    night.add(11, repository.commits[4], 950.0)
    outcome = night.ticket(night.finding(**{**LEVEL, **change}))
    assert (outcome.since, outcome.since_night) == (repository.commits[0], None) and outcome.all_commits == 4


def test_the_next_nights_of_a_regression_name_the_same_commits(night: Night, repository: Repository) -> None:
    night.add(11, repository.commits[3], 950.0)
    first = night.finding(**LEVEL)
    night.store.add_finding(night.night, first.model_dump(mode="json"))
    named = night.ticket(first)
    night.add(12, repository.commits[4], 1000.0)  # it looks good by chance
    night.add(13, repository.commits[4], 950.0)
    assert night.ticket(night.finding(**LEVEL)).since == named.since


def test_the_only_commit_needs_no_search(night: Night, repository: Repository) -> None:
    only = night.ticket().model_copy(update={"all_commits": 1})
    assert only.blamed == only.commits[0]
    assert only.model_copy(update={"packages": ("torch",)}).blamed is None, "it may be the package"


def test_a_training_that_differs_is_compared_with_the_last_night_that_agreed(
    night: Night, repository: Repository
) -> None:
    outcome = night.ticket(night.finding(word="training differs", figure=None))
    assert outcome.all_commits == 4 and outcome.command == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"commit": "f" * 40}, "the checkout has no commit ffffffffffff: its history was changed"),
        ({"is_dirty": True}, "the baseline build had files that no commit has"),
        ({"commit": None}, "the baseline build had files that no commit has"),
        ({"commit": "--help"}, "found '--help', expected a full commit"),
    ],
)
def test_commits_that_cannot_be_listed_are_said_with_the_reason(
    change: dict[str, Any], reason: str, tmp_path: Path, repository: Repository, stored_run: RunRecord
) -> None:
    with Store.open(str(tmp_path / "other.sqlite")) as store:
        night = Night(store, tmp_path / "runs", stored_run)
        for number in range(10):
            night.add(number, **{"commit": repository.commits[0], **change})
        night.add(10, repository.commits[-1])
        outcome = night.ticket()
    assert reason in (outcome.commits_unknown or "") and outcome.command == () and outcome.commits == ()


def test_a_shallow_history_says_so(night: Night, repository: Repository, tmp_path: Path, monkeypatch: Any) -> None:
    shallow = tmp_path / "shallow"
    repository.git("clone", "-q", "--depth", "1", f"file://{repository.folder}", str(shallow))
    monkeypatch.setattr(builds, "checkout", lambda: shallow)
    assert "--unshallow`" in (night.ticket().commits_unknown or "")


def test_packages_that_differ_are_named_with_both_versions(night: Night) -> None:
    points = sorted(night.store.points()[night.series], key=lambda p: p.began)
    accepted = night.tickets().accepted_run(night.finding())
    before = {"torch": "2.12.0", "numpy": "2.4.6", "gone": "1"}
    after = {"torch": "2.13.0", "numpy": "2.4.6", "new": "3"}
    night.list_packages(accepted or "", **before)
    night.list_packages(points[-1].run_id, **after)
    assert night.ticket().packages == tuple(sorted(differences(before, after)))
    assert [text.split()[0] for text in night.ticket().packages] == ["gone", "new", "torch"]


def test_packages_are_equal_by_their_digest_and_unknown_without_a_list(night: Night, repository: Repository) -> None:
    assert "be read" in (night.ticket().packages_unknown or "")
    with Store.open(str(night.runs.parent / "other.sqlite")) as store:
        same = Night(store, night.runs, night.record)
        for number in range(11):
            same.add(number, repository.commits[number // 10], packages="sha256:p")
        outcome = same.ticket()
    assert outcome.packages == () and outcome.packages_unknown is None


@dataclass
class Search:
    """Searches whose pairs find every commit from `bad` on worse. A trial lasts 100 s."""

    bad: str
    commits: Sequence[str]
    now: float = 0.0
    tried: list[str] = field(default_factory=list)

    def judge(self, build: Any) -> str:
        self.tried.append(build.commit)
        self.now += 100
        return "bad" if self.commits.index(build.commit) >= self.commits.index(self.bad) else "good"

    def run(self, night: Night, budget: float, finding: Finding | None = None) -> Ticket:
        tickets, finding = night.tickets(), finding or night.finding()
        plans: Any = {night.series: SimpleNamespace()}
        NightBisection(tickets, plans, {night.series: 25.0}, (), budget, lambda: self.now, print).run([finding])
        return tickets.ticket(finding)


@pytest.fixture
def search(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Search:
    outcome = Search(repository.commits[2], repository.commits)
    monkeypatch.setattr(module, "checkout_build", lambda commit, say: SimpleNamespace(commit=commit))
    monkeypatch.setattr(module, "BuildComparison", lambda *arguments: SimpleNamespace(effect=None, judge=outcome.judge))
    return outcome


def test_a_search_finds_the_commit_and_is_not_made_again(night: Night, search: Search, repository: Repository) -> None:
    outcome = search.run(night, 1000.0)
    assert outcome.bisection is not None and outcome.blamed is not None and outcome.bisection.undecided == 0
    assert (outcome.blamed.author, outcome.blamed.subject) == ("Author 2", "Steps wait")
    assert outcome.bisection.last_good == repository.commits[1] and search.tried == [
        search.commits[2],
        search.commits[1],
    ]
    (note,) = night.store.events()
    assert "Author" not in note.model_dump_json() and "wait" not in note.model_dump_json(), "pages show the store"
    assert note.kind == "note" and night.night in note.why and search.bad[:12] in note.why
    search.run(night, 1000.0)
    assert len(search.tried) == 2 and len(night.store.events()) == 1
    night.store.add_finding(night.night, night.finding().model_dump(mode="json"))  # it is no part of a level
    repository.git("commit", "-q", "--allow-empty", "-m", "one more")
    night.add(11, repository.git("rev-parse", "HEAD"))
    again = search.run(night, 1000.0)
    assert len(search.tried) == 2 and again.blamed == outcome.blamed, "the next night knows what was found"


def test_without_pairs_the_last_build_is_tried_first(night: Night, search: Search) -> None:
    search.run(night, 1000.0, night.finding(pairs=0))
    assert search.tried[0] == search.commits[-1]


@pytest.mark.parametrize(("budget", "tried", "undecided"), [(50.0, 0, None), (100.0, 1, 1), (250.0, 2, 0)])
def test_a_search_ends_with_its_budget_and_says_how_far_it_came(
    budget: float, tried: int, undecided: int | None, night: Night, search: Search
) -> None:
    outcome = search.run(night, budget).bisection
    assert outcome is not None and len(search.tried) == tried
    if undecided is None:
        assert outcome.first_bad is None and "the budget" in (outcome.why_not or "")
    else:
        assert (outcome.first_bad, outcome.undecided) == (search.bad, undecided)


def test_a_damaged_note_is_no_answer(night: Night, search: Search) -> None:
    search.run(night, 1000.0)
    (note,) = night.store.events()
    night.store.add_event(note.model_copy(update={"id": "x", "data": {**note.data, "bisection": {"first_bad": 3}}}))
    assert night.ticket().blamed is not None


def test_a_search_of_another_figure_shares_the_runs_of_the_first(
    night: Night, search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Builds that ran need no budget. Runs of another series or of another good build are not shared."""
    given_runs: list[dict[str, Any]] = []

    def comparison(*arguments: Any) -> Any:
        def judge(build: Any) -> str:
            if build.commit not in made.records:
                made.records[build.commit] = []
                return search.judge(build)
            return "bad" if search.commits.index(build.commit) >= search.commits.index(search.bad) else "good"

        given_runs.append({})
        made = SimpleNamespace(effect=None, records=given_runs[-1], judge=judge)
        return made

    monkeypatch.setattr(module, "BuildComparison", comparison)
    tickets, plans = night.tickets(), {night.series: SimpleNamespace()}
    findings = [night.finding(), night.finding(figure="memory_bytes", change=0.2)]
    NightBisection(tickets, plans, {night.series: 25.0}, (), 150.0, lambda: search.now, str).run(findings)  # type: ignore[arg-type]
    outcome = [tickets.ticket(finding).bisection for finding in findings]
    assert search.tried == [search.commits[2]] and len(night.store.events()) == 2
    assert [(f.first_bad, f.undecided) for f in outcome if f] == [(search.bad, 1)] * 2, "the budget holds one trial"

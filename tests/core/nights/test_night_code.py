"""A night runs the code of its first start: planted pulls, edits and lost histories of real repositories."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli import nightly_command
from levelfield.cli.main import main
from levelfield.errors import UsageError
from levelfield.nights import night_session
from levelfield.nights.build_pairs import Arm, ArmFailed, paired_records
from levelfield.nights.night_code import CheckoutMoved, NightCode, checkout_code, require_commit, require_trainings
from levelfield.nights.night_session import NightRequest, NightSession
from levelfield.nights.nightly import Candidate, NightRun, NightTools, first_state, run_entries, state_path
from levelfield.plan.request import UserRequest
from levelfield.run.builds import CommitBuild
from levelfield.run.provenance import checkout_commit
from levelfield.specs.paths import RunPaths


class Repository:
    """A checkout with one file of code beside the program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "run_benchmarks.py").write_text("")
        self.git("init", "-q")
        self.pull("first")

    def git(self, *words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=self.folder, check=True, capture_output=True)

    def edit(self, text: str = "edited") -> None:
        (self.folder / "train.py").write_text(text)

    def pull(self, text: str = "pulled") -> None:
        self.edit(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", text)

    def forget_git(self) -> None:
        shutil.rmtree(self.folder / ".git")

    def lose_history(self) -> None:
        self.forget_git()
        self.git("init", "-q")
        self.pull("of another history")

    @property
    def commit(self) -> str:
        return checkout_commit(self.folder) or ""

    def code(self) -> NightCode:
        """The code of the checkout, with what is in its file as the code of the trainings."""
        rests_on = (self.folder / "train.py").read_text()
        plan: Any = SimpleNamespace(implementation=SimpleNamespace(rests_on=rests_on))
        return checkout_code([plan])


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    repository = Repository(tmp_path / "code")
    monkeypatch.setenv("LEVELFIELD_ROOT", str(repository.folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return repository


Event = Callable[[Repository], None]
NOTHING: Event = lambda repository: None  # noqa: E731
STARTS: dict[str, Event] = {"clean": NOTHING, "dirty": Repository.edit, "no git": Repository.forget_git}


def goes_on(code: NightCode, repository: Repository, is_whole: bool = False) -> str:
    """What a later start does: `here`, `own checkout`, or why it is refused."""
    try:
        require_commit(code, is_whole, "2026-11-30", print)
        require_trainings(code, repository.code(), is_whole, "2026-11-30")
    except CheckoutMoved as moved:
        assert checkout_commit(moved.build.folder) == moved.build.commit == code.commit
        assert (moved.build.folder / "train.py").read_text() == "first"
        return "own checkout"
    except UsageError as error:
        assert error.exit_code == 2 and "--night 2026-11-30.b" in str(error)
        return str(error)
    return "here"


@pytest.mark.parametrize(
    ("start", "event", "expected"),
    [
        ("clean", NOTHING, "here"),
        ("clean", Repository.pull, "own checkout"),
        ("clean", Repository.edit, "own checkout"),
        ("clean", Repository.lose_history, "commit"),
        ("clean", Repository.forget_git, "commit"),
        ("dirty", NOTHING, "here"),
        ("dirty", lambda repository: repository.pull("edited"), "here"),
        ("dirty", Repository.pull, "files that no commit has"),
        ("dirty", lambda repository: repository.edit("again"), "files that no commit has"),
        ("no git", NOTHING, "here"),
        ("no git", Repository.edit, "files that no commit has"),
    ],
)
def test_a_later_start_runs_the_code_of_the_first_one_or_is_refused(
    start: str, event: Event, expected: str, repository: Repository
) -> None:
    STARTS[start](repository)
    code = repository.code()
    assert code.has_commit == (start == "clean")
    event(repository)
    outcome = goes_on(code, repository)
    is_refused = expected not in ("here", "own checkout")
    assert outcome.startswith(f"night 2026-11-30 began with {expected}" if is_refused else expected)
    if is_refused:
        assert (code.commit or "")[:12] in outcome or start != "clean"
        assert goes_on(code, repository, is_whole=True) == "here", "nothing runs, so that it is judged again"


def test_an_own_checkout_whose_files_were_changed_is_named(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = repository.code()
    repository.pull()
    with pytest.raises(CheckoutMoved) as moved:
        require_commit(code, False, "n", print)
    folder = moved.value.build.folder
    (folder / "train.py").write_text("changed")
    monkeypatch.setenv("LEVELFIELD_ROOT", str(folder))
    with pytest.raises(UsageError, match=str(folder)):
        require_commit(code, False, "n", print)


@dataclass
class Runs:
    """Runs of a night, in one of which the checkout gets another commit."""

    repository: Repository
    folder: Path
    pulled_in: str
    ran: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)

    def start(self, job: Any) -> Any:
        name = job.plan.run_id
        self.ran.append(name)
        (self.folder / name).mkdir(exist_ok=True)
        (self.folder / name / "result.json").write_text("{}")
        if name == self.pulled_in:
            self.repository.pull()
        status = SimpleNamespace(word="valid", evidence=None, is_interrupted=False, failure=None)
        return SimpleNamespace(run_id=name, status=status)


@pytest.mark.parametrize(("pulled_in", "done"), [("a", []), ("b", ["a"]), ("c", ["a", "b"]), ("", ["a", "b", "c"])])
def test_a_run_during_a_pull_is_not_the_nights_and_nothing_follows_it(
    pulled_in: str, done: list[str], repository: Repository, tmp_path: Path
) -> None:
    runs, code = Runs(repository, tmp_path, pulled_in), repository.code()
    jobs: dict[str, Any] = {name: SimpleNamespace(plan=SimpleNamespace(run_id=name)) for name in "abc"}
    work = [NightRun(name, name, job, Candidate(name, 1.0, False, 0.01, 0)) for name, job in jobs.items()]
    tools = NightTools(
        runs.start, lambda paths: runs.recorded.append(paths.root.name), lambda name: RunPaths(tmp_path / name),
        lambda: 0.0, lambda state: None, print, code.is_checked_out,
    )  # fmt: skip
    state = run_entries(first_state("n", "s", "now", work, code), work, None, tools)
    assert runs.recorded == [entry.name for entry in state.entries if entry.state == "done"] == done
    assert {entry.state for entry in state.entries} - {"done"} == ({"waiting"} if pulled_in else set())
    runs.pulled_in = ""
    repository.git("checkout", "-q", "HEAD" if not pulled_in else "HEAD^")  # as the night's own checkout has it
    state = run_entries(state, work, None, tools)
    assert state.is_complete and sorted(runs.recorded) == ["a", "b", "c"], "each entry is there once"


def test_a_pair_run_during_a_pull_is_not_stored(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = [Arm(name, CommitBuild(repository.commit, repository.folder), ()) for name in "ab"]

    def run(*arguments: Any) -> RunPaths:
        repository.pull()
        return RunPaths(tmp_path / "r")

    monkeypatch.setattr("levelfield.nights.build_pairs.run_with_build", run)
    series: Any = SimpleNamespace()
    with pytest.raises(ArmFailed, match="moved"):
        next(paired_records(arms, 1, tmp_path, series, lambda arm, paths: pytest.fail("stored")))


def opened(repository: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the night as a command does. Its one entry stays waiting."""
    plan: Any = SimpleNamespace(run_id="a", implementation=SimpleNamespace(rests_on="x"))
    job: Any = SimpleNamespace(plan=plan)
    work = (NightRun("a", "a", job, Candidate("a", 1.0, False, 0.01, 0)),)
    monkeypatch.setattr(night_session, "_plan_night_runs", lambda *arguments: work)
    output: Any = SimpleNamespace(say=print)
    request = NightRequest("one", "2026-11-30", folder / "runs", str(folder / "r.sqlite"), UserRequest())
    with NightSession.open(request, Registry(), output):
        pass


def test_the_state_names_the_commit_and_a_later_start_changes_nothing_of_it(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(repository, tmp_path, monkeypatch)
    path = state_path(tmp_path / "runs", "2026-11-30", "one")
    before, first = path.read_text(), repository.commit
    assert f'"commit": "{first}"' in before and '"is_dirty": false' in before
    opened(repository, tmp_path, monkeypatch)
    repository.pull()
    with pytest.raises(CheckoutMoved) as moved:
        opened(repository, tmp_path, monkeypatch)
    assert (moved.value.build.commit, path.read_text()) == (first, before)


def test_a_state_of_an_earlier_version_goes_on(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(repository, tmp_path, monkeypatch)
    path = state_path(tmp_path / "runs", "2026-11-30", "one")
    text = path.read_text()
    path.write_text(text[: text.index(',\n  "code"')] + "\n}\n")
    repository.pull()
    opened(repository, tmp_path, monkeypatch)


def test_the_command_becomes_one_of_the_nights_own_checkout(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its suite and its plugins are those of that commit; places that it writes stay."""
    suite, plugins, elsewhere = repository.folder / "mine.yaml", repository.folder / "plugins", tmp_path / "other"
    for folder in (plugins, elsewhere):
        folder.mkdir()
        (folder / "file").write_text("")
    suite.write_text("")
    repository.pull()
    code = repository.code()
    repository.pull("again")

    def moves(*arguments: Any) -> int:
        require_commit(code, False, "2026-11-30", print)
        return 0

    started: list[Any] = []

    def start(*arguments: Any) -> None:
        started.extend(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(nightly_command, "_run_here", moves)
    monkeypatch.setattr("os.execve", start)
    monkeypatch.chdir(repository.folder)
    words = [
        "nightly",
        "run",
        "--suite",
        "mine.yaml",
        "--plugins=plugins",
        "--plugins",
        str(elsewhere),
        "--html",
        "site",
    ]
    monkeypatch.setattr("sys.argv", ["run_benchmarks.py", *words])
    with pytest.raises(SystemExit):
        main(words)
    _, argv, variables = started
    own = tmp_path / "cache" / "levelfield" / "builds" / (code.commit or "")[:16]
    assert argv[1:4] == [str(own / "run_benchmarks.py"), "nightly", "run"]
    assert argv[4:-4] == [
        "--suite", str(own / "mine.yaml"), f"--plugins={own / 'plugins'}",
        "--plugins", str(elsewhere), "--html", "site",
    ]  # fmt: skip
    assert argv[-4] == "--night" and argv[-2:] == ["--runs", str(repository.folder / "runs")]
    assert "LEVELFIELD_ROOT" not in variables

"""Nights of the training that pretends, in a clone: quiet ones, a kill, a slower commit, and the search for it."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from statistics import geometric_mean
from threading import Thread
from typing import Any

import pytest
from cloned_project import ClonedNights, of_speed
from levelfield.nights.build_pairs import WEEKLY_NULL_PAIRS
from levelfield.specs.record import NULL_PURPOSES

pytestmark = pytest.mark.e2e

QUIET = [f"2026-01-{number:02}" for number in range(1, 8)]
SECRET = os.urandom(8).hex()  # not in the code, of which the night makes checkouts
ARMS = ("confirm-a", "confirm-b")
COMPARED = ("no change", "inconclusive", "improvement")  # and end with 0


class Nights(ClonedNights):
    def speed(self, name: str, *more: str) -> tuple[int, dict[str, Any]]:
        """The night's exit code and its finding about tokens/s."""
        code, findings, _err = self.night(name, *more)
        return code, of_speed(findings)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """The last of its quiet nights is a real one. The store has its run for the others, and for a week's A/A pairs."""
    made = Nights(tmp_path_factory.mktemp("nights"))
    code, finding = made.speed(QUIET[-1])
    assert (code, finding["word"]) == (0, "new series"), finding
    pairs = [("2026-01-14", purpose) for purpose in NULL_PURPOSES * WEEKLY_NULL_PAIRS]
    made.repeat_the_run([*((night, "nightly") for night in QUIET[:-1]), *pairs])
    return made


@pytest.fixture(scope="module")
def slower(project: Nights) -> tuple[str, str]:
    """The commit before the training got slower, and the commit that made it slower; one more follows."""
    quiet = project.commit("as it was")
    project.steps_last(0.15)
    slow = project.commit("steps of 150 ms")
    project.commit("something else")
    return quiet, slow


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[Any]]]:
    """A URL on loopback that takes no webhook, and the documents that it got."""
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_error(403)

        def log_message(self, *arguments: Any) -> None:
            pass

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{SECRET}", got
        server.shutdown()
        thread.join()


def test_a_slower_commit_is_a_regression_in_its_night_by_pairs(
    project: Nights, slower: tuple[str, str], refusing: tuple[str, list[Any]]
) -> None:
    url, got = refusing
    more = ("--page-url", "https://ci.example.org", "--progress")
    code, findings, err = project.night("2026-01-20", *more, LEVELFIELD_WEBHOOK=url)
    finding = of_speed(findings)
    assert (code, finding["word"]) == (4, "regression"), finding
    progress = " ".join(err.split())
    # Of the likeliest figure: on a busy machine that may be another one than the speed, whose falls are positive.
    assert re.search(r"run 1 of 6 to 14, baseline build: .*tonight's build [-+]\d", progress)
    assert progress.endswith(" 403")
    (sent,) = got
    assert (sent["exit_code"], sent["verdict"]) == (4, sent["text"].splitlines()[0]) and sent["suite"] == "one"
    assert SECRET not in err and not files_with(project.data, SECRET)
    (explanation,) = finding["explanation"]
    share = r"\((?:\d+% of the|more than the whole) change\)"  # others took less, by chance
    assert re.match(rf"mlp takes \d+\.\d ms more {share}: layers\.0\.mlp \+", explanation), explanation
    assert sent["findings"][0]["explanation"] in ([explanation], []), "the worst finding may be of another figure"
    ticket = finding["ticket"]
    assert {slower[1], project.git("rev-parse", "HEAD")} <= {commit["commit"] for commit in ticket["commits"]}
    assert ticket["packages"] == [] and ticket["page"].startswith("https://ci.example.org/case-tiny-"), ticket
    code, out, _err = project.run("nightly", "gate", "--night", "2026-01-20", "--suite", "one")
    assert code == 4 and re.match(r"night 2026-01-20 fails: (?s:.*)\ncompared 1 of 1 series", out), out
    assert explanation in " ".join(out.split()), "a night that is judged again has lost the reason"
    pairs = [p for p in runs_of(project) if p["purpose"].startswith("confirm")]
    # The speed may be decided at an earlier look than another figure, for which more pairs ran. By chance the null
    # pairs of a busy machine may show a bias, which the change is then less.
    reach = 0.01 if ", corrected by the A/A difference" in finding["detail"] else 1e-4
    change = change_of(pairs[: 2 * finding["pairs"]])
    assert finding["pairs"] >= 3 and finding["change"] == pytest.approx(change, abs=reach), finding
    assert [p["purpose"] for p in pairs][:4] == ["confirm-a", "confirm-b", "confirm-b", "confirm-a"]
    assert {p["subject"]["commit"] for p in pairs if p["purpose"] == "confirm-b"} == {project.git("rev-parse", "HEAD")}


def files_with(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def change_of(pairs: list[dict[str, Any]]) -> float:
    """The change from build a to build b as these runs measured it: steps last longer on a busy machine."""
    rates = {arm: [p["tokens_per_second_per_device"] for p in pairs if p["purpose"] == arm] for arm in ARMS}
    assert len(rates["confirm-a"]) == len(rates["confirm-b"])
    return geometric_mean(rates["confirm-b"]) / geometric_mean(rates["confirm-a"]) - 1


@pytest.mark.thorough
def test_bisection_names_the_commit(project: Nights, slower: tuple[str, str]) -> None:
    quiet, slow = slower
    plugins = ["--plugins", str(project.code / "tests/core/plugins"), "--python", sys.executable]
    case = ["--case", "tiny:fake:F1", "--scale", "smoke"]
    code, out, err = project.run("nightly", "bisect", quiet, "HEAD", *case, *plugins)
    assert code == 0 and f"first bad  {slow[:12]}" in out and f"last good  {quiet[:12]}" in out, out + err
    assert "150 ms" in out
    code, finding = project.speed("2026-01-20", "--bisect-budget", "20m")
    searched = finding["ticket"]["bisection"]
    assert (searched["first_bad"], searched["last_good"]) == (slow, quiet), finding


@pytest.mark.thorough  # tests/core/nights kills nights, test_pulled_night.py a whole one
def test_a_killed_night_goes_on_where_it_was(project: Nights) -> None:
    """How fast the machine is meanwhile changes the word about the speed, so any word that compares it will do."""
    project.steps_last(0.03)
    project.commit("back")
    process = project.start(*project.nightly_arguments("2026-01-21"))
    killed = wait_for_run(project, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert runs_of_night(project, "2026-01-21") == []
    code, finding = project.speed("2026-01-21", "--no-confirm")
    assert (finding["word"], code) in {*((word, 0) for word in COMPARED), ("regression", 4)}, finding
    (run,) = runs_of_night(project, "2026-01-21")
    assert run["word"] == "valid" and finding["run_id"] == run["run_id"] != killed
    before = len(runs_of(project))
    again, same = project.speed("2026-01-21", "--no-confirm")
    assert (again, same, len(runs_of(project))) == (code, finding, before)
    nights = [record["run_id"] for record in runs_of(project) if record["night"] in QUIET]
    options = [word for run_id in nights for word in ("--run", run_id)]  # a noisy one may have changed the level
    code, out, err = project.run("nightly", "accept", "tiny", "--reason", "as it was before", *options)
    assert code == 0 and "for pairs" in out, err


def test_without_a_terminal_a_night_begins_with_its_verdict_and_has_no_progress(project: Nights) -> None:
    """It is what cron mails. The night was run before, so nothing runs."""
    options = ("--no-confirm", "--html", str(project.data / "site"))
    code, out, err = project.run(*project.nightly_arguments("2026-01-07"), *options)
    assert (code, err) == (0, ""), err
    biased = r"(?:\d A/A mismatch(?:es)?, )?"  # beside other tests, pairs of one build may differ
    assert re.match(rf"night 2026-01-07 passes: {biased}1 new series\ncompared 0 of 1 ", out), out
    assert out.endswith(f"\npages: {project.data}/site/index.html\n") and len(out.splitlines()) < 30


def test_a_file_that_cannot_be_written_takes_no_finding(project: Nights) -> None:
    files = ("--junit", "/dev/null/night.xml", "--markdown", "/dev/null/night.md")
    code, findings, err = project.night(QUIET[-1], "--no-confirm", *files)
    assert code == 2 and findings, "the night is judged and said all the same"
    assert " ".join(err.split()).count(f": {os.strerror(errno.ENOTDIR)};") == 2


def test_two_nightlies_of_a_suite_do_not_run_at_once(project: Nights) -> None:
    process = project.start(*project.nightly_arguments("2026-01-22"), FAKE_STEP_SECONDS="2")
    wait_for_run(project, process)
    code, _out, err = project.run(*project.nightly_arguments("2026-01-22"))
    assert code == 2 and "another nightly" in err and "suite one" in err
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def wait_for_run(project: Nights, process: subprocess.Popen[str]) -> str:
    """Wait until a run of this nightly trains. Return its id."""
    before = trained(project)
    while not (new := trained(project) - before):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return min(new)


def trained(project: Nights) -> set[str]:
    return {path.parts[-3] for path in (project.data / "runs").glob("*/events/rank0.jsonl")}


def runs_of_night(project: Nights, night: str) -> list[dict[str, Any]]:
    """The night's stored runs."""
    return [record for record in runs_of(project) if record["night"] == night]


def runs_of(project: Nights) -> list[dict[str, Any]]:
    code, out, err = project.run("store", "export", "--format", "jsonl")
    assert code == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    records = [line for line in lines if line["schema"].startswith("levelfield.record/")]
    return sorted(records, key=lambda r: (r["began"], r["run_id"]))

"""docs/results-repository as a user copies it: a bare repository, clones, and merge requests that must not pass.

The commands are those of the shipped workflows, word for word.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from bundles import members_of, only_run, rehashed, resealed, written
from levelfield.cli.command_line import parser_of
from levelfield.cli.main import main
from levelfield.studies.results_repository import Contribution, comment
from plans import ROOT

TEMPLATE = ROOT / "docs" / "results-repository"
WORKFLOW, GITLAB = TEMPLATE / ".github" / "workflows" / "results.yml", TEMPLATE / ".gitlab-ci.yml"
EXAMPLES = ("bundles/gpt3_smoke.zip", "bundles/virtual_machine.zip")
GIT = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]


def git(folder: Path, *words: str) -> str:
    return subprocess.run([*GIT, "-C", str(folder), *words], capture_output=True, check=True, text=True).stdout


def committed(folder: Path, message: str = "Add a run") -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of a bare repository that was made from the template with one of its bundles, on a new branch."""
    made, bare, found = tmp_path / "made", tmp_path / "results.git", tmp_path / "clone"
    shutil.copytree(TEMPLATE, made)
    (made / EXAMPLES[1]).unlink()
    git(tmp_path, "init", "--quiet", "--initial-branch", "main", str(made))
    committed(made, "A results repository")
    git(tmp_path, "clone", "--quiet", "--bare", str(made), str(bare))
    git(tmp_path, "clone", "--quiet", str(bare), str(found))
    git(found, "checkout", "--quiet", "-b", "mine")
    return found


def lines_of(path: Path) -> list[str]:
    """The commands of Levelfield in a workflow, without what stands before them."""
    text = re.sub(r"\n +(?=--)", " ", path.read_text())
    return [" ".join(line.split()) for line in re.findall(r"run_benchmarks\.py (evidence .*)", text)]


def merged(clone: Path, tmp_path: Path, base: str = "origin/main") -> tuple[int, str]:
    """The exit code and the comment of GitHub's first command, run on the clone."""
    command = next(line for line in lines_of(WORKFLOW) if "--comment" in line)
    words = {"results": str(clone), "HEAD": base, "FETCH_HEAD": "mine"}
    words |= {"comment.md": str(tmp_path / "comment.md"), "site": str(tmp_path / "site")}
    code = main([words.get(word, word) for word in shlex.split(command)])
    return code, (tmp_path / "comment.md").read_text()


def test_a_new_bundle_is_accepted_with_its_table_and_pages(clone: Path, tmp_path: Path) -> None:
    shutil.copy(TEMPLATE / EXAMPLES[1], clone / EXAMPLES[1])
    committed(clone)
    code, comment = merged(clone, tmp_path)
    assert code == 0 and "**Accepted**: 1 bundle(s) added, 1 run(s)." in comment
    assert "| gpt3_6.7B+steps8+batch2 | smoke | paddle 3.3.1 |" in comment and "not signed" in comment
    pages = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "gpt3_6.7B+steps8+batch2" in pages and "1x2" in pages  # the run on the branch, and the one before
    git(clone, "push", "--quiet", "origin", "mine:main")
    assert main(["evidence", "repository", str(tmp_path / "results.git"), "--head", "main"]) == 0  # bare, as a server's


def tampered(clone: Path, tmp_path: Path) -> None:
    """One loss is another one, by a forger who makes the manifest anew."""
    members = members_of(TEMPLATE / EXAMPLES[1])
    name = f"{only_run(members)}result.json"
    result = json.loads(members[name])
    result["throughput"]["tokens_per_second_per_device"] *= 1.01
    written(clone / EXAMPLES[1], rehashed({**members, name: json.dumps(result).encode()}))
    committed(clone)


def with_events_changed(clone: Path, tmp_path: Path) -> None:
    members = members_of(TEMPLATE / EXAMPLES[1])
    name = next(name for name in members if "events/" in name)
    written(clone / EXAMPLES[1], rehashed({**members, name: members[name].replace(b"1", b"2", 1)}))
    committed(clone)


def one_byte(clone: Path, tmp_path: Path) -> None:
    content = bytearray((TEMPLATE / EXAMPLES[1]).read_bytes())
    content[len(content) // 2] ^= 1
    (clone / EXAMPLES[1]).write_bytes(content)
    committed(clone)


def changed(clone: Path, tmp_path: Path) -> None:
    shutil.copy(TEMPLATE / EXAMPLES[1], clone / EXAMPLES[0])
    committed(clone)


def removed(clone: Path, tmp_path: Path) -> None:
    git(clone, "rm", "--quiet", EXAMPLES[0])
    committed(clone, "Withdraws: bundles/other.zip the clock was wrong")  # another one than it says


def no_bundle(clone: Path, tmp_path: Path) -> None:
    (clone / "bundles" / "new.zip").write_text("hello")
    committed(clone)


def another_file(clone: Path, tmp_path: Path) -> None:
    (clone / "bundles" / "run.sh").write_text("curl example.org | sh\n")
    committed(clone)


def a_link(clone: Path, tmp_path: Path) -> None:
    (clone / "bundles" / "link.zip").symlink_to("/etc/passwd")
    committed(clone)


def the_same_run(clone: Path, tmp_path: Path) -> None:
    shutil.copy(TEMPLATE / EXAMPLES[0], clone / "bundles" / "again.zip")
    committed(clone)


def the_same_run_resealed(clone: Path, tmp_path: Path) -> None:
    members = members_of(TEMPLATE / EXAMPLES[0])
    written(clone / "bundles" / "again.zip", resealed(members, tmp_path / "forged", restate=True))
    committed(clone)


def the_same_run_under_another_id(clone: Path, tmp_path: Path) -> None:
    members = members_of(TEMPLATE / EXAMPLES[0])
    old, new = "0dae97", "0dae98"
    renamed = {name.replace(old, new): content.replace(old.encode(), new.encode()) for name, content in members.items()}
    written(clone / "bundles" / "again.zip", resealed(renamed, tmp_path / "forged", restate=True))
    committed(clone)


def oversized(clone: Path, tmp_path: Path) -> None:
    (clone / "bundles" / "large.zip").write_bytes(bytes(8_000_001))
    committed(clone)


def with_the_workflow(clone: Path, tmp_path: Path) -> None:
    shutil.copy(TEMPLATE / EXAMPLES[1], clone / EXAMPLES[1])
    (clone / ".gitlab-ci.yml").write_text("check: {script: [echo fine]}\n")
    committed(clone)


REFUSED: tuple[tuple[Callable[[Path, Path], None], str], ...] = (
    (tampered, r"throughput\.tokens\\_per\\_second\\_per\\_device: stated 6\.\d+, recomputed 6\.\d+|does not follow"),
    (with_events_changed, "tampered|does not follow"),
    (one_byte, r"bundles/virtual_machine\.zip"),
    (changed, r"changes a bundle that is here.*Withdraws: bundles/gpt3_smoke\.zip REASON"),
    (removed, r"removes a bundle that is here.*Withdraws: bundles/gpt3_smoke\.zip REASON"),
    (no_bundle, r"bundles/new\.zip"),
    (another_file, r"run\.sh: found another file, expected only archives"),
    (a_link, r"link\.zip: found a link, a submodule or an executable file"),
    (the_same_run, r"again\.zip: has the run .*, which bundles/gpt3_smoke\.zip has too"),
    (the_same_run_resealed, r"again\.zip: has the run .*, which bundles/gpt3_smoke\.zip has too"),
    (the_same_run_under_another_id, r"again\.zip: has the run .*0dae98, which bundles/gpt3_smoke\.zip has too"),
    (oversized, r"large\.zip: found 8,000,001 bytes, expected at most 8,000,000"),
    (with_the_workflow, r"\.gitlab-ci\.yml: changed beside bundles"),
)


@pytest.mark.parametrize(("fault", "message"), REFUSED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_merge_request_that_must_not_pass_is_refused_with_its_reason(
    fault: Callable[[Path, Path], None], message: str, clone: Path, tmp_path: Path
) -> None:
    fault(clone, tmp_path)
    code, comment = merged(clone, tmp_path)
    assert code == 4 and "**Refused**" in comment and "passwd" not in comment
    assert re.search(message, comment.replace("\\_", "_")), comment


def test_a_comment_is_no_longer_than_a_forge_takes() -> None:
    found = Contribution(problems=["x" * 2_000] * 3_000, notes=["<b>y</b>"] * 3_000)
    text = comment(found, "1")
    assert len(text) < 65_536 and text.count("- and 2960 more") == 2 and "<b>" not in text


def test_a_bundle_goes_when_a_commit_says_so(clone: Path, tmp_path: Path) -> None:
    git(clone, "rm", "--quiet", EXAMPLES[0])
    committed(clone, f"Take it back\n\nWithdraws: {EXAMPLES[0]} the fans were off")
    code, comment = merged(clone, tmp_path)
    assert code == 0 and "removes a bundle that was here: the fans were off" in comment


def test_what_main_got_meanwhile_is_no_change_of_the_branch(clone: Path, tmp_path: Path) -> None:
    shutil.copy(TEMPLATE / EXAMPLES[1], clone / EXAMPLES[1])
    committed(clone)
    git(clone, "checkout", "--quiet", "main")
    (clone / "README").write_text("later\n")
    git(clone, "mv", EXAMPLES[0], "bundles/renamed.zip")
    committed(clone, f"Withdraws: {EXAMPLES[0]} a better name")
    git(clone, "push", "--quiet", "origin", "main")
    assert merged(clone, tmp_path)[0] == 0


def test_a_wrong_name_of_a_branch_or_folder_is_an_error(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evidence", "repository", str(clone), "--base", "nowhere"]) == 2
    assert main(["evidence", "repository", str(clone), "--base=--output=x"]) == 2
    assert "found '--output=x', expected the name of a branch" in capsys.readouterr().err
    assert main(["evidence", "repository", str(tmp_path / "none")]) == 2


@pytest.mark.parametrize(
    ("path", "schema"), [(WORKFLOW, "vendor.github-workflows"), (GITLAB, "vendor.gitlab-ci")], ids=["github", "gitlab"]
)
def test_a_workflow_is_valid_by_its_makers_schema_and_its_options_exist(path: Path, schema: str) -> None:
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    assert subprocess.run(argv, capture_output=True, timeout=120).returncode == 0
    check, pages = (parser_of(shlex.split(line)) for line in lines_of(path))
    assert check.base and check.comment and check.pages and not pages.base and pages.pages


def test_the_workflow_of_github_never_checks_a_pull_request_out() -> None:
    """It may comment, so nothing of the branch may run: no `ref` of the pull request, no step with its texts."""
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    steps = jobs["check"]["steps"]
    refs = [step["with"].get("ref") for step in steps if "checkout" in step.get("uses", "")]
    assert refs == [None, "${{ vars.LEVELFIELD_REF }}"]
    used = set(re.findall(r"github\.event\.[a-z_.]+", WORKFLOW.read_text()))
    assert used == {"github.event.number"}
    assert jobs["check"]["permissions"] == {"contents": "read", "pull-requests": "write"}

"""The launcher around its job: what is written before the submission, lost answers, and runs to take up again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.contracts.execution import NodeWork, ProcessWork, Request, Submission
from levelfield.errors import UsageError
from levelfield.run.interruption import WatchLeft
from levelfield.run.launchers.slurm.slurm_launcher import SlurmLauncher
from levelfield.specs.paths import RunPaths
from plans import PLUGINS
from planted_slurm import PlantedSlurm, ended

REFUSED = (1, "sbatch: error: Batch job submission failed: Requested node configuration is not available\n")
LOST = (1, "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n")
DONE = "12|COMPLETED|None|alpha\n"


@pytest.fixture
def request_(node_run: Path) -> Request:
    root = node_run
    work = ProcessWork(0, ("train",), {"RANK": "0", "HF_TOKEN": "verysecret"}, "rank0.log")
    files = {"nodes/job.sbatch": "#!/bin/bash\n", "nodes/node0.json": "{}\n"}
    sent = Submission("levelfield.run", ("sbatch", "--parsable", str(root / "nodes/job.sbatch")), files)
    (root / "nodes/node0.record.jsonl").write_text(ended("exited", (0, 0, None)))
    return Request("slurm", "process", (NodeWork(0, "", (work,)),), str(root / "events"), 60, 60, 30, (), (sent,))


def look() -> None:
    """Nothing is shown."""


def test_files_and_number_are_written_and_the_secret_is_not(
    planted: PlantedSlurm, request_: Request, tmp_path: Path
) -> None:
    planted.says("sbatch", "12;alpha\n")
    planted.says("squeue", DONE)
    assert SlurmLauncher().execute(request_, look).cause == "exited"
    nodes = tmp_path / "run" / "nodes"
    assert (nodes / "job.sbatch").read_text() == "#!/bin/bash\n" and (nodes / "node0.json").read_text() == "{}\n"
    content = json.loads((nodes / "engine.json").read_text())
    assert (content["schema"], content["engine"], content["job"], content["cluster"]) == (
        "levelfield.engine/1", "slurm", "12", "alpha"
    )  # fmt: skip
    assert "HF_TOKEN=verysecret" in planted.environment("sbatch")
    assert not [p for p in (tmp_path / "run").rglob("*") if p.is_file() and "verysecret" in p.read_text()]
    assert all("--clusters=alpha" in call for call in planted.calls("squeue"))


def test_a_refused_job_is_a_failed_launch_even_where_slurm_keeps_it(planted: PlantedSlurm, request_: Request) -> None:
    planted.says("sbatch", REFUSED)
    planted.says("squeue", "12|levelfield.run\n", "12|FAILED|BadConstraints|\n")
    outcome = SlurmLauncher().execute(request_, look)
    assert outcome.cause == "launch-error" and "node configuration" in str(outcome.evidence)


def test_a_job_whose_answer_was_lost_is_found_and_watched(
    planted: PlantedSlurm, request_: Request, tmp_path: Path
) -> None:
    planted.says("sbatch", LOST)
    planted.says("squeue", "12|levelfield.run\n", "12|RUNNING|None|alpha\n", DONE)
    assert SlurmLauncher().execute(request_, look).cause == "exited"
    assert json.loads((tmp_path / "run/nodes/engine.json").read_text())["job"] == "12"


def test_a_folder_that_cannot_be_written_is_named(planted: PlantedSlurm, request_: Request, tmp_path: Path) -> None:
    (tmp_path / "run" / "nodes" / "node0.record.jsonl").unlink()
    (tmp_path / "run" / "nodes").rmdir()
    (tmp_path / "run" / "nodes").write_text("no folder")
    outcome = SlurmLauncher().execute(request_, look)
    assert outcome.cause == "launch-error" and str(tmp_path / "run/nodes") in str(outcome.evidence)
    assert planted.calls("sbatch") == []


def test_a_job_that_cannot_be_recorded_is_cancelled(planted: PlantedSlurm, request_: Request, tmp_path: Path) -> None:
    (tmp_path / "run/nodes/node0.record.jsonl").unlink()
    (tmp_path / "run/nodes/engine.json").mkdir()  # as a disk that became full after the submission
    planted.says("sbatch", "12\n")
    planted.says("squeue", "12|CANCELLED|None|\n")
    outcome = SlurmLauncher().execute(request_, look)
    assert outcome.cause == "launch-error" and "job 12" in str(outcome.evidence)
    assert str(tmp_path / "run/nodes/engine.json") in str(outcome.evidence)
    assert planted.calls("scancel") == [["12"]]


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ({"shared": "/elsewhere"}, "a folder below /elsewhere"),
        ({"slurm": {"options": ["--array=1-2"]}}, "'--array=1-2'"),
    ],
)
def test_what_cannot_run_is_refused_before_a_peak_is_measured(
    planted: PlantedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    site: dict[str, object], words: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "site.json").write_text(json.dumps({"schema": "levelfield.site/1", "launcher": "slurm", **site}))
    arguments = ["--plugins", str(PLUGINS), "--site", str(tmp_path / "site.json"), "--runs", str(tmp_path / "runs")]
    assert main(["--case", "tiny:fake:F1:1:1", *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split()) and planted.calls("srun") == []


def test_attach_says_which_job_it_watches(planted: PlantedSlurm, request_: Request, tmp_path: Path) -> None:
    (tmp_path / "run/nodes/engine.json").write_text('{"job": "12", "cluster": null}')
    planted.says("squeue", DONE)
    sentences: list[str] = []
    assert SlurmLauncher().saying(sentences.append).attach(request_, look).cause == "exited"
    (sentence,) = sentences
    assert sentence.endswith("job 12") and planted.calls("sbatch") == []


@pytest.mark.parametrize("engine", [None, "", "[]", '{"job": "12; rm -rf"}', '{"job": 12}'])
def test_attach_without_a_job_is_refused(
    planted: PlantedSlurm, request_: Request, tmp_path: Path, engine: str | None
) -> None:
    if engine is not None:
        (tmp_path / "run/nodes/engine.json").write_text(engine)
    with pytest.raises(UsageError, match=request_.submissions[0].name):
        SlurmLauncher().attach(replace(request_), look)


def test_who_leaves_a_job_does_not_cancel_it(planted: PlantedSlurm, request_: Request, tmp_path: Path) -> None:
    def leave() -> None:
        raise WatchLeft

    (tmp_path / "run/nodes/engine.json").write_text('{"job": "12", "cluster": null}')
    planted.says("squeue", "12|RUNNING|None|alpha\n")
    with pytest.raises(WatchLeft):
        SlurmLauncher().attach(request_, leave)
    assert planted.calls("scancel") == []


@pytest.mark.parametrize(("state", "expected"), [("RUNNING", "Slurm job 12 is RUNNING"), ("COMPLETED", None)])
def test_what_lives_of_a_killed_platforms_job(
    planted: PlantedSlurm, request_: Request, tmp_path: Path, state: str, expected: str | None
) -> None:
    (tmp_path / "run/nodes/engine.json").write_text('{"job": "12", "cluster": null}')
    planted.says("squeue", f"12|{state}|None|alpha\n")
    assert SlurmLauncher().remaining_work(request_) == expected


def test_attach_refuses_a_plan_that_is_damaged_or_of_another_run(
    run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    run.outcome.unlink()
    whole = run.plan.read_text()
    plans = {
        '{"a': "plan.json: not valid json",
        whole.replace("levelfield.plan/1", "levelfield.plan/99"): "key 'schema': found 'levelfield.plan/99'",
        whole.replace(run.root.name, "20260102T030405Z_tiny_fake_fake_other"): "_other, expected " + run.root.name,
    }
    for content, expected in plans.items():
        run.plan.write_text(content)
        assert main(["run", "attach", str(run.root), "--plugins", str(PLUGINS)]) == 2
        assert expected in " ".join(capsys.readouterr().err.split())
    run.plan.unlink()
    assert main(["run", "attach", str(run.root), "--plugins", str(PLUGINS)]) == 2

"""Runs as jobs of a real Slurm: what is submitted, the queue, the end, and a platform that was killed meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cluster_shared import LONG, PRETENDED, TINY, Cluster, answer, site, slurm_job_number, until
from driving import SHORT, TORCH_HERE, Benchmark, finished, steps, trainings
from levelfield.cli import dry_run
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths

pytestmark = pytest.mark.machines
SLOW = ("--env", "FAKE_STEP_SECONDS=0.2")


def ended(benchmark: Benchmark) -> tuple[str, str, list[str]]:
    """Word and evidence of the run, and the words of its nodes."""
    outcome = json.loads((benchmark.only_run() / "outcome.json").read_text())
    status = benchmark.result()["status"]
    return status["word"], status["evidence"] or "", [node["word"] for node in outcome["nodes"]]


def test_what_the_dry_run_shows_is_what_slurm_has(
    benchmark: Benchmark, slurm: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job is valid. Its script is the dry run's, byte for byte, and so are the nodes' files."""
    secret = ("--env", "HF_TOKEN=verysecret")
    done = benchmark.run(*TINY, *secret, *site(tmp_path, minutes=5, gres="gpu:{devices}", options=["--comment=drill"]))
    assert done.returncode == 0, done.stderr
    assert ended(benchmark) == ("valid", "", ["ended", "ended"])
    assert "one machine" in " ".join(benchmark.result()["warnings"])  # as these two are
    run = benchmark.only_run()
    names = [node["name"] for node in json.loads((run / "outcome.json").read_text())["nodes"]]
    assert names == list(slurm.hosts)
    dry_run.show([read_plan(RunPaths(run))], benchmark.runs, as_json=True)
    (content,) = json.loads(capsys.readouterr().out)
    (submission,) = content["request"]["submissions"]
    assert submission["files"]["nodes/job.sbatch"] == answer(
        "scontrol", "write", "batch_script", slurm_job_number(run), "-"
    )
    assert submission["files"] == {name: (run / name).read_text() for name in submission["files"]}
    assert submission["argv"] == ["sbatch", "--parsable", str(run / "nodes/job.sbatch")]
    assert not [p for p in run.rglob("*") if p.is_file() and b"verysecret" in p.read_bytes()]


def test_a_secret_reaches_the_ranks_all_the_same(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    """An interrupt cancels the job, and every process on the nodes has ended then."""
    process = benchmark.start(*LONG, "--env", "HF_TOKEN=verysecret", *site(tmp_path))
    for rank in (0, 1):
        benchmark.wait_for_step(process, 5, rank)
    names = [rank.environ() for rank in trainings(benchmark.runs).values()]
    assert [variables["HF_TOKEN"] for variables in names] == ["verysecret"] * 2
    hosts = dict(line.split() for line in (slurm.folder / "hosts").read_text().splitlines())
    first = next(address for address, name in hosts.items() if name == slurm.hosts[0])
    assert {variables["MASTER_ADDR"] for variables in names} == {first}
    process.send_signal(signal.SIGINT)
    assert finished(process).returncode == 130
    assert trainings(benchmark.runs) == {}
    assert "CANCELLED" in answer("squeue", "-h", "-t", "all", "-j", slurm_job_number(benchmark.only_run()), "-o", "%T")
    assert benchmark.result()["status"]["failure"] == "interrupted"


def test_a_job_that_waits_says_so_and_runs_later(benchmark: Benchmark, tmp_path: Path) -> None:
    blocking = [blocked("sleep 60") for _ in range(2)]
    process = benchmark.start(*TINY, *site(tmp_path))
    until(lambda: answer("squeue", "-h", "-t", "PENDING", "--name", f"levelfield.{names(benchmark)}", "-o", "%i"))
    until(lambda: len(answer("squeue", "-h", "-t", "PENDING", "-o", "%i").split()) == 2)
    subprocess.run(["sleep", "3"], check=True)  # time to look at the queue
    subprocess.run(["scancel", *blocking], check=True)
    done = finished(process)
    assert done.returncode == 0, done.stderr
    assert "1 job" in " ".join(done.stderr.split())


def blocked(command: str, *options: str) -> str:
    """Return the number of a job that takes both nodes."""
    argv = ["sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", *options, f"--wrap={command}"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def names(benchmark: Benchmark) -> str:
    names = [path.parent.name for path in benchmark.runs.glob("*/plan.json")]
    return names[0] if names else "none-yet"


def test_a_killed_platform_leaves_the_job_and_attach_collects_it(benchmark: Benchmark, tmp_path: Path) -> None:
    """The result is that of a run that was not killed: the same word, steps, losses and checksums."""
    process = benchmark.start(*TINY, *SLOW, *site(tmp_path))
    benchmark.wait_for_step(process, 2)
    process.kill()
    process.communicate()
    run = benchmark.only_run()
    assert not (run / "outcome.json").exists() and trainings(benchmark.runs)
    assert "`run attach` goes" in benchmark.run("show", "runs", "--json").stdout
    done = benchmark.run("run", "attach", run.name, *PRETENDED)
    assert done.returncode == 0, done.stderr
    assert f"Slurm job {slurm_job_number(run)}" in done.stderr
    attached = benchmark.result()
    whole = Benchmark(tmp_path / "whole", Path(benchmark.variables["XDG_CACHE_HOME"]), **locks(benchmark))
    assert whole.run(*TINY, *SLOW, *site(tmp_path)).returncode == 0
    assert steps(run) == steps(whole.only_run())
    assert kept(attached) == kept(whole.result())
    assert benchmark.run("run", "attach", run.name, *PRETENDED).returncode == 0
    assert benchmark.result() == attached


def locks(benchmark: Benchmark) -> dict[str, str]:
    return {"LEVELFIELD_LOCKS": benchmark.variables["LEVELFIELD_LOCKS"]}


def kept(result: dict[str, Any]) -> list[Any]:
    return [result[key] for key in ("status", "steps_done", "loss", "identity", "seal", "nodes") if key != "seal"]


@pytest.mark.thorough  # the job above is attached to while it runs
def test_attach_collects_a_job_that_has_ended_meanwhile(benchmark: Benchmark, tmp_path: Path) -> None:
    """Its number is found by the job's name, where the platform was killed before it wrote it."""
    process = benchmark.start(*TINY, *SLOW, *site(tmp_path))
    benchmark.wait_for_step(process, 2)
    process.kill()
    process.communicate()
    run = benchmark.only_run()
    job = slurm_job_number(run)
    (run / "nodes" / "engine.json").unlink()
    until(lambda: "COMPLETED" in answer("squeue", "-h", "-t", "all", "-j", job, "-o", "%T"))
    done = benchmark.run("run", "attach", "latest", *PRETENDED)
    assert (done.returncode, benchmark.result()["status"]["word"]) == (0, "valid"), done.stderr


def test_real_ranks_meet_across_the_nodes(benchmark: Benchmark, cache: Path, tmp_path: Path) -> None:
    """Two nodes of one device each train what one process trains: the same tokens, weights and losses."""
    arguments = (*SHORT, *TORCH_HERE, "--threads", "1", "--scale", "smoke", *site(tmp_path))
    done = benchmark.run("--case", "short:torch:cpu:2:1", *arguments)
    assert done.returncode == 0, done.stderr
    # On one of the nodes, whose peak is measured by now.
    alone = Benchmark(tmp_path / "alone", cache, LEVELFIELD_LOCKS=benchmark.variables["LEVELFIELD_LOCKS"])
    assert alone.run("--case", "short:torch:cpu:1:1", *arguments).returncode == 0
    here, there = benchmark.result(), alone.result()
    assert here["identity"] == there["identity"] and here["identity"]["initial_weights"] is not None
    losses = [[loss for loss, _, _ in steps(run)] for run in (benchmark.only_run(), alone.only_run())]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.thorough
def test_gpt3_by_two_nodes_is_aligned(benchmark: Benchmark, tmp_path: Path) -> None:
    done = benchmark.run("--case", "gpt3_6.7B:torch:cpu:2:1", "--scale", "smoke", "--threads", "1", *site(tmp_path))
    assert done.returncode == 0, done.stderr
    assert benchmark.result()["alignment"]["verdict"] == "aligned"

"""What goes wrong with jobs of a real Slurm: each end has its word and names the node, and leaves nothing on a node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from cluster_shared import (
    LONG,
    TINY,
    Cluster,
    answer,
    epilog,
    idle_nodes,
    node_agent,
    print_before,
    restarted,
    site,
    slurm_job_number,
    until,
)
from driving import Benchmark, finished, trainings
from levelfield.contracts.execution import DISK_IS_FULL

pytestmark = pytest.mark.machines


def begun(benchmark: Benchmark, *arguments: str) -> subprocess.Popen[str]:
    """A long run, once both ranks have done some steps."""
    process = benchmark.start(*LONG, *arguments)
    for rank in (0, 1):
        benchmark.wait_for_step(process, 5, rank)
    return process


def end_of(benchmark: Benchmark, process: subprocess.Popen[str]) -> tuple[int, str, str, dict[str, str]]:
    """Exit code, class of failure, evidence, and the word of each node. The finished steps are kept."""
    code = finished(process).returncode
    result = benchmark.result()
    assert result["steps_done"] >= 5
    outcome = json.loads((benchmark.only_run() / "outcome.json").read_text())
    words = {node["name"]: node["word"] for node in outcome["nodes"]}
    return code, result["status"]["failure"], result["status"]["evidence"], words


def test_a_job_that_another_cancels(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    process = begun(benchmark, *site(tmp_path))
    job = slurm_job_number(benchmark.only_run())
    subprocess.run(["scancel", job], check=True)
    code, failure, evidence, words = end_of(benchmark, process)
    assert (code, failure) == (3, "cancelled")
    assert f"job {job}: CANCELLED by" in evidence and "by root" in evidence
    assert words == dict.fromkeys(slurm.hosts, "cancelled")


@pytest.mark.thorough
def test_a_step_that_another_cancels(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    """The job itself then has failed, by Slurm's word."""
    process = begun(benchmark, *site(tmp_path))
    job = slurm_job_number(benchmark.only_run())
    subprocess.run(["scancel", f"{job}.0"], check=True)
    code, failure, evidence, _words = end_of(benchmark, process)
    assert (code, failure) == (3, "cancelled"), evidence
    assert f"STEP {job}.0 ON {slurm.hosts[0]} CANCELLED AT" in evidence


@pytest.mark.thorough
def test_a_job_that_is_put_back_and_held(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    process = begun(benchmark, *site(tmp_path))
    job = slurm_job_number(benchmark.only_run())
    subprocess.run(["scontrol", "update", f"jobid={job}", "requeue=1"], check=True)
    subprocess.run(["scontrol", "requeuehold", job], check=True)
    code, failure, evidence, _words = end_of(benchmark, process)
    assert (code, failure) == (3, "cancelled"), evidence
    assert f"Slurm job {job} " in evidence and "the queue" in evidence
    assert job not in answer("squeue", "-h", "-o", "%i").split()


@pytest.mark.thorough
def test_a_node_that_is_set_down(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    process = begun(benchmark, *site(tmp_path))
    lost = f"nodename={slurm.hosts[1]}"
    try:
        subprocess.run(["scontrol", "update", lost, "state=down", "reason=fan"], check=True)
        code, failure, evidence, words = end_of(benchmark, process)
    finally:
        subprocess.run(["scontrol", "update", lost, "state=resume"])  # Slurm may have taken it back itself
    assert (code, failure) == (3, "node"), evidence
    assert f"{slurm.hosts[1]} is down" in evidence and "fan" in evidence
    assert words[slurm.hosts[1]] == "lost"


def test_a_job_that_another_job_takes_the_nodes_of(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    process = begun(benchmark, *site(tmp_path))
    argv = ["sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null"]
    urgent = subprocess.run([*argv, "--wrap=sleep 30"], check=True, capture_output=True, text=True).stdout.strip()
    code, failure, evidence, words = end_of(benchmark, process)
    subprocess.run(["scancel", urgent], check=True)
    assert (code, failure) == (3, "preempted")
    assert f"Slurm job {slurm_job_number(benchmark.only_run())}: PREEMPTED" in evidence
    assert words == dict.fromkeys(slurm.hosts, "preempted")


def test_a_killed_rank(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    process = begun(benchmark, *site(tmp_path))
    trainings(benchmark.runs)[1].kill()
    code, failure, evidence, words = end_of(benchmark, process)
    assert (code, failure) == (3, "killed")
    assert f"on node1 ({slurm.hosts[1]}) " in evidence and "rank 1" in evidence and "SIGKILL" in evidence
    assert words == {slurm.hosts[0]: "stopped", slurm.hosts[1]: "failed"}


@pytest.mark.parametrize(
    "killed_nodes",
    [(1,), pytest.param((0,), marks=pytest.mark.thorough), pytest.param((0, 1), marks=pytest.mark.thorough)],
)
def test_a_killed_agent_is_a_lost_node(
    benchmark: Benchmark, slurm: Cluster, tmp_path: Path, killed_nodes: tuple[int, ...]
) -> None:
    """srun says which one was killed, and then ends the others itself."""
    process = begun(benchmark, *site(tmp_path))
    for node in killed_nodes:
        os.kill(node_agent(benchmark.only_run(), node), signal.SIGKILL)
    code, failure, evidence, words = end_of(benchmark, process)
    assert (code, failure) == (3, "node"), evidence
    for node in killed_nodes:
        assert f"srun: {slurm.hosts[node]}: task {node}: Killed" in evidence and words[slurm.hosts[node]] == "lost"


@pytest.mark.thorough
def test_a_killed_agent_of_a_real_training(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    """The rank of the other node fails by itself, because its peer is gone."""
    case = ("--case", "gpt3_6.7B:torch:cpu:2:1", "--scale", "smoke", "--threads", "1", "--no-preflight")
    process = benchmark.start(*case, *site(tmp_path))
    benchmark.wait_for_step(process, 5)
    os.kill(node_agent(benchmark.only_run(), 1), signal.SIGKILL)
    code, failure, evidence, words = end_of(benchmark, process)
    assert (code, failure) == (3, "node"), evidence
    assert f"srun: {slurm.hosts[1]}: task 1: Killed" in evidence and words[slurm.hosts[1]] == "lost"


@pytest.mark.thorough
def test_a_long_epilog_holds_no_verdict_up(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    with epilog(slurm, 45):
        done = benchmark.run(*TINY, *site(tmp_path))
        states = answer("squeue", "-h", "-t", "all", "-j", slurm_job_number(benchmark.only_run()), "-o", "%T").split()
    assert (done.returncode, benchmark.result()["status"]["word"]) == (0, "valid"), done.stderr
    assert states == ["COMPLETING"]
    assert idle_nodes(slurm, 60)


@pytest.mark.thorough
def test_a_job_that_another_cancels_is_judged_during_the_epilog(
    benchmark: Benchmark, slurm: Cluster, tmp_path: Path
) -> None:
    """Slurm shows it as COMPLETING; the accounting knows who cancelled it."""
    with epilog(slurm, 45):
        process = begun(benchmark, *site(tmp_path))
        job = slurm_job_number(benchmark.only_run())
        subprocess.run(["scancel", job], check=True)
        code, failure, evidence, _words = end_of(benchmark, process)
        states = answer("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").split()
    assert (code, failure) == (3, "cancelled") and "CANCELLED by root" in evidence
    assert states == ["COMPLETING"]
    assert idle_nodes(slurm, 60)


@pytest.mark.thorough
def test_a_killed_slurmstepd_costs_no_verdict_and_no_node(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    """Slurm then shows the job as RUNNING although its nodes have ended."""
    process = benchmark.start(*TINY, "--env", "FAKE_STEP_SECONDS=0.2", *site(tmp_path))
    benchmark.wait_for_step(process, 3)
    kill_slurmstepd(benchmark, 1)
    done = finished(process)
    assert (done.returncode, benchmark.result()["status"]["word"]) == (0, "valid"), done.stderr
    job = slurm_job_number(benchmark.only_run())
    assert f"Slurm job {job} was cancelled: its nodes had ended" in " ".join(done.stderr.split())
    assert idle_nodes(slurm, 60)


@pytest.mark.thorough
def test_an_interrupt_reaches_a_node_whose_slurmstepd_was_killed(
    benchmark: Benchmark, slurm: Cluster, tmp_path: Path
) -> None:
    process = begun(benchmark, *site(tmp_path))
    kill_slurmstepd(benchmark, 1)
    process.send_signal(signal.SIGINT)
    code, failure, _evidence, words = end_of(benchmark, process)
    assert (code, failure, words) == (130, "interrupted", dict.fromkeys(slurm.hosts, "stopped"))
    assert trainings(benchmark.runs) == {}


def kill_slurmstepd(benchmark: Benchmark, node: int) -> None:
    parents = psutil.Process(node_agent(benchmark.only_run(), node)).parents()
    next(parent for parent in parents if parent.name().startswith("slurmstepd")).kill()


@pytest.mark.thorough  # tests/core/run/test_slurm_watch.py has a banner among its answers
def test_a_banner_before_every_answer(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    commands = ("squeue", "sacct", "sbatch", "scontrol", "sinfo", "scancel")
    print_before(benchmark, tmp_path / "wrappers", "*** Cluster 2026. Maintenance | 10:00 | all nodes ***", *commands)
    done = benchmark.run(*TINY, *site(tmp_path))
    assert (done.returncode, benchmark.result()["status"]["word"]) == (0, "valid"), done.stderr


def test_an_interrupted_peak_probe_leaves_no_job(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    options = ["--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 120"]
    blocking = subprocess.run(["sbatch", *options], check=True, capture_output=True, text=True).stdout.strip()
    try:
        until(lambda: answer("squeue", "-h", "-t", "RUNNING", "-o", "%i").split() == [blocking])
        process = benchmark.start(*TINY, "--probe", "--no-preflight", *site(tmp_path))
        until(lambda: answer("squeue", "-h", "-t", "PENDING", "-o", "%i").split())
        (probe,) = answer("squeue", "-h", "-t", "PENDING", "-o", "%i").split()
        process.send_signal(signal.SIGINT)
        done = finished(process)
        assert answer("squeue", "-h", "-t", "PENDING", "-o", "%i").split() == []
    finally:
        subprocess.run(["scancel", blocking], check=True)
    assert done.returncode == 130 and f"Slurm job {probe}, the short command, was cancelled" in done.stderr


@pytest.mark.thorough
def test_a_stopped_rank_is_a_hang(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    process = begun(benchmark, *site(tmp_path))
    trainings(benchmark.runs)[1].suspend()
    code, failure, evidence, words = end_of(benchmark, process)
    assert (code, failure) == (3, "hang")
    assert "rank 1" in evidence and "no heartbeat" in evidence and words[slurm.hosts[1]] == "failed"


def test_a_node_that_gives_no_sign(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    """Its daemon and all that it started end at once, as with a power cut, and the platform sees it before Slurm."""
    process = begun(benchmark, *site(tmp_path))
    try:
        lose_second_node(benchmark, slurm)
        code, failure, evidence, words = end_of(benchmark, process)
    finally:
        restarted(slurm.hosts[1])
    assert (code, failure) == (3, "node")
    assert f"sign of {slurm.hosts[1]}" in evidence and words[slurm.hosts[1]] == "lost"


@pytest.mark.thorough
def test_a_node_that_freezes(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    """Everything on it stands still and nothing ends, as in a machine whose kernel hangs."""
    process = begun(benchmark, *site(tmp_path))
    daemon = psutil.Process(slurm.process(f"slurmd.{slurm.hosts[1]}"))
    rank = trainings(benchmark.runs)[1]
    frozen = [daemon, *daemon.children(recursive=True), *own_parents(rank), rank]
    for frozen_process in frozen:
        frozen_process.suspend()
    try:
        code, failure, evidence, words = end_of(benchmark, process)
    finally:
        for frozen_process in frozen:
            with suppress(psutil.Error):
                frozen_process.resume()
    assert (code, failure) == (3, "node"), evidence
    assert f"sign of {slurm.hosts[1]}" in evidence
    assert words == {slurm.hosts[0]: "stopped", slurm.hosts[1]: "lost"}
    until(lambda: trainings(benchmark.runs) == {})  # once it goes on, Slurm ends what is left there


@pytest.mark.thorough
def test_a_home_that_nobody_can_write(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    """Neither the platform nor a node keeps anything there that a run needs."""
    benchmark.variables.update(HOME="/sys/kernel", XDG_CACHE_HOME="", XDG_DATA_HOME="", XDG_CONFIG_HOME="")
    done = benchmark.run(*TINY, *site(tmp_path))
    assert done.returncode == 0, done.stderr
    assert benchmark.result()["status"]["word"] == "valid"


@pytest.mark.thorough
def test_a_shared_disk_that_fills(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    """The runs are on a small disk, which all machines see and another program fills."""
    daemons = [slurm.process(f"slurmd.{host}") for host in slurm.hosts]
    with small_disk(tmp_path, benchmark.runs, daemons):
        process = begun(benchmark, *site(tmp_path))
        with suppress(OSError), (benchmark.runs / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(2**20)):
                pass
        done = finished(process)
        (benchmark.runs / "filler").unlink()
        status = benchmark.result()["status"]
        assert (done.returncode, status["word"], status["failure"]) == (3, "failed", "storage"), status
        assert DISK_IS_FULL in status["evidence"] and benchmark.result()["steps_done"] >= 5
        assert trainings(benchmark.runs) == {}


@contextmanager
def small_disk(folder: Path, place: Path, daemons: list[int]) -> Iterator[None]:
    """Mount one file system of 24 MiB here and where the daemons see it. Skips where nobody may."""
    image = folder / "disk"
    with image.open("wb") as file:
        file.truncate(24 * 2**20)
    place.mkdir(parents=True)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    device = subprocess.run(["losetup", "--find", "--show", str(image)], capture_output=True, text=True).stdout.strip()
    if not device:
        pytest.skip("no loop device can be had here")
    spaces = [[], *(["nsenter", f"--mount=/proc/{daemon}/ns/mnt"] for daemon in daemons)]
    try:
        for space in spaces:
            subprocess.run([*space, "mount", device, str(place)], check=True)
        yield
    finally:
        for space in spaces:
            subprocess.run([*space, "umount", "--lazy", str(place)])
        subprocess.run(["losetup", "--detach", device], check=True)


@pytest.mark.thorough
def test_a_node_that_slurm_loses(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    """Slurm sees it after its own limit, before the case's limits of a heartbeat."""
    process = benchmark.start(*TINY, "--env", "FAKE_STEP_SECONDS=2", *site(tmp_path))
    benchmark.wait_for_step(process, 5)
    try:
        lose_second_node(benchmark, slurm)
        code, failure, evidence, words = end_of(benchmark, process)
    finally:
        restarted(slurm.hosts[1])
    assert (code, failure) == (3, "node")
    assert "NODE_FAIL" in evidence and f"{slurm.hosts[1]} is down" in evidence
    assert words == {slurm.hosts[0]: "stopped", slurm.hosts[1]: "lost"}


def lose_second_node(benchmark: Benchmark, slurm: Cluster) -> None:
    rank = trainings(benchmark.runs)[1]
    parents = own_parents(rank)
    os.kill(slurm.process(f"slurmd.{slurm.hosts[1]}"), signal.SIGKILL)
    for process in (*reversed(parents), rank):
        process.kill()


def own_parents(rank: psutil.Process) -> list[psutil.Process]:
    """Return the processes between Slurm's daemon and a rank."""
    words = ("slurmstepd", "node_agent.py")
    return [
        parent
        for parent in rank.parents()
        if any(name in " ".join([parent.name(), *parent.cmdline()]) for name in words)
    ]


@pytest.mark.thorough  # tests/core has its answers, planted
def test_a_controller_that_is_away_for_a_while(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    """The job goes on meanwhile, and the run's end is its own."""
    process = benchmark.start(*TINY, "--env", "FAKE_STEP_SECONDS=0.8", *site(tmp_path))
    benchmark.wait_for_step(process, 3)
    try:
        os.kill(slurm.process("slurmctld"), signal.SIGTERM)
        benchmark.wait_for_step(process, 20)  # a question to a controller that is away takes four seconds
    finally:
        restarted()
    done = finished(process)
    assert (done.returncode, benchmark.result()["status"]["word"]) == (0, "valid"), done.stderr
    assert "about job" in " ".join(done.stderr.split())


@pytest.mark.thorough
def test_the_time_limit(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    """One minute is the least, and Slurm looks every half a minute."""
    process = begun(benchmark, *site(tmp_path, minutes=1))
    code, failure, evidence, words = end_of(benchmark, process)
    assert (code, failure) == (3, "time limit")
    assert f"Slurm job {slurm_job_number(benchmark.only_run())}: TIMEOUT" in evidence
    assert set(words.values()) == {"time-limit"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"partition": "nope"}, "invalid partition specified: nope"),
        pytest.param({"account": "nobody"}, "Invalid account", marks=pytest.mark.thorough),
        pytest.param({"gres": "gpu:9"}, "Requested node configuration is not available", marks=pytest.mark.thorough),
        pytest.param(
            {"partition": "short", "minutes": 5},
            "waits forever (PartitionTimeLimit): the time limit is over",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["partition", "account", "gres", "time-limit"],
)
def test_a_job_that_cannot_run(benchmark: Benchmark, tmp_path: Path, settings: dict[str, object], words: str) -> None:
    done = benchmark.run(*TINY, *site(tmp_path, **settings))
    assert done.returncode == 3
    status = benchmark.result()["status"]
    assert (status["word"], status["failure"]) == ("failed", "launch")
    assert words in status["evidence"]


def test_drained_nodes(benchmark: Benchmark, slurm: Cluster, tmp_path: Path) -> None:
    """The job waits, and says for what. An interrupt takes it out of the queue."""
    nodes = f"nodename={slurm.hosts[0]}"
    subprocess.run(["scontrol", "update", nodes, "state=drain", "reason=drill"], check=True)
    try:
        process = benchmark.start(*TINY, *site(tmp_path))
        until(lambda: "DRAINED" in answer("squeue", "-h", "-t", "PENDING", "-o", "%r"))
        subprocess.run(["sleep", "2"], check=True)  # time to look at the queue
        process.send_signal(signal.SIGINT)
        done = finished(process)
    finally:
        subprocess.run(["scontrol", "update", nodes, "state=resume"], check=True)
    assert done.returncode == 130
    assert "DOWN, DRAINED" in " ".join(done.stderr.split())
    assert benchmark.result()["status"]["word"] == "not-run"
    outcome = json.loads((benchmark.only_run() / "outcome.json").read_text())
    assert not outcome.get("nodes") and not outcome["ends"]

"""The batch script: a function of the plan and the site's file."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from levelfield.checkout import checkout
from levelfield.cli.main import main

CASE = ("--case", "llama3_8b:megatron:H100:4:8")
RUNS = "/shared/runs"


def shown(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str, **site: Any) -> list[dict[str, Any]]:
    """Return the requests of a dry run with this site's file."""
    assert main(command_line(tmp_path, *arguments, **site)) == 0, capsys.readouterr().err
    return [document["request"] for document in json.loads(capsys.readouterr().out)]


def command_line(tmp_path: Path, *arguments: str, runs: str = RUNS, **site: Any) -> list[str]:
    file = tmp_path / "site.json"
    file.write_text(json.dumps({"schema": "levelfield.site/1", **site}))
    return [*arguments, "--launcher", "slurm", "--site", str(file), "--dry-run", "--json", "--runs", runs]


def script_of(request: dict[str, Any]) -> list[str]:
    (submission,) = request["submissions"]
    text: str = submission["files"]["nodes/job.sbatch"]
    return text.splitlines()


def test_the_script_has_the_site_s_settings_and_no_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    slurm = {
        "partition": "gpu", "account": "bench", "qos": "high", "constraint": "h100", "reservation": "night",
        "minutes": 90, "gres": "gpu:{devices}", "exclusive": True, "options": ["--switches=1", "--mem=0"],
    }  # fmt: skip
    (request,) = shown(capsys, tmp_path, *CASE, slurm=slurm, modules=["cuda/13", "nccl"], python="/opt/py/bin/python3")
    run = Path(request["events_dir"]).parent
    assert script_of(request) == [
        "#!/bin/bash",
        f"#SBATCH --job-name=levelfield.{run.name}",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --no-requeue",
        "#SBATCH --export=ALL",
        f"#SBATCH --chdir={run}",
        f"#SBATCH --output={run}/logs/job.log",
        f"#SBATCH --error={run}/logs/job.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --propagate=NONE",
        "#SBATCH --time=90",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=bench",
        "#SBATCH --qos=high",
        "#SBATCH --constraint=h100",
        "#SBATCH --reservation=night",
        "#SBATCH --gres=gpu:8",
        "#SBATCH --exclusive",
        "#SBATCH --switches=1",
        "#SBATCH --mem=0",
        "",
        "type module >/dev/null 2>&1 || . /etc/profile",
        'module load cuda/13 nccl || { echo "levelfield: module load failed" >&2; exit 1; }',
        'name=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        'first_node=$(scontrol --oneliner show node "$name" | sed -n "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p")',
        '[ -n "$first_node" ] || { echo "levelfield: the first node has no address" >&2; exit 1; }',
        "srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --kill-on-bad-exit=1 --wait=0 --propagate=NONE --input=none "
        f"--cpu-bind=none /opt/py/bin/python3 {checkout()}/platform/levelfield/node/node_agent.py run "
        f"'{run}/nodes/node{{node_rank}}.json' --first-node \"$first_node\"",
        "exit $?",
    ]


def test_the_address_of_the_interface(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The line is run here, on the interface that every machine has."""
    (request,) = shown(capsys, tmp_path, *CASE, interface="lo")
    lines = [line for line in script_of(request) if "first_node" in line and "srun" not in line]
    done = subprocess.run(["bash", "-c", "\n".join([*lines, 'echo "$first_node"'])], capture_output=True, text=True)
    assert done.stdout == "127.0.0.1\n", done.stderr
    variables = request["common"]["processes"]["environment"]
    assert (variables["NCCL_SOCKET_IFNAME"], variables["MASTER_ADDR"]) == ("lo", "{first_node}")


def test_the_shell_finds_no_error_in_the_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for interface in ({}, {"interface": "ib0"}):
        (request,) = shown(capsys, tmp_path, *CASE, modules=["a"], **interface)
        text = "\n".join(script_of(request)) + "\n"
        assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""


@pytest.mark.parametrize(
    ("defined", "code"),
    [("module() { [ $2 != lost ]; }", 0), ("module() { false; }", 1), pytest.param("", 1, marks=pytest.mark.thorough)],
)
def test_a_module_that_does_not_load_ends_the_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, defined: str, code: int
) -> None:
    (request,) = shown(capsys, tmp_path, *CASE, modules=["cuda/13"])
    lines = [line for line in script_of(request) if "module" in line]
    text = "\n".join([defined, *lines, "echo trains"])
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert (done.returncode, "trains" in done.stdout) == (code, code == 0), done.stderr
    assert code == 0 or "load failed" in done.stderr


def test_cores_of_a_divided_host_are_taken_and_else_left_to_the_site(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    host = ("--case", "gpt3_6.7B:torch:cpu:2:2", "--threads", "3")
    cores = "#SBATCH --cpus-per-task=6"
    (request,) = shown(capsys, tmp_path, *host)
    assert cores in script_of(request)
    for slurm in ({"exclusive": True}, {"options": ["--cpus-per-task=9"]}):
        (request,) = shown(capsys, tmp_path, *host, slurm=slurm)
        assert cores not in script_of(request)
    (request,) = shown(capsys, tmp_path, *CASE)
    assert not [line for line in script_of(request) if "--cpus-per" in line]


def test_containers_of_the_site(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Rendered only: no site with either has run it."""
    inside = ("--runtime", "docker", "--base-image", "nvcr.io/nvidia/pytorch:25.01-py3")
    image = "nvcr.io#nvidia/pytorch:25.01-py3".replace("#", "/")
    slurm = {"container": "pyxis", "image": image}
    (request,) = shown(capsys, tmp_path, *CASE, *inside, slurm=slurm)
    run, here = Path(request["events_dir"]).parent, checkout()
    (line,) = [line for line in script_of(request) if line.startswith("srun")]
    mounts = f"{run}:{run},{here}:{here}"
    assert f"--container-image={image} --container-mounts={mounts} --no-container-mount-home python3" in line
    (request,) = shown(capsys, tmp_path, *CASE, *inside, slurm={**slurm, "container": "apptainer"})
    run = Path(request["events_dir"]).parent
    (line,) = [line for line in script_of(request) if line.startswith("srun")]
    begin = line.split().index("apptainer")
    options = ["--no-home", "--nv", f"--bind={run}:{run},{here}:{here}"]
    assert line.split()[begin:][:7] == ["apptainer", "exec", *options, image, "python3"]


@pytest.mark.parametrize(
    ("arguments", "site", "words"),
    [
        (CASE, {"slurm": {"options": ["--requeue"]}}, "slurm.options: found '--requeue'"),
        pytest.param(
            *(CASE, {"slurm": {"options": ["--nodes=9"]}}, "slurm.options: found '--nodes=9'"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *(CASE, {"slurm": {"gres": "gpu:{count}"}}, "slurm.gres: found 'gpu:{count}'"), marks=pytest.mark.thorough
        ),
        (CASE, {"shared": "/lustre"}, "--runs: found /shared/runs, expected a folder below /lustre"),
        (CASE, {"runs": "/shared/my runs"}, "found a character that Slurm changes"),
        pytest.param(
            *(CASE, {"runs": "/shared/100%"}, "found a character that Slurm changes"),
            marks=pytest.mark.thorough,
        ),
        ((*CASE, "--runtime", "docker", "--base-image", "x"), {}, "found slurm.container 'none'"),
    ],
)
def test_what_cannot_work_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], site: dict[str, Any], words: str
) -> None:
    command = command_line(tmp_path, **site)
    assert main([*command, *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.thorough
def test_every_node_of_the_suites_is_rendered(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    requests = shown(capsys, tmp_path, "--suite", "oneflow_gpt")
    assert len(requests) == 18 and {len(request["nodes"]) for request in requests} == {1, 2, 4}
    for request in requests:
        files = request["submissions"][0]["files"]
        assert f"#SBATCH --nodes={len(request['nodes'])}" in files["nodes/job.sbatch"]
        assert sorted(files) == sorted(
            ["nodes/job.sbatch", *(f"nodes/node{node}.json" for node in range(len(request["nodes"])))]
            + ["nodes/common.json"] * (len(request["nodes"]) > 1)
        )


@pytest.mark.thorough
def test_the_largest_published_run_is_rendered(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    requests = shown(capsys, tmp_path, "--suite", "flagperf_llama3")
    largest = max(requests, key=lambda request: len(request["nodes"]))
    files = largest["submissions"][0]["files"]
    contents = [json.loads(files[f"nodes/node{k}.json"]) for k in range(55)]
    ranks = [process["rank"] for content in contents for process in content["processes"]]
    assert ranks == list(range(440)) and len(files) == 57

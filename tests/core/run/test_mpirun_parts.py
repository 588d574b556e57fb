"""The engine mpirun of the launcher ssh without any host: its command, what it refuses, its lines, the node's side."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.node import mpi_part
from levelfield.run.launchers.ssh.mpirun_job import MpirunJob, mpirun_argv, mpirun_variables, one_line
from levelfield.specs.site import Host, LaunchPlan, Site

# ---- the command


def test_each_host_has_its_own_process_and_host_keys_are_checked() -> None:
    site = Site.model_validate({"ssh": {"config": "/etc/mine", "mpirun": "/opt/bin/mpirun"}})
    launch = LaunchPlan(launcher="ssh", site=site, hosts=(Host(name="b"), Host(name="a"), Host(name="c")))
    argv = mpirun_argv(launch, [["p", "0"], ["p", "1"]])
    assert argv[:5] == ("setpriv", "--pdeathsig", "TERM", "/opt/bin/mpirun", "--allow-run-as-root")
    assert argv[-13:] == ("--host", "b", "-np", "1", "p", "0", ":", "--host", "a", "-np", "1", "p", "1")
    given = dict(pairwise(argv))
    assert (given["plm_ssh_agent"], given["plm_ssh_no_tree_spawn"], given["--stdin"]) == ("ssh", "1", "none")
    assert given["plm_ssh_args"].startswith("-F /etc/mine -o BatchMode=yes -o StrictHostKeyChecking=yes ")


def test_mpirun_gets_few_variables() -> None:
    given = {"PATH": "/bin", "HF_TOKEN": "x", "OMPI_MCA_btl": "self", "PRTE_MCA_a": "b", "SSH_AUTH_SOCK": "/s"}
    assert mpirun_variables(given) == {"PATH": "/bin", "SSH_AUTH_SOCK": "/s"}


@pytest.fixture
def dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """dry_run(ssh, changed, *arguments): the exit code and what is printed, with two hosts and mpirun."""

    def start(ssh: dict[str, Any], changed: dict[str, Any], *arguments: str) -> tuple[int, str]:
        hosts = [{"name": "h1", **changed}, {"name": "h2"}]
        (tmp_path / "hosts.json").write_text(json.dumps({"schema": "levelfield.hosts/1", "hosts": hosts}))
        site = {"schema": "levelfield.site/1", "launcher": "ssh", "hosts": "hosts.json"}
        (tmp_path / "site.json").write_text(json.dumps({**site, "ssh": {"engine": "mpirun", **ssh}}))
        given = ["--case", "gpt3_6.7B:torch:cpu:2:1", "--site", str(tmp_path / "site.json"), "--dry-run"]
        code = main([*given, *arguments])
        printed = capsys.readouterr()
        return code, printed.out or " ".join(printed.err.split())

    return start


def test_a_dry_run_shows_each_nodes_work_and_one_mpirun(dry_run: Callable[..., tuple[int, str]]) -> None:
    code, out = dry_run({}, {}, "--json")
    *works, mpirun = json.loads(out)[0]["request"]["submissions"]
    assert code == 0 and [work["name"] for work in works] == ["h1", "h2"] and mpirun["name"] == "mpirun"
    for rank, work in enumerate(works):
        content = json.loads(work["stdin"])
        assert content["node_rank"] == rank and work["argv"][-1].endswith("/mpi_part.py keep")
        file = f"{content['root']}/nodes/node{rank}.json"
        assert mpirun["argv"][mpirun["argv"].index(f"h{rank + 1}") + 1 :][5] == file
    assert mpirun["stdin"] is None


@pytest.mark.parametrize(
    ("ssh", "changed", "arguments", "said"),
    [
        ({}, {}, ("--env", "HF_TOKEN=abcdef"), "--env: found HF_TOKEN, which look like secrets"),
        ({}, {}, ("--runtime", "docker"), "--runtime: found docker"),
        ({}, {"port": 2222}, (), "found hosts with different 'port' or 'user'"),
        ({}, {"user": "me"}, (), "found hosts with different 'port' or 'user'"),
        ({"command": ["ssh", "a:b"]}, {}, (), "key 'ssh.command': found 'a:b'"),
    ],
)
def test_what_only_ssh_does_is_refused(
    dry_run: Callable[..., tuple[int, str]],
    ssh: dict[str, Any],
    changed: dict[str, Any],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    code, err = dry_run(ssh, changed, *arguments)
    assert code == 2 and said in err, err
    assert "abcdef" not in err


# ---- the lines to the nodes, through a stand-in for mpirun


def ended(job: MpirunJob) -> list[bytes]:
    """Read all lines to their ends and return what came on each."""
    found = [b"" for _ in job.lines]
    deadline = time.monotonic() + 20
    while not all(line.has_ended() for line in job.lines) and time.monotonic() < deadline:
        for index, line in enumerate(job.lines):
            found[index] += line.read() or b""
            line.send(b"\n")
        time.sleep(0.02)
    for line in job.lines:
        line.end()
    return found


def test_each_node_gets_its_own_lines_and_code() -> None:
    script = (
        'printf \'1 ready\\n0 ready\\n0 frame {"a":1}\\n1 frame {"b":\'; printf \'2}\\nhello\\n7 frame {"c":3}\\n\'; '
        "printf '0 ended 0\\n1 said \"why\"\\n1 ended 5\\n'"
    )
    job = MpirunJob(["sh", "-c", script], ["h1", "h2"])
    assert ended(job) == [b'{"a":1}\n', b'{"b":2}\n']
    assert [line.code for line in job.lines] == [0, 5] and job.lines[1].complaint == "why\n"
    assert job.said.startswith("hello")


def test_the_end_of_mpirun_is_the_end_of_each_node_that_has_none() -> None:
    script = "printf '0 ready\\n1 ready\\n0 ended 0\\n'; printf -- '-----------\\nPRTE has lost\\n\\nh2\\n' >&2; exit 9"
    job = MpirunJob(["sh", "-c", script], ["h1", "h2"])
    ended(job)
    assert [line.code for line in job.lines] == [0, 9]
    assert job.lines[1].complaint == "mpirun: PRTE has lost h2" and job.lines[0].complaint == ""


def test_no_sign_is_sent_before_all_parts_are_there() -> None:
    """A signal that comes before a part has its handler would end it, and mpirun with it."""
    early = MpirunJob(["sh", "-c", "echo 0 ready; exec sleep 30"], ["a", "b"])
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        early.lines[0].read()
        early.lines[0].send(b"\n")
    assert early.code() is None and early.lines[0].is_ready and not early.lines[1].is_ready
    for line in early.lines:
        line.close_input()  # not all are there, so mpirun itself is ended
    ended(early)
    assert early.code() == -signal.SIGTERM


def test_a_line_without_an_end_takes_no_memory() -> None:
    job = MpirunJob([sys.executable, "-c", "import sys; sys.stdout.write('0 frame ' + 'x' * 5_000_000)"], ["a"])
    assert ended(job) == [b""] and len(job._rest) < 300_000


def test_an_error_in_a_box_becomes_one_line() -> None:
    assert (
        one_line("-" * 70 + "\nIt is\n\n  lost \x1b[31m.\n[a:1] plm:ssh: Warning: setpgid(1,1) failed\n")
        == "It is lost [31m."
    )


# ---- the node's side


def test_a_part_starts_with_the_first_sign_and_ends_with_its_code(tmp_path: Path) -> None:
    (tmp_path / "node1.json").write_text('{"node_rank": 1}\n')  # the agent refuses it
    part = subprocess.Popen(
        [sys.executable, mpi_part.__file__, "run", str(tmp_path / "node1.json")], stdout=subprocess.PIPE, text=True
    )
    assert part.stdout is not None and part.stdout.readline() == "1 ready\n"
    part.send_signal(signal.SIGUSR2)
    said, _ = part.communicate(timeout=30)
    assert said.splitlines()[-1] == "1 ended 2" and "1 said \"levelfield: -: key 'schema'" in said, said
    assert part.returncode == 0, "mpirun would end all other nodes"


def test_a_part_that_is_ended_before_its_first_sign_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "node0.json").write_text('{"node_rank": 0}\n')
    argv = [sys.executable, mpi_part.__file__, "run", str(tmp_path / "node0.json")]
    part = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert part.stdout is not None and part.stdout.readline() == "0 ready\n"
    part.send_signal(signal.SIGUSR1)
    assert part.communicate(timeout=30)[0] == "" and part.returncode == 0


def test_the_work_is_kept_as_it_came_and_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    def kept(root: Path) -> subprocess.CompletedProcess[bytes]:
        line = json.dumps({"root": str(root), "node_rank": 3, "text": "\u00e4"}).encode() + b"\n"
        return subprocess.run([sys.executable, mpi_part.__file__, "keep"], input=line, capture_output=True)

    assert kept(tmp_path / "run").returncode == 0
    assert json.loads((tmp_path / "run/nodes/node3.json").read_bytes())["text"] == "\u00e4"
    (tmp_path / "file").write_text("")
    done = kept(tmp_path / "file")
    assert done.returncode == 1 and str(tmp_path / "file").encode() in done.stderr and b"Traceback" not in done.stderr


def test_a_rank_gets_the_variables_that_ssh_alone_gives() -> None:
    libraries = "/opt/ompi/lib"
    given = {"OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1", "PRTE_LAUNCHED": "1", "OPAL_PREFIX": "/opt", "A": "b"}
    given |= {"OMPI_LIBDIR_LOC": libraries, "LD_LIBRARY_PATH": f"{libraries}:{libraries}:", "PWD": "/elsewhere"}
    assert mpi_part.environment_of(given) == {"A": "b", "PWD": str(Path.home())}
    given["LD_LIBRARY_PATH"] = f"{libraries}:/mine:"
    assert mpi_part.environment_of(given)["LD_LIBRARY_PATH"] == "/mine"

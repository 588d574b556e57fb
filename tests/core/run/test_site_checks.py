"""`site check` against a simulated cluster and stand-ins for ssh and Slurm, with planted faults."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.errors import UsageError
from levelfield.run import launchers
from levelfield.run.launchers import LAUNCHERS, site_findings
from levelfield.run.launchers.node_content import wheels_archive
from simulated_cluster import SimulatedCluster, served
from stand_ins import stand_in

NAMESPACE = "/api/v1/namespaces/benchmarks"
CLAIM = f"{NAMESPACE}/persistentvolumeclaims/runs"


def checked(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[dict[str, str]]:
    assert main(["site", "check", *arguments, "--json"]) == code, capsys.readouterr()
    content = json.loads(capsys.readouterr().out)
    findings: list[dict[str, str]] = content["findings"]
    assert content["missing"] == sum(finding["word"] == "missing" for finding in findings)
    return findings


def of(findings: list[dict[str, str]], subject: str) -> tuple[str, str]:
    """The words and texts about one subject."""
    about = [item for item in findings if item["subject"] == subject]
    return ",".join(item["word"] for item in about), " | ".join(item["says"] for item in about)


def site_file(folder: Path, **content: Any) -> str:
    path = folder / "site.json"
    path.write_text(json.dumps({"schema": "levelfield.site/1", **content}))
    return str(path)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCluster]:
    simulated = SimulatedCluster(lambda cluster: None)
    bound = {"status": {"phase": "Bound"}, "spec": {"accessModes": ["ReadWriteMany"]}}
    machines = [{"status": {"allocatable": {"nvidia.com/gpu": "8"}}}, {"status": {"allocatable": {"cpu": "4"}}}]
    queue = "/apis/kueue.x-k8s.io/v1beta1/namespaces/benchmarks/localqueues/gpus"
    simulated.objects = {NAMESPACE: {}, CLAIM: bound, "/api/v1/nodes": {"items": machines}, queue: {}}
    with served(simulated, tmp_path) as config:
        monkeypatch.setenv("KUBECONFIG", str(config))
        yield simulated


def whole(folder: Path, **changed: Any) -> str:
    (folder / "runs").mkdir(exist_ok=True)
    settings = {"namespace": "benchmarks", "image": "example.org/image:1", "queue": "gpus", "devices": "nvidia.com/gpu"}
    claim = {"claim": "runs", "claim_folder": str(folder / "runs")}
    return site_file(folder, launcher="kubernetes", kubernetes={**settings, **claim, **changed})


def test_a_whole_cluster_lacks_nothing(
    cluster: SimulatedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = checked(capsys, "--site", whole(tmp_path))
    assert {finding["word"] for finding in findings} == {"ok"} and len(findings) == 8
    word, says = of(findings, "devices")
    assert word == "ok" and "nvidia.com/gpu: 8" in says and re.findall(r"\d+", says) == ["1", "2", "8"]
    assert {method for method, path, _ in cluster.requests if not path.endswith("reviews")} == {"GET"}
    subresources = {body["spec"]["resourceAttributes"]["subresource"] for _, _, body in cluster.requests if body}
    assert subresources == {"", "log"}


def test_each_planted_lack_is_named_with_what_to_do(
    cluster: SimulatedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.objects["/version"] = {"gitVersion": "v1.25.9+k3s1"}
    cluster.reviews["create secrets"] = False
    cluster.objects[CLAIM]["spec"]["accessModes"] = ["ReadWriteOnce"]
    cluster.objects["/api/v1/nodes"] = {"items": []}
    site = whole(tmp_path, queue="tpus", claim_folder="/nowhere", image=None)
    findings = checked(capsys, "--site", site, code=4)
    for subject, facts in (
        ("rights", ("create secrets", "benchmarks")),
        ("claim", ("runs has", "ReadWriteOnce")),
        ("cluster", ("v1.25.9+k3s1,", "1.26")),
        ("queue", ("tpus",)),
        ("claim folder", ("/nowhere",)),
        ("image", ()),
        ("devices", ("nvidia.com/gpu",)),
    ):
        word, says = of(findings, subject)
        assert word == "missing" and all(fact in says for fact in facts), (subject, says)
    assert all(finding["do"] for finding in findings if finding["word"] == "missing")


def test_what_this_user_may_not_see_is_unknown(
    cluster: SimulatedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.fail("GET", "/nodes", 403, "nodes is forbidden")
    cluster.fail("GET", "/namespaces/benchmarks", 403, "namespaces is forbidden")
    cluster.fail("POST", "/selfsubjectaccessreviews", 500, "etcdserver: request timed out")
    findings = checked(capsys, "--site", whole(tmp_path))
    assert {of(findings, subject)[0] for subject in ("devices", "namespace", "rights")} == {"unknown"}
    assert "etcdserver: request timed out (500)" in of(findings, "rights")[1]


@pytest.mark.parametrize(
    ("version", "word"), [("v0.0.0-master+$Format:%H$", "unknown"), ("", "unknown"), ("v1.31.2", "ok")]
)
def test_a_version_that_cannot_be_read_is_unknown(
    cluster: SimulatedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str, word: str
) -> None:
    cluster.objects["/version"] = {"gitVersion": version}
    findings = checked(capsys, "--site", whole(tmp_path))
    assert of(findings, "cluster")[0] == word
    assert any("1.26 or" in finding["do"] for finding in findings) is (word == "unknown")


def test_a_cluster_that_does_not_answer_ends_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(SimulatedCluster(lambda cluster: None), tmp_path) as config:
        monkeypatch.setenv("KUBECONFIG", str(config))
    (only,) = checked(capsys, "--site", whole(tmp_path), code=4)
    assert only["subject"] == "cluster" and "no answer" in only["says"]
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    (only,) = checked(capsys, "--site", whole(tmp_path, context="other"), code=4)
    assert only["subject"] == "client" and "context other" in only["says"]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options for hosts: one answers, one greets, one is unknown, one answers otherwise. This program is their ssh."""
    ssh = stand_in(
        tmp_path / "ssh",
        "for last; do host=$previous; previous=$last; done\ncase $host in\n"
        'good) exec sh -c "$last";;\n'
        'loud) echo "a greeting of the shell"; exec sh -c "$last";;\n'
        'new) printf "Offending ECDSA key in /etc/known_hosts:3\\nHost key verification failed.\\n" >&2; exit 255;;\n'
        '*) echo "{}";;\nesac',
    )
    entries = [{"name": name} for name in ("good", "loud", "new", "other")]
    (tmp_path / "hosts.json").write_text(json.dumps({"schema": "levelfield.hosts/1", "hosts": entries}))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    site = site_file(tmp_path, ssh={"command": [str(ssh)], "folder": f"{tmp_path}/on-the-node", "config": "/etc/own"})
    return ["--launcher", "ssh", "--hosts", str(tmp_path / "hosts.json"), "--site", site]


def test_each_host_is_tried_and_named(
    hosts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(site_findings, "ENVIRONMENT_BYTES", 1)
    monkeypatch.setattr(site_findings, "MIN_FREE_BYTES", 1)
    findings = checked(capsys, *hosts, code=4)
    words, message = of(findings, "good")
    assert words == "ok,ok,ok,ok" and "reached, Python" in message and "on-the-node can" in message
    words, message = of(findings, "loud")
    assert words == "missing" and "'a greeting" in message
    assert of(findings, "new")[0] == "missing" and "host key" in of(findings, "new")[1]
    assert of(findings, "other")[0] == "missing"
    assert of(findings, "new")[1].endswith(" /etc/known_hosts:3")
    (new,) = [finding for finding in findings if finding["subject"] == "new"]
    assert new["do"].split("`")[1].split() == [f"{tmp_path}/ssh", "-F", "/etc/own", "new"]
    assert not (tmp_path / "on-the-node").exists()


@pytest.mark.parametrize(
    ("changed", "word", "words"),
    [
        ({}, "ok", "it has the interface eth0"),
        ({"interfaces": ["eth1", "lo"]}, "missing", "found no interface eth0; it has eth1, lo"),
        ({"interfaces": []}, "missing", "found no interface eth0"),
        ({"interfaces": None}, "unknown", "whether it has the interface eth0 cannot be seen"),
        ({"is_too_old": True, "python": "3.6.8"}, "missing", "Python 3.6.8, expected 3.8 or newer"),
        ({"has_venv": False}, "missing", "its Python makes no environments"),
        ({"is_writable": False, "write_error": "/x: Read-only file system"}, "missing", "Read-only file system"),
        ({"mode_owner_user": [0o040777, 7, 7]}, "missing", "found mode 0777, with which others can write"),
        ({"mode_owner_user": [-1, 2**99, "x"]}, "ok", "can be written, 1024 GiB free"),
        ({"free_bytes": 2**29}, "missing", "0.5 GiB free, expected at least 1"),
        ({"free_bytes": 2**32}, "unknown", "can be written, 4.0 GiB free; an environment"),
        ({"free_bytes": float("nan")}, "unknown", "its free space is not known"),
        ({"time": 3600.0}, "unknown", "s off; runs do not need it"),
        ({"time": float("nan")}, "unknown", "s off; runs do not need it"),
        ({"index": None}, "unknown", "it has no pip"),
        ({"index": "https://me:pass@index.example/simple"}, "ok", "packages come from (masked)"),
    ],
)
def test_planted_answers_of_a_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], word: str, words: str
) -> None:
    answer = {
        "python": "3.11.2",
        "is_too_old": False,
        "has_venv": True,
        "is_writable": True,
        "free_bytes": 2**40,
        "index": "pip's default",
    }
    answer |= {"interfaces": ["eth0", "lo"]}
    body = json.dumps({**answer, **changed})[:-1].replace("'", "'\\''")
    tail = "" if "time" in changed else ', "time": %s'
    ssh = stand_in(tmp_path / "ssh", f"printf '%s' '{body}'\nprintf '{tail}}}\\n' $(date +%s)")
    (tmp_path / "hosts.json").write_text('{"schema": "levelfield.hosts/1", "hosts": [{"name": "a"}]}')
    # the hosts file is beside the site's file
    site = site_file(tmp_path, launcher="ssh", ssh={"command": [str(ssh)]}, interface="eth0", hosts="hosts.json")
    findings = checked(capsys, "--site", site, code=4 if word == "missing" else 0)
    assert [finding["word"] for finding in findings if words in finding["says"]] == [word], findings


def test_a_folder_of_wheels_without_any_is_named(
    hosts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts.json").write_text('{"schema": "levelfield.hosts/1", "hosts": [{"name": "new"}]}')
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("LEVELFIELD_WHEELS", str(folder))
    word, message = of(checked(capsys, *hosts, code=4), "wheels")
    assert word == "missing" and f"LEVELFIELD_WHEELS={folder}: " in message
    with pytest.raises(UsageError, match=f"LEVELFIELD_WHEELS={folder}: .*`environment wheels.*{folder}`"):
        wheels_archive(folder)  # as a run brings them
    (folder / "a-1.whl").write_bytes(b"wheel")
    word, message = of(checked(capsys, *hosts, code=4), "wheels")
    assert word == "ok" and message.startswith("1 file(s) ") and f" {folder} " in message


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with stand-ins for Slurm's commands, which answer as those of a whole cluster."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("squeue", "scancel", "sacct"):
        stand_in(folder / name, "exit 0")
    stand_in(folder / "scontrol", 'echo "Slurmctld(primary) at head is UP"')
    stand_in(folder / "sbatch", 'echo "sbatch: Job 7 to start at noon on node1" >&2')
    stand_in(folder / "srun", 'while [ "$1" != bash ]; do shift; done; exec "$@"')
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_a_whole_slurm_lacks_nothing(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    findings = checked(capsys, "--site", site_file(tmp_path, launcher="slurm", shared=str(shared)))
    assert [finding["word"] for finding in findings] == ["ok"] * 6, findings
    assert of(findings, "shared")[1].endswith(f"sees {shared}") and list(shared.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "body", "subject", "word", "words"),
    [
        ("scontrol", 'echo "Slurmctld(primary) at head is DOWN"', "controller", "missing", "is DOWN"),
        ("sbatch", 'echo "sbatch: error: invalid partition specified: gpus" >&2; exit 1', "job", "missing", "gpus"),
        ("sacct", "exit 1", "accounting", "unknown", "no accounting"),
        ("srun", 'echo node1; echo True; echo "no such file"', "shared", "missing", "node1 does not see"),
        ("srun", "echo node1; echo; cat $(ls -d {shared}/.lev*)", "node", "missing", "no python3 of 3.8"),
        ("srun", 'echo "srun: error: Unable to allocate" >&2; exit 1', "node", "unknown", "Unable to allocate"),
    ],
)
def test_planted_answers_of_slurm(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    name: str, body: str, subject: str, word: str, words: str,
) -> None:  # fmt: skip
    (tmp_path / "shared").mkdir()
    stand_in(slurm / name, body.replace("{shared}", str(tmp_path / "shared")))
    site = site_file(tmp_path, launcher="slurm", shared=str(tmp_path / "shared"), slurm={"partition": "gpus"})
    findings = checked(capsys, "--site", site, code=4 if word == "missing" else 0)
    assert of(findings, subject)[0] == word and words in of(findings, subject)[1], findings


def test_a_mistyped_folder_is_not_made_and_options_of_the_platform_are_named(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"launcher": "slurm", "shared": f"{tmp_path}/sharde", "slurm": {"options": ["--array=1-2", "--mem=1G"]}}
    findings = checked(capsys, "--site", site_file(tmp_path, **settings), code=4)
    for subject, name in (("shared", f"{tmp_path}/sharde"), ("options", "--array=1-2")):
        word, message = of(findings, subject)
        assert word == "missing" and message.startswith(f"{name} ")
    assert not (tmp_path / "sharde").exists()
    stand_in(slurm / "sbatch", 'echo "sbatch: error: Memory specification can not be satisfied" >&2; exit 1')
    for options, message in ((["--mem=9T"], "correct slurm.options in"), ([], "name what it asks for")):
        site = site_file(tmp_path, launcher="slurm", slurm={"options": options})
        (job,) = [finding for finding in checked(capsys, "--site", site, code=4) if finding["subject"] == "job"]
        assert job["do"].startswith(message)


def test_a_folder_that_refuses_files_and_a_probe_without_an_answer_are_named(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = checked(capsys, "--site", site_file(tmp_path, launcher="slurm", shared="/proc"), code=4)
    assert of(findings, "shared")[0] == "missing" and "/proc cannot be written here: " in of(findings, "shared")[1]
    stand_in(slurm / "srun", f"echo node1; echo True; cat {tmp_path}/.levelfield-check-*")
    for checks in ({"interface": "eth0"}, {"slurm": {"local_folder": "/scratch"}}):
        site = site_file(tmp_path, launcher="slurm", shared=str(tmp_path), **checks)
        word, message = of(checked(capsys, "--site", site), "node")
        assert word == "ok,unknown" and message.endswith("node1: python3 told nothing of interface and local folder")


@pytest.mark.parametrize(
    ("limits", "arguments", "word"),
    [
        ({"a": "1-12:00:00"}, {"partition": "a", "minutes": 2160}, "ok"),
        ({"a": "1-12:00:00"}, {"partition": "a", "minutes": 2161}, "missing"),
        ({"a": "00:01:00", "b": "UNLIMITED"}, {"partition": "a,b", "minutes": 90}, "ok"),
        ({"a": "00:01:00", "b": "UNLIMITED"}, {"minutes": 90}, "missing"),  # the first is the default
        ({"a": "00:01:00"}, {"minutes": 90, "qos": "long"}, "unknown"),
        ({"a": "00:01:00"}, {"partition": "other", "minutes": 90}, ""),
        ({"a": "00:01:00"}, {}, ""),
    ],
)
def test_minutes_are_compared_with_the_limit_of_the_partition(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], limits: dict[str, str],
    arguments: dict[str, Any], word: str,
) -> None:  # fmt: skip
    lines = [f"PartitionName={name} Default={'NO' if at else 'YES'} MaxTime={limit}"
             for at, (name, limit) in enumerate(limits.items())]  # fmt: skip
    printed = "\\n".join(lines)
    stand_in(slurm / "scontrol", f'case "$*" in ping) echo "at head is UP";; *) printf "{printed}\\n";; esac')
    findings = checked(capsys, "--site", site_file(tmp_path, launcher="slurm", shared=str(tmp_path), slurm=arguments),
                    code=4 if word == "missing" else 0)  # fmt: skip
    assert of(findings, "minutes")[0] == word


def test_the_lines_fit_the_terminal_and_obey_nothing(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(slurm / "scontrol", "printf 'Slurmctld is \\033[31mDOWN and says a very long sentence about it all here'")
    assert main(["site", "check", "--launcher", "slurm", "--site", site_file(tmp_path)]) == 4
    text = capsys.readouterr().out
    assert "\x1b" not in text and text.endswith("1 missing\n") and max(map(len, text.splitlines())) <= 80


def test_a_site_without_a_launcher_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "check", "--site", site_file(tmp_path)]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "launcher none," in message and "ssh, slurm" in message and "or kubernetes" in message


def test_the_table_names_parts_that_each_launcher_has() -> None:
    assert {name: launchers._import_part(parts.launcher_class).name for name, parts in LAUNCHERS.items()} == {
        n: n for n in LAUNCHERS
    }
    parts = [
        part for entry in LAUNCHERS.values() for part in (entry.findings_function, entry.probed_nodes_function) if part
    ]
    assert parts and all(callable(launchers._import_part(part)) for part in parts)

"""The parts of the launcher ssh that need no host: archive, commands, the preparation as a process, the words."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import NodesNotReady, NodeWork, ProcessWork, Request, Submission
from levelfield.node import node_setup
from levelfield.node.code_digest import code_digest
from levelfield.run.launchers.node_content import code_archive, wheels_archive
from levelfield.run.launchers.ssh import ssh_runtime
from levelfield.run.launchers.ssh.connection import Connection, explain_failure, wait_for_output
from levelfield.run.launchers.ssh.remote_node import LOADER_SCRIPT, ssh_argv
from levelfield.run.launchers.ssh.ssh_launcher import SshLauncher
from levelfield.run.launchers.ssh.ssh_setup import prepare_nodes
from levelfield.specs.plan import Plan
from levelfield.specs.site import Host, LaunchPlan, Site
from levelfield.testing.rehearsal import DRILL_FOLDER
from plans import make_plan
from stand_ins import stand_in
from starts.planted_wheels import wheel

ROOT = Path(__file__).resolve().parents[3]


# ---- the archive of the code


@pytest.mark.parametrize("name", ["torch", "megatron", "paddle"])
def test_the_unpacked_code_has_the_plans_digest(name: str, tmp_path: Path) -> None:
    content = code_archive(ROOT / "models" / name)
    (tmp_path / "code.tar").write_bytes(content)
    node_setup.unpack(tmp_path / "code.tar", tmp_path / "code")
    done = subprocess.run(
        [sys.executable, "-B", "-c", _DIGEST, str(tmp_path / "code"), name], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == code_digest(ROOT / "models" / name)
    suffixes = {path.suffix for path in (tmp_path / "code").rglob("*") if path.is_file()}
    assert suffixes <= {".py", ".yaml", ".toml", ".pyc"}


_DIGEST = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1] + '/platform')
from levelfield.node.code_digest import code_digest
print(code_digest(Path(sys.argv[1], 'models', sys.argv[2])))
"""


def test_the_same_code_is_the_same_archive_whatever_its_times(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(ROOT / "models" / "torch", tmp_path / "models" / "torch"))
    before = code_archive(copy)
    for path in copy.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    assert code_archive(copy) == before
    (copy / "model.py").write_text("# another")
    assert code_archive(copy) != before


def test_the_wheels_of_a_folder_are_archived_and_nothing_else(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with tarfile.open(fileobj=io.BytesIO(bytes(wheels_archive(tmp_path)))) as archive_file:
        assert archive_file.getnames() == [path.name]
        member = archive_file.extractfile(path.name)
        assert member is not None and member.read() == path.read_bytes()


def test_a_wheel_of_a_long_name_is_archived_and_the_archive_is_the_same_twice(tmp_path: Path) -> None:
    name = f"charset_normalizer-3.5.3-{'manylinux_' * 10}.whl"
    assert len(name) > 100  # which older formats of archives cannot have
    (tmp_path / name).write_text("content")
    before = bytes(wheels_archive(tmp_path))
    os.utime(tmp_path / name, (1, 1))
    assert bytes(wheels_archive(tmp_path)) == before
    (tmp_path / "wheels.tar").write_bytes(before)
    node_setup.unpack(tmp_path / "wheels.tar", tmp_path / "node")
    assert (tmp_path / "node" / name).read_text() == "content"


# ---- the commands


def test_host_keys_are_checked_and_nothing_is_asked_whatever_the_site_says() -> None:
    site = Site.model_validate({"ssh": {"config": "/etc/mine", "connect_seconds": 7}})
    argv = ssh_argv(LaunchPlan(launcher="ssh", site=site), Host(name="h1", user="me", port=2222), ["python3", "a b"])
    options = [argv[i + 1] for i, word in enumerate(argv) if word == "-o"]
    fixed = {"StrictHostKeyChecking=yes", "UpdateHostKeys=no", "BatchMode=yes", "ControlPath=none"}
    assert {*fixed, "ConnectTimeout=7"} <= {*options}
    assert not [word for word in options if "KnownHosts" in word]
    assert argv[:3] == ("ssh", "-F", "/etc/mine") and argv[-6:-1] == ("-p", "2222", "-l", "me", "h1")
    assert shlex.split(argv[-1]) == ["exec", "python3", "a b"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo welcome to h1", "its container engine printed 'welcome to h1\\n', expected an image's id"),
        ("head -c 5000000 /dev/zero", "its container engine printed more than 4194304 bytes"),
        (
            "echo no such file >&2; exit 127",
            "answer `docker`: no such file; name its command as ssh.container",
        ),
        ("sleep 60", "its container engine gave no answer in 2 s"),
    ],
)
def test_an_engine_of_a_node_without_a_usable_answer_is_named(
    script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_by(script, tmp_path)
    monkeypatch.setattr(ssh_runtime, "node_image_name", lambda plan: "levelfield:x")
    monkeypatch.setattr(ssh_runtime, "INSPECT_SECONDS", 2.0)
    with pytest.raises(NodesNotReady, match="h1") as error:
        ssh_runtime.NodeEngine(plan, 0).image_id()
    assert words in str(error.value) and error.value.nodes[0].node_rank == 0


class PlantedImage:
    """An image of some MiB, as the client of this machine's engine saves it."""

    attrs: ClassVar[dict[str, int]] = {"Size": 2**23}

    def save(self, named: str) -> Iterator[bytes]:
        yield from (bytes([k]) * 2**20 for k in range(8))


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ("cat > {folder}/image", None),
        ("exec sleep 600", "its container engine took nothing of the image in 2 s"),
        ("cat > {folder}/image; exec sleep 600", "its container engine took nothing of the image in 2 s"),
        ("echo no space left >&2; exit 1", "found image None, expected sha256:x after it was brought: no space left"),
    ],
)
def test_an_image_is_brought_whole_and_each_wait_for_an_engine_has_a_limit(
    load: str, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect = f"if [ -s {tmp_path}/image ]; then echo '\"sha256:x\"'; else echo no such image >&2; exit 1; fi"
    script = f"for last; do :; done; case $last in *inspect*) {inspect}; exit;; esac\n{load.format(folder=tmp_path)}"
    monkeypatch.setattr(ssh_runtime, "node_image_name", lambda plan: "levelfield:x")
    monkeypatch.setattr(ssh_runtime, "LOAD_SECONDS", 2.0)
    engine = ssh_runtime.NodeEngine(plan_by(script, tmp_path), 0)
    client: Any = SimpleNamespace(images=SimpleNamespace(get=lambda name: PlantedImage()))
    if words is None:
        engine.load_image(client, "sha256:x", lambda sentence: None)
        assert (tmp_path / "image").read_bytes() == b"".join(PlantedImage().save("x"))
        return
    with pytest.raises(NodesNotReady, match="h1") as error:
        engine.load_image(client, "sha256:x", lambda sentence: None)
    assert words in str(error.value)


def plan_by(ssh: str, folder: Path) -> Plan:
    """Return the plan of a run on h1, where this script is in place of ssh."""
    site = Site.model_validate({"ssh": {"command": [str(stand_in(folder / "ssh", ssh))], "container": "docker"}})
    plan = make_plan(
        Registry([DRILL_FOLDER, DRILL_FOLDER / "hosts"]), "drill:drill:drill:1:4", scale="smoke", may_lack_hardware=True
    )
    return plan.model_copy(update={"launch": LaunchPlan(launcher="ssh", site=site, hosts=(Host(name="h1"),))})


def test_modules_are_loaded_by_a_login_shell() -> None:
    site = Site.model_validate({"modules": ["cuda/12", "gcc"]})
    argv = ssh_argv(LaunchPlan(launcher="ssh", site=site), Host(name="h1"), ["python3", "x"])
    shell, options, script = shlex.split(argv[-1])
    assert (shell, options) == ("bash", "-lc")
    modules, command = script.split(" && ")
    assert modules.split() == ["module", "load", "cuda/12", "gcc"] and command.split() == ["exec", "python3", "x"]


@pytest.mark.parametrize(
    ("complaint", "words", "code"),
    [
        ("Host key verification failed.", "its host key is not known", 255),
        (
            "No ED25519 host key is known for h and you have requested strict checking.",
            "its host key is not known",
            255,
        ),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", "has changed", 255),
        ("root@h: Permission denied (publickey).", "permission denied", 255),
        ("ssh: Could not resolve hostname h: Name or service not known", "its name does not resolve", 255),
        ("ssh: connect to host h port 22: Connection refused", "it cannot be reached", 255),
        ("ssh: connect to host h port 22: No route to host", "it cannot be reached", 255),
        ("Timeout, server h not responding.", "the connection ended with exit code 255: Timeout, server h", 255),
        ("", "h1: the connection ended with exit code 255", 255),
        # a shell's words count where ssh itself did not fail
        ("sh: 1: exec: python3: not found", "its Python cannot be started", 127),
        ("levelfield: found Python 2.7", "its Python is too old: found 2.7, expected 3.8 or newer", 1),
        ("sh: go: No such file or directory\nConnection to h closed by remote host.", "code 255: Connection to h", 255),
    ],
)
def test_each_failure_of_ssh_has_its_meaning(complaint: str, words: str, code: int) -> None:
    sentence = explain_failure("h1", code, complaint)
    assert sentence.startswith("h1: ") and words in sentence


def test_what_a_host_prints_reaches_no_terminal_as_it_is() -> None:
    sentence = explain_failure("h1", 1, "fine\n\x1b[31mred\x07 text\u202e\n")
    assert sentence.endswith("[31mred text") and sentence.isprintable()


# ---- the preparation of a node, as the process that ssh starts


class Setup:
    """The program of node_setup, started by the loader as a host's shell does."""

    def __init__(self, header: Mapping[str, Any], archives: Mapping[str, bytes]) -> None:
        self.answers: list[dict[str, Any]] = []
        program = Path(node_setup.__file__).read_bytes()
        process = subprocess.Popen([sys.executable, "-c", LOADER_SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin and process.stdout
        process.stdin.write(b"%d\n%s%s\n" % (len(program), program, json.dumps(header).encode()))
        process.stdin.flush()
        for line in process.stdout:
            self.answers.append(json.loads(line))
            if kind := self.answers[-1].get("need"):
                process.stdin.write(archives[kind])
                process.stdin.flush()
        self.code = process.wait(60)
        process.stdin.close()
        process.stdout.close()

    @property
    def error(self) -> str:
        assert self.code == 1
        return str(self.answers[-1]["error"])

    @property
    def needed(self) -> list[str]:
        return [answer["need"] for answer in self.answers if "need" in answer]


def archive(link: str | None = None, **files: str) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive_file:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive_file.addfile(member, io.BytesIO(text.encode()))
        if link:
            member = tarfile.TarInfo("link")
            member.type, member.linkname = tarfile.SYMTYPE, link
            archive_file.addfile(member)
    return output.getvalue()


def announced(kind: str, content: bytes, **changed: Any) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    return {"kind": kind, "name": "abc", "bytes": len(content), "sha256": digest, **changed}


def header(folder: Path, code: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    settings = {"name": None, "python": sys.executable}
    return {"folder": str(folder), "code": code, "wheels": None, "environment": settings, **more}


CODE = archive(**{"platform/a.py": "A=1\n", "models/x/train.py": "B=2\n"})


def test_code_is_brought_once_and_in_one_step(tmp_path: Path) -> None:
    sent = header(tmp_path / "node", announced("code", CODE))
    first = Setup(sent, {"code": CODE})
    assert first.needed == ["code"] and first.code == 0
    assert first.answers[-1]["ready"]["environment"] == sys.version.split()[0]
    assert (tmp_path / "node/code/abc/models/x/train.py").read_text() == "B=2\n"
    assert (tmp_path / "node").stat().st_mode & 0o777 == 0o700
    assert Setup(sent, {}).needed == []


def test_the_rest_of_a_killed_attempt_is_replaced(tmp_path: Path) -> None:
    part = tmp_path / "node/code/abc.part"
    part.mkdir(parents=True)
    (tmp_path / "node").chmod(0o700)
    (part / "old").write_text("x")
    assert Setup(header(tmp_path / "node", announced("code", CODE)), {"code": CODE}).code == 0
    assert not (tmp_path / "node/code/abc/old").exists() and not part.exists()


@pytest.mark.parametrize(
    ("content", "changed", "words"),
    [
        (CODE, {"sha256": "0" * 64}, "expected 000000000000"),
        (archive(**{"../outside": "x"}), {}, "found the member '../outside'"),
        (archive(**{"/tmp/levelfield-outside": "x"}), {}, "expected plain files below it"),
        (archive(**{"a/../../outside": "x"}), {}, "expected plain files below it"),
        (archive(link="/etc/passwd"), {}, "found the member 'link'"),
    ],
)
def test_a_damaged_or_hostile_archive_is_refused(
    tmp_path: Path, content: bytes, changed: dict[str, Any], words: str
) -> None:
    setup = Setup(header(tmp_path / "node", announced("code", content, **changed)), {"code": content})
    assert words in setup.error and not (tmp_path / "node/code/abc").exists()
    assert not (tmp_path / "node/outside").exists() and not (tmp_path / "outside").exists()


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").write_text("x")
    for name, message in {
        "link": "found a link",
        "open": "found mode 0777, with which others can write, expected 0700",
        "file": "File exists",
    }.items():
        assert message in Setup(header(tmp_path / name, announced("code", CODE)), {}).error, name
    assert list((tmp_path / "victim").iterdir()) == []


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    settings = {"name": None, "python": "/nothing/python"}
    setup = Setup(header(tmp_path / "node", announced("code", CODE), environment=settings), {"code": CODE})
    assert "/nothing/python" in setup.error and setup.error.endswith(f": {os.strerror(errno.ENOENT)}")


def test_a_connection_that_ends_within_an_archive_leaves_none(tmp_path: Path) -> None:
    short = CODE[: len(CODE) // 2]
    sent = header(tmp_path / "node", announced("code", CODE))
    program = Path(node_setup.__file__).read_bytes()
    text = b"%d\n%s%s\n%s" % (len(program), program, json.dumps(sent).encode(), short)
    done = subprocess.run([sys.executable, "-c", LOADER_SCRIPT], input=text, capture_output=True)
    assert done.returncode == 1 and b"before the end of the code" in done.stdout
    assert [path.suffix for path in (tmp_path / "node/code").iterdir()] == [".lock"]


@pytest.mark.thorough
def test_an_environment_is_made_once_from_the_brought_wheels(tmp_path: Path) -> None:
    content = bytes(wheels_archive(wheel(tmp_path).parent))
    environment = {"name": "env-1", "digest": "sha256:x", "requirements": ["acme==1.0"]}
    sent = header(
        tmp_path / "node", announced("code", CODE), wheels=announced("wheels", content), environment=environment
    )
    first = Setup(sent, {"code": CODE, "wheels": content})
    assert first.needed == ["code", "wheels"] and first.code == 0, first.answers
    python = tmp_path / "node/environments/env-1/bin/python"
    printed = subprocess.check_output([python, "-c", "import acme; print(acme.VALUE)"], text=True)
    assert printed == "42\n"
    assert Setup(sent, {}).needed == []
    lacking = {**environment, "name": "env-2", "requirements": ["acme==2.0"]}
    failed = Setup({**sent, "environment": lacking}, {"wheels": content})
    assert "for acme==2.0" in failed.error
    assert not (tmp_path / "node/environments/env-2/levelfield-environment.json").exists()


def test_a_silent_installer_is_reported_while_it_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_setup, "REPORT_SECONDS", 0.1)
    monkeypatch.setattr(node_setup, "_running", [])
    node_setup._run_installer([sys.executable, "-c", "import time; time.sleep(0.5)"], {})
    sentences = [json.loads(line)["say"] for line in capsys.readouterr().out.splitlines()]
    assert sentences and all(line.endswith("so far") and "-c" in line for line in sentences)


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_the_loader_names_an_old_python(version: str) -> None:
    old = next(iter(sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))), None)
    if old is None:
        pytest.skip("no Python older than 3.10 lies in ~/.pyenv/versions")
    done = subprocess.run([str(old), "-c", LOADER_SCRIPT], input=b"", capture_output=True)
    assert done.returncode == 1 and f"found Python {version}" in done.stderr.decode()


@pytest.mark.parametrize("answer", ["hello", "[]", "{}", '{"need": "wheels"}', '{"need": []}', '{"ready": 1}'])
def test_a_node_that_answers_something_else_is_named(tmp_path: Path, answer: str) -> None:
    with pytest.raises(NodesNotReady, match=r"^h1: "):
        prepare_nodes(plan_by(f"echo '{answer}'\nexec sleep 600", tmp_path), lambda message: None)


# ---- the process of a connection


def test_a_connection_carries_bytes_both_ways_and_its_code() -> None:
    connection = Connection("h1", ["sh", "-c", "cat; echo oops >&2; exit 9"])
    connection.send(b"x" * 300_000)
    received = b""
    while (part := connection.read()) is not None:
        received += part
        connection.flush()
        if len(received) == 300_000:
            connection.close_input()
        wait_for_output([connection], 1)
    while not connection.has_ended():
        wait_for_output([connection], 0.05)
    assert (received, connection.code, connection.complaint) == (b"x" * 300_000, 9, "oops\n")
    connection.end()


def test_a_connection_that_does_nothing_is_ended() -> None:
    connection = Connection("h1", ["sh", "-c", "trap '' TERM; sleep 600"])
    assert connection.read() == b"" and not connection.has_ended()
    connection.end()
    assert connection.code == -signal.SIGKILL


def test_an_ended_connection_says_nothing_more_however_often_it_is_ended() -> None:
    connection = Connection("h1", ["sh", "-c", "echo oops >&2; exec sleep 600"])
    while not connection.complaint:
        connection.read()
        time.sleep(0.01)
    connection.end()
    connection.end()
    assert connection.read() is None and connection.is_at_end and connection.has_ended()
    assert (connection.code, connection.complaint) == (-signal.SIGKILL, "oops\n")


# ---- a node that is given up


@pytest.mark.parametrize(
    ("printed", "words"), [("", "h1 sent nothing for"), ("hello", "h1 sent no proper frame: found b'hello'")]
)
def test_a_node_that_is_given_up_is_a_lost_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, words: str
) -> None:
    monkeypatch.setattr("levelfield.run.launchers.ssh.ssh_launcher.MIN_SILENCE_SECONDS", 0.5)
    monkeypatch.setattr("levelfield.run.launchers.ssh.ssh_launcher.FETCH_SILENCE_SECONDS", 0.5)
    argv = ("sh", "-c", f"echo {printed}; exec sleep 600" if printed else "exec sleep 600")
    sent = Submission("h1", argv, stdin=json.dumps({"root": "/nowhere"}) + "\n")
    rank = ProcessWork(0, ("train",), {}, "log")
    node = NodeWork(0, "h1", (rank,), name="h1")
    events = str(tmp_path / "events")
    outcome = SshLauncher().execute(Request("ssh", "process", (node,), events, 60, 60, 0.5, (), (sent,)), lambda: None)
    assert outcome.cause == "node-lost" and str(outcome.evidence).startswith(words)
    assert [end.word for end in outcome.nodes] == ["lost"] and outcome.ends[0].exit_code is None

"""Variables of a training: the ones that nobody may set, and secrets, which no file and no print shows."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.contracts.execution import Request
from levelfield.errors import DocumentError, UsageError
from levelfield.run.launchers.local import LocalLauncher
from levelfield.run.runtimes.docker import DockerRuntime
from levelfield.run.runtimes.process_runtime import ProcessRuntime
from levelfield.rundir.directory import write_atomically
from levelfield.specs.base import dump, parse
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.tuning import TuningChoice, TuningFile
from levelfield.specs.variables import MASK, is_secret, mask_secrets
from levelfield.specs.vendor import VendorFile
from plans import PLUGINS, make_plan

RESERVED = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "PYTHONHOME",
    "PYTHONSTARTUP", "LEVELFIELD_JOB", "LEVELFIELD_X", "CUDA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES",
    "FLAGS_selected_gpus",
)  # fmt: skip
FREE = ("OMP_NUM_THREADS", "NCCL_DEBUG", "PYTORCH_ALLOC_CONF", "RANKING", "MY_PATH", "CUDA_LAUNCH_BLOCKING", "OLD_RANK")
SECRETS = {
    "HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "x", "DB_PASSWORD": "x", "PASSWD": "x", "API_KEY": "x", "mykey": "x",
    "GOOGLE_APPLICATION_CREDENTIALS": "x", "BASIC_AUTH": "x", "MY_PASSPHRASE": "x", "DB_PASS": "x", "SSHPASS": "x",
    "db_pwd": "x", "GH_PAT": "x", "AZURE_STORAGE_CONNECTION_STRING": "x",
    "A": "hf_" + "a" * 20, "B": "ghp_" + "a" * 36, "C": "sk-" + "a" * 20, "D": "AKIA" + "A" * 16,
    "E": "https://user:word@host/x", "E2": "https://abcdef@host/x", "E3": "Server=a;User=b;Password=long",
    "SESSION_COOKIE": "x", "CARD_PIN": "1", "PINCODE": "1", "MY_LICENSE": "x", "LM_LICENCE_FILE": "x",
    "H": "machine a.b login me password long", "I": "default password long", "J": "machine a\nlogin b\npassword c",
    "F": "eyJ" + "a" * 20 + "." + "b" * 20 + ".c", "G": "-----BEGIN PRIVATE KEY-----",
}  # fmt: skip
OPEN = {
    "TOKENIZERS_PARALLELISM": "false", "NCCL_DEBUG": "INFO", "AUTHOR": "me", "URL": "https://host:443/x@y", "N": "sk-8",
    "BYPASS": "1", "XPAT": "1", "GIT": "ssh://git@host/x", "PWDS": "1",
    "PIN_MEMORY": "1", "GOMP_SPINCOUNT": "1", "SPIN": "1", "KMP_PINNED": "1", "K": "the machine has no password",
}  # fmt: skip


@pytest.mark.parametrize("name", RESERVED)
def test_a_reserved_variable_is_refused_with_its_reason(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--case", "tiny:fake:F1", "--dry-run", "--plugins", str(PLUGINS), "--python", sys.executable]
    assert main([*argv, "--env", f"{name}=1"]) == 2
    assert f"{name} cannot" in capsys.readouterr().err
    rows = [{"set": {"environment": {name: "1"}}, "why": "made for the tests"}]
    with pytest.raises(DocumentError, match=rf"t\.yaml: .*'rows\.0\.set\.environment': {name} "):
        parse(TuningFile, {"schema": "levelfield.tuning/1", "case": "tiny", "rows": rows}, "t.yaml")


@pytest.mark.parametrize("name", [name for name in RESERVED if name != "LD_LIBRARY_PATH"])
def test_nor_can_a_vendor_set_it(name: str) -> None:
    with pytest.raises(DocumentError, match=f"key 'environment': {name} cannot"):
        parse(VendorFile, vendor(environment={name: "1"}), "v.yaml")
    if "_VISIBLE_" not in name:
        with pytest.raises(DocumentError, match=f"key 'container.environment': {name} cannot"):
            parse(VendorFile, vendor(container={"environment": {name: "1"}}), "v.yaml")


def test_a_list_of_devices_goes_into_no_variable_with_another_meaning() -> None:
    further = ("HOME", "TMPDIR", "BASH_ENV", "LC_ALL", "OMP_NUM_THREADS", "https_proxy", "A B", "", "A=B")
    for name in [*further, *(name for name in RESERVED if "_VISIBLE_" not in name)]:
        with pytest.raises(DocumentError, match=rf"v\.yaml: .*'visible_devices_variable': .*{re.escape(name)}"):
            parse(VendorFile, vendor(visible_devices_variable=name), "v.yaml")
    for name in ("CUDA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "ZE_AFFINITY_MASK", "ODD_MASK"):
        assert parse(VendorFile, vendor(visible_devices_variable=name), "v.yaml").visible_devices_variable == name


def test_a_vendor_may_name_its_libraries_and_tell_its_container_the_devices() -> None:
    inside = {"LD_LIBRARY_PATH": "/opt/acme/lib", "ACME_VISIBLE_DEVICES": "{index}"}
    content = vendor(environment={"LD_LIBRARY_PATH": "/x"}, container={"environment": inside})
    file = parse(VendorFile, content, "v.yaml")
    assert file.container.environment == inside and file.environment == {"LD_LIBRARY_PATH": "/x"}


@pytest.mark.parametrize("name", FREE)
def test_other_variables_are_free(name: str) -> None:
    assert TuningChoice(environment={name: "1"}).environment == {name: "1"}


@pytest.mark.parametrize(("name", "value"), [("A B", "1"), ("", "1"), ("1A", "1"), ("A=B", "1"), ("A", "1\0")])
def test_what_is_no_variable_is_refused(name: str, value: str) -> None:
    with pytest.raises(DocumentError, match="key 'environment'"):
        parse(TuningChoice, {"environment": {name: value}}, "command line")


def test_the_variable_of_the_vendor_is_refused_whatever_its_name(registry: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "vendors" / "odd"
    folder.mkdir(parents=True)
    text = (PLUGINS / "vendors/fake/vendor.yaml").read_text()
    for old, new in (("name: fake", "name: odd"), ("FAKE_VISIBLE_DEVICES", "ODD_MASK"), ("F1", "O1"), ("F2", "O2")):
        text = text.replace(old, new)
    (folder / "vendor.yaml").write_text(text + "discovery: {device_nodes: '/dev/odd[0-9]*'}\n")
    with pytest.raises(UsageError, match=r"\bODD_MASK\b.*\bvendor odd\b"):
        make_plan(
            Registry([PLUGINS, tmp_path]), "tiny:fake:O1:1:1", may_lack_hardware=True, environment={"ODD_MASK": "1"}
        )


# -- secrets


@pytest.mark.parametrize(("name", "value"), SECRETS.items(), ids=list(SECRETS))
def test_a_secret_is_known_by_its_name_or_its_value(name: str, value: str) -> None:
    assert is_secret(name, value) and mask_secrets({name: value}) == {name: MASK}


@pytest.mark.parametrize(("name", "value"), OPEN.items(), ids=list(OPEN))
def test_other_values_stay(name: str, value: str) -> None:
    assert mask_secrets({name: value}) == {name: value}


def test_no_file_of_a_run_holds_a_secret_or_is_more_open_than_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "1")
    monkeypatch.setenv("NCCL_SECRET", "inherited-secret")
    runs = tmp_path / "runs"
    argv = ["--case", "tiny:fake", "--plugins", str(PLUGINS), "--python", sys.executable, "--runs", str(runs)]
    before = os.umask(0o077)
    try:
        assert main([*argv, "--quiet", "--env", "FAKE_TOKEN=given-secret"]) == 0
    finally:
        os.umask(before)
    paths = [runs, *runs.rglob("*")]
    assert len(paths) > 10 and [path for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    written = [path for path in paths if path.is_file() and "logs" not in path.parts]
    assert {"plan.json", "request.json", "provenance.json", "result.json"} <= {path.name for path in written}
    holds = {path.name for path in written for word in ("given-secret", "inherited-secret") if word in path.read_text()}
    assert holds == set()
    plan = json.loads(next(path for path in written if path.name == "plan.json").read_text())
    assert plan["tuning"]["environment"]["FAKE_TOKEN"] == MASK


def test_a_dry_run_shows_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--case", "tiny:fake:F1", "--dry-run", "--plugins", str(PLUGINS), "--python", sys.executable]
    for form in ([], ["--json"]):
        assert main([*argv, *form, "--env", "FAKE_TOKEN=given-secret", "--env", "A=seen"]) == 0
        text = capsys.readouterr().out
        assert "given-secret" not in text and MASK in text and "seen" in text


def test_the_training_gets_the_secret_that_no_dump_has(registry: Registry) -> None:
    plan = make_plan(registry, "tiny:fake:F1:1:1", may_lack_hardware=True, environment={"FAKE_TOKEN": "given-secret"})
    request = LocalLauncher().request(plan, RunPaths(Path("/run")), ProcessRuntime())
    assert request.nodes[0].processes[0].environment["FAKE_TOKEN"] == "given-secret"
    assert "given-secret" not in dump(plan) + json.dumps(request.to_dict())
    assert plan.model_copy(update={"repeat": 2}).tuning.environment["FAKE_TOKEN"] == "given-secret"


def test_a_container_gets_the_secret_and_the_file_of_its_node_does_not(registry: Registry) -> None:
    variables = {"FAKE_TOKEN": "given-secret", "A": "1"}
    plan: Plan = make_plan(
        registry, "gpt3_6.7B:torch:cpu:1:1", scale="smoke", runtime="docker", base_image="a", environment=variables
    )
    node = DockerRuntime().node(plan, RunPaths(Path("/run")), 0)
    (process,) = node.processes
    assert node.container is not None and node.container.environment["FAKE_TOKEN"] == "given-secret"
    assert "FAKE_TOKEN" not in process.environment and process.environment["A"] == "1"
    request = Request("containers", "docker", (node,), "", 1, 1, 1)
    assert "given-secret" not in json.dumps(request.to_dict())


# -- the rights of files


@pytest.mark.parametrize("mask", [0o077, 0o027, 0o022])
def test_a_written_file_has_the_rights_of_the_umask(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~mask and list(tmp_path.iterdir()) == [
        tmp_path / "a"
    ]


def vendor(**changes: object) -> dict[str, object]:
    keys = {"name": "acme", "title": "t", "device_kind": "acme", "frameworks": {}, "chips": [], "verified": "none"}
    return {"schema": "levelfield.vendor/1", **keys, **changes}

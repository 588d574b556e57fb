"""Files of others: FlagPerf's config_*.py and cluster_conf.py, read as data and never executed, and hostfiles."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.cli.site_options import load_hosts
from levelfield.errors import UsageError
from levelfield.publish.flagperf_files import read_hosts, read_strategy

PADDLE = {
    "max_seq_length": 2048,
    "learning_rate": 1.2e-4,
    "per_device_train_batch_size": 4,
    "tensor_parallel_degree": 2,
    "pipeline_parallel_degree": 1,
    "sharding_parallel_degree": 4,
    "gradient_accumulation_steps": 64,
    "sharding": "stage2",
    "recompute": False,
    "recompute_granularity": "full",
}
NAME = "config_TP2PP1SH2SP4A10080Gx1x8.py"
CASE = "gpt3_6.7B:paddle:A100:1:8"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def strategy(name: str = NAME, text: str = "", **changes: object) -> Path:
        fields = {key: value for key, value in {**PADDLE, **changes}.items() if value is not None}
        path = tmp_path / name
        path.write_text("".join(f"{key} = {value!r}\n" for key, value in fields.items()) + text)
        return path

    return strategy


def plan_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main([*map(str, arguments), "--dry-run", "--json"]) == 0, capsys.readouterr().err
    (entry,) = json.loads(capsys.readouterr().out)
    plan = entry["plan"]
    assert isinstance(plan, dict)
    return plan


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([*map(str, arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return " ".join(printed.err.split())


@pytest.mark.parametrize(
    ("changes", "layout", "recompute"),
    [
        ({}, "DP4TP2PP1SH2SP4", "none"),
        ({"sharding": "stage1"}, "DP4TP2PP1SH1SP4", "none"),
        ({"tensor_parallel_degree": 1, "sharding_parallel_degree": 8}, "DP8TP1PP1SH2SP8", "none"),
        ({"pipeline_parallel_degree": 4, "sharding_parallel_degree": 1}, "DP1TP2PP4", "none"),
        ({"recompute": True}, "DP4TP2PP1SH2SP4", "full"),
        ({"recompute": True, "recompute_granularity": "core_attn"}, "DP4TP2PP1SH2SP4", "selective"),
        ({"recompute": None}, "DP4TP2PP1SH2SP4", None),
        ({"sharding_parallel_degree": 2}, "DP4TP2PP1SH2SP2", "none"),
    ],
)
def test_a_strategy_is_its_free_fields(
    write: Write, changes: dict[str, object], layout: str, recompute: str | None
) -> None:
    strategy = read_strategy(write(**changes))
    choice = strategy.choice
    assert (choice.layout, choice.recompute, choice.micro_batch, choice.attention) == (layout, recompute, 4, None)
    assert (strategy.accumulation, strategy.sequence_length) == (64, 2048)


def test_megatron_s_names_and_the_machines_of_the_file_s_name(tmp_path: Path) -> None:
    path = tmp_path / "config_MLUx4x8.py"
    head = "import sys\nsys.path.append('x')\nfrom nowhere import X\ntheory = float(X)\n"
    path.write_text(f"{head}tensor_parallel = 8\npipeline_parallel = 2\nlocalbs = 1\n")
    choice = read_strategy(path).choice
    assert (choice.layout, choice.micro_batch) == ("DP2TP8PP2", 1)
    assert read_strategy(path.rename(tmp_path / "config.py")).choice.layout == "DP1TP8PP2"


def test_the_file_is_not_executed(write: Write, tmp_path: Path) -> None:
    text = f"open({str(tmp_path / 'made')!r}, 'w')\nif True:\n    tensor_parallel_degree = 8\nraise SystemExit(3)\n"
    assert read_strategy(write(text=text)).choice.layout == "DP4TP2PP1SH2SP4"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("changes", "text", "says"),
    [
        ({"tensor_parallel_degree": "2"}, "", "key 'tensor_parallel_degree': found '2', expected a whole number"),
        ({"tensor_parallel_degree": True}, "", "found True, expected a whole number"),
        ({"tensor_parallel_degree": 0}, "", "found 0, expected a whole number above 0"),
        ({"tensor_parallel_degree": 3}, "", "tensor x pipeline = 3, expected a divisor of the 8 devices"),
        ({"per_device_train_batch_size": 1.5}, "", "found 1.5"),
        ({"sharding": "stage4"}, "", "key 'sharding': found 'stage4', expected 'stage1', 'stage2' or 'stage3'"),
        ({"sharding": None}, "", "key 'sharding': found None"),
        (
            {"recompute": True, "recompute_granularity": "some"},
            "",
            "'recompute_granularity': found 'some', expected full",
        ),
        ({"sharding_parallel_degree": 3}, "", "sharding_degree 3 does not divide"),
        ({}, "tensor_parallel_degree = 2 * 2\n", "found `2 * 2`, which is not computed"),
        ({}, "this is no Python", "not a Python file: SyntaxError"),
        ({}, "x = " + "(" * 5000, "not a Python file"),
        ({}, "x = '\0'\0", "not a Python file"),
    ],
    ids=range(13),
)
def test_a_wrong_file_is_named_with_its_key(
    write: Write, changes: dict[str, object], text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(**changes, text=text)
    message = refusal(capsys, "--case", CASE, "--strategy", path, "--dry-run")
    assert says in message and path.name in message


def test_the_plan_has_the_file_s_fields_and_names_it(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(use_flash_attention=1)
    arguments = ("--case", "GPT3-6.7B:paddle_3.3.1:A100:1:8:1", "--strategy", file, "--scale", "full")
    plan = plan_of(capsys, *arguments)
    assert plan["tuning"]["layout"] == {
        "data": 4, "tensor": 2, "pipeline": 1, "sequence_parallel": False, "sharding_stage": 2, "sharding_degree": 4
    }  # fmt: skip
    assert (plan["tuning"]["micro_batch"], plan["accumulation"], plan["tuning"]["attention"]) == (4, 64, "flash_attn")
    assert {plan["origins"][name] for name in ("layout", "micro_batch", "recompute")} == {f"file {NAME}"}
    changed = plan_of(capsys, *arguments, "--attention", "sdpa")
    assert (changed["tuning"]["attention"], changed["origins"]["attention"]) == ("sdpa", "command line")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"gradient_accumulation_steps": 32}, "key 'gradient_accumulation_steps': found 32, expected 64"),
        ({"max_seq_length": 4096}, "key 'max_seq_length': found 4096, expected 2048"),
    ],
)
def test_what_the_case_fixes_is_compared(
    write: Write, changes: dict[str, object], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--case", CASE, "--strategy", write(**changes), "--dry-run", "--scale", "full")
    assert says in refusal(capsys, *arguments)


# ---- hosts


def test_hosts_are_the_nodes_of_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster_conf.py"
    path.write_text('"""Cluster configs"""\nHOSTS = ["10.1.2.2", "10.1.2.3"]\nSSH_PORT = "22"\n')
    assert read_hosts(path) == ("10.1.2.2", "10.1.2.3")
    plan = plan_of(capsys, "--case", "gpt3_6.7B:paddle:A100", "--hosts", path)
    assert plan["hardware"]["nodes"] == 2


@pytest.mark.parametrize(
    ("hosts", "case", "options", "says"),
    [
        (["10.1.2.2", "10.1.2.3"], "gpt3_6.7B:paddle:A100:4:8", ["--dry-run"], "found 2 hosts, expected 4"),
        (["10.1.2.2", "10.1.2.3"], "gpt3_6.7B:paddle:A100", [], "or --dry-run"),
        (["10.1.2.2", "10.1.2.3"], "gpt3_6.7B:paddle", ["--dry-run"], "names no chip"),
        (["-oX", "b"], "gpt3_6.7B:paddle:A100", ["--dry-run"], "cluster_conf.py: key 'hosts.0.name': found '-oX'"),
    ],
)
def test_hosts_that_do_not_fit_the_case_are_refused(
    hosts: list[str], case: str, options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster_conf.py"
    path.write_text(f"HOSTS = {hosts!r}\n")
    assert says in refusal(capsys, "--case", case, "--hosts", path, *options)


HOSTS = ("# HOSTS = ['a']", "HOSTS = 'a'", "HOSTS = []", "HOSTS = ['a', 3]", "HOSTS = ['a', 'a']", "HOSTS = open('x')")


@pytest.mark.parametrize("text", HOSTS)
def test_hosts_that_are_no_list_of_names_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster_conf.py"
    path.write_text(f"{text}\n")
    with pytest.raises(UsageError, match="key 'HOSTS'"):
        read_hosts(path)


# ---- lists of hosts as DeepSpeed and MPI have them

HOSTFILES = {
    "worker-1 slots=8\nworker-2 slots=8\n": [("worker-1", 8), ("worker-2", 8)],
    "# DeepSpeed\n\nworker-1 slots=4 # the first\r\nworker-2 slots=4": [("worker-1", 4), ("worker-2", 4)],
    "gpu1 slots=2 max_slots=4\ngpu2\n": [("gpu1", 2), ("gpu2", None)],
    "gpu1:8\n10.0.0.2:8\n": [("gpu1", 8), ("10.0.0.2", 8)],
    "me@gpu1 slots=2\nyou@gpu2 slots=2\n": [("gpu1", 2), ("gpu2", 2)],
    "gpu1\ngpu2\n": [("gpu1", None), ("gpu2", None)],
    "gpu1\ngpu1\ngpu2\ngpu2\n": [("gpu1", 2), ("gpu2", 2)],
    "fd00::1 slots=8\nfd00::2 slots=8\n": [("fd00::1", 8), ("fd00::2", 8)],
}


def test_a_hostfile_is_read_as_its_own_program_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    for text, expected in HOSTFILES.items():
        path.write_text(text)
        hosts = load_hosts(path)
        assert [(host.name, host.slots) for host in hosts] == expected, text
        assert [host.user for host in hosts] == (["me", "you"] if "@" in text else [None, None]), text


def test_a_hostfile_gives_nodes_and_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("10.1.2.2 slots=8\n10.1.2.3 slots=8\n")
    plan = plan_of(capsys, "--case", "gpt3_6.7B:paddle:A100", "--launcher", "ssh", "--hosts", path)
    assert (plan["hardware"]["nodes"], plan["hardware"]["devices_per_node"]) == (2, 8)
    message = refusal(capsys, "--case", "gpt3_6.7B:paddle:A100", "--site", path, "--dry-run")
    assert f"`--launcher ssh --hosts {path}`" in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "found no host"),
        ("gpu1 slots=8\ngpu1 slots=8\n", "line 2: found gpu1 more than once"),
        ("gpu1 slots=eight\n", "line 1: found 'gpu1 slots=eight'"),
        ("gpu1 and gpu2\n", "line 1: found 'gpu1 and gpu2'"),
        ("gpu1 slots=0\n", "key 'hosts.0.slots'"),
        ("-oProxyCommand=x\n", "line 1: found '-oProxyCommand=x'"),
        ("-v slots=8\n", "key 'hosts.0.name': found '-v'"),
        ("\xff\xfe", "not UTF-8 text"),
    ],
)
def test_a_hostfile_that_is_none_is_refused_with_its_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=f"{re.escape(str(path))}: .*{re.escape(says)}"):
        load_hosts(path)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"address": "127.0.0.1"}, "address: found 127.0.0.1, expected an `address`"),
        ({"address": "127.8.8.8"}, "address: found 127.8.8.8"),
        ({"address": "::1"}, "address: found ::1"),
        ({"name": "localhost"}, "name: found localhost"),
        ({"interface": "lo"}, "interface: found lo"),
        ({"interface": "=eno1,ib0"}, "found '=eno1,ib0', expected the name of one network interface"),
        ({"interface": "^docker0"}, "found '^docker0'"),
    ],
)
def test_a_first_host_that_the_others_cannot_reach_is_refused_in_a_plan(
    changed: dict[str, str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hosts.json"
    hosts = [{"name": "gpu1", **changed}, {"name": "gpu2"}]
    path.write_text(json.dumps({"schema": "levelfield.hosts/1", "hosts": hosts}))
    launched = ("--launcher", "ssh", "--hosts", path, "--dry-run")
    assert says in refusal(capsys, "--case", "gpt3_6.7B:paddle:A100:2:8", *launched)
    if "=" not in says and "^" not in says:  # one node has nobody to reach
        plan_of(capsys, "--case", "gpt3_6.7B:paddle:A100:1:8", *launched[:-1])


@pytest.mark.parametrize("option", ["--data", "--layout", "--scale", "--hosts"])
def test_an_option_that_is_given_twice_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = ("full", "smoke") if option == "--scale" else ("DP1", "DP2")
    with pytest.raises(SystemExit) as end:
        main(["--case", "gpt3_6.7B:torch", option, first, f"{option}={second}", "--dry-run"])
    assert end.value.code == 2
    assert f"argument {option}: found {first} and {second}, expected one value" in capsys.readouterr().err


def test_a_strategy_is_a_file_for_cases_only(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--case only" in refusal(capsys, "--suite", "osdi_gpt2", "--strategy", write(), "--dry-run")
    assert "absent.py:" in refusal(capsys, "--case", "gpt3_6.7B:paddle", "--strategy", "absent.py", "--dry-run")

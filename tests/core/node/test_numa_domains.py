"""The cores of each rank: by the NUMA domain of its device, never by a guess. Its threads, and remarks about nodes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from agents import AGENT, Node
from levelfield.node import node_facts, numa_domains
from levelfield.node.numa_domains import rank_cores
from levelfield.run.launchers.node_records import node_remarks

VENDOR = "0x10de"
BINDING = {"pci_vendor": VENDOR}
GPU, BRIDGE = "0x030200", "0x068000"
# Addresses, classes and domains of a machine with two sockets; a switch of the same maker and another maker's adapter.
DEVICES = (
    ("0000:19:00.0", VENDOR, GPU, 0), ("0000:3b:00.0", VENDOR, GPU, 0), ("0000:9a:00.0", VENDOR, GPU, 1),
    ("0000:05:00.0", VENDOR, BRIDGE, 0), ("0000:02:00.0", "0x1a03", "0x030000", 0), ("0000:c9:00.0", VENDOR, GPU, 1),
)  # fmt: skip
TWO = {0: "0-7", 1: "8-15"}


def tree(root: Path, domains: dict[int, str], devices: Any = DEVICES) -> Path:
    """Write what the kernel shows of a machine."""
    for number, cores in domains.items():
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cores + "\n")
    for address, vendor, kind, domain in devices:
        folder = root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, text in (("vendor", vendor), ("class", kind), ("numa_node", str(domain))):
            (folder / name).write_text(text + "\n")
    return root


@pytest.fixture
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.setattr(numa_domains, "core_quota", lambda: None)


@pytest.mark.usefixtures("sixteen")
def test_each_rank_has_the_cores_of_its_device_s_domain(tmp_path: Path) -> None:
    bound = rank_cores([4, 5, 6, 7], BINDING, tree(tmp_path, {0: "0-3,8-11", 1: "4-7,12-15"}))
    assert bound.domains == {4: 0, 5: 0, 6: 1, 7: 1} and bound.reason is None
    assert bound.cores[4] == [0, 1, 2, 3, 8, 9, 10, 11] and bound.cores[7] == [4, 5, 6, 7, 12, 13, 14, 15]
    assert [bound.thread_count(rank) for rank in (4, 7)] == [4, 4]
    assert bound.facts()["ranks"]["6"] == {"domain": 1, "cores": 8, "threads": 4}


@pytest.mark.usefixtures("sixteen")
@pytest.mark.parametrize(
    ("domains", "devices", "binding", "reason"),
    [
        ({0: "0-15"}, DEVICES, BINDING, None),
        (TWO, DEVICES, {}, None),
        (TWO, DEVICES, {"pci_vendor": None}, "pci_vendor is not known"),
        (TWO, DEVICES[:3], BINDING, "the kernel shows 3 devices for 4 ranks"),
        (TWO, (*DEVICES[:5], ("0000:c9:00.0", VENDOR, GPU, -1)), BINDING, "a device is in domain -1"),
        ({0: "0-7", 1: "16-31", 2: "8-15"}, DEVICES, BINDING, "a device is in domain 1, which has no usable core"),
    ],
)
def test_nothing_is_bound_by_a_guess(
    tmp_path: Path, domains: dict[int, str], devices: Any, binding: dict[str, str], reason: str | None
) -> None:
    bound = rank_cores([0, 1, 2, 3], binding, tree(tmp_path, domains, devices))
    assert bound.domains == {} and [bound.thread_count(rank) for rank in range(4)] == [4] * 4
    assert reason in str(bound.reason) if reason else bound.reason is None


def test_a_quota_bounds_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    for quota, threads in ((None, 8), (16.0, 2), (0.5, 1), (4000.0, 8)):
        monkeypatch.setattr(numa_domains, "core_quota", lambda quota=quota: quota)
        assert rank_cores(range(8), {}, tmp_path).thread_count(0) == threads


SAY = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no two domains")
def test_ranks_run_on_their_cores_and_the_facts_say_so(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real node's part, with a tree of two domains in place of the kernel's."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    first, last = (sorted(os.sched_getaffinity(0))[place] for place in (0, -1))
    root = tree(tmp_path / "tree", {0: str(first), 1: str(last)}, (DEVICES[0], DEVICES[2]))
    program = tmp_path / "agent.py"
    program.write_text(
        f"import sys, pathlib\nsys.path.insert(0, {str(AGENT.parents[2])!r})\n"
        "from levelfield.node import node_agent, node_duty, numa_domains\n"
        f"root = pathlib.Path({str(root)!r})\n"
        "node_duty.rank_cores = lambda ranks, wanted: numa_domains.rank_cores(ranks, wanted, root)\n"
        "sys.exit(node_agent.main(sys.argv[1:]))\n"
    )
    (tmp_path / "work.json").write_text(json.dumps(node.work(SAY, SAY, binding=BINDING)))
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, str(program), "run", str(tmp_path / "work.json")]) == 0
    logs = [(node.root / f"logs/rank{rank}.log").read_text() for rank in (0, 1)]
    assert logs == [f"[{first}] 1\n", f"[{last}] 1\n"]
    facts = json.loads((node.root / "nodes/node0.facts.json").read_text())
    assert [facts["binding"]["ranks"][str(rank)]["domain"] for rank in (0, 1)] == [0, 1]
    assert node_remarks(node.root, 1, has_accelerators=True) == []


def test_threads_that_a_user_gives_stay(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    work = node.work(SAY, SAY)
    work["processes"][1]["environment"] = {"OMP_NUM_THREADS": "7"}
    assert node.run(work) == 0
    threads = [(node.root / f"logs/rank{rank}.log").read_text().split()[-1] for rank in (0, 1)]
    assert threads[1] == "7" and int(threads[0]) <= max(1, len(os.sched_getaffinity(0)) // 2)


def written(root: Path, node: int, facts: dict[str, Any], last: dict[str, Any]) -> None:
    (root / "nodes").mkdir(parents=True, exist_ok=True)
    (root / f"nodes/node{node}.facts.json").write_text(json.dumps(facts))
    line = json.dumps({"event": "ended", "cause": "exited", **last})
    (root / f"nodes/node{node}.record.jsonl").write_text(line + "\n")


@pytest.mark.parametrize(
    ("facts", "last", "remark"),
    [
        ({"binding": {"reason": "x"}}, {}, "not bound to the NUMA domains of their devices: x"),
        ({"locked_memory_bytes": 65536}, {}, "may lock 64 KiB of memory"),
        ({"locked_memory_bytes": None}, {}, None),
        ({}, {"network": {"link eth0": 27}}, "its link eth0 was lost 27 times during the run"),
        ({}, {"network": {"link eth0": 0, "sent": 10**6, "resent": 900}}, None),
        ({}, {"network": {"sent": 1000, "resent": 19}}, None),  # too few to say
        ({}, {"network": {"sent": 1000, "resent": 21}}, "21 of 1000 TCP segments were sent again (limit: 1%)"),
        ({}, {"network": {"resent": 100}}, "100 of 0 TCP segments"),
        ({}, {"network": "x"}, None),
        ({"binding": "x", "locked_memory_bytes": "y"}, {"network": {"link eth0": "z", "resent": None}}, None),
    ],
)
def test_remarks_about_a_node(tmp_path: Path, facts: dict[str, Any], last: dict[str, Any], remark: str | None) -> None:
    written(tmp_path, 0, {"boot_id": "a"}, {})
    written(tmp_path, 1, {"boot_id": "b", **facts}, last)
    remarks = node_remarks(tmp_path, 2, has_accelerators=True)
    assert (
        remarks == []
        if remark is None
        else len(remarks) == 1 and remarks[0].startswith("node1: ") and remark in remarks[0]
    )


def test_locked_memory_matters_between_accelerators_alone(tmp_path: Path) -> None:
    for nodes, has_accelerators, remarks in ((1, True, 0), (2, False, 0), (2, True, 2)):
        for node in range(nodes):
            written(tmp_path, node, {"locked_memory_bytes": 8192}, {})
        assert len(node_remarks(tmp_path, nodes, has_accelerators)) == remarks


def test_counters_of_the_network_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, text in {
        "ib/mlx5_0/ports/1/counters/link_downed": "2",
        "snmp": "Tcp: RtoMin OutSegs RetransSegs\nTcp: 200 1234 56\nUdp: OutSegs\nUdp: 9",
    }.items():  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    for name, path in (("_INFINIBAND_FOLDER", "ib"), ("_SNMP_FILE", "snmp")):
        monkeypatch.setattr(node_facts, name, tmp_path / path)
    monkeypatch.setattr(node_facts, "_lost_carriers", lambda: iter([("lo", 9), ("eth0", 3)]))
    assert node_facts.network_counters() == {"link eth0": 3, "link mlx5_0/1": 2, "sent": 1234, "resent": 56}
    (tmp_path / "snmp").write_text("Tcp: OutSegs\n")
    assert "sent" not in node_facts.network_counters()


def test_lost_links_are_those_of_the_kernel() -> None:
    paths = Path("/sys/class/net").glob("*/carrier_down_count")
    assert dict(node_facts._lost_carriers()) == {path.parent.name: int(path.read_text()) for path in paths}

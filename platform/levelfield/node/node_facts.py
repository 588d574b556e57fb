"""Facts about a node: its kernel, processors, memory, network and vendor's tools; its load and limits.

Source of the fields below /proc: proc(5).
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping

from levelfield.node.bounded_command import ask
from levelfield.node.control_groups import file_text
from levelfield.node.peer_calls import addresses_of
from levelfield.node.rank_processes import read_stat_fields

SCHEMA = "levelfield.node-facts/1"
LOAD_SECONDS = 1.0  # for which the load of other programs is measured
_NETLINK_SECONDS = 1.0  # the longest wait for the kernel's answer
_BUSY_COLUMNS = (0, 1, 2, 7)  # places among a core's times in /proc/stat: user, nice, system, steal
_WORK_COLUMNS = (*_BUSY_COLUMNS, 5, 6)  # with irq and softirq
# places among the fields of read_stat_fields
_PARENT_FIELD = 1
_TIME_FIELDS = slice(11, 15)  # utime, stime, cutime, cstime
_INTERFACES_FOLDER, _MEMINFO_FILE = Path("/sys/class/net"), Path("/proc/meminfo")
_INFINIBAND_FOLDER, _SNMP_FILE = Path("/sys/class/infiniband"), Path("/proc/net/snmp")
# linux/rtnetlink.h and linux/netlink.h; the second is NLM_F_REQUEST | NLM_F_DUMP
_RTM_GETLINK, _DUMP_REQUEST, _NLMSG_DONE = 18, 0x301, 3
_CAP_IPC_LOCK = 14  # linux/capability.h
_IFLA_IFNAME, _IFLA_CARRIER_DOWN_COUNT = 3, 48  # linux/if_link.h
Fields = Dict[str, Any]


def node_facts(node_rank: int, commands: Mapping[str, Mapping[str, Any]]) -> Fields:
    """Return the facts of this node. commands: by name, tools with argv and timeout_seconds. Unknown is None."""
    interfaces = _interfaces()
    with ThreadPoolExecutor(max(1, len(commands))) as pool:  # all at once: a tool that hangs costs its own limit only
        futures = {n: pool.submit(tool_output, list(c["argv"]), c["timeout_seconds"]) for n, c in commands.items()}
        tools = {name: future.result() for name, future in futures.items()}
    return {
        "schema": SCHEMA,
        "node_rank": node_rank,
        "hostname": socket.gethostname(),
        "addresses": sorted({a for interface in interfaces.values() for a in interface["addresses"]}),
        "kernel": " ".join(os.uname()[i] for i in (0, 2, 4)),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _meminfo().get("MemTotal"),
        "boot_id": file_text(Path("/proc/sys/kernel/random/boot_id")) or None,
        "monotonic_ns": time.monotonic_ns(),
        "wall_ns": time.time_ns(),
        "interfaces": interfaces,
        "tools": tools,
    }


def tool_output(argv: list[str], timeout_seconds: float) -> Fields:
    """Run a tool and return the JSON object of its output: the text, or the reason why there is none."""
    output = ask(argv, timeout_seconds)
    if output.text is not None:
        return {"argv": argv, "text": output.text}
    return {"argv": argv, "reason": output.reason, **({"absent": True} if output.absent else {})}


def _interfaces() -> Fields:
    try:
        folders = sorted(_INTERFACES_FOLDER.iterdir())
    except OSError:
        return {}
    interfaces: Fields = {}
    for folder in (folder for folder in folders if folder.name != "lo"):
        interfaces[folder.name] = {
            "addresses": [a for a in addresses_of(folder.name) if ":" not in a],  # the first of IPv4
            "operstate": file_text(folder / "operstate") or None,
            "address": file_text(folder / "address") or None,
            "speed": _file_number(folder / "speed"),  # -1 is the kernel's word for an unknown one
            "mtu": _file_number(folder / "mtu"),
        }
    return interfaces


def network_counters() -> dict[str, int]:
    """Return counts of this node's network that only grow: links lost by interface or port, and TCP's segments.

    Source: Linux, rtnetlink(7) and Documentation/ABI/stable/sysfs-class-infiniband; RFC 4022 for the segments.
    """
    links = {f"link {name}": count for name, count in _lost_carriers() if name != "lo"}
    for port in _INFINIBAND_FOLDER.glob("*/ports/*"):
        if (count := _file_number(port / "counters/link_downed")) is not None:
            links[f"link {port.parents[1].name}/{port.name}"] = count
    rows = [line.split() for line in file_text(_SNMP_FILE).splitlines() if line.startswith("Tcp:")]
    segments = dict(zip(*rows[:2])) if len(rows) > 1 else {}
    names = (("sent", "OutSegs"), ("resent", "RetransSegs"))
    return {**links, **{name: int(segments[key]) for name, key in names if segments.get(key, "").isdecimal()}}


def _lost_carriers() -> Iterator[tuple[str, int]]:
    """Yield each interface with the number of times that it lost its carrier; nothing where the kernel does not answer.

    The numbers are not read from /sys, which may show another network namespace.
    """
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            kernel.settimeout(_NETLINK_SECONDS)
            kernel.send(struct.pack("=IHHII16x", 32, _RTM_GETLINK, _DUMP_REQUEST, 1, 0))
            while answer := kernel.recv(2**17):
                for kind, body in _netlink_items(answer, "=IH", 16):
                    if kind == _NLMSG_DONE:
                        return
                    link = dict(_netlink_items(body[16:], "=HH", 4))
                    if _IFLA_IFNAME in link and _IFLA_CARRIER_DOWN_COUNT in link:
                        yield (
                            link[_IFLA_IFNAME].rstrip(b"\0").decode(errors="replace"),
                            struct.unpack("=I", link[_IFLA_CARRIER_DOWN_COUNT])[0],
                        )
    except (OSError, struct.error):
        return


def _netlink_items(content: bytes, head: str, head_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield kind and body of netlink messages, or of the attributes of one: both begin with their length and kind."""
    while len(content) >= head_bytes:
        length, kind = struct.unpack_from(head, content)
        if length < head_bytes:
            return
        yield kind, content[head_bytes:length]
        content = content[(length + 3) & ~3 :]


def host_counters(ranks_are_children: bool = True) -> Fields | None:
    """Return counters of processor seconds, at `time_ns`; None where the kernel shows none.

    busy_seconds: of all programs on the usable cores, with the time that a hypervisor took. own_seconds: of this
    process and all its descendants; None without ranks_are_children, as a container engine's ranks are not among them.
    """
    try:
        (busy_ticks, cores), ticks_per_second = _core_ticks(_BUSY_COLUMNS), os.sysconf("SC_CLK_TCK")
        own_seconds = _tree_ticks(os.getpid()) / ticks_per_second if ranks_are_children else None
    except (OSError, ValueError):
        return None
    seconds = {"busy_seconds": busy_ticks / ticks_per_second, "own_seconds": own_seconds}
    return {"time_ns": time.monotonic_ns(), **seconds, "cores": cores}


def measure_load_of_others(root_process: int) -> Fields:
    """Measure for a second how many cores other programs keep busy on average.

    root_process: it and its descendants are no other programs; 0 means this process.
    """
    start, (ticks_before, cores), own_ticks_before = (
        time.monotonic(),
        _core_ticks(_WORK_COLUMNS),
        _tree_ticks(root_process or os.getpid()),
    )
    time.sleep(LOAD_SECONDS)
    elapsed_seconds, (ticks_after, cores) = time.monotonic() - start, _core_ticks(_WORK_COLUMNS)
    other_ticks = max(0, ticks_after - ticks_before - (_tree_ticks(root_process or os.getpid()) - own_ticks_before))
    return {"facts": {"other_cores": other_ticks / os.sysconf("SC_CLK_TCK") / elapsed_seconds, "cores": cores}}


def _core_ticks(columns: tuple[int, ...]) -> tuple[int, int]:
    """Return the ticks of the cores that this process may use, and the number of these cores.

    columns: which times of a core count. Where a container numbers its cores otherwise, all cores count.
    """
    lines = (line.split() for line in Path("/proc/stat").read_text(encoding="ascii").splitlines())
    times_by_core = {
        name[3:]: [int(text) for text in times] for name, *times in filter(None, lines) if name.startswith("cpu")
    }
    times_by_core.pop("", None)  # the sum
    usable_times = [
        times_by_core[str(number)] for number in sorted(os.sched_getaffinity(0)) if str(number) in times_by_core
    ]
    counted_times = usable_times or list(times_by_core.values())
    return sum(times[column] for times in counted_times for column in columns if column < len(times)), len(
        counted_times
    )


def _tree_ticks(root_process: int) -> int:
    """Return the ticks of a process and all its descendants, with those of children that have ended."""
    fields_by_process = {
        n: read_stat_fields(n) for n in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    }
    processes = {number: fields for number, fields in fields_by_process.items() if len(fields) > _TIME_FIELDS.stop}
    children: dict[int, list[int]] = {}
    for number, fields in processes.items():
        children.setdefault(int(fields[_PARENT_FIELD]), []).append(number)
    total, pending = 0, [root_process]
    while pending:
        number = pending.pop()
        pending += children.get(number, [])
        total += sum(int(text) for text in processes[number][_TIME_FIELDS]) if number in processes else 0
    return total


def memory_facts() -> Fields:
    """Return the node's memory in bytes, what programs may still have of it, and its huge pages."""
    sizes = _meminfo()
    group = Path("/sys/fs/cgroup")
    limit_bytes, used_bytes = _file_number(group / "memory.max"), _file_number(group / "memory.current")
    available_in_group = (
        limit_bytes - used_bytes if limit_bytes and used_bytes is not None else None
    )  # a container may have less than the machine
    available_sizes = [size for size in (sizes.get("MemAvailable"), available_in_group) if size is not None]
    huge_page_modes = file_text(Path("/sys/kernel/mm/transparent_hugepage/enabled"))  # such as `always [madvise] never`
    swap_used_bytes = sizes["SwapTotal"] - sizes["SwapFree"] if "SwapTotal" in sizes and "SwapFree" in sizes else None
    shared_memory_bytes = None
    with contextlib.suppress(OSError):
        disk = os.statvfs("/dev/shm")
        shared_memory_bytes = disk.f_blocks * disk.f_frsize
    facts = {
        "total_bytes": sizes.get("MemTotal"),
        "available_bytes": max(0, min(available_sizes)) if available_sizes else None,
        "swap_used_bytes": swap_used_bytes,
        "huge_pages": sizes.get("HugePages_Total"),
        "huge_pages_free": sizes.get("HugePages_Free"),
        "transparent_huge_pages": huge_page_modes.partition("[")[2].partition("]")[0] or None,
        "shared_memory_bytes": shared_memory_bytes,
    }
    return {"facts": facts}


def limit_facts() -> Fields:
    """Return the process limits that collectives and data files need, and the settings that affect processor speed."""
    open_files, lockable_bytes = resource.getrlimit(resource.RLIMIT_NOFILE)[0], lockable_memory_bytes()
    soft_limits = {
        "locked_memory": resource.RLIM_INFINITY if lockable_bytes is None else lockable_bytes,
        "open_files": open_files,
    }
    models = (line for line in file_text(Path("/proc/cpuinfo")).splitlines() if line.startswith("model name"))
    files = {
        "governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        "threads_per_core": "/sys/devices/system/cpu/smt/active",
        "processor_quota": "/sys/fs/cgroup/cpu.max",
    }
    facts: Fields = {
        **{name: "unlimited" if value == resource.RLIM_INFINITY else value for name, value in soft_limits.items()},
        "processor": next((line.partition(":")[2].strip() for line in models), None),
        **{name: file_text(Path(path)) or None for name, path in files.items()},
        "kernel": platform.release(),
        "hostname": platform.node(),
        "usable_cores": len(os.sched_getaffinity(0)),
    }
    return {"facts": facts}


def lockable_memory_bytes() -> int | None:
    """Return how many bytes of memory this process may lock; None where it has no limit, or CAP_IPC_LOCK."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = file_text(Path("/proc/self/status")).splitlines()
    capabilities = next((int(line.split()[1], 16) for line in status if line.startswith("CapEff:")), 0)
    return None if soft == resource.RLIM_INFINITY or capabilities >> _CAP_IPC_LOCK & 1 else soft


def _meminfo() -> dict[str, int]:
    """Return /proc/meminfo: bytes, or a count where the kernel gives no unit."""
    sizes = {}
    for line in file_text(_MEMINFO_FILE).splitlines():
        name, _, rest = line.partition(":")
        value = rest.split()
        if value and value[0].isdigit():
            sizes[name] = int(value[0]) * (1024 if value[1:] == ["kB"] else 1)
    return sizes


def _file_number(path: Path) -> int | None:
    text = file_text(path)
    return int(text) if text.isdecimal() else None

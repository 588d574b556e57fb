"""One rank of a small program on the stand-in's delivery library: the tests run it as processes of their own.

    python delivering.py LIBRARY PROGRAM RANK RANKS

It prints what it received as JSON. No CUDA, no framework.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from typing import Any

INT64, FLOAT, DOUBLE, BFLOAT16 = 4, 7, 8, 9
SUM, MAXIMUM, AVERAGE = 0, 2, 4


class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class Rank:
    """One rank in one group, with buffers in pretended memory."""

    def __init__(self, library: str, rank: int, ranks: int) -> None:
        self.library, self.rank, self.ranks = ctypes.CDLL(library), rank, ranks
        self.library.cudaMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.group = self.join(b"test", ranks, rank)

    def join(self, name: bytes, ranks: int, rank: int) -> ctypes.c_void_p:
        group = ctypes.c_void_p()
        self.library.ncclCommInitRank(ctypes.byref(group), ranks, Id(name), rank)
        return group

    def split(self, color: int, key: int) -> ctypes.c_void_p:
        group = ctypes.c_void_p()
        self.library.ncclCommSplit(self.group, color, key, ctypes.byref(group), None)
        return group

    def buffer(self, kind: Any, values: Sequence[float]) -> ctypes.c_void_p:
        """Pretended memory that holds these values."""
        host, out = (kind * len(values))(*values), ctypes.c_void_p()
        self.library.cudaMalloc(ctypes.byref(out), ctypes.c_size_t(ctypes.sizeof(host)))
        self.library.cudaMemcpy(out, host, ctypes.sizeof(host), 1)
        return out

    def read(self, kind: Any, many: int, at: ctypes.c_void_p) -> list[float]:
        host = (kind * many)()
        self.library.cudaMemcpy(host, at, ctypes.sizeof(host), 2)
        return list(host)

    def reduce(
        self,
        values: Sequence[float],
        kind: Any = ctypes.c_double,
        code: int = DOUBLE,
        how: int = SUM,
        group: ctypes.c_void_p | None = None,
    ) -> ctypes.c_void_p:
        at = self.buffer(kind, values)
        many = ctypes.c_size_t(len(values))
        self.library.ncclAllReduce(at, at, many, code, how, group or self.group, None)
        return at

    def send(self, values: Sequence[float], peer: int) -> None:
        at = self.buffer(ctypes.c_double, values)
        self.library.ncclSend(at, ctypes.c_size_t(len(values)), DOUBLE, peer, self.group, None)

    def receive(self, many: int, peer: int) -> ctypes.c_void_p:
        at = self.buffer(ctypes.c_double, [0.0] * many)
        self.library.ncclRecv(at, ctypes.c_size_t(many), DOUBLE, peer, self.group, None)
        return at

    def numbers(self, at: ctypes.c_void_p, many: int) -> list[float]:
        return self.read(ctypes.c_double, many, at)


def sums(me: Rank) -> dict[str, Any]:
    """Every kind of collective, and a split."""
    n, doubles = me.ranks, ctypes.c_double
    found = {
        "sum": me.numbers(me.reduce([me.rank + 1.0, 0.5]), 2),
        "average": me.numbers(me.reduce([float(me.rank)], how=AVERAGE), 1),
        "most": me.read(ctypes.c_int64, 1, me.reduce([-me.rank], ctypes.c_int64, INT64, MAXIMUM)),
        "bfloat16": me.read(ctypes.c_uint16, 1, me.reduce([0x3F80], ctypes.c_uint16, BFLOAT16)),
    }
    own, all_of = me.buffer(doubles, [me.rank * 10.0]), me.buffer(doubles, [0.0] * n)
    me.library.ncclAllGather(own, all_of, ctypes.c_size_t(1), DOUBLE, me.group, None)
    found["gathered"] = me.numbers(all_of, n)
    whole, part = me.buffer(doubles, [float(i) for i in range(n)]), me.buffer(doubles, [0.0])
    me.library.ncclReduceScatter(whole, part, ctypes.c_size_t(1), DOUBLE, SUM, me.group, None)
    found["scattered"] = me.numbers(part, 1)
    given = me.buffer(doubles, [me.rank + 5.0])
    me.library.ncclBroadcast(given, given, ctypes.c_size_t(1), DOUBLE, 1, me.group, None)
    found["broadcast"] = me.numbers(given, 1)
    half = me.split(me.rank % 2, 0)
    found["half"] = me.numbers(me.reduce([1.0 + me.rank], group=half), 1)
    return found


def messages(me: Rank) -> dict[str, Any]:
    """Grouped sends and receives, all to all; and sends before the receives of the other."""
    me.library.ncclGroupStart()
    for peer in range(me.ranks):
        me.send([100.0 * me.rank + peer], peer)
    got = [me.receive(1, peer) for peer in range(me.ranks)]
    me.library.ncclGroupEnd()
    found = {"all to all": [me.numbers(at, 1)[0] for at in got]}
    late = me.receive(1, (me.rank - 1) % me.ranks)  # received before anything is sent
    me.send([float(me.rank)], (me.rank + 1) % me.ranks)
    found["ring"] = me.numbers(late, 1)
    return found


def large(me: Rank) -> dict[str, Any]:
    """Only the size of a large message travels."""
    me.reduce([1.0] * 300_000)
    me.library.standin_wait_all()
    return {"done": True}


def missing_reduce(me: Rank) -> dict[str, Any]:
    """Rank 1 leaves out its second all-reduce."""
    me.reduce([1.0])
    if me.rank != 1:
        me.numbers(me.reduce([1.0] * 3), 3)
    return {}


def swapped_send(me: Rank) -> dict[str, Any]:
    """Rank 0 sends to rank 2 what rank 1 expects."""
    if me.rank == 0:
        me.send([1.0], 2)
    if me.rank == 1:
        me.numbers(me.receive(1, 0), 1)
    return {}


def untaken_send(me: Rank) -> dict[str, Any]:
    if me.rank == 0:
        me.send([1.0], 1)
    return {}


def other_count(me: Rank) -> dict[str, Any]:
    """Rank 1 reduces another number of values."""
    me.numbers(me.reduce([1.0] * (2 if me.rank == 1 else 3)), 2)
    return {}


def other_operation(me: Rank) -> dict[str, Any]:
    """Rank 1 broadcasts where the others reduce."""
    at = me.buffer(ctypes.c_double, [1.0])
    if me.rank == 1:
        me.library.ncclBroadcast(at, at, ctypes.c_size_t(1), DOUBLE, 0, me.group, None)
    else:
        me.reduce([1.0])
    me.library.standin_wait_all()
    return {}


def split_alone(me: Rank) -> dict[str, Any]:
    """A rank alone splits off a group, first told its place in it, then not."""
    me.library.standin_next_split(1, 2)
    part, count, rank = me.split(0, 1), ctypes.c_int(), ctypes.c_int()
    me.library.ncclCommCount(part, ctypes.byref(count))
    me.library.ncclCommUserRank(part, ctypes.byref(rank))
    print(json.dumps([rank.value, count.value]), flush=True)
    me.split(0, 1)
    return {"survived": True}


FAULTS = (missing_reduce, swapped_send, untaken_send, other_count, other_operation)
PROGRAMS = (sums, messages, large, split_alone, *FAULTS)


def main() -> None:
    library, program, rank, ranks = sys.argv[1:]
    me = Rank(library, int(rank), int(ranks))
    found = {each.__name__: each for each in PROGRAMS}[program](me)
    me.library.standin_wait_all()
    print(json.dumps(found))


if __name__ == "__main__":
    main()

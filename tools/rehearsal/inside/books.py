"""The stand-in's books and torch's counters, as facts of a step."""

import ctypes
import json
import os
import re
import tempfile
from pathlib import Path

import torch

ATTENTION = re.compile(r"flash|fmha|attention|cudnn.*sdpa", re.IGNORECASE)
LONGEST = 150


class Books:
    def __init__(self):
        self.library = ctypes.CDLL(None)
        if not hasattr(self.library, "levelfield_pretended"):
            raise SystemExit("rehearsal: the stand-in is not loaded; expected it by LD_PRELOAD")
        self.library.standin_count_product.argtypes = [ctypes.c_char_p, ctypes.c_double]
        self.before = {}

    def reset(self):
        self.library.standin_reset()

    def wait_for_messages(self):
        self.library.standin_wait_all()

    def read(self):
        """{chip, used_bytes, peak_bytes, entries: [kind, name, count, bytes, flops] ...}."""
        handle, path = tempfile.mkstemp(suffix=".json")
        os.close(handle)
        try:
            if self.library.standin_dump(path.encode()):
                raise OSError(f"{path}: the books cannot be written")
            return json.loads(Path(path).read_text())
        finally:
            Path(path).unlink()

    def step(self, number, layers):
        """The facts of the step that ended, and begin the next one's books."""
        books = self.read()
        self.reset()
        facts = {"step": number, **memory_facts(books), **self.allocator()}
        return {**facts, **work_facts(books["entries"], layers)}

    def allocator(self):
        """What torch's allocator did since the last time: flushes (retries) and failures."""
        now = torch.cuda.memory_stats()
        found = {}
        for name, key in (("allocator_retries", "num_alloc_retries"), ("out_of_memory", "num_ooms")):
            found[name] = now.get(key, 0) - self.before.get(key, 0)
        self.before = now
        return found


def memory_facts(books):
    return {
        "allocated_peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_peak_bytes": torch.cuda.max_memory_reserved(),
        "device_peak_bytes": books["peak_bytes"],
        "context_bytes": books["context_bytes"],
        "device_bytes": books["device_bytes"],
    }


def work_facts(entries, layers):
    """What was launched, sent, copied and waited for."""
    kernels = [e for e in entries if e[0] == "kernel"]
    launched = sum(e[2] for e in kernels)
    return {
        "allocations": count(entries, "memory", "allocation"),
        "failed_allocations": count(entries, "memory", "failed allocation"),
        "product_flops": sum(e[4] for e in entries if e[0] == "product"),
        "products": sum(e[2] for e in entries if e[0] == "product"),
        "collectives": {e[1]: {"count": e[2], "bytes": e[3]} for e in sorted(entries) if e[0] == "collective"},
        "synchronisations": {e[1]: e[2] for e in entries if e[0] == "synchronise"},
        "copies": {e[1]: {"count": e[2], "bytes": e[3]} for e in entries if e[0] == "copy"},
        "kernels": launched,
        "kernels_a_layer": round(launched / layers, 1) if layers else None,
        "kernel_names": {e[1][:LONGEST]: e[2] for e in sorted(kernels, key=lambda e: -e[2])[:12]},
        "attention_kernels": {e[1][:LONGEST]: e[2] for e in kernels if ATTENTION.search(e[1])},
        "stubs": {e[1]: e[2] for e in entries if e[0] == "stub"},
    }


def count(entries, kind, name):
    return sum(e[2] for e in entries if e[:2] == [kind, name])

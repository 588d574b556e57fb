#!/usr/bin/env python3
"""Opening a corpus of ten billion tokens and drawing batches from it.

The files are sparse (their sizes are real, their blocks are not), in a temporary directory that is removed.
Each opening is a process's own: index and tokens are mapped anew, and the first batch is drawn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

import numpy as np
from levelfield.testing.framework_kit import small_jobs
from levelfield.worker import Batches
from levelfield.worker.job import Job, parse
from levelfield.worker.megatron import HEADER, MAGIC

UINT16, UINT16_BYTES = 8, 2
DOCUMENT_TOKENS = 1000
QUICK = {"tokens": 10_000_000, "repeats": 1}


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        figures = measure(Path(folder), arguments)
    print(json.dumps(figures, indent=2) if arguments.json else text(figures, arguments))


def parse_arguments() -> SimpleNamespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10_000_000_000, help="in the corpus (default %(default)s)")
    parser.add_argument("--sequence", type=int, default=2048, help="tokens in a sample (default %(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="samples in a step of one rank (default %(default)s)")
    parser.add_argument(
        "--need", type=float, default=100_000, help="tokens/s that one rank's training takes (default %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--directory", help="where the sparse files go (default: the system's temporary one)")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = SimpleNamespace(**vars(parser.parse_args()))
    return SimpleNamespace(**{**vars(arguments), **QUICK}) if arguments.quick else arguments


def measure(folder: Path, arguments: SimpleNamespace) -> dict[str, float]:
    """Milliseconds to open and draw, and the rate of batches from each source."""
    large, small = folder / "large", folder / "small"
    write_sparse(large, arguments.tokens)
    write_sparse(small, arguments.tokens // 1000)
    seconds: dict[str, list[float]] = {"large": [], "small": []}
    for turn in range(arguments.repeats):
        seconds["large"].append(opening(task_job(arguments, "megatron", large, seed=turn)))
        seconds["small"].append(opening(task_job(arguments, "megatron", small, seed=turn)))
    corpus = rate(task_job(arguments, "megatron", large, seed=99), arguments.repeats)
    synthetic = rate(task_job(arguments, "synthetic", None, seed=99), arguments.repeats)
    need = arguments.need / (arguments.batch * arguments.sequence)
    return {
        "opening_first_ms": seconds["large"][0] * 1e3,
        "opening_median_ms": statistics.median(seconds["large"]) * 1e3,
        "opening_over_thousandth": statistics.median(seconds["large"]) / statistics.median(seconds["small"]),
        "corpus_batches_per_second": corpus,
        "synthetic_batches_per_second": synthetic,
        "needed_batches_per_second": need,
        "corpus_over_need": corpus / need,
        "synthetic_over_need": synthetic / need,
    }


def opening(job: Job) -> float:
    """Seconds from a job to its first batch."""
    start = time.perf_counter()
    Batches(job, 0).batch(1)
    return time.perf_counter() - start


def rate(job: Job, repeats: int) -> float:
    """Batches per second, each of another step: the median over steps."""
    batches, seconds = Batches(job, 0), []
    for step in range(1, 1 + max(9, repeats)):
        start = time.perf_counter()
        batches.batch(step)
        seconds.append(time.perf_counter() - start)
    return 1 / statistics.median(seconds)


def write_sparse(prefix: Path, tokens: int) -> None:
    """A corpus whose ends are right; between them its index and tokens are holes, which read as zeros."""
    documents = tokens // DOCUMENT_TOKENS
    lengths, pointers = HEADER.size, HEADER.size + 4 * documents
    ends = pointers + 8 * documents
    with Path(f"{prefix}.bin").open("wb") as file:
        file.truncate(documents * DOCUMENT_TOKENS * UINT16_BYTES)
    with Path(f"{prefix}.idx").open("wb") as file:
        file.write(HEADER.pack(MAGIC, 1, UINT16, documents, documents + 1))
        put(file, lengths + 4 * (documents - 1), np.int32(DOCUMENT_TOKENS))
        put(file, pointers + 8 * (documents - 1), np.int64((documents - 1) * DOCUMENT_TOKENS * UINT16_BYTES))
        put(file, ends + 8 * documents, np.int64(documents))


def put(file: IO[bytes], offset: int, value: Any) -> None:
    file.seek(offset)
    file.write(value.tobytes())


def task_job(arguments: SimpleNamespace, kind: str, prefix: Path | None, seed: int) -> Job:
    """Return a job whose batches come from this kind of corpus."""
    content = small_jobs.small_job(
        {**small_jobs.MODELS["gpt"], "vocab_size": 50304},
        small_jobs.Variant("", micro_batch=1),
        steps=10**6,
        global_batch=arguments.batch,
        sequence_length=arguments.sequence,
    )
    content |= {"corpus": {"kind": kind, "prefix": str(prefix)}, "events_dir": ""}
    content |= {"data": {"seed": seed, "shuffle": True, "split": [998.0, 1.0, 1.0], "alphabet": 256, "branching": 4}}
    return parse(Job, content, "job")


def text(figures: dict[str, float], arguments: SimpleNamespace) -> str:
    return "\n".join(
        [
            f"a corpus of {arguments.tokens:,} tokens, batches of {arguments.batch} x {arguments.sequence}",
            f"  open and draw the first batch, first time {figures['opening_first_ms']:9.2f} ms",
            f"  likewise, median of {arguments.repeats:<3}                   {figures['opening_median_ms']:9.2f} ms",
            f"  ... over that of a thousandth of it       {figures['opening_over_thousandth']:9.2f} times",
            f"  batches from the corpus                   {figures['corpus_batches_per_second']:9.1f} /s",
            f"  batches from the synthetic corpus         {figures['synthetic_batches_per_second']:9.1f} /s",
            f"  needed by {arguments.need:,.0f} tokens/s{'':<15} {figures['needed_batches_per_second']:9.2f} /s",
            f"  corpus over need                          {figures['corpus_over_need']:9.1f} times",
            f"  synthetic over need                       {figures['synthetic_over_need']:9.1f} times",
        ]
    )


if __name__ == "__main__":
    main()

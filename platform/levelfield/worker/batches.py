"""Batches as a function of (seed, step), the same for every parallel layout.

With G the global batch, D the data-parallel size and B the micro-batch, row j of micro-batch m of data rank d
in step s is run-sample (s - 1) G + (m D + d) B + j. The ranks together read each run-sample once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, NamedTuple, Union

import numpy as np

from .checksum import checksum_samples
from .corpora import IndexedCorpus, open_corpus
from .faults import JobError
from .job import Job
from .synthetic import SyntheticCorpus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .hashing import Words

Source = Union[SyntheticCorpus, IndexedCorpus]


class Batch(NamedTuple):
    """One data rank's part of one step.

    inputs, targets: int64 [accumulation, micro_batch, sequence_length]. tokens: the number of targets.
    checksum: below 2**64; the sum over data ranks, modulo 2**64, is the same for every layout.
    """

    step: int
    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    tokens: int
    checksum: int


class Batches:
    """The batches of data rank `data_rank`, steps 1 to training.steps.

    Raises JobError when the job's batch sizes do not multiply to the global batch. Raises CorpusError when the
    corpus is damaged or does not fit.
    """

    def __init__(self, job: Job, data_rank: int) -> None:
        self._steps, self._global_batch = job.training.steps, job.training.global_batch
        self._shape = (job.accumulation, job.tuning.micro_batch)
        self._ranks, self._rank = job.layout.data, data_rank
        self._check_sizes()
        self._source = open_source(job)

    def __len__(self) -> int:
        return int(self._steps)

    def __iter__(self) -> Iterator[Batch]:
        return (self.batch(step) for step in range(1, self._steps + 1))

    def batch(self, step: int) -> Batch:
        """Return the batch of `step`, counted from 1. Every step costs the same."""
        numbers = self.run_samples(step)
        samples = self._source.samples(numbers)
        rows = samples.reshape(*self._shape, samples.shape[1])
        inputs, targets = np.ascontiguousarray(rows[..., :-1]), np.ascontiguousarray(rows[..., 1:])
        return Batch(step, inputs, targets, targets.size, checksum_samples(numbers, samples))

    def run_samples(self, step: int) -> Words:
        """Return the run-sample numbers of this rank's rows in `step`, one micro-batch after the other."""
        accumulation, micro_batch = self._shape
        micro = np.arange(accumulation, dtype=np.uint64)[:, None] * np.uint64(self._ranks) + np.uint64(self._rank)
        rows = np.asarray(micro * np.uint64(micro_batch) + np.arange(micro_batch, dtype=np.uint64), dtype=np.uint64)
        return np.asarray(np.uint64((step - 1) * self._global_batch) + rows.reshape(-1), dtype=np.uint64)

    def _check_sizes(self) -> None:
        accumulation, micro_batch = self._shape
        if accumulation * micro_batch * self._ranks != self._global_batch or not 0 <= self._rank < self._ranks:
            raise JobError(
                f"data rank {self._rank} of {self._ranks}: accumulation {accumulation} x micro_batch {micro_batch} x "
                f"data {self._ranks} is {accumulation * micro_batch * self._ranks}, "
                f"expected global_batch {self._global_batch}"
            )


def open_source(job: Job) -> Source:
    """Open the job's corpus for reading samples. Raises CorpusError."""
    vocab_size, length = job.model.vocab_size, job.training.sequence_length
    if job.corpus.kind == "synthetic":
        return SyntheticCorpus(job.data, vocab_size, length)
    return IndexedCorpus(open_corpus(job.corpus.kind, job.corpus.prefix or ""), job.data, vocab_size, length)

"""What JAX reads from the environment of its process, set before it starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from levelfield.worker.job import Job


def prepare(job: Job) -> None:
    """Set the number of threads, and remove proxies."""
    threads = job.tuning.threads
    if threads is not None:
        os.environ["NPROC"] = str(threads)  # XLA's only limit on a processor; OMP_NUM_THREADS and its flags do nothing
    # The ranks reach their coordinator by gRPC, which looks for it behind the user's proxy, and aborts.
    for name in [name for name in os.environ if name.lower() in ("grpc_proxy", "http_proxy", "https_proxy")]:
        del os.environ[name]

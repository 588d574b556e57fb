"""This rank's device and its place among the processes; what JAX says of itself and of its memory."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import jax
import jaxlib
from levelfield.worker import process_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from levelfield.worker.job import Job


def configure(job: Job) -> None:
    """Give this process one device, and exact products in float32. Called before JAX touches a device."""
    if job.device == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", 1)
    else:
        jax.config.update("jax_cuda_visible_devices", str(job.local_rank))
    if job.training.precision == "fp32":
        jax.config.update("jax_default_matmul_precision", "highest")  # else an accelerator takes TF32
    # The service takes SIGTERM for a notice, and the process goes on: the platform's stop would end in SIGKILL.
    jax.config.update("jax_enable_preemption_service", False)


@contextlib.contextmanager
def process_group(job: Job) -> Iterator[None]:
    """Join the other ranks while the context lasts."""
    if job.world_size == 1:
        yield
        return
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    is_loopback = address in ("127.0.0.1", "localhost", "::1")
    jax.distributed.initialize(
        coordinator_address=f"{address}:{port}",
        num_processes=job.world_size,
        process_id=job.rank,
        # by default rank 0 answers on all addresses of the machine
        coordinator_bind_address=f"{address}:{port}" if is_loopback and job.rank == 0 else None,
    )
    yield
    # Not after an error: it waits for all ranks. Without it the ranks that end after rank 0 are aborted.
    jax.distributed.shutdown()


def memory() -> dict[str, int | None]:
    """Return peaks since the start, in bytes: the allocator's, which the cpu does not count, and the process's."""
    counters = jax.local_devices()[0].memory_stats() or {}
    reserved = counters.get("peak_pool_bytes", counters.get("peak_bytes_reserved"))
    return process_memory(counters.get("peak_bytes_in_use"), reserved)


def describe(job: Job) -> tuple[str, dict[str, Any]]:
    """Return the device's name, and details of the build."""
    device = jax.local_devices()[0]
    details = {
        "build": f"jaxlib {jaxlib.__version__}, {device.client.platform_version.splitlines()[0]}",
        "threads": int(os.environ.get("NPROC", 0)) or None,
    }
    return ("cpu" if job.device == "cpu" else device.device_kind), details

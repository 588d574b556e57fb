"""What this implementation cannot do. No framework is imported here, so that a refusal is quick and certain.

implementation.yaml says the same to the platform, which refuses before it starts anything. These lines are for a job
that did not come from the platform.
"""

from levelfield.worker import Unsupported


def check(job):
    """Raise Unsupported where the implementation cannot do what the job says."""
    if job.world_size > 1:  # REPLACE: with the layouts that you write
        raise Unsupported(f"{job.world_size} processes: this implementation trains in one")
    if job.training.precision != "fp32":
        raise Unsupported(f"precision {job.training.precision}: this implementation has fp32")
    if job.tuning.recompute != "none":
        raise Unsupported(f"recompute '{job.tuning.recompute}': this implementation has none")
    if job.tuning.compile or job.tuning.attention != "sdpa":
        raise Unsupported("compile and attention kernels: this implementation has none of them")

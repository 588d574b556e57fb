"""What this implementation cannot do. No framework is imported here, so that a refusal is quick and certain.

implementation.yaml says the same to the platform, which refuses before it starts anything. These lines are for a job
that did not come from the platform.
"""

from levelfield.worker import Unsupported, check_layout, check_no_graph, check_parts


def check(job):
    """Raise Unsupported where the implementation cannot do what the job says."""
    check_layout(job)  # REPLACE: give the names that `parallelism` has, as in check_layout(job, "data", "tensor")
    check_parts(job)  # REPLACE: give the later parts that you write, as in check_parts(job, "query_key_norm")
    check_no_graph(job)
    if job.training.precision != "fp32":
        raise Unsupported(f"precision {job.training.precision}: this implementation has fp32")
    if job.tuning.recompute != "none":
        raise Unsupported(f"recompute '{job.tuning.recompute}': this implementation has none")
    if job.tuning.compile or job.tuning.attention != "sdpa":
        raise Unsupported("compile and attention kernels: this implementation has none of them")

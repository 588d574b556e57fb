"""What this implementation cannot do. Without OneFlow, so that a refusal needs no other rank."""

from levelfield.worker import Unsupported


def check(job):
    """Raises Unsupported where the implementation cannot do what the job asks for."""
    layout, tuning = job.layout, job.tuning
    if job.training.precision != "fp32":
        raise Unsupported(f"precision {job.training.precision}: this implementation has fp32 only")
    if layout.sharding_stage:
        raise Unsupported(f"sharding stage {layout.sharding_stage}: this implementation has plain data parallelism")
    if layout.sequence_parallel:
        raise Unsupported("sequence parallelism: this implementation splits heads, MLP and vocabulary only")
    if tuning.compile:
        raise Unsupported("compile: this implementation runs OneFlow eagerly")
    if tuning.attention != "sdpa":
        raise Unsupported(f"attention {tuning.attention}: OneFlow 0.9 has no kernel of it that can train")
    check_recompute(job)
    check_sizes(job)


def check_recompute(job):
    if job.tuning.recompute == "selective":
        raise Unsupported("recompute 'selective'; this implementation has none and full")
    if job.tuning.recompute == "full" and (job.model.hidden_dropout or job.model.attention_dropout):
        raise Unsupported("recompute 'full' with dropout: OneFlow 0.9 would draw other random numbers the second time")


def check_sizes(job):
    """Raises Unsupported for sizes that do not divide, and for fewer layers than stages."""
    model, ranks, stages = job.model, job.layout.tensor, job.layout.pipeline
    sizes = {"heads": model.heads, "kv_heads": model.kv_heads, "ffn_hidden_size": model.ffn_hidden_size}
    uneven = [f"{name} {size}" for name, size in {**sizes, "vocab_size": model.vocab_size}.items() if size % ranks]
    if uneven:
        raise Unsupported(f"tensor parallel over {ranks} ranks: {', '.join(uneven)} cannot be divided by it")
    if model.layers < stages:
        raise Unsupported(f"pipeline of {stages} stages: {model.layers} layers, expected at least {stages}")

"""Which kernel computes the attention of a training: torch chooses one of its own by shape, type and device."""

import torch
from levelfield.worker import head_size, part
from model.decoder import compute_dtype
from torch.nn.attention import SDPBackend


def attention_kernel(job, device):
    """The kernel's name: torch's flash, cudnn, efficient or math, or flash_attn; None where torch does not say it."""
    if job.tuning.attention == "flash_attn":
        return "flash_attn"
    query, key, value, mask = example(job, device)
    options = {"dropout_p": job.model.attention_dropout, "enable_gqa": query.shape[1] != key.shape[1]}
    try:
        choice = torch._fused_sdp_choice(query, key, value, attn_mask=mask, is_causal=mask is None, **options)
    except (NotImplementedError, RuntimeError):
        return None
    names = {int(backend): name for name, backend in SDPBackend.__members__.items()}
    return names[choice].split("_")[0].lower() if choice in names else None


def example(job, device):
    """(query, key, value, mask) of one sequence, as scaled_dot_product has them; the choice does not depend on more.

    With context parallelism a piece of the sequence attends to all before its end, and needs a mask.
    """
    model, tensor, length = job.model, job.layout.tensor, job.training.sequence_length
    queries = length if job.layout.context == 1 else length // (2 * job.layout.context)
    latent = part(model, "latent_attention")
    width, key_heads, value_width = head_size(model), model.kv_heads, head_size(model)
    if latent is not None:
        width, key_heads, value_width = latent.plain_size + latent.rotary_size, model.heads, latent.value_size
    sizes = ((queries, model.heads, width), (length, key_heads, width), (length, key_heads, value_width))
    options = {"dtype": compute_dtype(job.training.precision), "device": device, "requires_grad": True}
    tensors = [torch.empty(1, rows, heads // tensor, size, **options).transpose(1, 2) for rows, heads, size in sizes]
    masked = queries < length or part(model, "sliding_window") is not None
    return (*tensors, torch.empty(queries, length, dtype=torch.bool, device=device) if masked else None)

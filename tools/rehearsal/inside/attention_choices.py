"""Which fused attention torch chooses, and flash's in the place of cuDNN's, which needs a real device to be planned.

Flash takes no mask, and has tensors of the same shapes without one: the numbers mean nothing here.
"""

import torch
from torch.nn import functional

NAMES = {-1: "error", 0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}


def observe_choices(chosen):
    """Put into the dict `chosen`, for each shape of attention, what torch would take on the device."""
    real, real_choice = functional.scaled_dot_product_attention, torch._fused_sdp_choice
    torch.backends.cuda.enable_cudnn_sdp(False)

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        words = f"{list(query.shape)} {query.dtype} keys {list(key.shape[1:3])} dropout {dropout_p:g}"
        words += f" causal {is_causal}" if attn_mask is None else " masked"
        if words not in chosen and query.is_cuda:
            more = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
            chosen[words] = choice(query, key, value, attn_mask, more)
        if attn_mask is not None and chosen.get(words) == "cudnn":
            attn_mask = None
        return real(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    def chosen_before(query, key, value, attn_mask=None, **more):
        """A training may choose a kernel itself, for calls that it makes without torch's function."""
        words = f"{list(query.shape)} {query.dtype} keys {list(key.shape[1:3])}, chosen before"
        chosen[words] = choice(query, key, value, attn_mask, more)
        return real_choice(query, key, value, attn_mask=attn_mask, **more)

    def choice(query, key, value, mask, more):
        torch.backends.cuda.enable_cudnn_sdp(True)
        try:
            return NAMES.get(real_choice(query, key, value, attn_mask=mask, **more), "unknown")
        finally:
            torch.backends.cuda.enable_cudnn_sdp(False)

    functional.scaled_dot_product_attention, torch._fused_sdp_choice = attention, chosen_before

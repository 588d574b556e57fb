"""fp8 by torchao's tensorwise recipe: E4M3 forward and E5M2 for gradients, each scale from the tensor as it is now.

Weights are rounded from their float32 values. FSDP2 gathers them in 8 bits, with a scale that its ranks agree on.
"""

import torch
from torchao.float8 import Float8LinearConfig, convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp
from torchao.float8.float8_linear import Float8Linear


def replace_linears(model, job):
    config = Float8LinearConfig(enable_fsdp_float8_all_gather=job.layout.sharding_degree > 1)
    for block in model.layers.values():
        convert_to_float8_training(block, config=config)
    # A cast is ten kernels that each read the whole tensor, and two if compiled. Selective recomputation would not see
    # the products inside.
    if not job.tuning.compile and job.tuning.recompute != "selective":
        for layer in model.modules():
            if isinstance(layer, Float8Linear):
                layer.forward = torch.compile(layer.forward, dynamic=False)


def renew_scales(model):
    """The scales of all weights that FSDP2 gathers, by one exchange. Without it each weight has its own exchange."""
    precompute_float8_dynamic_scale_for_fsdp(model)

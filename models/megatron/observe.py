"""One step's activations by canonical name, for a comparison between frameworks."""


def observe(model, keep):
    """Have `keep(name, array)` called with what the next micro-batch makes of the first one's modules, once each.

    model: the GPTModel of one process. Arrays: float32 [micro-batch, sequence, ...]; Megatron's are sequence first.
    """
    modules = {"embedding": model.embedding, "final_norm": model.decoder.final_layernorm, "logits": model.output_layer}
    modules.update({f"layers.{index}": layer for index, layer in enumerate(model.decoder.layers)})
    for name, module in modules.items():
        _once(name, module, keep)


def _once(name, module, keep):
    def hook(_module, _inputs, output):
        handle.remove()
        tensor = output[0] if isinstance(output, tuple) else output
        keep(name, tensor.detach().transpose(0, 1).float().cpu().numpy())

    handle = module.register_forward_hook(hook)

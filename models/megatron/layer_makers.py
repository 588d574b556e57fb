"""Whose layers Megatron builds: transformer-engine's, which need an NVIDIA device, or its own local ones."""

import importlib.util


def by_engine(device_type):
    """Whether the layers are transformer-engine's. Without that package the local ones run on an NVIDIA device too."""
    return device_type == "cuda" and importlib.util.find_spec("transformer_engine") is not None

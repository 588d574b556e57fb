"""One cuDNN in a training: the one that came with torch, though the machine may have another release of its own."""

import ctypes
import importlib.util
from pathlib import Path


def load_own_cudnn() -> None:
    """Load every part of the cuDNN that lies beside torch; where torch has none of its own, do nothing.

    To be called before transformer-engine is imported, which takes the machine's parts of cuDNN where it finds some.
    The parts of two releases do not fit together: on an H100, a part of the machine's lacked a symbol of torch's.
    """
    if importlib.util.find_spec("nvidia") is None or (cudnn := importlib.util.find_spec("nvidia.cudnn")) is None:
        return
    for folder in cudnn.submodule_search_locations or ():
        for path in sorted(Path(folder, "lib").glob("libcudnn*.so.*")):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)

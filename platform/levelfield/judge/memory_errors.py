"""Which messages of libraries say that memory ran out, and which only have the words.

Workers know `out of memory` and few more. The names of a status are those of the libraries' headers (cublas_api.h,
cudnn_graph.h, hipblas.h, rocblas-types.h, miopen.h, mublas.h, cnnl.h, cnrt.h, acl/error_codes/rt_error_codes.h,
ur_api.h, ze_api.h); the other texts are of reports, which are named beside them.
"""

from __future__ import annotations

import re
from pathlib import Path

from levelfield.node.regular_files import read_last

_EXHAUSTED = re.compile(
    r"out[ _]of[ _](?:\w{1,9}[ _])?memory"  # of most; HIP_ERROR_OutOfMemory, UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY
    r"|OutOfMemory"
    r"|\w_STATUS_ALLOC_FAILED\b"  # cuBLAS, cuSOLVER, cuSPARSE, cuDNN 8, hipBLAS, muBLAS, CNNL
    r"|CUDNN_STATUS_INTERNAL_ERROR_(?:HOST|DEVICE)_ALLOCATION_FAILED"  # since cuDNN 9
    r"|(?:cuda|musa)ErrorMemoryAllocation"
    r"|rocblas_status_memory_error|miopenStatusAllocFailed"
    r"|Memory not available to allocate buffer"  # MIOpen (ROCm/MIOpen#47)
    r"|cnrtErrorNoMem|CNRT_RET_ERR_NOMEM"
    # CANN prints EL0004 (vllm-ascend#3141), its aclnn operators a number
    r"|\bEL0004\b|ACL_ERROR_RT_MEMORY_ALLOCATION|error code is 207001\b"
    r"|PT_DEVMEM Allocation failed"  # Gaudi (milabench#301)
    r"|RESOURCE[ _]EXHAUSTED: Failed to allocate"  # XLA (jax_privacy#10); gRPC's own are of messages too large
    r"|(?:can't|cannot) allocate memory"  # the host's, by torch, OneFlow (oneflow#9938) and the kernel
    r"|ResourceExhausted(?:Error)?\b.{0,20}Fail to alloc memory",  # Paddle on the host
    re.I,
)
_NOT_EXHAUSTED = re.compile(
    r"more than 1EB"  # a size that a broken collective or kernel left (nccl#1284, flash-linear-attention-npu#149)
    r"|static TLS block"  # a library that is loaded too late
    r"|(?:ibv_(?:exp_)?reg_\w{1,20}|fi_mr_reg)\b.{0,200}allocate memory"  # the limit of locked memory (nccl-tests#206)
    r"|register memory"  # the same (Mooncake#1382)
    r"|this is not a failure",  # an allocator that goes on (tensorflow's bfc_allocator)
    re.I,
)
_LOG_TAIL_BYTES = 2**16  # the message stands before the stacks of C++ and of Python


def is_memory_error(message: str) -> bool:
    """Return whether a message says that the memory of a device or of the host ran out."""
    return bool(_EXHAUSTED.search(message)) and not _NOT_EXHAUSTED.search(message)


def has_memory_words(message: str) -> bool:
    """Return whether a message has such words and another cause."""
    return bool(_NOT_EXHAUSTED.search(message))


def last_memory_line(log: Path) -> str | None:
    """Return the last line at the end of a log that says so; None without one."""
    try:
        lines = read_last(log, _LOG_TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.strip()[:300] for line in reversed(lines) if is_memory_error(line)), None)

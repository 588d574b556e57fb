"""The planner's model of a machine: rates from the vendor's data, and the links between devices."""

from __future__ import annotations

import re

from levelfield.errors import UsageError
from levelfield.predict.links import Link, MachineRates
from levelfield.specs.case import Precision
from levelfield.specs.constants import AttentionKernel
from levelfield.specs.host_rates import HostShare, Operation
from levelfield.specs.vendor import Achieved, Chip, PeakDtype

# A hop of a ring with large messages, from NCCL's own model (src/graph/tuning.cc, hwLatencies, Ring, Simple).
NODE_HOP_SECONDS, NETWORK_HOP_SECONDS = 3.4e-6, 14e-6
# The default without --network: one 200 Gb/s port for each device, as in NVIDIA's DGX A100.
ASSUMED_PORT_BYTES_PER_SECOND = 25e9
DEVICES_PER_NODE = 8
# The share of a matrix unit's peak that large products reach on a chip without a public measurement: that of most chips
# with one (0.80 on H100 and H200, 0.87 on A100).
REACHABLE = 0.8
MATRIX_DTYPES: tuple[PeakDtype, ...] = ("tf32", "bf16", "fp16", "fp8")
# The rate of attention's kernels over that of products on a chip without its own: between those of A100 and H100.
# cuDNN's is that of H100. The efficient one is assumed to be as fast as FlashAttention 1.
ATTENTION_SHARES: dict[AttentionKernel, float] = {
    "flash1": 0.4, "triton": 0.3, "flash2": 0.5, "flash3": 0.65, "cudnn": 0.65, "efficient": 0.4,
}  # fmt: skip

_NETWORK = re.compile(r"(?:(?P<ports>\d+)\s*x\s*)?(?P<rate>\d+(?:\.\d+)?)\s*(?P<unit>Gb|GB)/s", re.IGNORECASE)


def network_rate(text: str) -> float:
    """Return bytes per second of one node, each way, from `100Gb/s`, `8x400Gb/s` or `25GB/s`. Raises UsageError."""
    match = _NETWORK.fullmatch(text.strip())
    if match is None or not float(match["rate"]):
        raise UsageError(f"--network: found '{text}', expected a node's ports and rate, such as 100Gb/s or 8x400Gb/s")
    bits = 1 if match["unit"].endswith("B") else 8
    return int(match["ports"] or 1) * float(match["rate"]) * 1e9 / bits


def machine_of(
    chip: Chip,
    precision: Precision,
    devices_per_node: int,
    network_bytes_per_second: float | None,
    tf32: bool = False,
) -> MachineRates:
    """Return the machine of a chip. Raises UsageError when its peak or memory bandwidth is not public.

    tf32: products of 32-bit values round their operands to TF32. Values in memory and messages stay as wide.
    """
    dtype: PeakDtype = "tf32" if tf32 else "bf16" if precision == "fp8" else precision
    return MachineRates(
        matmul_flops_per_second=_rate(chip, dtype),
        fp8_matmul_flops_per_second=_rate(chip, "fp8") if precision == "fp8" else None,
        memory_bytes_per_second=_bandwidth(chip),
        node=_node_link(chip),
        network=Link(NETWORK_HOP_SECONDS, network_bytes_per_second) if network_bytes_per_second else None,
        devices_per_node=devices_per_node,
        pair_bytes_per_second=chip.interconnect.pair_each_way_bytes_per_second if chip.interconnect else None,
        attention={} if precision == "fp32" else _attention_rates(chip, dtype),
        sdpa=chip.sdpa,
    )


def host_machine(share: HostShare, precision: Precision) -> MachineRates:
    """Return the machine of the host's processors from the measured rates of a share. Raises UsageError."""
    measured = share.matmul_flops_per_second.get(precision)
    if not measured:
        known = ", ".join(share.matmul_flops_per_second)
        raise UsageError(f"this host's rate of {precision} products was not measured; known: {known}")
    return MachineRates(
        matmul_flops_per_second=max(measured.values()),
        fp8_matmul_flops_per_second=None,
        memory_bytes_per_second=share.memory_bytes_per_second,
        node=_fitted_link(share, "all_reduce", 2),
        network=None,
        devices_per_node=share.processes,
        operation_seconds=share.per_operation_seconds,
        gather=_fitted_link(share, "all_gather", 1),
        scatter=_fitted_link(share, "reduce_scatter", 1),
    )


def _fitted_link(share: HostShare, operation: Operation, rounds: int) -> Link | None:
    """Return the link that gives a ring with `rounds` its measured time; None for a single process."""
    messages, hops = share.collectives.get(operation), rounds * (share.processes - 1)
    if messages is None:
        return None
    return Link(messages.alpha_seconds / hops, messages.bytes_per_second * hops / share.processes)


def _rate(chip: Chip, dtype: PeakDtype) -> float:
    """Return the achievable rate in this dtype, or in the other 16-bit dtype if both peaks are equal, else the usual
    share of the peak. One efficiency then holds for chips with and without a measurement."""
    known = chip.achievable.get(dtype) or _twin(chip, dtype)
    if known is not None:
        return known.tflops * 1e12
    peak = chip.peaks.get(dtype)
    if peak is None:
        raise UsageError(_unknown(chip, f"peaks.{dtype}", f"{dtype} peak"))
    return peak.tflops * 1e12 * (REACHABLE if dtype in MATRIX_DTYPES else 1)


def _attention_rates(chip: Chip, dtype: PeakDtype) -> dict[AttentionKernel, float]:
    """Return the FLOP/s of attention's core by kernel: the chip's own, or the usual share of its products' rate."""
    usual = {kernel: share * _rate(chip, dtype) for kernel, share in ATTENTION_SHARES.items()}
    return usual | {kernel: known.tflops * 1e12 for kernel, known in chip.attention.items()}


def _twin(chip: Chip, dtype: PeakDtype) -> Achieved | None:
    """Return the achievable rate of the other 16-bit dtype, if both have the same peak."""
    twins: dict[PeakDtype, PeakDtype] = {"bf16": "fp16", "fp16": "bf16"}
    mine, other = chip.peaks.get(dtype), chip.peaks.get(twins.get(dtype, dtype))
    same = mine is not None and other is not None and mine.tflops == other.tflops
    return chip.achievable.get(twins.get(dtype, dtype)) if same else None


def _bandwidth(chip: Chip) -> float:
    if chip.memory_bandwidth_bytes_per_second is None:
        raise UsageError(_unknown(chip, "memory_bandwidth_bytes_per_second", "memory bandwidth"))
    return chip.memory_bandwidth_bytes_per_second


def _node_link(chip: Chip) -> Link | None:
    joined = chip.interconnect and chip.interconnect.each_way_bytes_per_second
    return Link(NODE_HOP_SECONDS, joined) if joined else None


def _unknown(chip: Chip, key: str, what: str) -> str:
    return (
        f"{chip.name}: found no published {what}, which the planner needs. Put `{key}`, with its source, into a "
        "private chips file (--chips, docs/private-chips.md)"
    )

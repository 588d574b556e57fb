"""The planner's model of a machine: rates from the vendor's data, and the links between devices."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from levelfield.errors import UsageError
from levelfield.specs.case import Precision
from levelfield.specs.constants import AttentionKernel
from levelfield.specs.host_rates import HostShare, Operation
from levelfield.specs.vendor import AchievedRate, Chip, Interconnect, Peak, PeakDtype

# A hop of a ring with large messages, from NCCL's own model (src/graph/tuning.cc, hwLatencies, Ring, Simple).
NODE_HOP_SECONDS, NETWORK_HOP_SECONDS = 3.4e-6, 14e-6
# Where neither the chip's data nor --network says it: one port of 200 Gb/s for each device.
ASSUMED_PORT_BYTES_PER_SECOND = 25e9
DEVICES_PER_NODE = 8
# The share of a matrix unit's peak that large products reach on a chip without a public measurement: that of most chips
# with one (0.80 on H100 and H200, 0.87 on A100). In fp8 it is 0.71 on H100 and 0.73 on H200. In NVFP4 it is that of a
# GB200: 4.6 times an H200's fp8 (NVIDIA's blog on cuBLAS 12.9), of which 1453 TFLOP/s were measured.
REACHABLE_SHARE, REACHABLE_SHARE_FP8, REACHABLE_SHARE_NVFP4 = 0.8, 0.72, 0.67
MATRIX_DTYPES: tuple[PeakDtype, ...] = ("bf16", "fp16", "fp8", "nvfp4")
# The rate of attention's kernels over that of products on a chip without its own: between those of A100 and H100.
# cuDNN's is that of H100. The efficient one is assumed to be as fast as FlashAttention 1.
ATTENTION_SHARES: dict[AttentionKernel, float] = {
    "flash1": 0.4, "triton": 0.3, "flash2": 0.5, "flash3": 0.65, "cudnn": 0.65, "efficient": 0.4,
}  # fmt: skip
_NETWORK = re.compile(r"(?:(?P<ports>\d+)\s*x\s*)?(?P<rate>\d+(?:\.\d+)?)\s*(?P<unit>Gb|GB)/s", re.IGNORECASE)
# The datasheet of NVIDIA's A100-SXM4-80GB. Only the order of layouts is taken from them, never a speed.
ASSUMED_SOURCE = "assumed: the rates of an A100-SXM4-80GB"
ASSUMED_TFLOPS, ASSUMED_BANDWIDTH, ASSUMED_LINK = 312.0, 2039e9, 300e9
_NOT_PUBLISHED_MESSAGE = (
    "{chip}: found no published {what}, which the planner needs. Put `{key}`, with its source, into vendor.yaml or a "
    "private chips file (--chips, docs/private-chips.md)"
)


def network_rate(text: str) -> float:
    """Return bytes per second of one node, each way, from `100Gb/s`, `8x400Gb/s` or `25GB/s`. Raises UsageError."""
    match = _NETWORK.fullmatch(text.strip())
    if match is None or not float(match["rate"]):
        raise UsageError(f"--network: found '{text}', expected a node's ports and rate, such as 100Gb/s or 8x400Gb/s")
    bits = 1 if match["unit"].endswith("B") else 8
    return int(match["ports"] or 1) * float(match["rate"]) * 1e9 / bits


def port_rate(chip: Chip) -> float:
    """Return the bytes per second, each way, that one device has of its node's network; assumed where unknown."""
    return chip.node.network_each_way_bytes_per_second if chip.node else ASSUMED_PORT_BYTES_PER_SECOND


def machine_rates(
    chip: Chip,
    precision: Precision,
    devices_per_node: int,
    network_bytes_per_second: float | None,
    product_dtype: PeakDtype | None = None,
) -> MachineRates:
    """Return the machine of a chip. Raises UsageError when its peak or memory bandwidth is not public.

    product_dtype: `nvfp4` for fp8 training with its products in NVFP4. None: products in the precision itself.
    """
    dtype: PeakDtype = "bf16" if precision == "fp8" else precision
    matmul = _achievable_rate(chip, dtype)
    fp8_matmul = _achievable_rate(chip, product_dtype or "fp8") if precision == "fp8" else None
    if chip.memory_bandwidth_bytes_per_second is None:
        key = "memory_bandwidth_bytes_per_second"
        raise UsageError(_NOT_PUBLISHED_MESSAGE.format(chip=chip.name, what="memory bandwidth", key=key))
    attention: dict[AttentionKernel, float] = {}  # the chip's own rates, or the usual share of its products' rate
    if precision != "fp32":
        attention = {kernel: share * matmul for kernel, share in ATTENTION_SHARES.items()}
        attention |= {kernel: rate.tflops * 1e12 for kernel, rate in chip.attention.items()}
    link_rate = chip.interconnect and chip.interconnect.each_way_bytes_per_second
    return MachineRates(
        matmul_flops_per_second=matmul,
        fp8_matmul_flops_per_second=fp8_matmul,
        memory_bytes_per_second=chip.memory_bandwidth_bytes_per_second,
        node=Link(NODE_HOP_SECONDS, link_rate) if link_rate else None,
        network=Link(NETWORK_HOP_SECONDS, network_bytes_per_second) if network_bytes_per_second else None,
        devices_per_node=devices_per_node,
        pair_bytes_per_second=chip.interconnect.pair_each_way_bytes_per_second if chip.interconnect else None,
        attention=attention,
        sdpa=chip.sdpa,
    )


def host_machine(share: HostShare, precision: Precision) -> MachineRates:
    """Return the machine of the host's processors from the measured rates of a share. Raises UsageError."""
    measured = share.matmul_flops_per_second.get(precision)
    if not measured:
        precisions = ", ".join(share.matmul_flops_per_second)
        raise UsageError(f"this host's rate of {precision} products was not measured; known: {precisions}")
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


def _achievable_rate(chip: Chip, dtype: PeakDtype) -> float:
    """Return the achievable rate in this dtype, or in the other 16-bit dtype if both peaks are equal, else the usual
    share of the peak. One efficiency then holds for chips with and without a measurement."""
    measured = chip.achievable.get(dtype) or _other_16_bit_rate(chip, dtype)
    if measured is not None:
        return measured.tflops * 1e12
    peak = chip.peaks.get(dtype)
    if peak is None:
        raise UsageError(_NOT_PUBLISHED_MESSAGE.format(chip=chip.name, what=f"{dtype} peak", key=f"peaks.{dtype}"))
    return peak.tflops * 1e12 * (assumed_share(chip, dtype) or 1)


def assumed_share(chip: Chip, dtype: PeakDtype) -> float | None:
    """Return the share of the peak that large products are taken to reach; None where a measurement is known, and for
    dtypes without matrix units. A chip that was measured to reach less than usual in 16 bits does so in fp8."""
    if dtype not in MATRIX_DTYPES or chip.achievable.get(dtype) or _other_16_bit_rate(chip, dtype):
        return None
    if dtype != "fp8":
        return REACHABLE_SHARE_NVFP4 if dtype == "nvfp4" else REACHABLE_SHARE
    rate, peak = chip.achievable.get("bf16"), chip.peaks.get("bf16")
    below_usual = rate.tflops / peak.tflops / REACHABLE_SHARE if rate and peak else 1.0
    return REACHABLE_SHARE_FP8 * min(1.0, below_usual)


def _other_16_bit_rate(chip: Chip, dtype: PeakDtype) -> AchievedRate | None:
    """Return the achievable rate of the other 16-bit dtype, if both have the same peak."""
    twins: dict[PeakDtype, PeakDtype] = {"bf16": "fp16", "fp16": "bf16"}
    own_peak, other_peak = chip.peaks.get(dtype), chip.peaks.get(twins.get(dtype, dtype))
    are_equal = own_peak is not None and other_peak is not None and own_peak.tflops == other_peak.tflops
    return chip.achievable.get(twins.get(dtype, dtype)) if are_equal else None


# Ring and tree costs follow Thakur, Rabenseifner and Gropp, 2005, sections 3 and 4. The faster one counts, because
# libraries choose it. Bytes are those of the whole tensor on one rank; seconds are those of one call.
@dataclass(frozen=True)
class Link:
    """The link between the ranks of a group: seconds of a hop, and bytes per second from one rank to the next."""

    hop_seconds: float
    bytes_per_second: float


def all_reduce_seconds(size: float, ranks: int, link: Link) -> float:
    """Return the faster of ring, 2 (n-1)/n of the bytes in 2 (n-1) hops, and tree, 2 x the bytes in 2 log2 n hops."""
    if ranks == 1:
        return 0.0
    ring = 2 * gather_seconds(size, ranks, link)
    tree = 2 * math.ceil(math.log2(ranks)) * link.hop_seconds + 2 * size / link.bytes_per_second
    return min(ring, tree)


def gather_seconds(size: float, ranks: int, link: Link) -> float:
    """Return the time of an all-gather or reduce-scatter of `size` bytes in all: (n-1)/n of them in n-1 hops."""
    return (ranks - 1) * (link.hop_seconds + size / ranks / link.bytes_per_second)


def send_seconds(size: float, link: Link) -> float:
    """Return the time of a message from one rank to another."""
    return link.hop_seconds + size / link.bytes_per_second


@dataclass(frozen=True)
class MachineRates:
    """The rates of devices and links. Rates are per device: FLOP/s, bytes/s. None: unknown."""

    matmul_flops_per_second: float  # the achievable rate if known, else the peak
    fp8_matmul_flops_per_second: float | None  # the same in fp8, or None
    memory_bytes_per_second: float
    node: Link | None  # the link between devices of one node
    network: Link | None  # between nodes, bytes per second of one whole node
    devices_per_node: int
    pair_bytes_per_second: float | None = None  # to a single other device, when only some links lead there
    operation_seconds: float = 0.0  # the cost of a launch beside its work
    # The measured link of gathers, and of reduce-scatters, when it differs from that of all-reduces.
    gather: Link | None = None
    scatter: Link | None = None
    # FLOP/s of attention's core by kernel, forward and backward together; without an entry it has the rate of products.
    attention: Mapping[AttentionKernel, float] = field(default_factory=dict)
    sdpa: tuple[AttentionKernel, ...] = ()  # torch's fused kernels on the chip, in its order


class UnknownLink(ValueError):
    """The layout needs a link whose rate is unknown. The message names the link."""


def fill_assumed_rates(chip: Chip, precision: Precision, devices: int) -> tuple[Chip, tuple[str, ...]]:
    """Return the chip with every rate that the planner needs, and the names of those that are assumed.

    One device needs no links.
    """
    dtypes: tuple[PeakDtype, ...] = ("bf16", "fp8") if precision == "fp8" else (precision,)
    missing = [dtype for dtype in dtypes if dtype not in chip.peaks]
    changes: dict[str, object] = {}
    if missing:
        changes["peaks"] = {
            **chip.peaks,
            **{dtype: Peak(tflops=ASSUMED_TFLOPS, source=ASSUMED_SOURCE) for dtype in missing},
        }
    if chip.memory_bandwidth_bytes_per_second is None:
        changes["memory_bandwidth_bytes_per_second"] = ASSUMED_BANDWIDTH
    if devices > 1 and (chip.interconnect is None or chip.interconnect.each_way_bytes_per_second is None):
        changes["interconnect"] = Interconnect(
            description=ASSUMED_SOURCE, each_way_bytes_per_second=ASSUMED_LINK, source=ASSUMED_SOURCE
        )
    names = {"peaks": f"peak of {', '.join(missing)}", "interconnect": "links"}
    return chip.model_copy(update=changes), tuple(names.get(key, "memory bandwidth") for key in changes)


def fit_messages(seconds_by_bytes: Mapping[int, float]) -> tuple[float, float]:
    """Return alpha in seconds, and bytes per second, of a message's time alpha + bytes / rate (Hockney, 1994).

    The fit minimises the squares of relative errors. Absolute errors would fit only the largest of the sizes, which go
    from a kilobyte to megabytes. Raises ValueError for fewer than two sizes, for invalid times, and for times that do
    not grow with the size.
    """
    if len(seconds_by_bytes) < 2:
        raise ValueError(f"found times of {len(seconds_by_bytes)} message size(s), expected two or more")
    if invalid := [t for t in seconds_by_bytes.values() if not (t > 0 and math.isfinite(t))]:
        raise ValueError(f"found a message of {invalid[0]} s, expected a positive time")
    # the least sum of ((alpha + n b) / t - 1)^2: alpha u + b v is near 1, u = 1/t, v = n/t
    u = [1 / t for t in seconds_by_bytes.values()]
    v = [n / t for n, t in seconds_by_bytes.items()]
    uu, vv = sum(x * x for x in u), sum(y * y for y in v)
    uv, su, sv = sum(x * y for x, y in zip(u, v, strict=True)), sum(u), sum(v)
    determinant = uu * vv - uv * uv
    alpha, per_byte = (su * vv - sv * uv) / determinant, (sv * uu - su * uv) / determinant
    if not (alpha > 0 and per_byte > 0):
        raise ValueError(f"larger messages do not take longer: alpha {alpha:.3g} s, {per_byte:.3g} s/byte")
    return alpha, 1 / per_byte

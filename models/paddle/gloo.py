"""What fleet's tensor and pipeline parallelism needs on the cpu beyond Paddle 3.3.1. Not loaded on an accelerator.

Paddle's process groups work over gloo, but fleet reaches some of them by operations that exist for accelerators only,
and makes groups whose rendezvous disturb each other. Each function here replaces one of these, with the same meaning.
"""

from __future__ import annotations

import itertools
import os
import socket
from typing import TYPE_CHECKING, Any

import paddle
import paddle.distributed as dist
from paddle.autograd import PyLayer
from paddle.base import core
from paddle.distributed import collective
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.meta_parallel.pp_utils import p2p_communication

if TYPE_CHECKING:
    from collections.abc import Callable

    from paddle.autograd import PyLayerContext
    from paddle.distributed.collective import Group
    from paddle.distributed.fleet.base.topology import CommunicateTopology


def complete_fleet() -> None:
    """Replace what fleet lacks on the cpu: once, before the first group is made."""
    dist.ParallelEnv._device_id = 0  # set for accelerators only, and read by PipelineLayer
    mp_ops._c_identity, mp_ops._mp_allreduce = copy_to_ranks, sum_over_ranks
    mp_ops._c_softmax_with_cross_entropy = split_cross_entropy
    collective._new_process_group_impl = SeparateStores(collective._new_process_group_impl)


class CopyToRanks(PyLayer):
    """The identity; its gradient is summed over the group. The kernel c_identity is missing on the cpu."""

    @staticmethod
    def forward(ctx: PyLayerContext, tensor: paddle.Tensor, group: Group) -> paddle.Tensor:
        ctx.group = group
        return tensor.clone()

    @staticmethod
    def backward(ctx: PyLayerContext, gradient: paddle.Tensor) -> paddle.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient


class SumOverRanks(PyLayer):
    """The sum over the group; its gradient is the identity."""

    @staticmethod
    def forward(ctx: PyLayerContext, tensor: paddle.Tensor, group: Group) -> paddle.Tensor:
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: PyLayerContext, gradient: paddle.Tensor) -> paddle.Tensor:
        return gradient.clone()


class SplitCrossEntropy(PyLayer):
    """The cross-entropy of each row, [..., 1], where the vocabulary's columns are split over the group.

    The kernel c_softmax_with_cross_entropy is missing on the cpu. logits: [..., this rank's columns]; targets [..., 1].
    """

    @staticmethod
    def forward(ctx: PyLayerContext, logits: paddle.Tensor, targets: paddle.Tensor, group: Group) -> paddle.Tensor:
        largest = logits.max(-1, keepdim=True)  # [..., 1]
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        shifted = logits - largest
        exponentials, (index, is_local) = shifted.exp(), local_targets(targets, logits.shape[-1], group)
        target = paddle.take_along_axis(shifted, index, -1) * is_local  # [..., 1]: the target's logit
        sums = paddle.stack((exponentials.sum(-1, keepdim=True), target))
        dist.all_reduce(sums, group=group)
        ctx.save_for_backward(exponentials / sums[0], index, is_local)
        return sums[0].log() - sums[1]

    @staticmethod
    def backward(ctx: PyLayerContext, gradient: paddle.Tensor) -> paddle.Tensor:
        softmax, index, is_local = ctx.saved_tensor()
        return paddle.put_along_axis(softmax, index, -is_local, -1, reduce="add") * gradient


def local_targets(targets: paddle.Tensor, columns: int, group: Group) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return each target's column on this rank and 1.0; column 0 and 0.0 for a target of another rank."""
    index = targets - group.rank * columns
    is_local = paddle.logical_and(index >= 0, index < columns)
    return paddle.where(is_local, index, paddle.zeros_like(index)), is_local.astype("float32")


def split_cross_entropy(
    logits: paddle.Tensor,
    label: paddle.Tensor,
    group: Group | None = None,
    return_softmax: bool = False,
    ignore_index: int = -100,
) -> paddle.Tensor:
    targets = label if label.ndim == logits.ndim else label.unsqueeze(-1)
    return SplitCrossEntropy.apply(logits, targets, group)


def copy_to_ranks(
    tensor: paddle.Tensor, group: Group | None = None, skip_c_identity_dynamic: bool = False
) -> paddle.Tensor:
    return CopyToRanks.apply(tensor, group)


def sum_over_ranks(tensor: paddle.Tensor, op: Any = None, group: Group | None = None, **_options: Any) -> paddle.Tensor:
    return SumOverRanks.apply(tensor, group)


class Neighbours:
    """Sends and receives between pipeline stages, each pair of them in a group of its own.

    gloo has no calculation stream to send on, and Paddle numbers a gloo group's messages by the operations that a rank
    has taken part in: in a group of more than two stages, a sender and its receiver count differently and never meet.
    """

    def __init__(self, topology: CommunicateTopology) -> None:
        rank = dist.get_rank()
        self.pairs: dict[int, Group] = {}  # by the other one's rank
        for stages in topology.get_comm_list("pipe"):
            for pair in itertools.pairwise(stages):
                group = dist.new_group(list(pair))  # by every rank, also by those that are not in it
                if rank in pair:
                    self.pairs[sum(pair) - rank] = group
        p2p_communication._send_on_calc_stream, p2p_communication._recv_on_calc_stream = self.send_on, self.receive_on
        dist.send, dist.recv = self.send, self.receive  # the shapes, which go before the first tensor

    def send(self, tensor: paddle.Tensor, dst: int, group: Group | None = None) -> None:
        pair = self.pairs[dst]
        pair.process_group.send(tensor, pair.get_group_rank(dst), True)

    def receive(self, tensor: paddle.Tensor, src: int, group: Group | None = None) -> None:
        pair = self.pairs[src]
        pair.process_group.recv(tensor, pair.get_group_rank(src), True)

    def send_on(self, tensor: paddle.Tensor, group: Group, dst: int, nranks: int = 1, rank_id: int = 0) -> None:
        self.send(tensor, dst)

    def receive_on(self, tensor: paddle.Tensor, group: Group, src: int, nranks: int = 1, rank_id: int = 0) -> None:
        self.receive(tensor, src)


class SeparateStores:
    """Makes each process group over a separate store: in one store the rendezvous of several groups collide."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self.opened: list[core.TCPStore] = []

    def __call__(
        self,
        backend: str,
        store: core.TCPStore,
        rank: int,
        world_size: int,
        group_name: str,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        key = f"levelfield/{group_name}"  # every rank counts all groups, so a name is one group's
        if rank == 0:
            host, port = reachable_address(), free_port()
            store.set(key, f"{host}:{port}".encode())  # first: opening the store waits for all its members
        else:
            host, text = store.get(key).decode().rsplit(":", 1)
            port = int(text)
        separate = core.TCPStore(host, port, rank == 0, world_size)
        self.opened.append(separate)  # a group does not keep its store alive
        return self.make(backend, separate, rank, world_size, group_name, *arguments, **options)


def reachable_address() -> str:
    """Return the address by which others reach this machine: the one from which it reaches the master."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))  # sends nothing
        return str(probe.getsockname()[0])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])

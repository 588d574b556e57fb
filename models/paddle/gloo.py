"""What fleet's tensor and pipeline parallelism needs on the cpu beyond Paddle 3.3.1. Not loaded on an accelerator.

Paddle's process groups work over gloo, but fleet reaches some of them by operations that exist for accelerators only,
and makes groups whose rendezvous disturb each other. Each function here replaces one of these, with the same meaning.
"""

import itertools
import os
import socket

import paddle
import paddle.distributed as dist
from paddle.autograd import PyLayer
from paddle.base import core
from paddle.distributed import collective
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.meta_parallel.pp_utils import p2p_communication


def complete_fleet():
    """Replace them, once, before the first group is made."""
    dist.ParallelEnv._device_id = 0  # set for accelerators only, and read by PipelineLayer
    mp_ops._c_identity, mp_ops._mp_allreduce = copy_to_ranks, sum_over_ranks
    mp_ops._c_softmax_with_cross_entropy = split_cross_entropy
    collective._new_process_group_impl = OwnStores(collective._new_process_group_impl)


class CopyToRanks(PyLayer):
    """The identity; its gradient is summed over the group. The kernel c_identity is missing on the cpu."""

    @staticmethod
    def forward(ctx, tensor, group):
        ctx.group = group
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient


class SumOverRanks(PyLayer):
    """The sum over the group; its gradient is the identity."""

    @staticmethod
    def forward(ctx, tensor, group):
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone()


class SplitCrossEntropy(PyLayer):
    """The cross-entropy of each row, [..., 1], where the vocabulary's columns are split over the group.

    The kernel c_softmax_with_cross_entropy is missing on the cpu. logits: [..., this rank's columns]; targets [..., 1].
    """

    @staticmethod
    def forward(ctx, logits, targets, group):
        largest = logits.max(-1, keepdim=True)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        shifted = logits - largest
        exponentials, (index, here) = shifted.exp(), local_targets(targets, logits.shape[-1], group)
        target = paddle.take_along_axis(shifted, index, -1) * here
        sums = paddle.stack((exponentials.sum(-1, keepdim=True), target))
        dist.all_reduce(sums, group=group)
        ctx.save_for_backward(exponentials / sums[0], index, here)
        return sums[0].log() - sums[1]

    @staticmethod
    def backward(ctx, gradient):
        softmax, index, here = ctx.saved_tensor()
        return paddle.put_along_axis(softmax, index, -here, -1, reduce="add") * gradient


def local_targets(targets, columns, group):
    """Each target's column on this rank, and 1.0 where it is here; column 0 and 0.0 where it is not."""
    index = targets - group.rank * columns
    here = paddle.logical_and(index >= 0, index < columns)
    return paddle.where(here, index, paddle.zeros_like(index)), here.astype("float32")


def split_cross_entropy(logits, label, group=None, return_softmax=False, ignore_index=-100):
    targets = label if label.ndim == logits.ndim else label.unsqueeze(-1)
    return SplitCrossEntropy.apply(logits, targets, group)


def copy_to_ranks(tensor, group=None, skip_c_identity_dynamic=False):
    return CopyToRanks.apply(tensor, group)


def sum_over_ranks(tensor, op=None, group=None, **_options):
    return SumOverRanks.apply(tensor, group)


class Neighbours:
    """Sends and receives between pipeline stages, each pair of them in a group of its own.

    gloo has no calculation stream to send on, and Paddle numbers a gloo group's messages by the operations that a rank
    has taken part in: in a group of more than two stages, a sender and its receiver count differently and never meet.
    """

    def __init__(self, topology):
        self.pairs, rank = {}, dist.get_rank()
        for stages in topology.get_comm_list("pipe"):
            for pair in itertools.pairwise(stages):
                group = dist.new_group(list(pair))  # by every rank, also by those that are not in it
                if rank in pair:
                    self.pairs[sum(pair) - rank] = group
        p2p_communication._send_on_calc_stream, p2p_communication._recv_on_calc_stream = self.pass_on, self.take
        dist.send, dist.recv = self.send, self.receive  # the shapes, which go before the first tensor

    def send(self, tensor, dst, group=None):
        pair = self.pairs[dst]
        pair.process_group.send(tensor, pair.get_group_rank(dst), True)

    def receive(self, tensor, src, group=None):
        pair = self.pairs[src]
        pair.process_group.recv(tensor, pair.get_group_rank(src), True)

    def pass_on(self, tensor, group, dst, nranks=1, rank_id=0):
        self.send(tensor, dst)

    def take(self, tensor, group, src, nranks=1, rank_id=0):
        self.receive(tensor, src)


class OwnStores:
    """Makes each process group over a store of its own: in one store the rendezvous of several groups collide."""

    def __init__(self, make):
        self.make, self.opened = make, []

    def __call__(self, backend, store, rank, world_size, group_name, *arguments, **options):
        key = f"levelfield/{group_name}"  # every rank counts all groups, so a name is one group's
        if rank == 0:
            host, port = own_address(), free_port()
            store.set(key, f"{host}:{port}".encode())  # first: opening the store waits for all its members
        else:
            host, port = store.get(key).decode().rsplit(":", 1)
        own = core.TCPStore(host, int(port), rank == 0, world_size)
        self.opened.append(own)  # a group does not keep its store alive
        return self.make(backend, own, rank, world_size, group_name, *arguments, **options)


def own_address():
    """The address of this machine that the others reach it by: the one that it reaches the master from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))  # sends nothing
        return probe.getsockname()[0]


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
